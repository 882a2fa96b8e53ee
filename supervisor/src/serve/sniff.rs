//! Which version of HTTP a caller speaks: what the handshake agreed on, or else what its first bytes are.

use std::io;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout};

use super::Side;
use crate::conn::{Cut, Event};
use crate::net::stream::Prefixed;
use crate::reason::Reason;
use crate::tls::{ALPN_HTTP1, ALPN_HTTP2};

/// What a client of HTTP/2 begins with (RFC 9113 section 3.4). No HTTP/1 request begins with these bytes.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long the first request may take to come after a drain began: the connection was accepted, so its caller counts on it.
pub(super) const FIRST_TIME: Duration = Duration::from_secs(2);

pub(super) enum Version {
    Http1,
    Http2,
}

/// The version, and the connection with nothing of it lost. `Err`: how the connection ended before anybody could tell.
pub(super) async fn version(side: &impl Side, stream: Prefixed, cut: &mut Cut) -> Result<(Version, Prefixed), Reason> {
    match stream.alpn() {
        Some(protocol) if protocol == ALPN_HTTP2 => return Ok((Version::Http2, stream)),
        Some(protocol) if protocol == ALPN_HTTP1 => return Ok((Version::Http1, stream)),
        _ => {}
    }
    tokio::select! {
        biased;
        close = until_unwanted(side, cut) => Err(close),
        read = timeout(side.bounds().idle, read_begin(stream, side.bounds().gate.head_time)) => match read {
            Ok(Ok(stream)) => {
                let is_preface = stream.first().starts_with(PREFACE);
                Ok((if is_preface { Version::Http2 } else { Version::Http1 }, stream))
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::TimedOut => Err(Reason::IdleTimeout),
            Ok(Err(_)) => Err(Reason::Reset),
            Err(_) => Err(Reason::IdleTimeout),
        },
    }
}

/// Reads until it is the preface or cannot become it any more.
async fn read_begin(mut stream: Prefixed, head_time: Duration) -> io::Result<Prefixed> {
    let mut first = [0; PREFACE.len()];
    let mut filled = stream.read(&mut first).await?;
    let rest = async {
        while (1..PREFACE.len()).contains(&filled) && first[..filled] == PREFACE[..filled] {
            match stream.read(&mut first[filled..]).await? {
                0 => break,
                read => filled += read,
            }
        }
        Ok::<_, io::Error>(())
    };
    timeout(head_time, rest).await??;
    let (unread, stream) = stream.into_parts();
    Ok(Prefixed::new([&first[..filled], &unread].concat().into(), stream))
}

/// Nothing was asked for yet, so a drain is the end; but not before what the caller asks first had time to arrive.
pub(super) async fn until_unwanted(side: &impl Side, cut: &mut Cut) -> Reason {
    let mut until = None;
    loop {
        let event = tokio::select! {
            biased;
            event = cut.next() => event,
            () = over(until) => return Reason::Done,
        };
        match event {
            Event::Draining if side.is_late() => {}
            Event::Draining => until = Some(Instant::now() + FIRST_TIME),
            Event::PeerEnding(reason) | Event::PeerEnded(reason) => return reason,
            Event::Aged => return Reason::MaxLifetime,
            Event::Closed => return Reason::Draining,
            Event::PolicyChanged if side.may_go_on() => {}
            Event::PolicyChanged => return Reason::PolicyRevoked,
        }
    }
}

/// Resolves when the time of a caller that has asked for nothing is over.
pub(super) async fn over(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}
