//! Reads and writes files; `-` is standard input and standard output.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nova_policy::files::{self, FileError};

/// Largest file read.
const MAX_FILE: u64 = 64 * 1024 * 1024;

/// Reads a regular file; `-` is standard input.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let content =
        if is_standard(path) { files::bounded(std::io::stdin(), MAX_FILE) } else { files::read(path, MAX_FILE) };
    let what_to_do = match &content {
        Err(FileError::NotRegular("a pipe" | "a device")) => "; to read standard input, write -",
        _ => "",
    };
    content.with_context(|| format!("cannot read {}{what_to_do}", path.display()))
}

/// Reads a text file.
pub(super) fn read_text(path: &Path) -> anyhow::Result<String> {
    String::from_utf8(read(path)?).with_context(|| format!("{} is not UTF-8", path.display()))
}

/// Whether a path stands for standard input or output.
pub(super) fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

/// Writes to standard output for `-`, into a pipe or a device, and otherwise replaces the file.
pub(super) fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    if is_standard(path) {
        let mut out = std::io::stdout().lock();
        return out.write_all(content).and_then(|()| out.flush()).context("cannot write to standard output");
    }
    match what_is_there(path)? {
        There::File(path) => replace(&path, content, 0o644),
        There::Stream => pour(path, content),
    }
}

/// As [`write`], for what nobody else may read: only a file has a mode.
pub(super) fn write_secret(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let shown = path.display();
    anyhow::ensure!(!is_standard(path), "a private key is not for standard output: give the name of a file");
    match what_is_there(path)? {
        There::File(path) => replace(&path, content, 0o600),
        There::Stream => anyhow::bail!("{shown} is no regular file, so nothing would keep the key from others"),
    }
}

/// What a path leads to.
enum There {
    /// A regular file, or nothing yet; links are resolved, so that what they lead to is replaced, and not they.
    File(PathBuf),
    /// What takes bytes and keeps no content: replacing it would break whoever has it open.
    Stream,
}

fn what_is_there(path: &Path) -> anyhow::Result<There> {
    let shown = path.display();
    let kind = match path.metadata() {
        Ok(meta) => meta.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            anyhow::ensure!(
                path.symlink_metadata().is_err(),
                "{shown} is a link to nothing: make what it names, or remove the link"
            );
            return Ok(There::File(path.to_owned()));
        }
        Err(error) => return Err(error).with_context(|| format!("cannot write {shown}")),
    };
    if kind.is_file() {
        return Ok(There::File(path.canonicalize().with_context(|| format!("cannot write {shown}"))?));
    }
    let takes_bytes = kind.is_fifo() || kind.is_char_device();
    anyhow::ensure!(takes_bytes, "{shown} is {}: give the name of a file, or - for standard output", files::name(kind));
    Ok(There::Stream)
}

fn pour(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let shown = path.display();
    // Nobody may ever come to read a pipe: opening it must not wait.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let mut stream = match OpenOptions::new().write(true).custom_flags(flags.bits()).open(path) {
        Err(error) if error.raw_os_error() == Some(Errno::ENXIO as i32) => {
            anyhow::bail!("nobody reads the pipe {shown}: start its reader first, or give the name of a file")
        }
        opened => opened.with_context(|| format!("cannot write {shown}"))?,
    };
    fcntl(&stream, FcntlArg::F_SETFL(OFlag::empty())).with_context(|| format!("cannot write {shown}"))?;
    stream.write_all(content).with_context(|| format!("cannot write {shown}"))
}

/// Replaces a file in one step, so that whoever watches it never sees half of it.
fn replace(path: &Path, content: &[u8], mode: u32) -> anyhow::Result<()> {
    let shown = path.display();
    let name = path.file_name().with_context(|| format!("{shown} is no file name"))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let write = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    let written = write();
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&temporary);
    }
    written.with_context(|| format!("cannot write {shown}"))
}
