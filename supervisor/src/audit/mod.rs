//! The audit log: one JSON line per connection and per decision, each written exactly once.
//!
//! A [`Record`] is opened when something starts, filled by the stages it passes, and written when it is dropped, also when
//! its task is cancelled or panics. Lines go through the thread's own buffer to one writer thread; a denial is handed over
//! at once, the rest every [`FLUSH_EVERY`] or [`FLUSH_BYTES`]. When the log cannot be written, [`AuditSink::is_writable`]
//! turns false and no new request is allowed.
//!
//! `line` is the format, `record` what the stages fill, `sink` a thread's side, `writer` the other, `output` its file, which is
//! followed when it is moved, `health` what everybody may know of it; `flood` counts denials
//! beyond an endpoint's budget, `opa` writes the same decisions in the form of OPA's decision log.

mod flood;
mod health;
mod line;
mod opa;
mod output;
mod record;
mod sink;
mod writer;

pub use line::{Dest, Kind, Line, Verdict};
pub use output::takes_lines;
pub use record::Record;
pub use sink::{AuditSink, FLUSH_BYTES, FLUSH_EVERY};
