//! CONNECT through a proxy: one request, one head, and then the stream is the destination's.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use super::{Files, Parent};
use crate::dial::DialFailure;
use crate::net::stream::Stream;
use crate::reason::Reason;
use crate::tls::HandshakeFailure;

/// TLS to the proxy, its own dial, and its answer: proxies wait for the destination before they answer.
const DEADLINE: Duration = Duration::from_secs(20);
/// Longest head of an answer.
const MAX_HEAD: usize = 16 * 1024;
/// Most fields in it.
const MAX_FIELDS: usize = 64;

/// Asks `parent`, to which `stream` leads, for a tunnel to `host`:`port`.
///
/// # Errors
/// [`DialFailure`] with the reason for the record.
pub(in crate::dial) async fn through(
    parent: &Parent,
    stream: Stream,
    addr: SocketAddr,
    host: &str,
    port: u16,
) -> Result<Stream, DialFailure> {
    let files = parent.current.load_full();
    let asking = async {
        let mut stream = secure(parent, &files, stream).await?;
        ask(&mut stream, &files, host, port).await?;
        Ok(stream)
    };
    let asked = tokio::time::timeout(DEADLINE, asking).await.unwrap_or(Err(Refused::Timeout));
    asked.map_err(|refused| {
        tracing::debug!(proxy = parent.name(), %addr, why = refused.detail(), "no tunnel through the proxy");
        DialFailure::at(refused.reason(), addr).detailed(refused.detail())
    })
}

/// Why there is no tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    /// 407: it wants a login, or another one.
    Login,
    /// 403.
    Forbidden,
    /// Any other answer that is not 2xx.
    Status,
    /// No answer of HTTP, or a head that is too long.
    Malformed,
    /// It went away.
    Closed,
    /// It is not who it should be, or speaks no TLS.
    Identity,
    Timeout,
}

impl Refused {
    const fn detail(self) -> &'static str {
        match self {
            Self::Login => "proxy_login",
            Self::Forbidden => "proxy_forbidden",
            Self::Status => "proxy_status",
            Self::Malformed => "proxy_malformed",
            Self::Closed => "proxy_closed",
            Self::Identity => "proxy_identity",
            Self::Timeout => "proxy_timeout",
        }
    }

    const fn reason(self) -> Reason {
        match self {
            Self::Timeout => Reason::UpstreamTimeout,
            _ => Reason::UpstreamProxy,
        }
    }
}

async fn secure(parent: &Parent, files: &Files, stream: Stream) -> Result<Stream, Refused> {
    let Some(config) = &files.tls else { return Ok(stream) };
    let name = ServerName::try_from(parent.url().host.as_str().to_owned()).map_err(|_| Refused::Identity)?;
    match TlsConnector::from(Arc::clone(config)).connect(name, stream).await {
        Ok(tls) => Ok(Stream::TlsClient(Box::new(tls))),
        Err(error) if HandshakeFailure::from_io(&error) == HandshakeFailure::Closed => Err(Refused::Closed),
        Err(_) => Err(Refused::Identity),
    }
}

async fn ask(stream: &mut Stream, files: &Files, host: &str, port: u16) -> Result<(), Refused> {
    let request = request(files, host, port);
    let sent = async {
        stream.write_all(&request).await?;
        stream.flush().await
    };
    sent.await.map_err(|_| Refused::Closed)?;
    let head = read_head(stream).await?;
    match status(&head).ok_or(Refused::Malformed)? {
        200..=299 => Ok(()),
        407 => Err(Refused::Login),
        403 => Err(Refused::Forbidden),
        300..=599 => Err(Refused::Status),
        _ => Err(Refused::Malformed),
    }
}

fn request(files: &Files, host: &str, port: u16) -> Zeroizing<Vec<u8>> {
    let authority = if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    let login = files.login.as_ref().map_or(&[][..], |login| login.encoded());
    // One allocation: a growing buffer would leave copies of the login behind.
    let mut request = Zeroizing::new(Vec::with_capacity(2 * authority.len() + login.len() + 128));
    request.extend_from_slice(format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n").as_bytes());
    if !login.is_empty() {
        request.extend_from_slice(b"Proxy-Authorization: Basic ");
        request.extend_from_slice(login);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    request
}

/// Reads byte by byte, once per tunnel: what follows the head is the destination's, and nobody could put it back.
async fn read_head(stream: &mut Stream) -> Result<Vec<u8>, Refused> {
    let mut head = Vec::with_capacity(256);
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == MAX_HEAD {
            return Err(Refused::Malformed);
        }
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(Refused::Malformed),
            Err(_) => return Err(Refused::Closed),
        }
        // Nothing else begins so, and whatever it is, it may never end.
        if !head.starts_with(b"HTTP/1.".get(..head.len().min(7)).unwrap_or_default()) {
            return Err(Refused::Malformed);
        }
    }
    Ok(head)
}

/// The status code of a whole head. None: it is not one.
fn status(head: &[u8]) -> Option<u16> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    let parsed = response.parse(head).ok()?;
    response.code.filter(|_| parsed.is_complete())
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: D11c
    #[test]
    fn a_head_is_whole_or_says_nothing() {
        assert_eq!(status(b"HTTP/1.1 200 OK\r\n\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.0 407 Proxy Authentication Required\r\nA: b\r\n\r\n"), Some(407));
        for bad in [&b"HTTP/1.1 200 OK\r\n"[..], b"HTTP/2 200\r\n\r\n", b"HTTP/1.1 20\r\n\r\n", b"SSH-2.0-x\r\n\r\n"] {
            assert_eq!(status(bad), None);
        }
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(65));
        assert_eq!(status(many.as_bytes()), None);
    }

    #[test]
    fn literals_of_ipv6_stand_in_brackets() {
        let files = Files { tls: None, login: None };
        let text = |host| String::from_utf8(request(&files, host, 443).to_vec()).expect("text");
        assert!(text("2001:db8::1").starts_with("CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n"));
        assert!(text("a.test").ends_with("Host: a.test:443\r\n\r\n"));
    }
}
