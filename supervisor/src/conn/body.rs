//! Bodies on their way through: counted, and tied to what must happen at their end.

mod error;
mod reply;
mod request;

pub use self::error::BodyError;
pub use self::reply::{Forwarded, InFlight, Lease, ReplyBody};
pub use self::request::{Inbound, Meter, RequestBody};
pub use super::flow::BodyRules;
