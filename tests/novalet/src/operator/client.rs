//! Asks a running agent something.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::{Reply, Request, SOCKET};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("no novalet-ref answers at {path}: start one with `novalet-ref run`, or name its folder with --run-dir")]
    NotRunning {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The conversation broke off.
    #[error("novalet-ref went away before it answered; its log says why")]
    Broken(#[source] io::Error),
    /// The agent said no.
    #[error("{0}")]
    Refused(String),
}

/// Sends `request` to the agent of `run_dir` and waits for its answer.
///
/// # Errors
/// When no agent answers, or when it refuses.
pub fn ask(run_dir: &Path, request: &Request) -> Result<Reply, ClientError> {
    let path = run_dir.join(SOCKET);
    let mut stream = match UnixStream::connect(&path) {
        Ok(stream) => stream,
        Err(source) => return Err(ClientError::NotRunning { path, source }),
    };
    let mut text = serde_json::to_string(request).map_err(|error| ClientError::Broken(error.into()))?;
    text.push('\n');
    stream.write_all(text.as_bytes()).map_err(ClientError::Broken)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).map_err(ClientError::Broken)?;
    let reply: Reply = serde_json::from_str(&line).map_err(|error| ClientError::Broken(error.into()))?;
    match reply.error {
        Some(error) if !reply.ok => Err(ClientError::Refused(error)),
        _ => Ok(reply),
    }
}
