//! Real OPA against us: decisions of every engine, bundles in both directions, and policies that mean harm.
//!
//! The OPA is the one that `cargo xtask setup` builds. Without it a test says SKIPPED, except in CI, where it fails.

#![allow(clippy::panic, reason = "a test that cannot go on")]

mod budget;
mod bundles;
mod decisions;
mod generator;
mod opa;
mod random_inputs;
mod random_rules;
mod wasm_file;
mod worlds;
