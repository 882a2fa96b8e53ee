//! One question to a bundle server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HOST, HeaderValue, IF_NONE_MATCH};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::{FetchError, Timing};
use crate::bundles::source::MAX_BYTES;
use crate::config::{BundleUrl, HttpSource, Reach};
use crate::identity::RootSet;
use crate::net::direct;
use crate::tls::{ALPN_HTTP1, ExternalRoots, client_config_for_external};

/// The type of answers of servers that can hold a question back, see OPA's bundle protocol.
const LONG_POLL: &str = "application/vnd.openpolicyagent.bundles";
/// Longest entity tag that is sent back.
const MAX_ETAG: usize = 1024;

/// What a question led to.
pub(in crate::bundles) enum Fetched {
    /// The tag still holds.
    NotModified,
    /// A bundle, unverified.
    Bundle { bytes: Vec<u8>, etag: Option<HeaderValue> },
}

/// A bundle server.
pub(in crate::bundles) struct Server {
    url: BundleUrl,
    ca: Option<std::path::PathBuf>,
    wait: Duration,
    patience: Duration,
}

impl Server {
    pub(in crate::bundles) fn new(source: &HttpSource, timing: &Timing) -> Self {
        Self { url: source.url.clone(), ca: source.ca.clone(), wait: source.poll_wait, patience: timing.patience }
    }

    /// Asks once. The flag says whether the server holds questions back. Never longer than the long poll and the patience.
    pub(in crate::bundles) async fn fetch(&self, etag: Option<&HeaderValue>) -> Result<(Fetched, bool), FetchError> {
        let connect = tokio::time::timeout(self.patience, self.connect());
        let mut sender = connect.await.map_err(|_| self.timed_out())??;
        let ask = async {
            let answer = sender.send_request(self.request(etag)?).await.map_err(|error| self.unreachable(&error))?;
            let long_poll = answer
                .headers()
                .get(CONTENT_TYPE)
                .is_some_and(|kind| kind.as_bytes().starts_with(LONG_POLL.as_bytes()));
            self.read(answer).await.map(|fetched| (fetched, long_poll))
        };
        tokio::time::timeout(self.wait + self.patience, ask).await.map_err(|_| self.timed_out())?
    }

    fn request(&self, etag: Option<&HeaderValue>) -> Result<Request<Empty<Bytes>>, FetchError> {
        let prefer = format!("modes=snapshot;wait={}", self.wait.as_secs());
        let mut request = Request::get(self.url.path.as_str())
            .header(HOST, self.url.authority.as_str())
            .header(ACCEPT, "application/gzip, application/vnd.openpolicyagent.bundles")
            .header("prefer", prefer);
        if let Some(etag) = etag {
            request = request.header(IF_NONE_MATCH, etag.clone());
        }
        request.body(Empty::new()).map_err(|error| self.unreachable(&error))
    }

    async fn read(&self, answer: Response<Incoming>) -> Result<Fetched, FetchError> {
        let status = answer.status();
        if status == StatusCode::NOT_MODIFIED {
            return Ok(Fetched::NotModified);
        }
        if status.is_redirection() {
            return Err(FetchError::Redirect { server: self.shown(), status: status.as_u16() });
        }
        if status != StatusCode::OK {
            return Err(FetchError::Status { server: self.shown(), status: status.as_u16() });
        }
        let length = answer.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > MAX_BYTES) {
            return Err(FetchError::TooLarge { server: self.shown() });
        }
        let etag = answer.headers().get(ETAG).filter(|etag| etag.len() <= MAX_ETAG).cloned();
        let mut body = answer.into_body();
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| self.unreachable(&error))?;
            let Some(data) = frame.data_ref() else { continue };
            if (bytes.len() + data.len()) as u64 > MAX_BYTES {
                return Err(FetchError::TooLarge { server: self.shown() });
            }
            bytes.extend_from_slice(data);
        }
        Ok(Fetched::Bundle { bytes, etag })
    }

    /// A connection for one question: a long poll holds it anyway, and a server that was replaced is noticed.
    async fn connect(&self) -> Result<http1::SendRequest<Empty<Bytes>>, FetchError> {
        match &self.url.reach {
            Reach::Unix(path) => self.speak(direct::unix(path).await.map_err(|error| self.unreachable(&error))?).await,
            Reach::Plain { host, port } => {
                self.speak(direct::tcp(host, *port).await.map_err(|error| self.unreachable(&error))?).await
            }
            Reach::Tls { host, port } => {
                let config = client_config_for_external(&self.roots()?, &[ALPN_HTTP1])
                    .map_err(|error| FetchError::Ca(error.to_string()))?;
                let name = ServerName::try_from(host.clone()).map_err(|error| self.unreachable(&error))?;
                let stream = direct::tcp(host, *port).await.map_err(|error| self.unreachable(&error))?;
                let stream = TlsConnector::from(config).connect(name, stream).await;
                self.speak(stream.map_err(|error| self.unreachable(&error))?).await
            }
        }
    }

    async fn speak<S>(&self, stream: S) -> Result<http1::SendRequest<Empty<Bytes>>, FetchError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.unreachable(&error))?;
        // Ends with the sender, which the deadline of the question drops.
        tokio::spawn(connection);
        Ok(sender)
    }

    /// Read again for each connection, so that a corrected file needs no restart.
    fn roots(&self) -> Result<ExternalRoots, FetchError> {
        let Some(path) = &self.ca else { return Ok(ExternalRoots::Web) };
        let failed = |error: &dyn std::fmt::Display| FetchError::Ca(format!("{}: {error}", path.display()));
        let (text, _) = crate::bundles::source::read(path).map_err(|error| failed(&error))?;
        let roots = RootSet::from_pem("policy.ca", &text).map_err(|error| failed(&error))?;
        Ok(ExternalRoots::Custom(Arc::new(roots)))
    }

    fn shown(&self) -> String {
        match &self.url.reach {
            Reach::Unix(path) => format!("unix://{}", path.display()),
            Reach::Plain { .. } => format!("http://{}", self.url.authority),
            Reach::Tls { .. } => format!("https://{}", self.url.authority),
        }
    }

    fn unreachable(&self, error: &dyn std::fmt::Display) -> FetchError {
        FetchError::Unreachable { server: self.shown(), problem: error.to_string() }
    }

    fn timed_out(&self) -> FetchError {
        FetchError::TimedOut { server: self.shown() }
    }
}
