//! The one thread that writes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant, SystemTime};

use super::flood::{self, Counted};
use super::line::{Kind, Line};

/// The writer writes at once what waits for it, up to about this much.
const WRITE_BYTES: usize = 1024 * 1024;
/// What the writer holds while the disk refuses: denials go on being recorded until then, after that they are counted.
const HELD_MAX: usize = 64 * 1024 * 1024;
/// What is refused is tried again this often.
const RETRY: Duration = Duration::from_millis(500);
/// Denials beyond an endpoint's budget are summed up this often.
const SUM_EVERY: Duration = Duration::from_secs(1);

/// What threads hand over.
pub(super) enum Message {
    /// Lines, and the same decisions as events.
    Lines(Vec<u8>, Vec<u8>),
    /// Denials that have no lines.
    Counted(Vec<Counted>),
    /// Somebody waits until everything is in the files, and for how many lines are not in the log.
    Flush(SyncSender<u64>),
}

/// A file that is only appended to.
pub(super) struct Output {
    file: File,
    held: Vec<u8>,
    lost: Arc<AtomicU64>,
}

impl Output {
    /// Opens a file (0600). `lost` counts the lines that it could not take. A line that an earlier process could not finish,
    /// on a full disk or killed, is ended: the next one begins on its own.
    pub(super) fn open(path: &Path, lost: &Arc<AtomicU64>) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let is_unfinished = file.metadata()?.is_file() && !ends_a_line(path)?;
        let held = if is_unfinished { vec![b'\n'] } else { Vec::new() };
        Ok(Self { file, held, lost: Arc::clone(lost) })
    }

    fn hold(&mut self, lines: &[u8]) {
        if self.held.len() + lines.len() <= HELD_MAX {
            self.held.extend_from_slice(lines);
        } else {
            self.lost.fetch_add(count_lines(lines), Ordering::Relaxed);
        }
    }

    /// Writes what is held; what a full disk refuses stays held and is tried again. Says how it went, if it was tried.
    fn write(&mut self) -> Option<io::Result<()>> {
        let mut outcome = None;
        while !self.held.is_empty() {
            match self.file.write(&self.held) {
                Ok(written) => {
                    self.held.drain(..written);
                    outcome = Some(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Some(Err(error)),
            }
        }
        outcome
    }
}

/// The log, the events beside it, and what is being summed up.
pub(super) struct Writer {
    pub(super) log: Output,
    pub(super) log_writable: Arc<AtomicBool>,
    pub(super) events: Option<Output>,
    pub(super) events_writable: Arc<AtomicBool>,
    sums: Vec<Counted>,
    summed: Instant,
}

impl Writer {
    pub(super) fn new(log: Output, events: Option<Output>) -> Self {
        let writable = || Arc::new(AtomicBool::new(true));
        let (log_writable, events_writable) = (writable(), writable());
        Self { log, log_writable, events, events_writable, sums: Vec::new(), summed: Instant::now() }
    }

    pub(super) fn run(mut self, from_threads: &Receiver<Message>) {
        loop {
            let message = from_threads.recv_timeout(RETRY);
            let is_over = matches!(message, Err(RecvTimeoutError::Disconnected));
            let waits = message.ok().and_then(|message| self.gather(message, from_threads));
            if is_over || waits.is_some() || self.summed.elapsed() >= SUM_EVERY {
                self.sum_up();
            }
            self.write();
            if let Some(done) = waits {
                // Nobody waits any more: fine.
                let _ = done.send(count_lines(&self.log.held));
            }
            if is_over {
                return;
            }
        }
    }

    /// Takes what waits in the queue, so that a flood of short messages costs few writes. Stops at somebody who waits.
    fn gather(&mut self, first: Message, more: &Receiver<Message>) -> Option<SyncSender<u64>> {
        let mut message = first;
        let mut gathered = 0;
        loop {
            match message {
                Message::Flush(done) => return Some(done),
                Message::Counted(counted) => {
                    counted.into_iter().for_each(|one| flood::add(&mut self.sums, one));
                }
                Message::Lines(lines, events) => {
                    gathered += lines.len();
                    self.log.hold(&lines);
                    if let Some(output) = &mut self.events {
                        output.hold(&events);
                    }
                }
            }
            if gathered >= WRITE_BYTES {
                return None;
            }
            message = more.try_recv().ok()?;
        }
    }

    /// One line for each endpoint, direction, verdict and reason whose lines were counted.
    fn sum_up(&mut self) {
        self.summed = Instant::now();
        for sum in std::mem::take(&mut self.sums) {
            let line = Line {
                time: SystemTime::now(),
                verdict: sum.verdict,
                reason: sum.reason,
                count: Some(sum.count),
                ..Line::new(Kind::Summary, sum.direction, &sum.endpoint)
            };
            match serde_json::to_vec(&line) {
                Ok(mut line) => {
                    line.push(b'\n');
                    self.log.hold(&line);
                }
                Err(_) => drop(self.log.lost.fetch_add(sum.count, Ordering::Relaxed)),
            }
        }
    }

    fn write(&mut self) {
        if let Some(outcome) = self.log.write() {
            let was = self.log_writable.swap(outcome.is_ok(), Ordering::Relaxed);
            if let (true, Err(error)) = (was, outcome) {
                tracing::error!(%error, "the audit log cannot be written: new requests are refused until it can; free space on its disk");
            }
        }
        if let Some(outcome) = self.events.as_mut().and_then(Output::write) {
            let was = self.events_writable.swap(outcome.is_ok(), Ordering::Relaxed);
            if let (true, Err(error)) = (was, outcome) {
                tracing::error!(%error, "the decision log in OPA's form cannot be written: its events are held, then counted; free space on its disk");
            }
        }
    }
}

pub(super) fn count_lines(lines: &[u8]) -> u64 {
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}

fn ends_a_line(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn written(path: &Path, lines: &[u8]) -> Vec<u8> {
        let mut output = Output::open(path, &Arc::default()).expect("opened");
        output.hold(lines);
        output.write().expect("something to write").expect("written");
        fs::read(path).expect("a log")
    }

    #[test]
    fn a_line_that_was_never_finished_takes_no_other_with_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("audit.jsonl");
        assert_eq!(written(&path, b"{1}\n"), b"{1}\n");
        fs::write(&path, b"{1}\n{2").expect("half a line");
        assert_eq!(written(&path, b"{3}\n"), b"{1}\n{2\n{3}\n");
        assert_eq!(written(&path, b"{4}\n"), b"{1}\n{2\n{3}\n{4}\n");
    }

    #[test]
    fn a_flush_tells_how_many_lines_a_full_disk_refused() {
        let log = Output::open(Path::new("/dev/full"), &Arc::default()).expect("opened");
        let (to_writer, from_threads) = sync_channel(4);
        let writer = std::thread::spawn(move || Writer::new(log, None).run(&from_threads));
        to_writer.send(Message::Lines(b"{1}\n{2}\n".to_vec(), Vec::new())).expect("sent");
        let (done, wait) = sync_channel(1);
        to_writer.send(Message::Flush(done)).expect("sent");
        assert_eq!(wait.recv(), Ok(2));
        drop(to_writer);
        writer.join().expect("it ends");
    }
}
