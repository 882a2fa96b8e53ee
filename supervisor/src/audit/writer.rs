//! The one thread that writes.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant, SystemTime};

use super::flood::{self, Counted};
use super::line::{Kind, Line};
use super::output::Output;

/// The writer writes at once what waits for it, up to about this much.
const WRITE_BYTES: usize = 1024 * 1024;
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

/// The log, the events beside it, and what is being summed up.
pub(super) struct Writer {
    log: Output,
    events: Option<Output>,
    sums: Vec<Counted>,
    summed: Instant,
}

impl Writer {
    pub(super) fn new(log: Output, events: Option<Output>) -> Self {
        Self { log, events, sums: Vec::new(), summed: Instant::now() }
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
                let _ = done.send(self.log.held());
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
                Err(_) => self.log.lose(sum.count),
            }
        }
    }

    fn write(&mut self) {
        if let Some(problem) = self.log.write() {
            tracing::error!(%problem, "the audit log cannot be written: new requests are refused until it can; free space on its disk, or let the supervisor's user write its folder");
        }
        if let Some(problem) = self.events.as_mut().and_then(Output::write) {
            tracing::error!(%problem, "the decision log in OPA's form cannot be written: its events are held, then counted; free space on its disk");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::mpsc::sync_channel;

    use super::*;

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
