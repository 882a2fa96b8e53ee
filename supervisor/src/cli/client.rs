//! One question to the operator's socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nova_supervisor::admin::DEADLINE;
use nova_supervisor::admin::protocol::{Failure, Request, Response};
use serde_json::Value;

use super::CliError;

/// A node of thousands of endpoints answers a few MiB.
const MAX_ANSWER: u64 = 256 * 1024 * 1024;

/// Asks and waits for the answer, somewhat longer than the supervisor takes at most.
pub(super) fn ask(socket: &Path, request: &Request) -> Result<Result<Value, Failure>, CliError> {
    let shown = socket.display();
    let stream = UnixStream::connect(socket).map_err(|error| {
        let remedy = "is the supervisor running, is --socket its admin.socket, and are you root or its user?";
        CliError::Failure(format!("cannot reach {shown}: {error} ({remedy})"))
    })?;
    let failed = |error: std::io::Error| {
        CliError::Failure(format!("{shown} does not answer: {error} (remedy: see the supervisor's log)"))
    };
    let patience = DEADLINE + Duration::from_secs(5);
    stream.set_read_timeout(Some(patience)).and_then(|()| stream.set_write_timeout(Some(patience))).map_err(failed)?;
    let mut question = serde_json::to_vec(request).map_err(|error| CliError::BadInput(error.to_string()))?;
    question.push(b'\n');
    // A refusal may come before the question is read, and then the question cannot be written: read the answer anyway.
    let asked = (&stream).write_all(&question);
    let mut line = Vec::new();
    let got = BufReader::new((&stream).take(MAX_ANSWER)).read_until(b'\n', &mut line);
    if line.is_empty() {
        asked.map_err(failed)?;
        got.map_err(failed)?;
    }
    match serde_json::from_slice(&line) {
        Ok(Response::Result(value)) => Ok(Ok(value)),
        Ok(Response::Error(failure)) => Ok(Err(failure)),
        Err(error) => Err(CliError::Failure(format!(
            "{shown} did not answer as a supervisor does: {error} (remedy: check --socket)"
        ))),
    }
}
