//! A file that is only appended to, under a path that others may move, remove or fill.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nova_policy::files;

use super::health::Health;

/// What is held while the disk refuses: denials go on being recorded until then, after that they are counted.
const HELD_MAX: usize = 64 * 1024 * 1024;
/// With nothing to write, the path is looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The file, and what it has yet to take.
pub(super) struct Output {
    path: PathBuf,
    file: File,
    /// Whole lines. The file may have the first bytes of the first one already.
    held: Vec<u8>,
    /// So many.
    begun: usize,
    looked: Instant,
    lost: Arc<AtomicU64>,
    health: Arc<Health>,
}

impl Output {
    /// Opens a file (0600). `lost` counts the lines that it could not take.
    pub(super) fn open(path: &Path, lost: &Arc<AtomicU64>) -> io::Result<Self> {
        let (path, file, lost) = (path.to_owned(), open(path)?, Arc::clone(lost));
        let mut output =
            Self { path, file, held: Vec::new(), begun: 0, looked: Instant::now(), lost, health: Arc::default() };
        output.end_line()?;
        Ok(output)
    }

    pub(super) fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Lines that are not in the file.
    pub(super) fn held(&self) -> u64 {
        count_lines(&self.held)
    }

    pub(super) fn hold(&mut self, lines: &[u8]) {
        if self.held.len() + lines.len() <= HELD_MAX {
            self.held.extend_from_slice(lines);
        } else {
            self.lose(count_lines(lines));
        }
    }

    pub(super) fn lose(&self, lines: u64) {
        self.lost.fetch_add(lines, Ordering::Relaxed);
    }

    /// Writes what is held, to the file that is at the path now; what a full disk refuses stays held and is tried again. The
    /// problem, if there is a new one.
    pub(super) fn write(&mut self) -> Option<String> {
        if self.held.is_empty() && self.looked.elapsed() < LOOK_EVERY {
            return None;
        }
        let health = Arc::clone(&self.health);
        let outcome = {
            let _in_kernel = health.begin();
            self.follow()
        };
        health.note(outcome.and_then(|()| self.write_held()))
    }

    /// Goes on in a new file when ours is no longer the one at the path: it was moved away or removed.
    fn follow(&mut self) -> io::Result<()> {
        self.looked = Instant::now();
        let ours = self.file.metadata()?;
        if std::fs::metadata(&self.path).is_ok_and(|there| is_same(&there, &ours)) {
            return Ok(());
        }
        self.file = open(&self.path)?;
        // A line that only began in the old file has to be whole in this one.
        self.begun = 0;
        tracing::info!(file = %self.path.display(), "the log was moved or removed: it goes on in a new file");
        self.end_line()
    }

