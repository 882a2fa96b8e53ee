//! The app's own TLS, answered in the place of the host that it asked for. Only where a rule says `tls: intercept`.
//!
//! ```text
//! ClientHello, whole, names the tunnel's host -> leaf of the pod's CA -> handshake -> first byte -> HTTP inside
//!      \ else: sni_mismatch          \ not covered: intercept_needs_restart   \ refused: client_rejected_ca
//! ```
//! From the ClientHello to the end of the handshake it holds one of the endpoint's places (`max_handshakes`); without one the
//! tunnel is reset (`limit_connections`), and nothing is read or signed for it.

use std::io;
use std::time::Duration;

use nova_policy::host::Host;
use rustls::{AlertDescription, Error};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::first::{self, Hello};
use super::{Guest, trust, while_wanted};
use crate::audit::Record;
use crate::net::stream::{Prefixed, Stream};
use crate::reason::Reason;
use crate::tls::{ALPN_HTTP1, ALPN_HTTP2};

/// For the ClientHello and the handshake together.
const DEADLINE: Duration = Duration::from_secs(10);
/// For an app to take an alert.
const ALERT: Duration = Duration::from_secs(1);
/// How long an app may take from the handshake to its first request.
const FIRST_BYTE: Duration = Duration::from_secs(60);
/// What we speak inside.
const ALPN: &[&[u8]] = &[ALPN_HTTP2, ALPN_HTTP1];

/// What a detail says to whoever reads the audit log: which sign there was of a client that does not believe us.
macro_rules! rejected {
    ($sign:literal) => {
        concat!(
            $sign,
            ": the app pins its certificate or does not trust the pod's CA of now; restart it if it read its store before \
             the CA came, else use tls: passthrough, or call http://"
        )
    };
}

/// Why there is nothing to serve.
struct Refused {
    reason: Reason,
    detail: &'static str,
    /// The name that was asked for instead of the tunnel's.
    sni: String,
}

/// Takes the place of `host`. The stream that comes back holds at least one byte of plaintext; `None`: it is over, and `record`
/// says why.
pub(super) async fn terminate(guest: &Guest, caller: Prefixed, host: &Host, record: &mut Record) -> Option<Prefixed> {
    record.intercepted();
    let (first, stream) = caller.into_parts();
    let refused = match answer(guest, first.to_vec(), stream, host).await {
        Ok(caller) => return Some(caller),
        Err(refused) => refused,
    };
    match refused.reason {
        // The rule allows it and we would have served it.
        Reason::ClientRejectedCa | Reason::Reset => record.fail(refused.reason),
        reason => {
            record.deny(reason);
            guest.throttle().await;
        }
    }
    record.detail(refused.detail);
    record.sni(&refused.sni);
    record.close(refused.reason);
    guest.ended(refused.reason);
    None
}

async fn answer(guest: &Guest, first: Vec<u8>, stream: Stream, host: &Host) -> Result<Prefixed, Refused> {
    let place = match guest.endpoint.take_interception() {
        Ok(place) => place,
        Err(none) => {
            stream.abort().await;
            return Err(detailed(Reason::LimitConnections, none.as_str()));
        }
    };
    let tls = match tokio::time::timeout(DEADLINE, handshake(guest, first, stream, host)).await {
        Ok(done) => done?,
        Err(_) => return Err(refused(Reason::HandshakeTimeout)),
    };
    drop(place);
    first_byte(guest, tls).await
}

async fn handshake(
    guest: &Guest,
    mut first: Vec<u8>,
    mut stream: Stream,
    host: &Host,
) -> Result<Box<TlsStream<Prefixed>>, Refused> {
    let config = match first::hello(&mut stream, &mut first).await {
        Hello::Names(Some(name)) if name == host.as_str() => config(guest, host),
        Hello::Names(Some(sni)) => Err(Refused { sni, ..detailed(Reason::SniMismatch, first::ANOTHER_NAME) }),
        Hello::Names(None) => Err(detailed(Reason::SniMismatch, first::NO_NAME)),
        Hello::Unacceptable(alert) => {
            // Whether it gets there is the app's affair: it is refused in any case.
            let telling = async {
                stream.write_all(&alert).await?;
                stream.flush().await
            };
            let _ = tokio::time::timeout(ALERT, telling).await;
            Err(refused(Reason::HandshakeFailed))
        }
        Hello::TooLong => Err(detailed(Reason::SniMismatch, first::TOO_LONG)),
        Hello::Ended => Err(refused(Reason::Reset)),
    };
    let config = match config {
        Ok(config) => config,
        Err(refused) => {
            stream.abort().await;
            return Err(refused);
        }
    };
    let stream = Prefixed::new(first.into(), stream);
    match TlsAcceptor::from(config).accept(stream).into_fallible().await {
        Ok(tls) => Ok(Box::new(tls)),
        Err((error, stream)) => {
            stream.abort().await;
            Err(Refused::from_handshake(&error))
        }
    }
}

fn config(guest: &Guest, host: &Host) -> Result<std::sync::Arc<rustls::ServerConfig>, Refused> {
    let ca = trust::signer(guest, host.as_str()).map_err(|(reason, detail)| detailed(reason, detail))?;
    guest.egress.leaves.config(&ca, host.as_str(), ALPN).map_err(|error| {
        tracing::error!(%error, "a leaf cannot be made");
        refused(Reason::InterceptNeedsRestart)
    })
}

/// An app that compares certificates by itself does so after the handshake, and goes without a word.
async fn first_byte(guest: &Guest, mut tls: Box<TlsStream<Prefixed>>) -> Result<Prefixed, Refused> {
    let mut first = vec![0; 4096];
    let reading = tokio::time::timeout(FIRST_BYTE, tls.read(&mut first));
    let silent = match while_wanted(&guest.endpoint, reading).await {
        Some(Ok(Ok(read @ 1..))) => {
            first.truncate(read);
            return Ok(Prefixed::new(first.into(), Stream::Intercepted(tls)));
        }
        Some(Ok(Ok(_))) => return Err(detailed(Reason::ClientRejectedCa, rejected!("closed without a request"))),
        Some(Ok(Err(error))) => return Err(Refused::from_handshake(&error)),
        Some(Err(_)) => Reason::IdleTimeout,
        None => Reason::Draining,
    };
    Stream::Intercepted(tls).abort().await;
    Err(refused(silent))
}

fn refused(reason: Reason) -> Refused {
    detailed(reason, "")
}

fn detailed(reason: Reason, detail: &'static str) -> Refused {
    Refused { reason, detail, sni: String::new() }
}

impl Refused {
    /// What a client did that saw our certificate.
    fn from_handshake(error: &io::Error) -> Self {
        let rejected = |detail| detailed(Reason::ClientRejectedCa, detail);
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(Error::AlertReceived(alert)) => match alert {
                AlertDescription::UnknownCA => rejected(rejected!("unknown_ca")),
                AlertDescription::BadCertificate => rejected(rejected!("bad_certificate")),
                AlertDescription::CertificateUnknown => rejected(rejected!("certificate_unknown")),
                AlertDescription::UnsupportedCertificate => rejected(rejected!("unsupported_certificate")),
                AlertDescription::CertificateExpired => rejected(rejected!("certificate_expired")),
                AlertDescription::AccessDenied => rejected(rejected!("access_denied")),
                _ => refused(Reason::HandshakeFailed),
            },
            Some(_) => refused(Reason::HandshakeFailed),
            // The connection itself: nothing was wrong with the TLS before it ended.
            None => rejected(rejected!("closed after our certificate")),
        }
    }
}
