//! One question to a bundle server.

use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};

use super::{FetchError, Timing};
use crate::bundles::source::MAX_BYTES;
use crate::config::HttpSource;
use crate::fetch::{Answer, Bounds, Fault, Service};

/// The type of answers of servers that can hold a question back, see OPA's bundle protocol.
const LONG_POLL: &str = "application/vnd.openpolicyagent.bundles";
/// What is asked for.
const KINDS: &str = "application/gzip, application/vnd.openpolicyagent.bundles";
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
    service: Service,
    wait: Duration,
    patience: Duration,
}

impl Server {
    pub(in crate::bundles) fn new(source: &HttpSource, timing: &Timing) -> Self {
        let service = Service { url: source.url.clone(), ca: source.ca.clone(), guard: None };
        Self { service, wait: source.poll_wait, patience: timing.patience }
    }

    /// Asks once. The flag says whether the server holds questions back. Never longer than the long poll and the patience.
    pub(in crate::bundles) async fn fetch(&self, etag: Option<&HeaderValue>) -> Result<(Fetched, bool), FetchError> {
        let bounds = Bounds { connect: self.patience, answer: self.wait + self.patience, bytes: MAX_BYTES };
        let answer = self.service.get(self.fields(etag), bounds).await.map_err(|fault| self.explain(fault))?;
        let kind = answer.headers.get(CONTENT_TYPE);
        let long_poll = kind.is_some_and(|kind| kind.as_bytes().starts_with(LONG_POLL.as_bytes()));
        self.judge(answer, etag.is_some()).map(|fetched| (fetched, long_poll))
    }

    fn fields(&self, etag: Option<&HeaderValue>) -> HeaderMap {
        let mut fields = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(KINDS))]);
        let prefer = format!("modes=snapshot;wait={}", self.wait.as_secs());
        if let Ok(prefer) = HeaderValue::from_str(&prefer) {
            fields.insert("prefer", prefer);
        }
        if let Some(etag) = etag {
            fields.insert(IF_NONE_MATCH, etag.clone());
        }
        fields
    }

    /// Only who sent a tag can be told that it still holds: 304 to anybody else brings no bundle and must not pass for one.
    fn judge(&self, answer: Answer, tagged: bool) -> Result<Fetched, FetchError> {
        let Answer { status, headers, body } = answer;
        let server = || self.service.shown();
        match status {
            StatusCode::NOT_MODIFIED if tagged => Ok(Fetched::NotModified),
            StatusCode::NOT_MODIFIED => Err(FetchError::Status { server: server(), status: status.as_u16() }),
            StatusCode::OK => {
                let etag = headers.get(ETAG).filter(|etag| etag.len() <= MAX_ETAG).cloned();
                Ok(Fetched::Bundle { bytes: body, etag })
            }
            other if other.is_redirection() => Err(FetchError::Redirect { server: server(), status: other.as_u16() }),
            other => Err(FetchError::Status { server: server(), status: other.as_u16() }),
        }
    }

    fn explain(&self, fault: Fault) -> FetchError {
        let server = self.service.shown();
        match fault {
            Fault::Ca(problem) => FetchError::Ca(problem),
            Fault::Unreachable(problem) => FetchError::Unreachable { server, problem },
            Fault::TimedOut => FetchError::TimedOut { server },
            Fault::TooLarge(_) => FetchError::TooLarge { server },
        }
    }
}
