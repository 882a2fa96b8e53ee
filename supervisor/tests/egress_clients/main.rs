//! Programs that apps call the world with, through the proxy port of a real relay and the real supervisor. Each must get what
//! a rule grants, over HTTP and over TLS of its own, and read a refusal for what it is.
//!
//! A program that is not installed is named in a line that says SKIPPED; where `NOVA_CI` is set it is a failure.

#![allow(clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../data/mod.rs"]
mod data;
#[path = "../clients/programs.rs"]
mod programs;
#[path = "../relay/mod.rs"]
mod relay;

mod languages;
mod libraries;
mod sockets;
mod stage;
mod tools;
