//! The audit log: one JSON line per connection and per decision, each written exactly once.
//!
//! A [`Record`] is opened when something starts, filled by the stages it passes, and written when it is dropped, also when
//! its task is cancelled or panics. Lines go through the thread's own buffer to one writer thread; a denial is handed over
//! at once, the rest every [`FLUSH_EVERY`] or [`FLUSH_BYTES`]. When the log cannot be written, [`AuditSink::is_writable`]
//! turns false and no new request is allowed.

mod line;
mod record;
mod sink;

pub use line::{Dest, Kind, Line, Verdict};
pub use record::Record;
pub use sink::{AuditSink, FLUSH_BYTES, FLUSH_EVERY};
