//! The node lab: the programs that play apps, upstreams and callers, and the scenario that is checked from outside.
//!
//! Reading order: `programs` (what plays a part), `lab` (what sets the stage), `demo` (the scenario and its rows),
//! `bench` (the supervisor against its peers).

#[cfg(feature = "host")]
pub mod bench;
#[cfg(feature = "host")]
pub mod demo;
#[cfg(feature = "host")]
pub mod lab;
pub mod programs;
#[cfg(feature = "host")]
pub mod suite;
#[cfg(feature = "vsock-check")]
pub mod vsock_check;
