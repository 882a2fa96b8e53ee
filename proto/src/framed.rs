//! A byte stream over the records of [`crate::frame`], for links that lose half-close and reset.
//!
//! ```text
//! write --DATA--> ... --shutdown: FIN--> the peer reads the end; it may go on writing
//!                 ... --abort:    RST--> the peer reads ConnectionReset
//!                 ... --dropped-------> the peer reads ConnectionReset: an end without FIN is a cut, never an end
//! ```
//!
//! Reading needs no buffer: records land in the caller's buffer and their heads are squeezed out in place; a read of a long record
//! is cut so that the next head comes at its end, where nothing has to be moved for it. Writing copies
//! only what the inner stream does not take at once, into one buffer that is kept. So an idle connection costs no memory,
//! and, as with any buffered writer, `flush` must be called before waiting for something else.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::frame::{HEAD_LEN, MAX_PAYLOAD, Record};

/// From this length on, moving a payload to the front of a buffer costs more than reading the head in front of it alone.
const LONG: usize = 8 * 1024;

/// Records over `S`, seen as a plain stream with half-close.
#[derive(Debug)]
pub struct FramedStream<S> {
    inner: S,
    reader: Reader,
    writer: Writer,
}

/// A stream that carries half-close, by itself (`Raw`) or with records.
#[derive(Debug)]
pub enum Channel<S> {
    /// The link carries half-close.
    Raw(S),
    /// The link loses half-close.
    Framed(FramedStream<S>),
}

impl<S: AsyncRead + AsyncWrite + Unpin> FramedStream<S> {
    /// Starts with a record head in both directions: the hello and the status byte must be through.
    pub fn new(inner: S) -> Self {
        Self { inner, reader: Reader::default(), writer: Writer::default() }
    }

    /// The stream below.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Sends RST, so that the peer reads `ConnectionReset`; the caller then drops the stream. What was accepted before
    /// and not sent yet goes first, therefore the caller sets a deadline.
    ///
    /// # Errors
    /// Those of the inner stream. The peer then sees an end without FIN, which is a reset too.
    pub async fn abort(&mut self) -> io::Result<()> {
        self.writer.end(Record::Rst);
        std::future::poll_fn(|cx| self.poll_flush_all(cx)).await
    }

