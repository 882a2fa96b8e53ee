//! The supervisor's side of what guests dial: its listener, its table and its reader of hellos, and who called.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nova_proto::hello::{Hello, Kind};
use nova_supervisor::guestlink::{GuestSocket, GuestStream, HelloFailure, VsockListener, receive};
use nova_supervisor::state::table::EndpointTable;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::stand::CID_X;

/// For a connection to arrive. The relay's presence waits up to two seconds between two tries.
const PATIENCE: Duration = Duration::from_secs(10);

/// One connection of a guest.
pub(super) struct Arrival {
    /// The peer as the kernel names it.
    pub(super) cid: u32,
    /// Whose endpoint that is.
    pub(super) workload: Option<String>,
    /// What it said, read with that endpoint's token.
    pub(super) hello: Result<(Hello, GuestStream), HelloFailure>,
    /// How long saying it took.
    pub(super) after: Duration,
}

/// All of them, in order.
pub(super) struct Arrivals {
    arrived: mpsc::UnboundedReceiver<Arrival>,
    kept: Vec<GuestStream>,
}

impl Arrivals {
    /// Listens as the supervisor does.
    pub(super) fn listen(port: u32, table: Arc<EndpointTable>) -> io::Result<Self> {
        let listener = VsockListener::bind(port)?;
        let (sender, arrived) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((cid, socket)) = listener.accept().await {
                tokio::spawn(identify(cid, socket, Arc::clone(&table), sender.clone()));
            }
        });
        Ok(Self { arrived, kept: Vec::new() })
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> anyhow::Result<Arrival> {
        timeout(PATIENCE, self.arrived.recv()).await.context("nothing arrived")?.context("the listener failed")
    }

    /// Holds a connection open to the end, so that its guest does not dial again.
    pub(super) fn keep(&mut self, stream: GuestStream) {
        self.kept.push(stream);
    }

    /// The next one, which must be a valid hello of guest x.
    pub(super) async fn of_x(&mut self, kind: Kind, target: &str) -> anyhow::Result<GuestStream> {
        let arrival = self.next().await?;
        arrival.is_x()?;
        let (hello, stream) = arrival.hello?;
        let said = (hello.kind, hello.target.as_str(), hello.framed);
        ensure!(said == (kind, target, false), "the hello says {said:?}");
        Ok(stream)
    }
}

impl Arrival {
    /// Whatever it said, it must be guest x.
    pub(super) fn is_x(&self) -> anyhow::Result<()> {
        ensure!(self.cid == CID_X, "the peer's CID is {}", self.cid);
        ensure!(self.workload.as_deref() == Some("x"), "the workload is {:?}", self.workload);
        Ok(())
    }

    /// It must be guest x and its hello refused as `wanted`.
    pub(super) fn is_refused(&self, wanted: HelloFailure) -> anyhow::Result<()> {
        self.is_x()?;
        match &self.hello {
            Err(failure) => ensure!(*failure == wanted, "refused, but as {failure:?}"),
            Ok((hello, _)) => anyhow::bail!("accepted: {:?} {:?}", hello.kind, hello.target),
        }
        Ok(())
    }
}

async fn identify(cid: u32, socket: GuestSocket, table: Arc<EndpointTable>, sender: mpsc::UnboundedSender<Arrival>) {
    let start = Instant::now();
    let endpoint = table.load().by_cid(cid).map(|endpoint| endpoint.spec());
    let hello = match (&endpoint, UnixStream::from_std(socket)) {
        (Some(spec), Ok(stream)) => receive(stream, spec.boot_token).await,
        _ => Err(HelloFailure::Bad),
    };
    let workload = endpoint.map(|spec| spec.workload.to_string());
    // Fails only when the checks have ended.
    let _ = sender.send(Arrival { cid, workload, hello, after: start.elapsed() });
}
