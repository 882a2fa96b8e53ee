//! Bodies on their way through: counted, and tied to what must happen at their end.

mod error;
mod expect;
mod reply;
mod request;
mod rest;

pub use self::error::BodyError;
pub use self::expect::GoAhead;
pub use self::reply::{Forwarded, InFlight, Lease, ReplyBody};
pub use self::request::{Inbound, Meter, ReadError, RequestBody};
pub use self::rest::Rest;
pub use super::flow::BodyRules;
