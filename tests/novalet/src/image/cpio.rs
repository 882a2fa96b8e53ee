//! A writer of `newc` cpio archives, the format of initramfs. The kernel unpacks several archives behind each other, so a
//! pod's own segment can simply be appended to the base.

use std::collections::BTreeMap;
use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const TRAILER: &str = "TRAILER!!!";
/// Archives are padded to this many bytes, as cpio does; anything that is a multiple of four serves the kernel.
const BLOCK: usize = 512;

/// An archive in the making. Paths have no leading slash; folders above an entry are made on their own; entries come out
/// in order of their paths with no time stamps, so the same content is the same bytes.
#[derive(Debug, Default)]
pub struct Archive {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    mode: u32,
    device: (u32, u32),
    data: Vec<u8>,
}

impl Archive {
    /// Adds a folder.
    pub fn folder(&mut self, path: &str, mode: u32) {
        self.add(path, Entry { mode: DIRECTORY | mode, device: (0, 0), data: Vec::new() });
    }

    /// Adds a file, owned by root.
    pub fn file(&mut self, path: &str, mode: u32, data: impl Into<Vec<u8>>) {
        self.add(path, Entry { mode: FILE | mode, device: (0, 0), data: data.into() });
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.add(path, Entry { mode: LINK | 0o777, device: (0, 0), data: target.into() });
    }

    /// Adds a character device.
    pub fn character_device(&mut self, path: &str, mode: u32, major: u32, minor: u32) {
        self.add(path, Entry { mode: CHARACTER_DEVICE | mode, device: (major, minor), data: Vec::new() });
    }

    /// Whether something is at `path`.
    #[must_use]
    pub fn contains(&self, path: &str) -> bool {
        self.entries.contains_key(path)
    }

    /// Writes the whole archive.
    ///
    /// # Errors
    /// When `out` fails, or when an entry is larger than the format allows (4 GiB).
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut written = 0;
        for (number, (path, entry)) in self.entries.iter().enumerate() {
            written += write_entry(out, number + 1, path, entry)?;
        }
        let trailer = Entry { mode: 0, device: (0, 0), data: Vec::new() };
        written += write_entry(out, 0, TRAILER, &trailer)?;
        pad(out, written, BLOCK).map(|_| ())
    }

    fn add(&mut self, path: &str, entry: Entry) {
        for (at, _) in path.match_indices('/') {
            let above = path.get(..at).unwrap_or_default();
            self.entries.entry(above.to_owned()).or_insert_with(|| Entry {
                mode: DIRECTORY | 0o755,
                device: (0, 0),
                data: Vec::new(),
            });
        }
        self.entries.insert(path.to_owned(), entry);
    }
}

/// Header, name and data, each padded to four bytes. Returns how many bytes that was.
fn write_entry(out: &mut impl Write, inode: usize, path: &str, entry: &Entry) -> io::Result<usize> {
    let too_large = |_| io::Error::new(io::ErrorKind::FileTooLarge, format!("{path} is too large for an initramfs"));
    let size = u32::try_from(entry.data.len()).map_err(too_large)?;
    let inode = u32::try_from(inode).map_err(too_large)?;
    let name_size = u32::try_from(path.len() + 1).map_err(too_large)?;
    let links = if entry.mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
    let (major, minor) = entry.device;
    // ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
    let fields = [inode, entry.mode, 0, 0, links, 0, size, 0, 0, major, minor, name_size, 0];
    let mut head = String::from("070701");
    for field in fields {
        head.push_str(&format!("{field:08x}"));
    }
    head.push_str(path);
    head.push('\0');
    out.write_all(head.as_bytes())?;
    let mut written = head.len() + pad(out, head.len(), 4)?;
    out.write_all(&entry.data)?;
    written += entry.data.len();
    Ok(written + pad(out, entry.data.len(), 4)?)
}

fn pad(out: &mut impl Write, written: usize, to: usize) -> io::Result<usize> {
    let missing = written.next_multiple_of(to) - written;
    out.write_all(&vec![0; missing])?;
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn archive() -> Vec<u8> {
        let mut archive = Archive::default();
        archive.file("nova/deep/guest.json", 0o600, *b"{}\n");
        archive.folder("tmp", 0o1777);
        archive.link("bin/sh", "busybox");
        archive.character_device("dev/console", 0o600, 5, 1);
        let mut bytes = Vec::new();
        archive.write(&mut bytes).expect("a vector takes everything");
        bytes
    }

    // covers: A3
    #[test]
    fn an_archive_is_a_multiple_of_four_and_always_the_same_bytes() {
        let bytes = archive();
        assert_eq!(bytes.len() % BLOCK, 0);
        assert_eq!(bytes, archive());
    }

    // covers: A3
    #[test]
    fn busybox_lists_what_was_written_with_the_folders_above_it() {
        let mut child = Command::new("busybox")
            .args(["cpio", "-tv"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("busybox is a tool of this test: install busybox-static");
        child.stdin.take().expect("a pipe").write_all(&archive()).expect("busybox reads");
        let output = child.wait_with_output().expect("busybox ends");
        let listing = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{listing}");
        for wanted in
            ["-rw-------", "nova/deep/guest.json", "drwxrwxrwt", "bin/sh -> busybox", "crw-------", "nova/deep"]
        {
            assert!(listing.contains(wanted), "{wanted} is missing in\n{listing}");
        }
    }
}
