//! Long streams from TCP to a guest go through a pipe of the kernel's: their bytes are never copied into this process, which
//! takes a fraction of the CPU. In the other direction a pipe costs more than it spares (measured), and TLS needs the bytes.
//!
//! A pipe is taken when a read has filled a whole buffer, and given back when the source has nothing more at the moment; so a
//! tunnel in which little is said, or nothing, holds none.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::pipe2;
use nova_proto::frame::MAX_PAYLOAD;
use nova_proto::framed::Channel;
use tokio::io::{AsyncWrite, Interest};

use crate::net::stream::Stream;

/// What a pipe holds. Four buffers of the copy; more gains nothing.
const SIZE: usize = 256 * 1024;
/// Pipes of a thread; who finds none copies. So many bound what the kernel holds for us: 16 MiB a thread.
const MOST: usize = 64;
/// Pipes of the process. Their descriptors come out of the eighth of `state::budget` that is for everything else: a quarter of it
/// at most, however many threads there are.
static MOST_OF_ALL: LazyLock<usize> = LazyLock::new(|| {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    usize::try_from(limit / (8 * 4 * 2)).unwrap_or(usize::MAX)
});
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// A pipe, and how much is in it. Dropped empty it goes back to its thread, else it is closed.
pub(super) struct Pipe {
    ends: Option<Ends>,
    held: usize,
    /// The record of what is in it was begun.
    is_announced: bool,
}

struct Ends {
    read: OwnedFd,
    write: OwnedFd,
    _open: Open,
}

/// A pipe's place among those of the process.
struct Open;

/// The pipes of a thread that nobody uses, and how many there are together.
#[derive(Default)]
struct Pipes {
    free: Vec<Ends>,
    all: usize,
}

thread_local! {
    static PIPES: RefCell<Pipes> = RefCell::default();
}

/// Whether bytes may go this way without passing through this process.
pub(super) fn is_possible(from: &Stream, to: &Stream) -> bool {
    matches!((from, to), (Stream::Tcp(_) | Stream::Dialled(..), Stream::Guest(_)))
}

impl Pipe {
    /// An empty pipe, unless this thread has as many as it may, or the system gives none of this size.
    pub(super) fn take() -> Option<Self> {
        let ends = PIPES.with_borrow_mut(|pipes| {
            if let Some(free) = pipes.free.pop() {
                return Some(free);
            }
            let made = (pipes.all < MOST).then(|| Ends::make().ok()).flatten()?;
            pipes.all += 1;
            Some(made)
        })?;
        Some(Self { ends: Some(ends), held: 0, is_announced: false })
    }

    /// Whether nothing is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Fills it, when it is empty, with what the source has: how much that is, 0 at its end. Pending: nothing now.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>, from: &Stream, to: &Stream) -> Poll<io::Result<usize>> {
        let (Stream::Tcp(tcp) | Stream::Dialled(tcp, _), Some(ends)) = (from, &self.ends) else {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        };
        let is_framed = matches!(to, Stream::Guest(guest) if matches!(**guest, Channel::Framed(_)));
        let most = if is_framed { MAX_PAYLOAD } else { SIZE };
        let pour = || tcp.try_io(Interest::READABLE, || pour(tcp, &ends.write, most));
        self.held = ready!(poll_io(cx, |cx| tcp.poll_read_ready(cx), pour))?;
        self.is_announced = !is_framed;
        Poll::Ready(Ok(self.held))
    }

    /// Empties some of it into the sink: how much.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>, to: &mut Stream) -> Poll<io::Result<usize>> {
        let (Stream::Guest(guest), Some(ends)) = (to, &self.ends) else {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        };
        let unix = match &mut **guest {
            Channel::Raw(unix) => &*unix,
            Channel::Framed(framed) => {
                if !self.is_announced {
                    ready!(framed.poll_announce(cx, self.held))?;
                    self.is_announced = true;
                }
                ready!(Pin::new(&mut *framed).poll_flush(cx))?;
                framed.get_ref()
            }
        };
        let held = self.held;
        let pour = || unix.try_io(Interest::WRITABLE, || pour(&ends.read, unix, held));
        let drained = ready!(poll_io(cx, |cx| unix.poll_write_ready(cx), pour))?;
        if drained == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.held -= drained;
        Poll::Ready(Ok(drained))
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take() else { return };
        // Fails only when the thread ends, and its pipes with it.
        let _ = PIPES.try_with(|pipes| {
            let mut pipes = pipes.borrow_mut();
            if self.held == 0 {
                pipes.free.push(ends);
            } else {
                pipes.all -= 1;
            }
        });
    }
}

impl Ends {
    /// Whoever has more pipes than the system's soft limit gets none of this size, and copies.
    fn make() -> io::Result<Self> {
        let open = Open::take().ok_or(io::ErrorKind::QuotaExceeded)?;
        let (read, write) = pipe2(OFlag::O_NONBLOCK | OFlag::O_CLOEXEC)?;
        fcntl(&write, FcntlArg::F_SETPIPE_SZ(SIZE as i32))?;
        Ok(Self { read, write, _open: open })
    }
}

impl Open {
    fn take() -> Option<Self> {
        let one_more = |open| (open < *MOST_OF_ALL).then_some(open + 1);
        OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(|_| Self)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

fn pour(from: impl AsFd, to: impl AsFd, most: usize) -> io::Result<usize> {
    let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
    Ok(splice(from, None, to, None, most, flags)?)
}

/// Until it is done, or has to wait.
fn poll_io(
    cx: &mut Context<'_>,
    ready: impl Fn(&mut Context<'_>) -> Poll<io::Result<()>>,
    io: impl Fn() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(ready(cx))?;
        match io() {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            done => return Poll::Ready(done),
        }
    }
}
