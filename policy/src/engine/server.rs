//! A real OPA on a Unix socket, asked over HTTP/1.1. For replay and conformance tests only: it blocks the thread that
//! asks, takes twenty times as long as the engines in process, and what it has loaded is its own affair.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use thiserror::Error;

use super::{Engine, LoadError, Machine, WASM_ENTRY_POINT};
use crate::decision::Decision;
use crate::input::Input;

/// How long one read or write may wait.
const DEADLINE: Duration = Duration::from_secs(5);
/// Longest line of a response's head, most lines, and largest body, in bytes.
const MAX_LINE: u64 = 8 * 1024;
const MAX_LINES: usize = 64;
const MAX_BODY: usize = 4 * 1024 * 1024;

/// The engine.
pub(super) struct Server {
    socket: PathBuf,
}

impl Server {
    pub(super) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }
}

impl Engine for Server {
    fn name(&self) -> &'static str {
        "opa-server"
    }

    fn machine(&self) -> Result<Box<dyn Machine>, LoadError> {
        let client = OpaClient::connect(&self.socket).map_err(|error| LoadError::Compile(error.to_string()))?;
        Ok(Box::new(client))
    }
}

/// A kept-alive connection to an OPA server.
pub struct OpaClient {
    stream: BufReader<UnixStream>,
}

/// Why an OPA server gave no answer.
#[derive(Debug, Error)]
pub enum OpaError {
    /// The socket does not answer.
    #[error("the OPA server does not answer")]
    Socket(#[from] std::io::Error),
    /// Not the HTTP that this client reads.
    #[error("the OPA server's answer cannot be read: {0}")]
    Http(&'static str),
    /// It refused.
    #[error("the OPA server answered {0}: {1}")]
    Status(u16, String),
}

#[derive(serde::Deserialize)]
struct Answer<T> {
    result: Option<T>,
}

impl OpaClient {
    /// Connects to `opa run --server --addr unix://SOCKET`.
    ///
    /// # Errors
    /// When nothing listens there.
    pub fn connect(socket: &Path) -> Result<Self, OpaError> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Replaces the document at a data path such as `nova/egress`.
    ///
    /// # Errors
    /// When the server refuses it. The connection is of no use after an error.
    pub fn put_data(&mut self, path: &str, document: &impl serde::Serialize) -> Result<(), OpaError> {
        let body = serde_json::to_vec(document).map_err(|_| OpaError::Http("the document is no JSON"))?;
        self.request("PUT", &format!("/v1/data/{path}"), &body).map(drop)
    }

    /// The decision on an input; `None` when it is undefined.
    ///
    /// # Errors
    /// When the server does not answer or fails. The connection is of no use after an error.
    pub fn ask<T: DeserializeOwned>(&mut self, input: &impl serde::Serialize) -> Result<Option<T>, OpaError> {
        self.ask_at(WASM_ENTRY_POINT, input)
    }

    /// What the policy says at another path than the decision; `None` when it is undefined.
    ///
    /// # Errors
    /// When the server does not answer or fails. The connection is of no use after an error.
    pub fn ask_at<T: DeserializeOwned>(
        &mut self,
        path: &str,
        input: &impl serde::Serialize,
    ) -> Result<Option<T>, OpaError> {
        #[derive(serde::Serialize)]
        struct Question<'a, I> {
            input: &'a I,
        }
        let body = serde_json::to_vec(&Question { input }).map_err(|_| OpaError::Http("the input is no JSON"))?;
        let answer = self.request("POST", &format!("/v1/data/{path}"), &body)?;
        let answer: Answer<T> = serde_json::from_slice(&answer).map_err(|_| OpaError::Http("not the JSON expected"))?;
        Ok(answer.result)
    }

    fn request(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Vec<u8>, OpaError> {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: opa\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.stream.get_mut().write_all(&request)?;
        let (status, length) = self.head()?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        match status {
            200 | 204 => Ok(body),
            _ => Err(OpaError::Status(status, String::from_utf8_lossy(&body).chars().take(500).collect())),
        }
    }

    /// Status and length of the body.
    fn head(&mut self) -> Result<(u16, usize), OpaError> {
        let first = self.line()?;
        let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.ok_or(OpaError::Http("no status line"))?;
        let mut length = (status == 204).then_some(0);
        for _ in 0..MAX_LINES {
            let line = self.line()?;
            if line.is_empty() {
                return length.map(|length| (status, length)).ok_or(OpaError::Http("no Content-Length"));
            }
            let (name, value) = line.split_once(':').ok_or(OpaError::Http("a header without a colon"))?;
            if name.eq_ignore_ascii_case("content-length") {
                let told = value.trim().parse().ok().filter(|length| *length <= MAX_BODY);
                length = Some(told.ok_or(OpaError::Http("the body is too large"))?);
            }
        }
        Err(OpaError::Http("too many headers"))
    }

    fn line(&mut self) -> Result<String, OpaError> {
        let mut line = String::new();
        (&mut self.stream).take(MAX_LINE).read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(OpaError::Http("the head is cut short")),
        }
    }
}

impl Machine for OpaClient {
    fn decide(&mut self, input: &Input) -> Option<Decision> {
        self.ask(input).ok()?
    }

    fn answer(&mut self, input: &serde_json::Value) -> Option<serde_json::Value> {
        self.ask(input).ok()?
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Answers one request with `response` and returns what the client made of it.
    fn answered(response: &str) -> Result<Option<serde_json::Value>, OpaError> {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("opa.sock");
        let listener = UnixListener::bind(&path).expect("bind");
        let mut client = OpaClient::connect(&path).expect("connect");
        let (mut server, _) = listener.accept().expect("accept");
        server.write_all(response.as_bytes()).expect("write");
        server.shutdown(std::net::Shutdown::Write).expect("shutdown");
        client.ask(&serde_json::json!({}))
    }

    // covers: B5c
    #[test]
    fn only_a_whole_answer_with_a_result_is_an_answer() {
        let ok = |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        assert!(answered(&ok(r#"{"result":true}"#)).is_ok_and(|answer| answer == Some(true.into())));
        assert!(answered(&ok("{}")).is_ok_and(|answer| answer.is_none()));
        for bad in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}",
            "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
            "HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        ] {
            assert!(answered(bad).is_err(), "{bad:?}");
        }
    }
}
