//! From the host to the app: hello, check, connect, one status byte, copy.
//!
//! The token is compared before anything else is looked at, so a caller without it learns nothing about the guest.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nova_proto::framed::Channel;
use nova_proto::hello::{HEAD_LEN, Hello, Kind, Status, parse_head};
use nova_proto::ids::BootToken;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::budget::{Budget, Place};
use super::config::RelayConfig;
use super::copy::copy;
use super::link::LinkListener;
use super::outbound::ACCEPT_PAUSE;
use super::stream::Stream;
use crate::config::Ingress;

/// From accept to the last byte of the hello (attack T14: half-open connections must not hold descriptors).
const HELLO_DEADLINE: Duration = Duration::from_secs(2);
/// For the app to accept.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// To write the status byte.
const STATUS_DEADLINE: Duration = Duration::from_secs(2);

/// The declared targets and how they are reached.
#[derive(Debug)]
pub struct Targets {
    token: BootToken,
    ingress: Vec<Ingress>,
    socket_dir: PathBuf,
}

impl Targets {
    /// Of a relay.
    #[must_use]
    pub fn new(config: &RelayConfig) -> Self {
        Self { token: config.boot_token, ingress: config.ingress.clone(), socket_dir: config.socket_dir.clone() }
    }
}

/// Accepts for ever. It never waits on a connection.
pub async fn serve(listener: LinkListener, targets: Targets, budget: Budget) {
    let targets = Arc::new(targets);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    if let Some(place) = budget.inbound() {
                        connections.spawn(carry(stream, Arc::clone(&targets), place));
                    } else {
                        tracing::debug!("closed a connection of the host: there are too many");
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot accept from the host");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn carry(mut stream: Stream, targets: Arc<Targets>, _place: Place) {
    let Ok(Ok(hello)) = timeout(HELLO_DEADLINE, read_hello(&mut stream)).await else {
        tracing::debug!("closed a connection of the host: no valid hello in time");
        return;
    };
    let app = connect(&targets, &hello).await;
    let status = app.as_ref().map_or_else(|status| *status, |_| Status::Ok);
    let answered = timeout(STATUS_DEADLINE, stream.write_all(&[status as u8])).await;
    if let (Ok(app), Ok(Ok(()))) = (app, answered) {
        copy(app, Channel::new(stream, hello.framed)).await;
    }
}

async fn read_hello(stream: &mut Stream) -> io::Result<Hello> {
    let broken = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut head = [0; HEAD_LEN];
    stream.read_exact(&mut head).await?;
    let head = parse_head(&head).map_err(broken)?;
    let mut target = vec![0; head.target_len];
    stream.read_exact(&mut target).await?;
    head.with_target(&target).map_err(broken)
}

async fn connect(targets: &Targets, hello: &Hello) -> Result<Stream, Status> {
    if !targets.token.matches(&hello.token) || hello.kind.is_from_guest() {
        return Err(Status::Denied);
    }
    let declared = targets.ingress.iter().find(|ingress| is_named(ingress, hello)).ok_or(Status::Absent)?;
    let connected = timeout(CONNECT_DEADLINE, async {
        match declared {
            Ingress::Tcp(port) => connect_tcp(*port).await.map(Stream::Tcp),
            Ingress::Socket(name) => UnixStream::connect(targets.socket_dir.join(name)).await.map(Stream::Unix),
        }
    });
    match connected.await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) if error.kind() == io::ErrorKind::TimedOut => Err(Status::Timeout),
        Ok(Err(_)) => Err(Status::Refused),
        Err(_) => Err(Status::Timeout),
    }
}

fn is_named(ingress: &Ingress, hello: &Hello) -> bool {
    match ingress {
        Ingress::Tcp(port) => hello.kind == Kind::Tcp && hello.target == port.to_string(),
        Ingress::Socket(name) => hello.kind == Kind::Socket && hello.target == *name,
    }
}

async fn connect_tcp(port: u16) -> io::Result<TcpStream> {
    let tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    // When nobody listens on a port that the kernel also hands out as a source port, a socket can connect to itself.
    if tcp.local_addr()? == tcp.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    tcp.set_nodelay(true)?;
    Ok(tcp)
}
