//! Which endpoints this node serves, and how far each may serve.
//!
//! ```text
//!  client (novalet's stream) --\                                   /--> lifecycle task of endpoint a --> data plane
//!                               >-- Update --> service --(table)--<
//!  file   (endpoints.yaml)   --/      ^                            \--> lifecycle task of endpoint b --> ...
//!                                     '---- a task ended ----------/        |
//!  client <------------------------------------ board <--- phases and refusals
//! ```
//!
//! * [`table`] holds every rule of the control protocol and does no input or output.
//! * [`service`] owns the table and one [`lifecycle`] task per endpoint.
//! * [`convert`] is the only place that sees generated gRPC types besides [`client`].
//! * [`plane`] is what the lifecycle needs from the rest of the program, as traits.

pub mod board;
pub mod client;
pub mod convert;
pub mod file;
pub mod lifecycle;
mod lost;
pub mod order;
pub mod plane;
pub mod service;
pub mod stream;
pub mod table;
pub mod why;

pub use self::board::Board;
pub use self::order::{Key, Order, Rejection, Row, Update, Wanted};
pub use self::plane::{DataPlane, Means, PolicyView, RouteOwner, Timing};
pub use self::service::Control;
pub use self::why::{Phase, Why};
