//! Reads the hello of a connection that a guest opened.

use std::time::Duration;

use nova_proto::framed::Channel;
use nova_proto::hello::{HEAD_LEN, Hello, parse_head};
use nova_proto::ids::BootToken;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

use super::GuestStream;

/// A guest that has not said hello after this long holds a descriptor for nothing.
const HELLO_DEADLINE: Duration = Duration::from_secs(2);

/// Why a guest connection is closed before it is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HelloFailure {
    /// No whole, valid hello in time, or one that a guest may not send.
    #[error("no valid hello in time")]
    Bad,
    /// The boot token is not that of the endpoint: an earlier boot, or somebody else.
    #[error("the boot token is not the endpoint's")]
    Token,
}

/// Reads a hello and checks its freshness. What it says of itself is never an identity.
///
/// # Errors
/// [`HelloFailure`]; the caller closes the connection without an answer.
pub async fn receive(mut stream: UnixStream, token: BootToken) -> Result<(Hello, GuestStream), HelloFailure> {
    let reading = tokio::time::timeout(HELLO_DEADLINE, read(&mut stream));
    let hello = reading.await.ok().flatten().filter(|hello| hello.kind.is_from_guest()).ok_or(HelloFailure::Bad)?;
    if !token.matches(&hello.token) {
        return Err(HelloFailure::Token);
    }
    let framed = hello.framed;
    Ok((hello, Channel::new(stream, framed)))
}

async fn read(stream: &mut UnixStream) -> Option<Hello> {
    let mut head = [0; HEAD_LEN];
    stream.read_exact(&mut head).await.ok()?;
    let head = parse_head(&head).ok()?;
    let mut target = vec![0; head.target_len];
    stream.read_exact(&mut target).await.ok()?;
    head.with_target(&target).ok()
}
