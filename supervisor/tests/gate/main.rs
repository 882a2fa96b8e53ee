//! The gate on raw bytes (numbers in the names are items of the check list of request smuggling), and around a stream with hyper
//! behind it.
// covers: A7a (request gate)

mod agreement;
mod answers;
mod cuts;
mod framing;
mod hyper_client;
mod hyper_server;
mod raw;
mod requests;
mod server;
mod targets;