    /// Begins a DATA record of `len` bytes, at most [`MAX_PAYLOAD`], that go past this stream: the caller flushes, and puts
    /// exactly so many into the stream below before it writes anything else here.
    ///
    /// # Errors
    /// Those of the inner stream, and `BrokenPipe` after the end.
    pub fn poll_announce(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<io::Result<()>> {
        if self.writer.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(self.writer.poll_drain(&mut self.inner, cx))?;
        self.writer.pending.extend_from_slice(&Record::Data(len).encode());
        Poll::Ready(Ok(()))
    }

    fn poll_flush_all(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.writer.poll_drain(&mut self.inner, cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Channel<S> {
    /// Records if `framed`, else the stream as it is.
    pub fn new(inner: S, framed: bool) -> Self {
        if framed { Self::Framed(FramedStream::new(inner)) } else { Self::Raw(inner) }
    }

    /// The stream below.
    pub fn get_ref(&self) -> &S {
        match self {
            Self::Raw(inner) => inner,
            Self::Framed(framed) => framed.get_ref(),
        }
    }
}

/// What the next inbound byte belongs to.
#[derive(Debug, Clone, Copy)]
enum Expect {
    Head,
    Payload(usize),
    End,
    Failed(io::ErrorKind, &'static str),
}

#[derive(Debug)]
struct Reader {
    expect: Expect,
    head: [u8; HEAD_LEN],
    head_len: usize,
    /// Length of the last record.
    last: usize,
}

impl Default for Reader {
    fn default() -> Self {
        Self { expect: Expect::Head, head: [0; HEAD_LEN], head_len: 0, last: 0 }
    }
}

impl Reader {
    /// Most bytes of the next read: behind a long record no payload is read in front of which a head would have to go.
    fn most(&self) -> usize {
        match self.expect {
            Expect::Head if self.last >= LONG => HEAD_LEN - self.head_len,
            Expect::Payload(left) if self.last >= LONG => left + HEAD_LEN,
            _ => usize::MAX,
        }
    }

    /// Squeezes the heads out of `bytes`, returns how many payload bytes are left at its front. Stops at FIN, RST and
    /// broken heads; what was before them is still delivered. After FIN nothing counts any more.
    fn unwrap_records(&mut self, bytes: &mut [u8]) -> usize {
        let (mut at, mut kept) = (0, 0);
        while at < bytes.len() {
            match self.expect {
                Expect::Head => {
                    self.take_head_byte(bytes[at]);
                    at += 1;
                }
                Expect::Payload(left) => {
                    let taken = left.min(bytes.len() - at);
                    bytes.copy_within(at..at + taken, kept);
                    at += taken;
                    kept += taken;
                    self.expect = if taken == left { Expect::Head } else { Expect::Payload(left - taken) };
                }
                Expect::End | Expect::Failed(..) => break,
            }
        }
        kept
    }

    fn take_head_byte(&mut self, byte: u8) {
        self.head[self.head_len] = byte;
        self.head_len += 1;
        if self.head_len < HEAD_LEN {
            return;
        }
        self.head_len = 0;
        self.expect = match Record::parse(self.head) {
            Ok(Record::Data(len)) => {
                self.last = len;
                Expect::Payload(len)
            }
            Ok(Record::Fin) => Expect::End,
            Ok(Record::Rst) => Expect::Failed(io::ErrorKind::ConnectionReset, "the peer reset the stream"),
            Err(_) => Expect::Failed(io::ErrorKind::InvalidData, "broken record head"),
        };
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FramedStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        loop {
            match this.reader.expect {
                Expect::End => return Poll::Ready(Ok(())),
                Expect::Failed(kind, why) => return Poll::Ready(Err(io::Error::new(kind, why))),
                Expect::Head | Expect::Payload(_) if buf.remaining() == 0 => return Poll::Ready(Ok(())),
                Expect::Head | Expect::Payload(_) => {}
            }
            ready!(poll_read_most(&mut this.inner, cx, buf, this.reader.most()))?;
            let read = &mut buf.filled_mut()[before..];
            if read.is_empty() {
                this.reader.expect = Expect::Failed(io::ErrorKind::ConnectionReset, "the stream was cut before FIN");
                continue;
            }
            let kept = this.reader.unwrap_records(read);
            buf.set_filled(before + kept);
            if kept > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// A read of so many bytes at most.
fn poll_read_most<S: AsyncRead + Unpin>(
    from: &mut S,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
    most: usize,
) -> Poll<io::Result<()>> {
    if buf.remaining() <= most {
        return Pin::new(from).poll_read(cx, buf);
    }
    let mut part = ReadBuf::new(buf.initialize_unfilled_to(most));
    ready!(Pin::new(from).poll_read(cx, &mut part))?;
    let read = part.filled().len();
    buf.advance(read);
    Poll::Ready(Ok(()))
}

#[derive(Debug, Default)]
struct Writer {
    /// What the inner stream did not take yet: `pending[sent..]`. At most one DATA record and one end.
    pending: Vec<u8>,
    sent: usize,
    ended: bool,
}

impl Writer {
    fn end(&mut self, record: Record) {
        if !self.ended || record == Record::Rst {
            self.pending.extend_from_slice(&record.encode());
        }
        self.ended = true;
    }

    fn poll_drain<S: AsyncWrite + Unpin>(&mut self, inner: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.pending.len() {
            let written = ready!(Pin::new(&mut *inner).poll_write(cx, &self.pending[self.sent..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += written;
        }
        self.pending.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// Sends `payload` as one record. Called with nothing pending; afterwards the record counts as accepted.
    fn poll_record<S: AsyncWrite + Unpin>(
        &mut self,
        inner: &mut S,
        cx: &mut Context<'_>,
        payload: &[u8],
    ) -> Poll<io::Result<()>> {
        let head = Record::Data(payload.len()).encode();
        let written = if inner.is_write_vectored() {
            ready!(Pin::new(&mut *inner).poll_write_vectored(cx, &[IoSlice::new(&head), IoSlice::new(payload)]))?
        } else {
            0
        };
        if written < HEAD_LEN + payload.len() {
            self.pending.extend_from_slice(&head[written.min(HEAD_LEN)..]);
            self.pending.extend_from_slice(&payload[written.saturating_sub(HEAD_LEN)..]);
        }
        match self.poll_drain(inner, cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(())),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for FramedStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.writer.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(this.writer.poll_drain(&mut this.inner, cx))?;
        let payload = &buf[..buf.len().min(MAX_PAYLOAD)];
        if !payload.is_empty() {
            ready!(this.writer.poll_record(&mut this.inner, cx, payload))?;
        }
        Poll::Ready(Ok(payload.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_flush_all(cx)
    }

    /// Sends FIN and flushes. The inner stream stays open: the other direction may still run.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.writer.end(Record::Fin);
        this.poll_flush_all(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Channel<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Raw(inner) => Pin::new(inner).poll_read(cx, buf),
            Self::Framed(framed) => Pin::new(framed).poll_read(cx, buf),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Channel<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Raw(inner) => Pin::new(inner).poll_write(cx, buf),
            Self::Framed(framed) => Pin::new(framed).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Raw(inner) => Pin::new(inner).poll_write_vectored(cx, bufs),
            Self::Framed(framed) => Pin::new(framed).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Raw(inner) => inner.is_write_vectored(),
            Self::Framed(framed) => framed.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Raw(inner) => Pin::new(inner).poll_flush(cx),
            Self::Framed(framed) => Pin::new(framed).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Raw(inner) => Pin::new(inner).poll_shutdown(cx),
            Self::Framed(framed) => Pin::new(framed).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn framed(buffer: usize) -> (DuplexStream, FramedStream<DuplexStream>) {
        let (wire, inner) = duplex(buffer);
        (wire, FramedStream::new(inner))
    }

    fn run<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
        runtime
            .block_on(async { tokio::time::timeout(std::time::Duration::from_secs(10), test).await.expect("in time") })
    }

    async fn read_all(wire_bytes: &[u8]) -> (Vec<u8>, Option<io::ErrorKind>) {
        let (mut wire, mut stream) = framed(wire_bytes.len().max(1));
        wire.write_all(wire_bytes).await.expect("fits");
        drop(wire);
        let mut out = Vec::new();
        let error = stream.read_to_end(&mut out).await.err().map(|error| error.kind());
        (out, error)
    }

    // covers: A4 (framed mode)
    #[test]
    fn only_fin_is_an_end_and_everything_else_is_an_error() {
        run(async {
            for (bytes, out, error) in [
                (&b"\x00\x00\x02hi\x01\x00\x00"[..], &b"hi"[..], None),
                (b"\x00\x00\x02hi", b"hi", Some(io::ErrorKind::ConnectionReset)),
                (b"\x00\x00\x02h", b"h", Some(io::ErrorKind::ConnectionReset)),
                (b"\x01\x00", b"", Some(io::ErrorKind::ConnectionReset)),
                (b"", b"", Some(io::ErrorKind::ConnectionReset)),
                (b"\x00\x00\x02hi\x02\x00\x00", b"hi", Some(io::ErrorKind::ConnectionReset)),
                (b"\x00\x00\x02hi\x03\x00\x00", b"hi", Some(io::ErrorKind::InvalidData)),
                (b"\x00\x00\x00", b"", Some(io::ErrorKind::InvalidData)),
                (b"\x01\x00\x01x", b"", Some(io::ErrorKind::InvalidData)),
                (b"\x01\x00\x00\xff\xff\xff", b"", None),
            ] {
                assert_eq!(read_all(bytes).await, (out.to_vec(), error), "{bytes:?}");
            }
        });
    }

    #[test]
    fn a_failed_stream_stays_failed_and_an_ended_one_ended() {
        run(async {
            let (mut wire, mut stream) = framed(64);
            wire.write_all(b"\x09\x00\x00\x01\x00\x00").await.expect("fits");
            for _ in 0..2 {
                assert_eq!(stream.read_u8().await.expect_err("broken").kind(), io::ErrorKind::InvalidData);
            }
            let (mut wire, mut stream) = framed(64);
            wire.write_all(b"\x01\x00\x00\x00\x00\x01x").await.expect("fits");
            for _ in 0..2 {
                assert_eq!(stream.read(&mut [0; 8]).await.expect("ended"), 0);
            }
        });
    }

    #[test]
    fn nothing_can_be_written_after_shutdown() {
        run(async {
            let (mut wire, mut stream) = framed(64);
            stream.write_all(b"ab").await.expect("open");
            stream.shutdown().await.expect("first");
            stream.shutdown().await.expect("again is fine and sends nothing");
            assert_eq!(stream.write_all(b"c").await.expect_err("ended").kind(), io::ErrorKind::BrokenPipe);
            drop(stream);
            let mut sent = Vec::new();
            wire.read_to_end(&mut sent).await.expect("read");
            assert_eq!(sent, b"\x00\x00\x02ab\x01\x00\x00");
        });
    }

    // covers: A4 (half-close)
    #[test]
    fn after_shutdown_the_answer_still_comes() {
        run(async {
            let (a, b) = duplex(16);
            let (mut client, mut server) = (FramedStream::new(a), FramedStream::new(b));
            let serve = async {
                let mut request = Vec::new();
                server.read_to_end(&mut request).await.expect("request");
                server.write_all(&request.len().to_string().into_bytes()).await.expect("answer");
                server.shutdown().await.expect("end");
            };
            let call = async {
                client.write_all(&[7; 100_000]).await.expect("request");
                client.shutdown().await.expect("end");
                let mut answer = String::new();
                client.read_to_string(&mut answer).await.expect("answer");
                assert_eq!(answer, "100000");
            };
            tokio::join!(serve, call);
        });
    }

    #[test]
    fn abort_reaches_the_peer_as_a_reset_after_what_was_accepted() {
        run(async {
            let (a, b) = duplex(4);
            let (mut client, mut server) = (FramedStream::new(a), FramedStream::new(b));
            let call = async {
                client.write_all(b"hello").await.expect("accepted");
                client.abort().await.expect("sent");
            };
            let serve = async {
                let mut got = Vec::new();
                let error = server.read_to_end(&mut got).await.expect_err("reset");
                assert_eq!((&got[..], error.kind()), (&b"hello"[..], io::ErrorKind::ConnectionReset));
            };
            tokio::join!(call, serve);
        });
    }

    #[test]
    fn the_longest_record_is_exactly_the_longest_payload() {
        run(async {
            let (wire, mut stream) = framed(1 << 20);
            assert_eq!(stream.write(&vec![1; MAX_PAYLOAD + 10]).await.expect("open"), MAX_PAYLOAD);
            stream.write_all(b"x").await.expect("open");
            stream.shutdown().await.expect("end");
            let mut out = Vec::new();
            FramedStream::new(wire).read_to_end(&mut out).await.expect("whole");
            assert_eq!(out.len(), MAX_PAYLOAD + 1);
        });
    }

    #[test]
    fn what_goes_past_the_stream_is_announced_in_its_turn() {
        run(async {
            let (mut wire, mut stream) = framed(64);
            stream.write_all(b"ab").await.expect("open");
            std::future::poll_fn(|cx| stream.poll_announce(cx, 3)).await.expect("open");
            stream.flush().await.expect("sent");
            stream.inner.write_all(b"cde").await.expect("past it");
            stream.shutdown().await.expect("end");
            assert!(std::future::poll_fn(|cx| stream.poll_announce(cx, 1)).await.is_err());
            drop(stream);
            let mut sent = Vec::new();
            wire.read_to_end(&mut sent).await.expect("read");
            assert_eq!(sent, b"\x00\x00\x02ab\x00\x00\x03cde\x01\x00\x00");
        });
    }

    proptest! {
        #[test]
        fn any_chunking_carries_the_same_bytes(
            writes in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..12),
            pipe in 1_usize..70,
            read_size in 1_usize..90,
        ) {
            let expected = writes.concat();
            let got = run(async move {
                let (a, b) = duplex(pipe);
                let (mut sender, mut receiver) = (FramedStream::new(a), FramedStream::new(b));
                let send = async {
                    for chunk in &writes {
                        sender.write_all(chunk).await.expect("open");
                    }
                    sender.shutdown().await.expect("end");
                };
                let receive = async {
                    let (mut out, mut chunk) = (Vec::new(), vec![0; read_size]);
                    loop {
                        match receiver.read(&mut chunk).await.expect("whole") {
                            0 => return out,
                            n => out.extend_from_slice(&chunk[..n]),
                        }
                    }
                };
                tokio::join!(send, receive).1
            });
            prop_assert_eq!(got, expected);
        }

        #[test]
        fn long_records_carry_the_same_bytes_however_they_are_cut(
            writes in proptest::collection::vec((0_usize..3 * LONG, any::<u8>()), 0..8),
            pipe in 1_usize..3 * LONG,
            read_size in 1_usize..3 * LONG,
        ) {
            let writes: Vec<_> = writes.into_iter().map(|(len, byte)| vec![byte; len]).collect();
            let expected = writes.concat();
            let got = run(async move {
                let (a, b) = duplex(pipe);
                let (mut sender, mut receiver) = (FramedStream::new(a), FramedStream::new(b));
                let send = async {
                    for chunk in &writes {
                        sender.write_all(chunk).await.expect("open");
                    }
                    sender.shutdown().await.expect("end");
                };
                let receive = async {
                    let (mut out, mut chunk) = (Vec::new(), vec![0; read_size]);
                    loop {
                        match receiver.read(&mut chunk).await.expect("whole") {
                            0 => return out,
                            n => out.extend_from_slice(&chunk[..n]),
                        }
                    }
                };
                tokio::join!(send, receive).1
            });
            prop_assert!(got == expected);
        }

        #[test]
        fn no_bytes_panic_and_chunking_never_changes_the_verdict(
            bytes in proptest::collection::vec(prop_oneof![3 => 0_u8..3, 1 => any::<u8>()], 0..200),
            cut in 0_usize..200,
        ) {
            let mut whole = (Reader::default(), bytes.clone());
            let kept = whole.0.unwrap_records(&mut whole.1);
            let mut split = Reader::default();
            let (mut first, mut second) = (bytes.clone(), bytes.clone());
            let cut = cut.min(bytes.len());
            let first_kept = split.unwrap_records(&mut first[..cut]);
            let second_kept = split.unwrap_records(&mut second[cut..]);
            let joined = [&first[..first_kept], &second[cut..cut + second_kept]].concat();
            prop_assert_eq!(&whole.1[..kept], &joined[..]);
            prop_assert_eq!(format!("{:?}", whole.0.expect), format!("{:?}", split.expect));
        }
    }
}
