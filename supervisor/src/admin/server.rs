//! Serving the socket within bounds: so many clients, so long a line, so much time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::protocol::{Code, Failure, Request, Response};
use super::socket::{AdminSocket, may_ask, own_uid};
use super::{AdminHandles, answers};

/// Clients at once; one more is told to come again.
pub const MAX_CLIENTS: usize = 16;
/// Longest question. A decision input has a path of at most 8 KiB.
pub const MAX_LINE: usize = 64 * 1024;
/// For each question to arrive, to be answered, and for the answer to be read: each so long.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Serves until `stop` resolves; then clients are cut off.
///
/// # Errors
/// When the socket cannot be used on this runtime.
pub async fn serve(socket: &AdminSocket, handles: Arc<AdminHandles>, stop: impl Future<Output = ()>) -> io::Result<()> {
    let listener = socket.listener()?;
    let mut spare = Spare::default();
    let mut clients = JoinSet::new();
    tokio::pin!(stop);
    loop {
        spare.keep();
        tokio::select! {
            () = &mut stop => return Ok(()),
            Some(_) = clients.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => admit(stream, &handles, &mut clients),
                // Out of descriptors, which is when an operator has questions: one client gets the one that was kept.
                Err(error) => {
                    tracing::warn!(%error, "the operator's socket cannot accept a client");
                    spare.give_up();
                    if let Some(Ok((stream, _))) = listener.accept().now_or_never() {
                        admit(stream, &handles, &mut clients);
                    }
                    // The error stays until a descriptor is free, so wait instead of spinning. A client that goes leaves its
                    // own behind, which is to be kept again before anybody else takes it.
                    tokio::select! {
                        Some(_) = clients.join_next() => {}
                        () = tokio::time::sleep(Duration::from_millis(100)) => {}
                    }
                }
            },
        }
    }
}

/// A descriptor that is kept for the moment when there are no others.
#[derive(Default)]
struct Spare(Option<std::fs::File>);

impl Spare {
    /// Has one, if one can be had.
    fn keep(&mut self) {
        if self.0.is_none() {
            self.0 = std::fs::File::open("/dev/null").ok();
        }
    }

    fn give_up(&mut self) {
        self.0 = None;
    }
}

fn admit(stream: UnixStream, handles: &Arc<AdminHandles>, clients: &mut JoinSet<()>) {
    let own = own_uid();
    let uid = stream.peer_cred().ok().map(|cred| cred.uid());
    let refusal = match uid {
        Some(uid) if may_ask(uid, own) => (clients.len() >= MAX_CLIENTS)
            .then(|| Failure::new(Code::Busy, format!("{MAX_CLIENTS} clients are connected"), "try again")),
        _ => {
            tracing::warn!(uid, "refused a client of the operator's socket");
            Some(Failure::new(Code::Forbidden, "this user may not ask", format!("run it as root or as uid {own}")))
        }
    };
    match refusal {
        // One small write into an empty socket buffer: it does not wait.
        Some(failure) => {
            let _ = stream.try_write(&line(&Response::Error(failure)));
        }
        None => {
            let handles = Arc::clone(handles);
            clients.spawn(async move { talk(stream, handles).await.unwrap_or_default() });
        }
    }
}

async fn talk(mut stream: UnixStream, handles: Arc<AdminHandles>) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::new(reader);
    let mut question = Vec::new();
    loop {
        question.clear();
        let mut bounded = (&mut reader).take(MAX_LINE as u64 + 1);
        let got = timeout(DEADLINE, bounded.read_until(b'\n', &mut question)).await??;
        if got == 0 {
            return Ok(());
        }
        let whole = question.last() == Some(&b'\n');
        let response = if whole { answer(&question, &handles).await } else { too_long() };
        timeout(DEADLINE, writer.write_all(&line(&response))).await??;
        // After half a question nobody knows where the next one starts.
        if !whole {
            return Ok(());
        }
    }
}

async fn answer(question: &[u8], handles: &Arc<AdminHandles>) -> Response {
    let request: Request = match serde_json::from_slice(question) {
        Ok(request) => request,
        Err(error) => {
            let remedy = "send one JSON object a line, such as {\"op\":\"policy\"}";
            return Response::Error(Failure::new(Code::BadInput, format!("not a question: {error}"), remedy));
        }
    };
    let handles = Arc::clone(handles);
    // Decisions and a search of the audit log take time that belongs to nobody's connection.
    let work = tokio::task::spawn_blocking(move || answers::answer(&handles, request));
    match timeout(DEADLINE, work).await {
        Ok(Ok(Ok(result))) => Response::Result(result),
        Ok(Ok(Err(failure))) => Response::Error(failure),
        Ok(Err(_)) => Response::Error(Failure::new(Code::Failed, "the answer panicked", "see the supervisor's log")),
        Err(_) => Response::Error(Failure::new(
            Code::Failed,
            "the answer took too long",
            "try again when the node is less busy",
        )),
    }
}

fn too_long() -> Response {
    let message = format!("the question has no end within {MAX_LINE} bytes");
    Response::Error(Failure::new(Code::BadInput, message, "end it with a newline"))
}

fn line(response: &Response) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(response).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}
