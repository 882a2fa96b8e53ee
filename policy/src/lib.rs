//! Who may talk to whom: rules, compiler, signed bundles, decisions and their explanations.
//!
//! ```text
//!   rules.yaml + endpoints.yaml --compile--> NodeData --publish--> signed bundle
//!                                                                      |
//!   Input --Evaluator::decide--> Decision <--Policy::load-- VerifiedBundle <--verify
//! ```
//!
//! The decision core (`path`, `host`, `input`, `engine`, `explain`) has no tokio, no clock and no logging; whoever calls
//! it passes the time in.

pub mod bundle;
pub mod compile;
pub mod data;
pub mod decision;
pub mod engine;
pub mod explain;
pub mod files;
pub mod gate;
pub mod host;
pub mod import;
pub mod input;
mod judge;
pub mod never;
pub mod pair;
pub mod path;
mod port;
#[cfg(test)]
mod properties;
pub mod publish;
pub mod report;
pub mod rules;
#[cfg(test)]
mod testing;
pub mod workloads;
mod yaml;

pub use bundle::{BundleError, SigningKey, VerifiedBundle, VerifyKeys, VerifyOptions, verify};
pub use data::{EgressTarget, NodeData, UpstreamTls};
pub use decision::{Decision, DecisionReason};
pub use engine::{Evaluator, LoadError, Policy};
pub use explain::{Explanation, explain};
pub use host::{Authority, Host, HostError};
pub use input::{Direction, Input, OWN_CA, Peer, Phase};
pub use path::{CanonicalPath, PathError};
pub use yaml::Position;
