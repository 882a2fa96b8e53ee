//! What the node knows: its endpoints and its policy. Written by the control service, read by every worker.

mod arrival;
mod bucket;
pub mod budget;
pub mod destinations;
mod echoes;
pub mod endpoint;
pub mod handshakes;
mod limits;
pub mod names;
pub mod pace;
pub mod policy;
pub mod port;
pub mod refusals;
pub mod room;
pub mod table;
pub mod way;
