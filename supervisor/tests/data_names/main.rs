//! Names and addresses of calls out, against a real DNS server that answers as the test wants and counts its questions.

#![allow(clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../data/mod.rs"]
mod data;
#[path = "../unshared/mod.rs"]
mod unshared;

mod addresses;
mod dials;
mod dns;
mod hostile;
mod identity;
mod namespace;
mod ports;
mod six;
mod spelling;
mod support;
