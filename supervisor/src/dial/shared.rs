//! HTTP/2 connections to apps and upstreams, each shared by many exchanges.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use http::uri::Scheme;
use hyper::client::conn::http2::{Builder, Connection, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};

use crate::conn::body::RequestBody;
use crate::gate::{CountedIo, Limits, OpenedStreams, Peer};
use crate::net::stream::{Prefixed, Stream};
use crate::reason::Reason;
use crate::state::room::Held;

/// Exchanges on one connection at a time, unless the app allows fewer.
const STREAMS: usize = 100;
/// What an app may send of an answer before its caller has taken any of it.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The same for all exchanges of a connection together.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// How long an app that allows no exchange may take to allow the one that waits.
pub(super) const SHUT_TIME: Duration = Duration::from_secs(5);
/// What waits in memory for an app that takes nothing, per exchange.
const SEND_BUFFER: usize = 64 * 1024;

/// A connection, and how many exchanges are on it.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) sender: SendRequest<RequestBody>,
    use_: Rc<Use>,
    most: Most,
}

/// Exchanges that an app allows on one connection, as far as it has said; the same for all connections to it.
#[derive(Clone)]
pub(super) struct Most(Rc<Cell<usize>>);

impl Default for Most {
    fn default() -> Self {
        Self(Rc::new(Cell::new(STREAMS)))
    }
}

type Running = Connection<TokioIo<CountedIo<Prefixed>>, RequestBody, Local>;

struct Use {
    /// Knows the app's settings; gone when it has ended.
    connection: RefCell<Option<Running>>,
    streams: OpenedStreams,
    open: Cell<usize>,
    /// The app has answered, so its settings are known.
    answered: Cell<bool>,
    last: Cell<Instant>,
    until: Instant,
    addr: Option<SocketAddr>,
    scheme: Scheme,
}

/// One exchange's place on a connection; given back when dropped.
pub(super) struct Place(Rc<Use>);

impl Shared {
    /// Speaks HTTP/2 on a fresh connection, whose other side is known to understand it, and which takes exchanges `until` then.
    pub(super) async fn start(
        stream: Stream,
        most: Most,
        limits: &Limits,
        held: Held,
        until: Instant,
    ) -> Result<Self, Reason> {
        let addr = stream.peer_addr();
        let scheme = if matches!(stream, Stream::TlsClient(_)) { Scheme::HTTPS } else { Scheme::HTTP };
        let stream = CountedIo::new(Prefixed::from(stream), Peer::Server).keeping(held);
        let streams = stream.opened_streams();
        let starting = Builder::new(Local)
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
            .handshake(TokioIo::new(stream));
        let (sender, connection) = starting.await.map_err(|_| Reason::UpstreamClosed)?;
        let use_ = Rc::new(Use {
            connection: RefCell::new(Some(connection)),
            streams,
            open: Cell::new(0),
            answered: Cell::new(false),
            last: Cell::new(Instant::now()),
            until,
            addr,
            scheme,
        });
        let running = Rc::clone(&use_);
        // Ends when every sender is dropped or the app closes; its error is that of the exchanges in progress.
        tokio::task::spawn_local(poll_fn(move |cx| {
            let mut connection = running.connection.borrow_mut();
            let ended = connection.as_mut().is_none_or(|connection| Pin::new(connection).poll(cx).is_ready());
            if !ended {
                return Poll::Pending;
            }
            connection.take();
            Poll::Ready(())
        }));
        Ok(Self { sender, use_, most })
    }

    /// A place on the connection, if it has one.
    pub(super) fn place(&self) -> Option<Place> {
        (self.is_open() && self.use_.open.get() < self.allowed()).then(|| {
            self.use_.open.set(self.use_.open.get() + 1);
            Place(Rc::clone(&self.use_))
        })
    }

    /// Exchanges that may be on it at a time. Until its app has answered that is what is known of the app; but never one
    /// on a connection that takes none.
    fn allowed(&self) -> usize {
        let Some(allowed) = self.use_.settings() else { return 0 };
        if allowed > 0 && self.use_.answered.get() {
            self.most.0.set(allowed);
        }
        if allowed == 0 { 0 } else { self.most.0.get() }
    }

    /// The app has answered: its settings are known.
    pub(super) fn answered(&self) {
        self.use_.answered.set(true);
    }

    /// The last stream on the connection: an exchange that is handed over now is a later one.
    pub(super) fn last_stream(&self) -> u32 {
        self.use_.streams.last()
    }

    /// To be asked after [`SHUT_TIME`]: resolves when the app allows no exchange and none was placed after `last`, so that what
    /// waits to be sent would wait for good. Once another one was placed that may have been this one, which then has the time of
    /// an answer.
    pub(super) async fn until_useless(&self, last: u32) {
        while self.last_stream() == last {
            if self.use_.settings() == Some(0) {
                return;
            }
            tokio::time::sleep(SHUT_TIME).await;
        }
        std::future::pending().await
    }

    /// Whether both are the same connection.
    pub(super) fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.use_, &other.use_)
    }

    pub(super) fn addr(&self) -> Option<SocketAddr> {
        self.use_.addr
    }

    pub(super) fn until(&self) -> Instant {
        self.use_.until
    }

    pub(super) fn scheme(&self) -> &Scheme {
        &self.use_.scheme
    }

    pub(super) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Whether the connection is open, and busy or used within `idle`.
    pub(super) fn is_worth_keeping(&self, idle: Duration) -> bool {
        self.is_open() && (self.use_.open.get() > 0 || self.use_.last.get().elapsed() < idle)
    }
}

impl Use {
    /// Exchanges that the app allows now, as far as it has said; nothing when the connection has ended.
    fn settings(&self) -> Option<usize> {
        let connection = self.connection.try_borrow().ok()?;
        connection.as_ref().map(|connection| connection.current_max_send_streams().min(STREAMS))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
        self.0.last.set(Instant::now());
    }
}

/// Runs the parts of a connection on the thread that it belongs to.
#[derive(Clone, Copy)]
struct Local;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, part: F) {
        drop(tokio::task::spawn_local(part));
    }
}
