//! `SyncEndpoints` on a Unix socket: novalet's half of the control protocol.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nova_proto::control::supervisor_ack::Kind;
use nova_proto::control::supervisor_control_server::{SupervisorControl, SupervisorControlServer};
use nova_proto::control::{EndpointUpdate, Hello, SupervisorAck};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::sockets;
use crate::table::{SessionId, Table};

/// A supervisor that does not introduce itself in this time is let go.
const HELLO_DEADLINE: Duration = Duration::from_secs(5);
/// Updates handed to the transport and not yet sent; the long queue is the session's.
const TRANSPORT_QUEUE: usize = 16;
/// How often a silent supervisor is asked whether it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Pause when accepting fails, which is when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `table` on `listener` to peers that run as one of `uids`, until it is dropped.
pub async fn serve(listener: UnixListener, uids: Vec<u32>, table: Arc<Table>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) if sockets::peer_is_one_of(&stream, &uids) => {
                connections.spawn(connection(stream, Arc::clone(&table)));
            }
            Ok((stream, _)) => {
                let uid = stream.peer_cred().map(|peer| peer.uid()).ok();
                tracing::warn!(
                    ?uid,
                    "refused a control connection: name this uid with --supervisor-uid if it is right"
                );
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a control connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: UnixStream, table: Arc<Table>) {
    let service = TowerToHyperService::new(SupervisorControlServer::new(Service { table }));
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(KEEP_ALIVE))
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "control connection ended");
    }
}

struct Service {
    table: Arc<Table>,
}

#[tonic::async_trait]
impl SupervisorControl for Service {
    type SyncEndpointsStream = Pin<Box<dyn Stream<Item = Result<EndpointUpdate, Status>> + Send>>;

    async fn sync_endpoints(
        &self,
        request: Request<Streaming<SupervisorAck>>,
    ) -> Result<Response<Self::SyncEndpointsStream>, Status> {
        let (out, updates) = mpsc::channel(TRANSPORT_QUEUE);
        let table = Arc::clone(&self.table);
        // The answer's head must not wait for the hello: a client may send it only after it has seen the head.
        tokio::spawn(async move {
            if let Err(status) = session(&table, request.into_inner(), &out).await {
                let _ = out.send(Err(status)).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(updates))))
    }
}

async fn session(
    table: &Table,
    mut acks: Streaming<SupervisorAck>,
    out: &mpsc::Sender<Result<EndpointUpdate, Status>>,
) -> Result<(), Status> {
    let hello = first_hello(&mut acks).await?;
    tracing::info!(instance = hello.instance, slot = hello.slot, "supervisor connected");
    let (id, mut updates) = table.join(hello);
    let result = pump(table, id, &mut acks, &mut updates, out).await;
    table.leave(id);
    tracing::info!("supervisor disconnected");
    result
}

async fn pump(
    table: &Table,
    id: SessionId,
    acks: &mut Streaming<SupervisorAck>,
    updates: &mut mpsc::Receiver<EndpointUpdate>,
    out: &mpsc::Sender<Result<EndpointUpdate, Status>>,
) -> Result<(), Status> {
    loop {
        tokio::select! {
            update = updates.recv() => {
                let Some(update) = update else {
                    return Err(Status::aborted("session ended: another one took the slot, or this one did not read"));
                };
                if out.send(Ok(update)).await.is_err() {
                    return Ok(());
                }
            }
            ack = acks.message() => match ack {
                Ok(Some(ack)) => note(table, id, ack)?,
                Ok(None) | Err(_) => return Ok(()),
            },
            () = out.closed() => return Ok(()),
        }
    }
}

fn note(table: &Table, id: SessionId, ack: SupervisorAck) -> Result<(), Status> {
    match ack.kind {
        Some(Kind::Status(status)) => table.acknowledge(id, status),
        Some(Kind::Applied(applied)) => table.applied(id, applied.revision),
        Some(Kind::Hello(_)) => return Err(Status::invalid_argument("a session has one hello")),
        None => return Err(Status::invalid_argument("an ack of a kind that this novalet does not know")),
    }
    Ok(())
}

async fn first_hello(acks: &mut Streaming<SupervisorAck>) -> Result<Hello, Status> {
    let first = tokio::time::timeout(HELLO_DEADLINE, acks.message())
        .await
        .map_err(|_| Status::deadline_exceeded("no hello"))??;
    match first.and_then(|ack| ack.kind) {
        Some(Kind::Hello(hello)) => Ok(hello),
        _ => Err(Status::failed_precondition("the first ack must be a hello")),
    }
}
