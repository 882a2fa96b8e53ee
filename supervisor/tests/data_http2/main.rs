//! Callers that speak HTTP/2, frame by frame; what they may do is judged by what the app received.

#[path = "../data/mod.rs"]
mod data;

mod ends;
mod floods;
mod flow;
mod items;
mod malformed;
mod requests;
mod support;
