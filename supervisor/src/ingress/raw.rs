//! Byte copy between a caller and the app.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::conn::{Caller, Identified};
use crate::copy::{self, Bounds};
use crate::decide::{Permit, until_revoked};
use crate::guestlink::GuestStream;
use crate::headers::proxy_v2;
use crate::identity::common_name;
use crate::net::stream::Stream;
use crate::reason::Reason;
use crate::state::pace::Pace;
use crate::state::port::OpenPort;
use crate::state::way::Way;

use super::Ingress;

/// A header is a few hundred bytes at the front of an empty connection: a guest that does not take them is stuck.
const HEADER_DEADLINE: Duration = Duration::from_secs(5);

/// Decides the stream as opaque, dials the app and copies until one side ends.
pub(super) async fn carry(
    ingress: &Ingress,
    mut conn: Identified,
    port: &OpenPort,
    connect: Permit,
    stream: Stream,
    from: SocketAddr,
) {
    let input = connect.input().opaque();
    let Ok(permit) = ingress.decider.decide(input, &mut conn.record) else {
        return stream.abort().await;
    };
    conn.record.serves();
    let mut cut = ingress.watch(&conn, port);
    let mut guest = match ingress.dialer.guest(&permit, &conn.spec).await {
        Ok(guest) => guest,
        Err(failure) => {
            conn.record.fail(failure.reason);
            return stream.abort().await;
        }
    };
    if port.spec.proxy_v2
        && let Err(reason) = introduce(&mut guest, &stream, from, &conn.who).await
    {
        conn.record.fail(reason);
        return stream.abort().await;
    }
    conn.record.write_open();
    let ended = until_revoked(&mut cut, &ingress.decider, &permit);
    let bounds = Bounds {
        up: Pace::new(&conn.endpoint, Way::ToGuest),
        down: Pace::new(&conn.endpoint, Way::FromGuest),
        idle: conn.spec.limits.stream_idle,
    };
    let outcome = copy::both_ways(stream.into(), Stream::Guest(Box::new(guest)).into(), bounds, ended).await;
    conn.record.bytes(outcome.from_caller, outcome.to_caller);
    conn.record.close(outcome.close);
}

/// Tells the app who calls, before the first byte of either side.
async fn introduce(guest: &mut GuestStream, caller: &Stream, from: SocketAddr, who: &Caller) -> Result<(), Reason> {
    let header = header(caller, from, who).map_err(|error| {
        tracing::warn!(%from, %error, "the app cannot be told who calls");
        Reason::Unsupported
    })?;
    let writing = async {
        guest.write_all(&header).await?;
        guest.flush().await
    };
    let written = tokio::time::timeout(HEADER_DEADLINE, writing).await;
    written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(|_| Reason::GuestUnreachable)
}

fn header(caller: &Stream, from: SocketAddr, who: &Caller) -> io::Result<Vec<u8>> {
    let (tcp, session) = match caller {
        Stream::Tcp(tcp) => (tcp, None),
        Stream::TlsServer(tls) => {
            let (tcp, session) = tls.get_ref();
            (tcp, Some(session))
        }
        Stream::Intercepted(_) | Stream::Dialled(..) | Stream::TlsClient(_) | Stream::Guest(_) => {
            return Err(io::Error::other("not a caller's connection"));
        }
    };
    let certificate = session.and_then(|session| session.peer_certificates()?.first());
    let common_name = certificate.and_then(common_name).unwrap_or_default();
    let tls = session.map(|session| proxy_v2::Tls {
        version: if session.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_2) {
            "TLS 1.2"
        } else {
            "TLS 1.3"
        },
        alpn: session.alpn_protocol().unwrap_or_default(),
        server_name: session.server_name().unwrap_or_default(),
        certificate: certificate.map(AsRef::as_ref),
        common_name: &common_name,
        spiffe_id: who.identity.as_ref().and_then(|peer| peer.spiffe_id.as_ref()).map(|id| id.as_str()),
    });
    proxy_v2::header(from, tcp.local_addr()?, tls.as_ref()).map_err(io::Error::other)
}