    fn write_held(&mut self) -> io::Result<()> {
        while !self.held.is_empty() {
            let written = {
                let _in_kernel = self.health.begin();
                self.file.write(&self.held[self.begun..])
            };
            match written {
                Ok(written) => self.took(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Forgets the lines that are whole in the file.
    fn took(&mut self, written: usize) {
        self.begun += written;
        let whole = self.held[..self.begun].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.held.drain(..whole);
        self.begun -= whole;
    }

    /// Ends a line that an earlier process could not finish, on a full disk or killed: the next one begins on its own.
    fn end_line(&mut self) -> io::Result<()> {
        if self.file.metadata()?.is_file() && !ends_a_line(&self.path)? {
            self.held.insert(0, b'\n');
        }
        Ok(())
    }
}

pub(super) fn count_lines(lines: &[u8]) -> u64 {
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn open(path: &Path) -> io::Result<File> {
    if let Ok(there) = std::fs::metadata(path) {
        takes_lines(there.file_type())?;
    }
    // Whatever comes there in the meantime: opening it waits for nobody.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(flags.bits()).open(path)?;
    takes_lines(file.metadata()?.file_type())?;
    // A device may make a write wait, which is watched.
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    Ok(file)
}

/// Whether a log may be written to what is at a path: a pipe or a socket keeps nothing, and waits for its reader.
///
/// # Errors
/// What is there instead.
pub fn takes_lines(kind: FileType) -> io::Result<()> {
    if kind.is_file() || kind.is_char_device() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {}, not a regular file", files::name(kind))))
}

fn ends_a_line(path: &Path) -> io::Result<bool> {
    let mut file = files::open(path)?;
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

    use super::*;

    fn written(path: &Path, lines: &[u8]) -> Vec<u8> {
        let mut output = Output::open(path, &Arc::default()).expect("opened");
        output.hold(lines);
        assert_eq!(output.write(), None);
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

    // covers: A9d
    #[test]
    fn a_log_that_is_moved_or_removed_goes_on_in_a_new_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, moved) = (dir.path().join("audit.jsonl"), dir.path().join("audit.1"));
        let mut output = Output::open(&path, &Arc::default()).expect("opened");
        output.hold(b"{1}\n");
        assert_eq!(output.write(), None);
        fs::rename(&path, &moved).expect("moved");
        output.hold(b"{2}\n");
        assert_eq!(output.write(), None);
        assert_eq!(
            (fs::read(&moved).expect("the old"), fs::read(&path).expect("the new")),
            (b"{1}\n".into(), b"{2}\n".into())
        );
        fs::remove_file(&path).expect("removed");
        output.hold(b"{3}\n");
        assert_eq!(output.write(), None);
        assert_eq!(fs::read(&path).expect("the third"), b"{3}\n");
        fs::rename(&path, &moved).expect("moved");
        fs::write(&path, b"{made by another").expect("written");
        output.hold(b"{4}\n");
        assert_eq!(output.write(), None);
        assert_eq!(fs::read(&path).expect("the fourth"), b"{made by another\n{4}\n");
    }

    // covers: A9d
    #[test]
    fn a_log_that_cannot_be_made_anew_takes_no_lines_and_loses_none() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("logs");
        fs::create_dir(&folder).expect("a folder");
        let path = folder.join("audit.jsonl");
        let mut output = Output::open(&path, &Arc::default()).expect("opened");
        fs::remove_dir_all(&folder).expect("removed");
        output.hold(b"{1}\n");
        assert!(output.write().is_some_and(|problem| problem.contains("No such file")));
        assert!(!output.health().is_good() && output.held() == 1);
        assert_eq!(output.write(), None, "it is said once");
        fs::create_dir(&folder).expect("a folder");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        assert!(output.write().is_some_and(|problem| problem.contains("a pipe, not a regular file")));
        fs::remove_file(&path).expect("removed");
        assert_eq!(output.write(), None);
        assert!(output.health().is_good());
        assert_eq!(fs::read(&path).expect("a log"), b"{1}\n");
    }

    #[test]
    fn a_line_that_began_in_the_old_file_is_whole_in_the_new_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("audit.jsonl");
        let mut output = Output::open(&path, &Arc::default()).expect("opened");
        output.hold(b"{1}\n{22}\n");
        // What a full disk took of it.
        output.took(6);
        assert_eq!((output.begun, output.held()), (2, 1));
        fs::remove_file(&path).expect("moved away");
        assert_eq!(output.write(), None);
        assert_eq!(fs::read(&path).expect("a log"), b"{22}\n");
    }

    // covers: A9d
    #[test]
    fn a_write_that_does_not_return_is_seen_and_its_return_as_well() {
        let dir = tempfile::tempdir().expect("a folder");
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let mut output = Output::open(&dir.path().join("audit.jsonl"), &Arc::default()).expect("opened");
        let health = Arc::clone(output.health());
        output.file = File::from(std::os::fd::OwnedFd::from(writer));
        // More than a pipe holds whose reader stands still.
        let line = [vec![b'x'; 255], vec![b'\n']].concat();
        let all = line.repeat(4096);
        output.hold(&all);
        let writing = std::thread::spawn(move || output.write_held().map(|()| output));
        let until = |good: bool| {
            let deadline = Instant::now() + Duration::from_secs(20);
            while health.is_good() != good {
                assert!(Instant::now() < deadline, "never {good}");
                std::thread::yield_now();
            }
        };
        until(false);
        assert!(health.problem().is_some_and(|problem| problem.contains("does not return")));
        assert!(health.is_newly_stuck() && !health.is_newly_stuck(), "it is told once");
        let mut content = vec![0; all.len()];
        reader.read_exact(&mut content).expect("all of it");
        let output = writing.join().expect("no panic").expect("written");
        until(true);
        assert!(content == all && output.held() == 0);
    }
}
