//! Bodies on their way through: counted, and tied to what must happen at their end.

mod reply;
mod request;

pub use self::reply::{Forwarded, InFlight, Lease, ReplyBody};
pub use self::request::{BodyError, Inbound, Meter, RequestBody};
