//! From the app to the host: the proxy port and the fixed dependencies. Nothing is parsed here; the supervisor does that.

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::Duration;

use nova_proto::framed::Channel;
use nova_proto::hello::Kind;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::budget::{Budget, Place};
use super::copy::copy;
use super::link::BACKLOG;
use super::slots::Slots;
use super::stream::Stream;

/// After a failed accept (no descriptors left, say), so that the loop does not spin.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// One port of the guest and what a connection to it means to the supervisor.
#[derive(Debug)]
pub struct Outbound {
    listener: TcpListener,
    purpose: Arc<Purpose>,
    slots: Arc<Slots>,
    budget: Budget,
}

#[derive(Debug)]
struct Purpose {
    kind: Kind,
    target: String,
}

impl Outbound {
    /// Starts to listen.
    ///
    /// # Errors
    /// When the address is taken or not in the guest.
    pub fn bind(
        address: SocketAddrV4,
        kind: Kind,
        target: String,
        slots: Arc<Slots>,
        budget: Budget,
    ) -> std::io::Result<Self> {
        let listener = listen(address)?;
        Ok(Self { listener, purpose: Arc::new(Purpose { kind, target }), slots, budget })
    }

    /// Accepts for ever. It never waits on a connection.
    pub async fn serve(self) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((tcp, _)) => self.start(tcp, &mut connections),
                    Err(error) => {
                        tracing::debug!(%error, "cannot accept from the app");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }

    fn start(&self, tcp: TcpStream, connections: &mut JoinSet<()>) {
        let app = Stream::Tcp(tcp);
        let Some(place) = self.budget.outbound() else {
            tracing::debug!("closed a connection of the app: there are too many");
            app.reset_on_drop();
            return;
        };
        connections.spawn(carry(app, Arc::clone(&self.purpose), Arc::clone(&self.slots), place));
    }
}

/// With the link's backlog: the default of 128 overflows in a burst of the app, and each overflow costs it a second.
fn listen(address: SocketAddrV4) -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address.into())?;
    socket.listen(BACKLOG.unsigned_abs())
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
