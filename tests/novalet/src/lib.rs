//! novalet-ref: a reference node agent that plays novalet for real.
//!
//! ```text
//! placements.yaml --load--> pods --tell--> table --SyncEndpoints--> supervisor
//!                             |              ^                          |
//!                             v              +------- acks -------------+
//!                           guests: microVM (QEMU + vhost-device-vsock) or processes behind the emulated muxer
//! operator --novalet.sock--> status, drain, restart, wait, stop
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`table`], [`server`] | what supervisors are told and answer; the gRPC side of it |
//! | [`pods`], [`ipam`], [`routes`], [`history`] | one task per pod, addresses with a cooldown, what happened in which order |
//! | [`guest`], [`launch`], [`image`], [`mux`] | guests as owned children, their namespaces, image and muxer |
//! | [`load`], [`placement`], [`watch`] | the placements file |
//! | [`operator`], [`cli`], [`app`] | how people and programs use it |

mod agent;
pub mod app;
pub mod cli;
pub mod guest;
pub mod history;
pub mod image;
mod ingress;
pub mod ipam;
pub mod launch;
pub mod load;
pub mod mux;
pub mod operator;
pub mod placement;
pub mod pods;
pub mod routes;
pub mod server;
pub mod sockets;
pub mod table;
pub mod watch;
