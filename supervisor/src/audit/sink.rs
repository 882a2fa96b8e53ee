//! A thread's side of the log: lines are buffered here and handed over to the writer.

use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use nova_proto::ids::PodUid;

use super::flood::Floods;
use super::health::Health;
use super::line::Line;
use super::opa::Events;
use super::output::{Output, count_lines};
use super::writer::{Message, Writer};
use crate::config::{AuditConfig, NodeConfig};

/// A thread hands over its lines at least this often.
pub const FLUSH_EVERY: Duration = Duration::from_millis(100);
/// A thread hands over its lines at this many bytes.
pub const FLUSH_BYTES: usize = 64 * 1024;
/// How long a flush may take.
const FLUSH_TIME: Duration = Duration::from_secs(5);
/// Between two tries to hand it over.
const FLUSH_LOOK: Duration = Duration::from_millis(10);
/// Buffers on the way to the writer; beyond it a thread keeps its lines until the writer has caught up.
const QUEUE: usize = 1024;
/// A thread that keeps more than this counts the log as not writable: a burst of one guest's denials is no reason to refuse
/// everybody's requests, a writer that stands still is.
const BEHIND: usize = 1024 * 1024;
/// What a thread keeps at most; after that its lines are counted.
const KEPT_MAX: usize = 16 * 1024 * 1024;

/// The way into the log. One per process; clones lead into the same one.
#[derive(Clone)]
pub struct AuditSink {
    to_writer: SyncSender<Message>,
    health: Arc<Health>,
    required: bool,
    lost: Arc<AtomicU64>,
    /// Denials of an endpoint that this thread may write in a second.
    budget: u32,
    /// The log in OPA's form, if it is wanted.
    events: Option<Arc<Events>>,
    events_health: Option<Arc<Health>>,
    events_lost: Arc<AtomicU64>,
}

