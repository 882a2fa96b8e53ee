//! gRPC through a port: callers and apps that speak HTTP/2 frame by frame, judged by what each side received.

#[path = "../data/mod.rs"]
mod data;

mod calls;
mod connections;
mod refusals;
mod support;
