//! Makes every socket of the supervisor, and says which addresses they may go to.

pub mod direct;
pub mod guard;
pub mod listen;
pub mod outbound;
pub mod ping;
pub mod pressure;
pub mod privileges;
pub mod resolve;
pub mod routes;
pub mod stream;
