//! From the threads' buffers to the file.

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use super::line::Line;

/// A thread hands over its lines at least this often.
pub const FLUSH_EVERY: Duration = Duration::from_millis(100);
/// A thread hands over its lines at this many bytes.
pub const FLUSH_BYTES: usize = 64 * 1024;
/// Buffers on the way to the writer; beyond it a thread keeps its lines until the writer has caught up.
const QUEUE: usize = 1024;
/// A thread that keeps more than this counts the log as not writable: a burst of one guest's denials is no reason to refuse
/// everybody's requests, a writer that stands still is.
const BEHIND: usize = 1024 * 1024;
/// What a thread keeps at most; after that its lines are counted.
const KEPT_MAX: usize = 16 * 1024 * 1024;
/// The writer writes at once what waits for it, up to about this much.
const WRITE_BYTES: usize = 1024 * 1024;
/// What the writer holds while the disk refuses: denials go on being recorded until then, after that they are counted.
const HELD_MAX: usize = 64 * 1024 * 1024;

/// The way into the log. One per process; clones lead into the same one.
#[derive(Clone)]
pub struct AuditSink {
    to_writer: SyncSender<Message>,
    writable: Arc<AtomicBool>,
    required: bool,
    lost: Arc<AtomicU64>,
}

enum Message {
    Lines(Vec<u8>),
    Flush(SyncSender<()>),
}

thread_local! {
    static BUFFER: RefCell<Buffer> = const { RefCell::new(Buffer { lines: Vec::new(), since: None, usual: 0 }) };
    static IDS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// A thread's own lines, and when the first of them came.
struct Buffer {
    lines: Vec<u8>,
    since: Option<Instant>,
    /// Bytes of the last hand-over: room for as many is made at once.
    usual: usize,
}

impl AuditSink {
    /// Opens the log for appending (0600) and starts the writer.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: &Path, required: bool) -> io::Result<Arc<Self>> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let (to_writer, from_threads) = sync_channel(QUEUE);
        let writable = Arc::new(AtomicBool::new(true));
        let lost = Arc::<AtomicU64>::default();
        let writer = Writer { file, held: Vec::new(), writable: Arc::clone(&writable), lost: Arc::clone(&lost) };
        std::thread::Builder::new().name("audit".into()).spawn(move || writer.run(&from_threads))?;
        Ok(Arc::new(Self { to_writer, writable, required, lost }))
    }

    /// Whether a new request may be allowed: the log can be written, or the operator said that it need not.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        !self.required || self.writable.load(Ordering::Relaxed)
    }

    /// Lines that could not be written since the start.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Hands over this thread's lines if they are old enough. Each data-plane thread calls it every [`FLUSH_EVERY`].
    pub fn tick(&self) {
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.since.is_some_and(|since| since.elapsed() >= FLUSH_EVERY) {
                self.hand_over(buffer);
            }
        });
    }

    /// Hands over this thread's lines and waits until everything handed over so far is in the file.
    pub fn flush(&self) {
        BUFFER.with_borrow_mut(|buffer| self.hand_over(buffer));
        let (done, wait) = sync_channel(1);
        if self.to_writer.send(Message::Flush(done)).is_ok() {
            let _ = wait.recv_timeout(Duration::from_secs(5));
        }
    }

    pub(super) fn write(&self, line: &Line, at_once: bool) {
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.lines.is_empty() {
                buffer.lines.reserve(buffer.usual);
            }
            if serde_json::to_writer(&mut buffer.lines, line).is_err() {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            buffer.lines.push(b'\n');
            let since = *buffer.since.get_or_insert_with(Instant::now);
            if at_once || buffer.lines.len() >= FLUSH_BYTES || since.elapsed() >= FLUSH_EVERY {
                self.hand_over(buffer);
            }
        });
    }

    fn hand_over(&self, buffer: &mut Buffer) {
        if buffer.lines.is_empty() {
            return;
        }
        let lines = std::mem::take(&mut buffer.lines);
        buffer.since = None;
        buffer.usual = lines.len().min(FLUSH_BYTES);
        match self.to_writer.try_send(Message::Lines(lines)) {
            Ok(()) => {}
            Err(TrySendError::Full(Message::Lines(lines))) => self.keep(buffer, lines),
            Err(_) => {
                self.writable.store(false, Ordering::Relaxed);
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The writer is behind.
    fn keep(&self, buffer: &mut Buffer, lines: Vec<u8>) {
        if lines.len() > BEHIND {
            self.writable.store(false, Ordering::Relaxed);
        }
        if lines.len() > KEPT_MAX {
            self.lost.fetch_add(count_lines(&lines), Ordering::Relaxed);
            return;
        }
        buffer.lines = lines;
        buffer.since = Some(Instant::now());
    }
}

/// An id that names a decision to callers and operators: random per thread, counted within it.
pub(super) fn next_decision_id() -> String {
    IDS.with(|ids| {
        let (mut prefix, count) = ids.get();
        if prefix == 0 {
            prefix = random_prefix();
        }
        ids.set((prefix, count + 1));
        format!("{prefix:012x}-{count:x}")
    })
}

fn random_prefix() -> u64 {
    let mut bytes = [0; 8];
    // Without entropy the id is still unique in this process: the address of a thread-local differs per thread.
    if getrandom::fill(&mut bytes).is_err() {
        return IDS.with(|ids| std::ptr::from_ref(ids) as u64) | 1;
    }
    (u64::from_le_bytes(bytes) & 0xffff_ffff_ffff) | 1
}

fn count_lines(lines: &[u8]) -> u64 {
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// The one thread that writes the file.
struct Writer {
    file: File,
    held: Vec<u8>,
    writable: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
}

impl Writer {
    fn run(mut self, from_threads: &Receiver<Message>) {
        loop {
            match from_threads.recv_timeout(Duration::from_millis(500)) {
                Ok(message) => {
                    let flush = self.gather(message, from_threads);
                    self.write();
                    if let Some(done) = flush {
                        // Nobody waits any more: fine.
                        let _ = done.send(());
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.write(),
                Err(RecvTimeoutError::Disconnected) => return self.write(),
            }
        }
    }

    /// Takes what waits in the queue, so that a flood of short messages costs few writes. Stops at somebody who waits.
    fn gather(&mut self, first: Message, more: &Receiver<Message>) -> Option<SyncSender<()>> {
        let mut message = first;
        let mut gathered = 0;
        loop {
            match message {
                Message::Flush(done) => return Some(done),
                Message::Lines(lines) => {
                    gathered += lines.len();
                    self.hold(&lines);
                }
            }
            if gathered >= WRITE_BYTES {
                return None;
            }
            message = more.try_recv().ok()?;
        }
    }

    fn hold(&mut self, lines: &[u8]) {
        if self.held.len() + lines.len() <= HELD_MAX {
            self.held.extend_from_slice(lines);
        } else {
            self.lost.fetch_add(count_lines(lines), Ordering::Relaxed);
        }
    }

    /// Writes what is held; what a full disk refuses stays held and is tried again.
    fn write(&mut self) {
        while !self.held.is_empty() {
            match self.file.write(&self.held) {
                Ok(written) => {
                    self.held.drain(..written);
                    self.writable.store(true, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if self.writable.swap(false, Ordering::Relaxed) {
                        tracing::error!(%error, "the audit log cannot be written: new requests are refused until it can; free space on its disk");
                    }
                    return;
                }
            }
        }
    }
}
