//! Files that somebody else writes: opened once, judged by the descriptor, never read beyond a bound.
//!
//! A pipe, a device or a folder at the path is an error at once: whoever read it would wait for ever, or fill memory.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;
use thiserror::Error;

/// Why a file is not read. Its path is for the caller to name.
#[derive(Debug, Error)]
pub enum FileError {
    /// The kernel says no.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is there, and no regular file; what it is.
    #[error("it is {0}, not a regular file")]
    NotRegular(&'static str),
    /// It has more than this many bytes.
    #[error("it is larger than {0} bytes")]
    TooLarge(u64),
}

/// Where only the kernel's errors have a place.
impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Io(error) => error,
            other => Self::new(io::ErrorKind::InvalidInput, other.to_string()),
        }
    }
}

/// Opens a regular file to read. Links are followed.
///
/// # Errors
/// [`FileError::NotRegular`] for anything else at the path, or what the kernel says.
pub fn open(path: &Path) -> Result<File, FileError> {
    // Without O_NONBLOCK a pipe that nobody writes would hold this thread.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() { Ok(file) } else { Err(FileError::NotRegular(name(kind))) }
}

/// The whole of a regular file of at most `most` bytes.
///
/// # Errors
/// As [`open`], and [`FileError::TooLarge`].
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, FileError> {
    bounded(open(path)?, most)
}

/// The whole of what `source` has, at most `most` bytes.
///
/// # Errors
/// [`FileError::TooLarge`], or why it cannot be read.
pub fn bounded(source: impl Read, most: u64) -> Result<Vec<u8>, FileError> {
    let mut content = Vec::new();
    let size = source.take(most.saturating_add(1)).read_to_end(&mut content)?;
    if size as u64 > most { Err(FileError::TooLarge(most)) } else { Ok(content) }
}

/// What something at a path is, for messages.
#[must_use]
pub fn name(kind: FileType) -> &'static str {
    match () {
        () if kind.is_file() => "a regular file",
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_block_device() => "a block device",
        () if kind.is_char_device() => "a device",
        () => "something else",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: A12c
    #[test]
    fn only_regular_files_are_read_and_only_up_to_the_bound() {
        let dir = tempfile::tempdir().expect("a folder");
        let (pipe, file, link) = (dir.path().join("pipe"), dir.path().join("file"), dir.path().join("link"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        std::fs::write(&file, "12345").expect("written");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        for (path, want) in [
            (pipe.as_path(), "it is a pipe, not a regular file"),
            (dir.path(), "it is a folder, not a regular file"),
            (Path::new("/dev/zero"), "it is a device, not a regular file"),
        ] {
            assert_eq!(read(path, 10).expect_err("refused").to_string(), want);
        }
        assert_eq!(read(&link, 5).expect("small enough"), b"12345");
        assert!(matches!(read(&file, 4), Err(FileError::TooLarge(4))));
    }
}
