//! From the app to the host: the proxy port, the fixed dependencies and the egress sockets. Nothing is parsed here; the
//! supervisor does that.

use std::io;
use std::net::SocketAddrV4;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::Arc;
use std::time::Duration;

use nova_proto::framed::Channel;
use nova_proto::hello::Kind;
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::task::JoinSet;

use super::budget::{Budget, Place};
use super::copy::copy;
use super::link::BACKLOG;
use super::slots::Slots;
use super::stream::Stream;

/// After a failed accept (no descriptors left, say), so that the loop does not spin.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// One port or socket of the guest and what a connection to it means to the supervisor.
#[derive(Debug)]
pub struct Outbound {
    listener: Listener,
    purpose: Arc<Purpose>,
    slots: Arc<Slots>,
    budget: Budget,
}

/// What a connection is for, as its hello says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purpose {
    /// The hello's kind.
    pub kind: Kind,
    /// The hello's target.
    pub target: String,
}

/// Where the app connects to.
#[derive(Debug)]
pub enum Listener {
    /// An address of the guest.
    Tcp(TcpListener),
    /// An egress socket.
    Unix(UnixListener),
}

impl Listener {
    /// Listens on an address, with the link's backlog: the default of 128 overflows in a burst of the app, and each overflow
    /// costs it a second.
    ///
    /// # Errors
    /// When the address is taken or not in the guest.
    pub fn tcp(address: SocketAddrV4) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(address.into())?;
        socket.listen(BACKLOG.unsigned_abs()).map(Self::Tcp)
    }

    /// A socket that nova-init made.
    ///
    /// # Errors
    /// Those of the runtime.
    pub fn unix(socket: StdUnixListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        UnixListener::from_std(socket).map(Self::Unix)
    }

    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => Ok(Stream::Tcp(listener.accept().await?.0)),
            Self::Unix(listener) => Ok(Stream::Unix(listener.accept().await?.0)),
        }
    }
}

impl Outbound {
    /// Of a listener.
    #[must_use]
    pub fn new(listener: Listener, purpose: Purpose, slots: Arc<Slots>, budget: Budget) -> Self {
        Self { listener, purpose: Arc::new(purpose), slots, budget }
    }

    /// Accepts for ever. It never waits on a connection.
    pub async fn serve(self) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok(app) => self.start(app, &mut connections),
                    Err(error) => {
                        tracing::debug!(%error, "cannot accept from the app");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }

    fn start(&self, app: Stream, connections: &mut JoinSet<()>) {
        let Some(place) = self.budget.outbound() else {
            tracing::debug!("closed a connection of the app: there are too many");
            app.reset_on_drop();
            return;
        };
        connections.spawn(carry(app, Arc::clone(&self.purpose), Arc::clone(&self.slots), place));
    }
}

async fn carry(app: Stream, purpose: Arc<Purpose>, slots: Arc<Slots>, _place: Place) {
    match slots.open(purpose.kind, &purpose.target).await {
        Ok(stream) => {
            if let Stream::Tcp(tcp) = &app {
                // Both ends copy as they read; waiting for fuller packets only adds delay.
                let _ = tcp.set_nodelay(true);
            }
            copy(app, Channel::new(stream, slots.framed())).await;
        }
        Err(error) => {
            tracing::debug!(%error, "closed a connection of the app: the supervisor does not answer");
            app.reset_on_drop();
        }
    }
}
