//! Pings, from the address of the workload they are for. The kernel's own ping sockets need no privilege and can send nothing
//! but echo requests: it makes the header's checksum and chooses the identifier.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;

/// An answer that has not come by then is not waited for.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// What every ping of every workload carries, as long as that of `ping`: no byte of an app goes out.
const PAYLOAD: &[u8; 56] = b"nova-runtime pings for a workload; its data stays inside";
const HEADER: usize = 8;
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;

/// Why nobody answered.
#[derive(Debug, thiserror::Error)]
pub enum PingError {
    /// The kernel lets this process have no ping socket.
    #[error("this process may not ping: let net.ipv4.ping_group_range of its network namespace hold its group ({0})")]
    NotAllowed(#[source] io::Error),
    /// The socket's own error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Pings `to` from `from` once and waits for its answer. Answers of others, to other sequences or with other bytes count for
/// nothing.
///
/// # Errors
/// [`PingError`]; [`io::ErrorKind::TimedOut`] after 5 seconds.
pub async fn echo(from: Ipv4Addr, to: Ipv4Addr, sequence: u16) -> Result<(), PingError> {
    let socket = open(from, to)?;
    socket.send(&request(sequence)).await?;
    tokio::time::timeout(ANSWER_DEADLINE, answer(&socket, to, sequence))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    Ok(())
}

/// Connected, so that the kernel passes on that a host or network is unreachable.
fn open(from: Ipv4Addr, to: Ipv4Addr) -> Result<UdpSocket, PingError> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::ICMPV4)).map_err(|error| {
        let not_allowed = error.kind() == io::ErrorKind::PermissionDenied;
        if not_allowed { PingError::NotAllowed(error) } else { error.into() }
    })?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect(&SocketAddr::from((to, 0)).into())?;
    Ok(UdpSocket::from_std(socket.into())?)
}

fn request(sequence: u16) -> Vec<u8> {
    let [high, low] = sequence.to_be_bytes();
    [&[ECHO_REQUEST, 0, 0, 0, 0, 0, high, low], &PAYLOAD[..]].concat()
}

async fn answer(socket: &UdpSocket, to: Ipv4Addr, sequence: u16) -> io::Result<()> {
    let mut buffer = [0; HEADER + PAYLOAD.len() + 1];
    loop {
        // The kernel compares identifiers, not addresses, even of a connected ping socket.
        let (length, from) = socket.recv_from(&mut buffer).await?;
        if from.ip() == IpAddr::V4(to) && is_answer(&buffer[..length], sequence) {
            return Ok(());
        }
    }
}

fn is_answer(message: &[u8], sequence: u16) -> bool {
    let Some((header, payload)) = message.split_first_chunk::<HEADER>() else { return false };
    header[..2] == [ECHO_REPLY, 0] && header[6..] == sequence.to_be_bytes() && payload == PAYLOAD
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: D10d
    #[test]
    fn only_the_answer_to_this_very_ping_counts() {
        let mut answer = request(7);
        assert!(!is_answer(&answer, 7), "a request is no answer");
        answer[0] = ECHO_REPLY;
        assert!(is_answer(&answer, 7) && !is_answer(&answer, 8));
        assert!(!is_answer(&answer[..answer.len() - 1], 7) && !is_answer(&[&answer[..], b"x"].concat(), 7));
        let last = answer.len() - 1;
        answer[last] ^= 1;
        assert!(!is_answer(&answer, 7), "other bytes");
        assert!(!is_answer(&[0; 7], 0) && !is_answer(&[], 0));
    }
}
