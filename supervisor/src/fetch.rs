//! One question over HTTP to a service of the operator. Bundles of rules and keys of token issuers come this way.
//!
//! Bounded in time and size, one connection a question, no redirect is followed, and what comes is only bytes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use crate::config::{BundleUrl, Reach};
use crate::identity::RootSet;
use crate::net::direct;
use crate::net::guard::AddressGuard;
use crate::tls::{ALPN_HTTP1, ExternalRoots, Versions, client_config_for_external};

/// Where to ask.
#[derive(Debug, Clone)]
pub struct Service {
    /// The address.
    pub url: BundleUrl,
    /// The CA that must vouch for it, PEM; without one the system's. Read again for each connection.
    pub ca: Option<PathBuf>,
    /// Which addresses the name may lead to; without one any.
    pub guard: Option<AddressGuard>,
}

/// How much it may take.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// For connecting.
    pub connect: Duration,
    /// For the whole answer.
    pub answer: Duration,
    /// For its body.
    pub bytes: u64,
}

/// What came back. The body is read of an answer 200 only.
pub struct Answer {
    /// Status code.
    pub status: StatusCode,
    /// Header fields.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Vec<u8>,
}

/// Why nothing came back.
#[derive(Debug, Error)]
pub enum Fault {
    /// The CA's file cannot be used.
    #[error("{0}")]
    Ca(String),
    /// Nobody answers, not as HTTP does, or only at an address that may not be asked.
    #[error("{0}")]
    Unreachable(String),
    /// It took too long.
    #[error("no whole answer in time")]
    TimedOut,
    /// It sends too much.
    #[error("more than {0} bytes")]
    TooLarge(u64),
}

impl Service {
    /// Asks once.
    ///
    /// # Errors
    /// When there is no answer; an answer that says no is one.
    pub async fn get(&self, fields: HeaderMap, bounds: Bounds) -> Result<Answer, Fault> {
        let connect = tokio::time::timeout(bounds.connect, self.connect());
        let mut sender = connect.await.map_err(|_| Fault::TimedOut)??;
        let ask = async {
            let answer = sender.send_request(self.request(fields)?).await.map_err(unreachable)?;
            read(answer, bounds.bytes).await
        };
        tokio::time::timeout(bounds.answer, ask).await.map_err(|_| Fault::TimedOut)?
    }

    /// For messages.
    #[must_use]
    pub fn shown(&self) -> String {
        match &self.url.reach {
            Reach::Unix(path) => format!("unix://{}", path.display()),
            Reach::Plain { .. } => format!("http://{}", self.url.authority),
            Reach::Tls { .. } => format!("https://{}", self.url.authority),
        }
    }

    fn request(&self, fields: HeaderMap) -> Result<Request<Empty<Bytes>>, Fault> {
        let request = Request::get(self.url.path.as_str()).header(HOST, self.url.authority.as_str());
        let mut request = request.body(Empty::new()).map_err(unreachable)?;
        request.headers_mut().extend(fields);
        Ok(request)
    }

    /// A connection for one question: a long poll holds it anyway, and a server that was replaced is noticed.
    async fn connect(&self) -> Result<http1::SendRequest<Empty<Bytes>>, Fault> {
        match &self.url.reach {
            Reach::Unix(path) => speak(direct::unix(path).await.map_err(unreachable)?).await,
            Reach::Plain { host, port } => speak(self.tcp(host, *port).await?).await,
            Reach::Tls { host, port } => {
                let config = client_config_for_external(&self.roots()?, &[ALPN_HTTP1], Versions::Tls12Too)
                    .map_err(|error| Fault::Ca(error.to_string()))?;
                let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(unreachable)?;
                let stream = TlsConnector::from(config).connect(name, self.tcp(host, *port).await?).await;
                speak(stream.map_err(unreachable)?).await
            }
        }
    }

    async fn tcp(&self, host: &str, port: u16) -> Result<tokio::net::TcpStream, Fault> {
        let stream = match &self.guard {
            None => direct::tcp(host, port).await,
            Some(guard) => direct::guarded_tcp(host, port, guard).await,
        };
        stream.map_err(unreachable)
    }

    fn roots(&self) -> Result<ExternalRoots, Fault> {
        let Some(path) = &self.ca else { return Ok(ExternalRoots::Web) };
        let roots = RootSet::read(path).map_err(|error| Fault::Ca(error.to_string()))?;
        Ok(ExternalRoots::Custom(Arc::new(roots)))
    }
}

async fn speak<S>(stream: S) -> Result<http1::SendRequest<Empty<Bytes>>, Fault>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(unreachable)?;
    // Ends with the sender, which the deadline of the question drops.
    tokio::spawn(connection);
    Ok(sender)
}

async fn read(answer: Response<Incoming>, most: u64) -> Result<Answer, Fault> {
    let (head, mut rest) = answer.into_parts();
    let (status, headers) = (head.status, head.headers);
    let mut body = Vec::new();
    if status != StatusCode::OK {
        return Ok(Answer { status, headers, body });
    }
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > most) {
        return Err(Fault::TooLarge(most));
    }
    while let Some(frame) = rest.frame().await {
        let frame = frame.map_err(unreachable)?;
        let Some(data) = frame.data_ref() else { continue };
        if (body.len() + data.len()) as u64 > most {
            return Err(Fault::TooLarge(most));
        }
        body.extend_from_slice(data);
    }
    Ok(Answer { status, headers, body })
}

fn unreachable(error: impl std::fmt::Display) -> Fault {
    Fault::Unreachable(error.to_string())
}
