//! What crosses a border of nova-runtime, and nothing else: the control protocol with novalet (feature `grpc`), the
//! relay's hello and records between supervisor and guest, and the newtypes that both sides name things with.
//!
//! Everything here but `framed` (feature `io`) is sans-io: bytes in, values out. Parsers accept exactly what they document
//! and refuse the rest.

pub mod frame;
#[cfg(feature = "io")]
pub mod framed;
#[cfg(feature = "grpc")]
pub mod health;
pub mod hello;
pub mod icmp;
pub mod ids;
pub mod link;
pub mod trust;

/// Generated from `proto/control.proto`: the contract between novalet (server) and the supervisor (client).
#[cfg(feature = "grpc")]
pub mod control {
    #![allow(missing_docs, unreachable_pub, reason = "generated code")]
    #![allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
    tonic::include_proto!("nova.supervisor.v1");
}
