//! The trusted supervisor of a node: every byte into or out of a workload passes through it.
//!
//! Reading order: [`app`] (what is started), [`ingress`] and [`egress`] (what happens to a connection), [`decide`] (the one
//! decision point), [`dial`] (what a permit opens), [`audit`] (what is recorded).

pub mod accept;
pub mod admin;
pub mod app;
pub mod audit;
pub mod bundles;
mod causes;
pub mod config;
pub mod conn;
pub mod control;
pub mod copy;
pub mod credentials;
pub mod decide;
pub mod dial;
pub mod egress;
pub mod fetch;
pub mod gate;
pub mod guestlink;
pub mod headers;
pub mod identity;
pub mod ingress;
pub mod net;
pub mod reason;
pub mod serve;
pub mod state;
pub mod sys;
pub mod tls;
pub mod tokens;
