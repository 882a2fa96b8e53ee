//! One type for every kind of connection, so that what carries bytes has no type parameters.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{client, server};

use crate::gate::deadline::Deadline;
use crate::guestlink::GuestStream;
use crate::state::destinations::Place;

/// A connection.
pub enum Stream {
    /// Plain TCP.
    Tcp(TcpStream),
    /// TCP to a destination outside, with its place among the endpoint's connections to it.
    Dialled(TcpStream, Place),
    /// TLS that we terminate.
    TlsServer(Box<server::TlsStream<TcpStream>>),
    /// TLS of an app, which we answer in the place of its destination.
    Intercepted(Box<server::TlsStream<Prefixed>>),
    /// TLS that we originate, over TCP or over the tunnel of a parent proxy.
    TlsClient(Box<client::TlsStream<Stream>>),
    /// A guest.
    Guest(Box<GuestStream>),
}

impl Stream {
    /// The protocol that the handshake agreed on.
    #[must_use]
    pub fn alpn(&self) -> Option<&[u8]> {
        match self {
            Self::TlsServer(tls) => tls.get_ref().1.alpn_protocol(),
            Self::Intercepted(tls) => tls.get_ref().1.alpn_protocol(),
            Self::TlsClient(tls) => tls.get_ref().1.alpn_protocol(),
            Self::Tcp(_) | Self::Dialled(..) | Self::Guest(_) => None,
        }
    }

    /// What the server of TLS that we originated presented of itself.
    #[must_use]
    pub fn server_certificate(&self) -> Option<&CertificateDer<'static>> {
        let Self::TlsClient(tls) = self else { return None };
        tls.get_ref().1.peer_certificates()?.first()
    }

    /// The other end's address, if the connection has one.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.tcp()?.peer_addr().ok()
    }

    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(tcp) | Self::Dialled(tcp, _) => Some(tcp),
            Self::TlsServer(tls) => Some(tls.get_ref().0),
            Self::TlsClient(tls) => tls.get_ref().0.tcp(),
            Self::Intercepted(tls) => tls.get_ref().0.inner.tcp(),
            Self::Guest(_) => None,
        }
    }

    fn guest_mut(&mut self) -> Option<&mut GuestStream> {
        match self {
            Self::Guest(guest) => Some(guest),
            Self::Intercepted(tls) => tls.get_mut().0.inner.guest_mut(),
            Self::Tcp(_) | Self::Dialled(..) | Self::TlsServer(_) | Self::TlsClient(_) => None,
        }
    }

    /// Ends the connection so that the other side sees a reset, where its transport can say so.
    pub async fn abort(mut self) {
        if let Some(tcp) = self.tcp() {
            reset_on_close(tcp);
        }
        if let Some(GuestStream::Framed(framed)) = self.guest_mut() {
            // A guest that does not read must not hold us: it then sees a cut, which is a reset as well.
            let _ = tokio::time::timeout(Duration::from_millis(100), framed.abort()).await;
        }
    }
}

fn reset_on_close(tcp: &TcpStream) {
    // Fails only on a socket that is gone already.
    let _ = socket2::SockRef::from(tcp).set_linger(Some(Duration::ZERO));
}

/// What TLS has to say by itself would wait for the next write, and a caller that asks to negotiate again writes nothing
/// before it was told no.
fn poll_read_tls<S: AsyncRead + AsyncWrite + Unpin>(
    tls: &mut server::TlsStream<S>,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    let read = Pin::new(&mut *tls).poll_read(cx, buf);
    if read.is_pending()
        && tls.get_ref().1.wants_write()
        && let Poll::Ready(Err(error)) = Pin::new(tls).poll_flush(cx)
    {
        return Poll::Ready(Err(error));
    }
    read
}

macro_rules! each {
    ($self:ident, $inner:ident => $call:expr) => {
        match $self.get_mut() {
            Stream::Tcp($inner) | Stream::Dialled($inner, _) => $call,
            Stream::TlsServer($inner) => $call,
            Stream::Intercepted($inner) => $call,
            Stream::TlsClient($inner) => $call,
            Stream::Guest($inner) => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) | Self::Dialled(tcp, _) => Pin::new(tcp).poll_read(cx, buf),
            Self::TlsServer(tls) => poll_read_tls(tls, cx, buf),
            Self::Intercepted(tls) => poll_read_tls(tls, cx, buf),
            Self::TlsClient(tls) => Pin::new(tls).poll_read(cx, buf),
            Self::Guest(guest) => Pin::new(guest).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, inner => Pin::new(inner).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, inner => Pin::new(inner).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(inner) | Self::Dialled(inner, _) => inner.is_write_vectored(),
            Self::TlsServer(inner) => inner.is_write_vectored(),
            Self::Intercepted(inner) => inner.is_write_vectored(),
            Self::TlsClient(inner) => inner.is_write_vectored(),
            Self::Guest(inner) => inner.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, inner => Pin::new(inner).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, inner => Pin::new(inner).poll_shutdown(cx))
    }
}

/// A connection of which something was read already.
pub struct Prefixed {
    first: bytes::Bytes,
    inner: Stream,
    stalled: Deadline,
}

/// Whoever takes none of the bytes that wait for it for this long is gone. For TCP the kernel keeps that time as well.
const STALL: Duration = Duration::from_secs(300);

impl Prefixed {
    /// Reads give `first`, then what comes from `inner`.
    #[must_use]
    pub fn new(first: bytes::Bytes, inner: Stream) -> Self {
        Self { first, inner, stalled: Deadline::default() }
    }

    /// What a write came to: an error when nothing was taken for too long.
    fn taken<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled.stop();
            return written;
        }
        self.stalled.start(STALL);
        self.stalled.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    /// What was read already and not consumed yet.
    #[must_use]
    pub fn first(&self) -> &[u8] {
        &self.first
    }

    /// As [`Stream::alpn`].
    #[must_use]
    pub fn alpn(&self) -> Option<&[u8]> {
        self.inner.alpn()
    }

    /// The bytes not consumed yet, and the connection.
    #[must_use]
    pub fn into_parts(self) -> (bytes::Bytes, Stream) {
        (self.first, self.inner)
    }

    /// Whether being dropped is to look like a reset. For plain TCP only: an end of TLS in good order is said in TLS.
    pub fn reset_if_dropped(&self, reset: bool) {
        if let Stream::Tcp(tcp) = &self.inner {
            // Fails only on a socket that is gone already.
            let _ = socket2::SockRef::from(tcp).set_linger(reset.then_some(Duration::ZERO));
        }
    }

    /// As [`Stream::abort`].
    pub async fn abort(self) {
        self.inner.abort().await;
    }
}

impl From<Stream> for Prefixed {
    /// Nothing was read yet.
    fn from(inner: Stream) -> Self {
        Self::new(bytes::Bytes::new(), inner)
    }
}

impl AsyncRead for Prefixed {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.first.is_empty() {
            return Pin::new(&mut this.inner).poll_read(cx, buf);
        }
        let taken = this.first.split_to(this.first.len().min(buf.remaining()));
        buf.put_slice(&taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Prefixed {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write(cx, buf);
        this.taken(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write_vectored(cx, bufs);
        this.taken(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.inner).poll_flush(cx);
        this.taken(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let shut = Pin::new(&mut this.inner).poll_shutdown(cx);
        this.taken(cx, shut)
    }
}
