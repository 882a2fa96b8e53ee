//! What the node knows: its endpoints and its policy. Written by the control service, read by every worker.

pub mod endpoint;
pub mod handshakes;
pub mod policy;
pub mod table;
