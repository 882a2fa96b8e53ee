//! Reads and writes files.

use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;

/// Largest file read.
const MAX_FILE: u64 = 64 * 1024 * 1024;

/// Reads a file; `-` is standard input.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let shown = path.display();
    let mut content = Vec::new();
    let size = if path == Path::new("-") {
        std::io::stdin().take(MAX_FILE + 1).read_to_end(&mut content)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut content))
    };
    let size = size.with_context(|| format!("cannot read {shown}"))?;
    anyhow::ensure!(u64::try_from(size)? <= MAX_FILE, "{shown} is larger than 64 MiB");
    Ok(content)
}

/// Reads a text file.
pub(super) fn read_text(path: &Path) -> anyhow::Result<String> {
    String::from_utf8(read(path)?).with_context(|| format!("{} is not UTF-8", path.display()))
}

/// Replaces a file in one step, so that whoever watches it never sees half of it.
pub(super) fn replace(path: &Path, content: &[u8], mode: u32) -> anyhow::Result<()> {
    let shown = path.display();
    let name = path.file_name().with_context(|| format!("{shown} is no file name"))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
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
