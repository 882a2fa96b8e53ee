//! The trusted supervisor of a node: every byte into or out of a workload passes through it.
//!
//! Reading order: `app` (what is started), `ingress` and `egress` (what happens to a connection), `decide` (the one
//! decision point), `dial` (what a permit opens), `audit` (what is recorded).

pub mod config;
pub mod identity;
pub mod gate;
pub mod headers;
pub mod reason;
pub mod sys;
pub mod tls;