thread_local! {
    static BUFFER: RefCell<Buffer> = RefCell::default();
    static IDS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// A thread's own lines, and when the first of them came.
#[derive(Default)]
struct Buffer {
    lines: Vec<u8>,
    events: Vec<u8>,
    since: Option<Instant>,
    /// Bytes of the last hand-over: room for as many is made at once.
    usual: usize,
    floods: Floods,
}

impl AuditSink {
    /// Opens the log for appending (0600) and starts the writer.
    ///
    /// # Errors
    /// When a file cannot be opened.
    pub fn open(config: &AuditConfig, node: &NodeConfig) -> io::Result<Arc<Self>> {
        let (lost, events_lost) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let log = Output::open(&config.file, &lost)?;
        let beside = config.opa_file.as_ref().map(|file| Output::open(file, &events_lost)).transpose()?;
        let events = beside.is_some().then(|| Events::new(&node.id)).transpose()?.map(Arc::new);
        let health = Arc::clone(log.health());
        let events_health = beside.as_ref().map(|events| Arc::clone(events.health()));
        let writer = Writer::new(log, beside);
        let (to_writer, from_threads) = sync_channel(QUEUE);
        std::thread::Builder::new().name("audit".into()).spawn(move || writer.run(&from_threads))?;
        let threads = u32::try_from(node.workers).unwrap_or(u32::MAX).max(1);
        let budget = (config.denials_per_second / threads).max(1);
        let required = config.required;
        Ok(Arc::new(Self { to_writer, health, required, lost, budget, events, events_health, events_lost }))
    }

    /// Whether a new request may be allowed: the log can be written, or the operator said that it need not.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        !self.required || self.health.is_good()
    }

    /// What keeps the log from being written, for people.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.health.problem()
    }

    /// Lines that could not be written since the start.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// What an operator should know of the log in OPA's form. It is a copy for collectors: what is missing in it is told,
    /// and refuses nothing.
    #[must_use]
    pub fn events_warning(&self) -> Option<String> {
        let lost = self.events_lost.load(Ordering::Relaxed);
        let problem = self.events_health.as_ref().and_then(|health| health.problem());
        let whole = problem.is_none() && lost == 0;
        let why = problem.unwrap_or_else(|| "it can be written again".to_owned());
        let remedy = "free space on its disk, or move it; the audit log is another file";
        (!whole).then(|| format!("[audit] opa_file cannot be written ({why}), {lost} events were lost; {remedy}"))
    }

    /// Hands over this thread's lines if they are old enough. Each thread that writes calls it every [`FLUSH_EVERY`].
    pub fn tick(&self) {
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.since.is_some_and(|since| since.elapsed() >= FLUSH_EVERY) {
                self.hand_over(buffer);
            }
            self.hand_over_counted(&mut buffer.floods);
        });
        if self.health.is_newly_stuck() {
            tracing::error!(
                "a write to the audit log does not return: new requests are refused until it does; look at its disk"
            );
        }
    }

    /// Hands over this thread's lines and waits until everything handed over so far is in the file. Gives the number of lines
    /// that could not be written and are held; `None`: the writer stands still.
    pub fn flush(&self) -> Option<u64> {
        BUFFER.with_borrow_mut(|buffer| {
            self.hand_over(buffer);
            self.hand_over_counted(&mut buffer.floods);
        });
        let (done, wait) = sync_channel(1);
        let until = Instant::now() + FLUSH_TIME;
        let mut message = Message::Flush(done);
        // A queue that a writer who stands still has let fill up is no reason to wait for ever.
        while let Err(refused) = self.to_writer.try_send(message) {
            match refused {
                TrySendError::Full(back) if Instant::now() < until => message = back,
                _ => return None,
            }
            std::thread::sleep(FLUSH_LOOK);
        }
        wait.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }

    /// To be awaited before a denial of this endpoint is told: lets others have their turn, for a refusal waits for nothing
    /// else, and holds up whose denials are as many as may be written in a second until the next one.
    pub async fn throttle(&self, pod: &PodUid) {
        match BUFFER.with_borrow(|buffer| buffer.floods.rest(pod, self.budget)) {
            Some(rest) => tokio::time::sleep(rest).await,
            None => tokio::task::yield_now().await,
        }
    }

    pub(super) fn has_events(&self) -> bool {
        self.events.is_some()
    }

    pub(super) fn write(&self, line: &Line, at_once: bool) {
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.floods.counts(line, self.budget) {
                return;
            }
            if buffer.lines.is_empty() {
                buffer.lines.reserve(buffer.usual);
            }
            if serde_json::to_writer(&mut buffer.lines, line).is_err() {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            buffer.lines.push(b'\n');
            if let Some(events) = &self.events
                && events.write(line, &mut buffer.events).is_err()
            {
                self.events_lost.fetch_add(1, Ordering::Relaxed);
            }
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
        let (lines, events) = (std::mem::take(&mut buffer.lines), std::mem::take(&mut buffer.events));
        buffer.since = None;
        buffer.usual = lines.len().min(FLUSH_BYTES);
        match self.to_writer.try_send(Message::Lines(lines, events)) {
            Ok(()) => {}
            Err(TrySendError::Full(Message::Lines(lines, events))) => self.keep(buffer, lines, events),
            Err(_) => {
                self.health.overrun();
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn hand_over_counted(&self, floods: &mut Floods) {
        let counted = floods.take();
        if counted.is_empty() {
            return;
        }
        // The writer is behind: the sums go on growing here.
        if let Err(TrySendError::Full(Message::Counted(counted))) = self.to_writer.try_send(Message::Counted(counted)) {
            floods.put_back(counted);
        }
    }

    /// The writer is behind.
    fn keep(&self, buffer: &mut Buffer, lines: Vec<u8>, events: Vec<u8>) {
        if lines.len() > BEHIND {
            self.health.overrun();
        }
        if lines.len() > KEPT_MAX {
            self.lost.fetch_add(count_lines(&lines), Ordering::Relaxed);
            self.events_lost.fetch_add(count_lines(&events), Ordering::Relaxed);
            return;
        }
        buffer.lines = lines;
        buffer.events = events;
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
        // Room at once for what most ids take.
        let mut id = String::with_capacity(24);
        // Writing to a text cannot fail.
        let _ = write!(id, "{prefix:012x}-{count:x}");
        id
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
