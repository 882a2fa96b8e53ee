//! The HTTP side of egress against the real program: every way out, every case on each of them. What the upstream really got
//! is the judge.

#![allow(clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../data/mod.rs"]
mod data;

mod cases;
mod expect;
mod http2;
mod matrix;
mod refusals;
mod socks;
mod tunnels;
mod upgrades;
mod ways;
mod world;
