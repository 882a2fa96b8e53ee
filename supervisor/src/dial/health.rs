//! The one dial without a permit: asks a guest's own app whether it answers. Nothing of anybody else is sent.

mod grpc;

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::guestlink::{self, GuestStream, LinkPorts};
use crate::reason::Reason;
use crate::state::endpoint::{EndpointSpec, HealthCheck, PortSpec};

/// Enough for a status line.
const ANSWER_BYTES: usize = 64;

/// Checks one port: the app accepts, and says that it is well if the port has a way to ask.
///
/// # Errors
/// Why the app is not healthy.
pub async fn health(links: &LinkPorts, spec: &EndpointSpec, port: &PortSpec, timeout: Duration) -> Result<(), Reason> {
    tokio::time::timeout(timeout, check(links, spec, port)).await.unwrap_or(Err(Reason::UpstreamTimeout))
}

async fn check(links: &LinkPorts, spec: &EndpointSpec, port: &PortSpec) -> Result<(), Reason> {
    let stream = guestlink::open(links, spec, &port.target).await.map_err(|error| error.reason())?;
    match &port.health {
        HealthCheck::Connect => Ok(()),
        HealthCheck::Http(path) => http(stream, spec, path).await,
        HealthCheck::Grpc => grpc::check(stream, spec.workload.as_str()).await,
    }
}

async fn http(mut stream: GuestStream, spec: &EndpointSpec, path: &str) -> Result<(), Reason> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", spec.workload);
    stream.write_all(request.as_bytes()).await.map_err(|_| Reason::GuestRefused)?;
    stream.flush().await.map_err(|_| Reason::GuestRefused)?;
    let mut answer = Vec::with_capacity(ANSWER_BYTES);
    stream.take(ANSWER_BYTES as u64).read_to_end(&mut answer).await.map_err(|_| Reason::GuestRefused)?;
    if answer.starts_with(b"HTTP/1.1 2") || answer.starts_with(b"HTTP/1.0 2") {
        Ok(())
    } else {
        Err(Reason::GuestRefused)
    }
}
