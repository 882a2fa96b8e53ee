//! The stream with novalet: calls it, applies what it sends, tells it how far each endpoint is, and calls again for ever.
//! While novalet is away the endpoints serve on as they are.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use nova_proto::control as proto;
use nova_proto::control::supervisor_ack::Kind;
use nova_proto::control::supervisor_control_client::SupervisorControlClient;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::codegen::{Service, http::Uri};
use tonic::transport::{Channel, Endpoint};

use super::board::Status;
use super::convert;
use super::plane::{PolicyView, Timing};
use super::service::Control;
use super::stream::{StreamError, StreamRules};
use crate::causes;

/// For connecting and for the answer to the call.
const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// Acknowledgements under way; beyond it they wait on the board.
const ACKS: usize = 64;
/// A snapshot of a full node is far below it.
const MAX_MESSAGE: usize = 32 * 1024 * 1024;
/// novalet that hangs is noticed by then.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// What this instance says of itself.
#[derive(Debug, Clone)]
pub struct Introduction {
    /// Name of this instance.
    pub instance: String,
    /// Slot of this instance.
    pub slot: u8,
}

/// The client of one novalet.
pub struct Client {
    /// novalet's Unix socket.
    pub socket: PathBuf,
    /// Who must be behind it, besides root.
    pub novalet_uid: u32,
    /// What this instance says of itself.
    pub introduction: Introduction,
    /// Where updates go.
    pub control: Control,
    /// For the bundle revision in the hello.
    pub policy: Arc<dyn PolicyView>,
    /// Delays between calls.
    pub timing: Timing,
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers at the socket, or it is not novalet who does.
    #[error("novalet cannot be reached")]
    Connect(#[source] tonic::transport::Error),
    /// novalet did not answer the call in time.
    #[error("novalet does not answer the call")]
    Deadline,
    /// The call or the stream failed.
    #[error("the stream failed: {}: {}", .0.code(), .0.message())]
    Stream(Box<tonic::Status>),
    /// novalet ended the stream.
    #[error("novalet ended the stream")]
    Ended,
    /// novalet broke the rules of the stream.
    #[error("novalet broke the rules of the stream")]
    Rules(#[from] StreamError),
}

impl Client {
    /// Keeps a stream with novalet, for ever.
    pub async fn run(self) -> Infallible {
        let mut delay = self.timing.first_reconnect;
        loop {
            let mut served = false;
            let Err(error) = self.stream(&mut served).await;
            if served {
                delay = self.timing.first_reconnect;
            }
            tracing::warn!(
                socket = %self.socket.display(), error = %causes::on_one_line(&error),
                "no stream with novalet; endpoints are served as they are, calling again"
            );
            sleep(jittered(delay)).await;
            delay = (delay * 2).min(self.timing.last_reconnect);
        }
    }

    /// One stream, until it fails. `served` is set once a snapshot was applied.
    async fn stream(&self, served: &mut bool) -> Result<Infallible, ClientError> {
        let channel = self.connect().await?;
        let (acks, outgoing) = mpsc::channel(ACKS);
        self.control.board().restart();
        let hello = proto::Hello {
            instance: self.introduction.instance.clone(),
            slot: self.introduction.slot.into(),
            dedicated_workload: String::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            bundle_revision: self.policy.revision(),
        };
        send(&acks, Kind::Hello(hello)).await?;
        let mut client = SupervisorControlClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let call = client.sync_endpoints(ReceiverStream::new(outgoing));
        let updates = timeout(CALL_DEADLINE, call).await.map_err(|_| ClientError::Deadline)?;
        let updates = updates.map_err(|status| ClientError::Stream(Box::new(status)))?.into_inner();
        tracing::info!(socket = %self.socket.display(), "stream with novalet");
        tokio::select! {
            failed = self.take_updates(updates, &acks, served) => failed,
            failed = self.tell_statuses(&acks) => failed,
        }
    }

    async fn connect(&self) -> Result<Channel, ClientError> {
        let connector = Connector { socket: Arc::from(self.socket.as_path()), novalet_uid: self.novalet_uid };
        // The address is a formality: the connector knows the socket.
        Endpoint::from_static("http://novalet.invalid")
            .connect_timeout(CALL_DEADLINE)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true)
            .connect_with_connector(connector)
            .await
            .map_err(ClientError::Connect)
    }

    async fn take_updates(
        &self,
        mut updates: Streaming<proto::EndpointUpdate>,
        acks: &mpsc::Sender<proto::SupervisorAck>,
        served: &mut bool,
    ) -> Result<Infallible, ClientError> {
        let mut rules = StreamRules::default();
        loop {
            let message = updates.message().await.map_err(|status| ClientError::Stream(Box::new(status)))?;
            let message = message.ok_or(ClientError::Ended)?;
            let revision = message.revision;
            let is_snapshot = matches!(message.op, Some(proto::endpoint_update::Op::Snapshot(_)));
            rules.check(revision, is_snapshot)?;
            self.control.share_with(message.live_slots);
            self.control.apply(convert::update(message)?).await;
            *served = true;
            send(acks, Kind::Applied(proto::Applied { revision })).await?;
        }
    }

    async fn tell_statuses(&self, acks: &mpsc::Sender<proto::SupervisorAck>) -> Result<Infallible, ClientError> {
        loop {
            // Room first: a status that was taken from the board and not sent would be lost.
            let room = acks.reserve().await.map_err(|_| ClientError::Ended)?;
            let status = self.control.board().next().await;
            room.send(proto::SupervisorAck { kind: Some(Kind::Status(to_proto(status))) });
        }
    }
}

async fn send(acks: &mpsc::Sender<proto::SupervisorAck>, kind: Kind) -> Result<(), ClientError> {
    acks.send(proto::SupervisorAck { kind: Some(kind) }).await.map_err(|_| ClientError::Ended)
}

fn to_proto(status: Status) -> proto::EndpointStatus {
    let Status { pod, generation, phase, why, message, open_connections } = status;
    proto::EndpointStatus {
        pod_uid: pod,
        generation,
        phase: phase.to_proto() as i32,
        reason: why.as_str().to_owned(),
        message,
        open_connections,
    }
}

/// Between half and all of `delay`, so that the instances of a node do not call in step.
fn jittered(delay: Duration) -> Duration {
    let mut byte = [u8::MAX];
    let _without_randomness_the_whole_delay = getrandom::fill(&mut byte);
    delay / 2 + (delay / 2) * u32::from(byte[0]) / u32::from(u8::MAX)
}

/// Connects to novalet's socket and to nobody else's (T39).
struct Connector {
    socket: Arc<Path>,
    novalet_uid: u32,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (socket, novalet_uid) = (Arc::clone(&self.socket), self.novalet_uid);
        Box::pin(async move {
            let stream = UnixStream::connect(&socket).await?;
            let uid = stream.peer_cred()?.uid();
            if uid != novalet_uid && uid != 0 {
                let text = format!("{} is served by uid {uid}, not by novalet ({novalet_uid})", socket.display());
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
            Ok(TokioIo::new(stream))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_stay_within_half_and_all() {
        for _ in 0..100 {
            let delay = jittered(Duration::from_millis(100));
            assert!((50..=100).contains(&delay.as_millis()), "{delay:?}");
        }
    }
}
