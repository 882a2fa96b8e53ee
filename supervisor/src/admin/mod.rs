//! The operator's socket: what the node knows, and why it decided as it did.
//!
//! One JSON object a line, one answer a line ([`protocol`]). `socket` makes the Unix socket and says who may talk,
//! `server` serves it within bounds, `answers` and `replay` produce the answers, `audit_log` finds a line in the audit log.
//! Nothing here changes what the node does.

mod answers;
mod audit_log;
pub mod protocol;
mod replay;
mod server;
mod socket;
mod view;

use std::path::PathBuf;
use std::sync::Arc;

use crate::bundles::BundleFeed;
use crate::conn::Registry;
use crate::credentials::Credentials;
use crate::state::policy::PolicyCell;
use crate::state::table::EndpointTable;

pub use server::{DEADLINE, MAX_CLIENTS, MAX_LINE, serve};
pub use socket::{AdminSocket, SocketError};

/// What the socket can tell about.
pub struct AdminHandles {
    /// The node's id.
    pub node: String,
    /// Endpoints.
    pub endpoints: Arc<EndpointTable>,
    /// The active policy.
    pub policy: Arc<PolicyCell>,
    /// Where it comes from, and earlier revisions.
    pub feed: Arc<BundleFeed>,
    /// The audit log that `replay` searches.
    pub audit_file: PathBuf,
    /// Live connections.
    pub connections: Arc<Registry>,
    /// The credentials of the node.
    pub credentials: Arc<Credentials>,
    /// What the supervisor can do for rules of egress that need it.
    pub abilities: Vec<Arc<str>>,
    /// What else must hold before the node is ready, besides an active policy.
    pub checks: Vec<Check>,
    /// What an operator should know although the node is ready: the dev identity source, lab exceptions.
    pub warnings: Vec<String>,
    /// What comes and goes of the same kind.
    pub watches: Vec<Watch>,
}

/// Says what an operator should know now, in whole sentences.
pub type Watch = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// One condition of readiness.
pub struct Check {
    /// Short name, such as `audit`.
    pub name: &'static str,
    /// `Err` says what is wrong and what to do about it.
    pub probe: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
}
