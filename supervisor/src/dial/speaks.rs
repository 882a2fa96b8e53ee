//! Which version of HTTP carries a call: what its permit asks for, and what the handshake offers and agrees on.

use http::Version;
use nova_policy::data::{EgressTarget, UpstreamTls};
use nova_policy::input::Phase;
use nova_policy::workloads::Protocol;

use crate::decide::Permit;
use crate::net::stream::Stream;
use crate::tls::{ALPN_HTTP1, ALPN_HTTP2};

/// Names of protocols, the preferred one first.
pub(super) type Alpn = &'static [&'static [u8]];

/// What the other side understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Speaks {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2 and nothing else: gRPC.
    Http2,
    /// The one that the handshake agrees on.
    Agreed,
}

impl Speaks {
    /// For the destination of an egress permit, called by an app that speaks `version`. Without TLS nobody can be asked; an app
    /// that speaks HTTP/2 without asking knows that its destination does.
    #[must_use]
    pub fn of(permit: &Permit, version: Version) -> Self {
        let speaks = match permit.target() {
            Some(
                EgressTarget::Workload { protocol: Protocol::Grpc, .. } | EgressTarget::External { grpc: true, .. },
            ) => Self::Http2,
            Some(EgressTarget::External { tls: UpstreamTls::Originate, .. }) => Self::Agreed,
            Some(EgressTarget::External { .. } | EgressTarget::Cidr { .. }) if version == Version::HTTP_2 => {
                Self::Http2
            }
            _ => Self::Http1,
        };
        // Only a connection of HTTP/1.1 can leave HTTP.
        if permit.input().upgrade().is_some() { Self::Http1 } else { speaks }
    }

    /// What a handshake for it offers.
    fn alpn(self) -> Alpn {
        match self {
            Self::Http1 => &[ALPN_HTTP1],
            Self::Http2 => &[ALPN_HTTP2],
            Self::Agreed => &[ALPN_HTTP2, ALPN_HTTP1],
        }
    }

    /// Whether `stream` speaks HTTP/2. Without TLS nobody is asked; a server that chose nothing speaks HTTP/1.1.
    pub(super) fn is_http2(self, stream: &Stream) -> bool {
        match stream {
            Stream::TlsClient(_) => stream.alpn() == Some(ALPN_HTTP2),
            _ => self == Self::Http2,
        }
    }
}

/// What the handshake for a permit offers: nothing where the bytes are the app's own, which may be of any protocol.
pub(super) fn offered(permit: &Permit) -> Alpn {
    let of_bytes = matches!(permit.target(), Some(EgressTarget::Workload { protocol: Protocol::Tcp, .. }));
    if permit.input().phase() == Phase::Request && !of_bytes {
        Speaks::of(permit, Version::HTTP_11).alpn()
    } else {
        &[]
    }
}
