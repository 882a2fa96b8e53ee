//! Carries what was permitted between two connections: bytes as they are, or HTTP messages re-made from parsed values.

mod exchange;
mod splice;
mod stream;

pub use exchange::{Answered, Forward, forward, upgrade};
pub use stream::{Bounds, Outcome, both_ways};
