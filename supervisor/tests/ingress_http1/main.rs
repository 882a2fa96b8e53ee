//! HTTP/1 at an ingress port, judged from outside: raw bytes go in, and what counts is which bytes the app behind the port
//! received and which the caller read. Numbers in names are those of the check list of request identity and smuggling.

#![allow(clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../data/mod.rs"]
mod data;

mod answers;
mod attacks;
mod broken_answers;
mod headers;
mod identity;
mod messages;
mod paths;
mod random;
mod secrecy;
mod smuggling;
mod support;
