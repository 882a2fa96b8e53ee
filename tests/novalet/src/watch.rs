//! Notices that a file was changed, once it has stopped changing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Watches one file by looking at it.
#[derive(Debug)]
pub struct FileWatch {
    path: PathBuf,
    loaded: Option<Stamp>,
    last: Option<Stamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    /// Also when only the rights change: what was not readable is then.
    changed: (i64, i64),
}

impl FileWatch {
    /// Counts the file as it is now as loaded.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        let now = stamp(path);
        Self { path: path.to_path_buf(), loaded: now, last: now }
    }

    /// Whether the file should be loaded again: it differs from what was loaded, and two looks in a row saw the same, so
    /// that a half-written file is not taken for the whole one. A missing file changes nothing.
    pub fn look(&mut self) -> bool {
        let now = stamp(&self.path);
        let settled = now.is_some() && now == self.last && now != self.loaded;
        self.last = now;
        if settled {
            self.loaded = now;
        }
        settled
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = fs::metadata(path).ok()?;
    Some(Stamp {
        inode: meta.ino(),
        size: meta.size(),
        modified: (meta.mtime(), meta.mtime_nsec()),
        changed: (meta.ctime(), meta.ctime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: A12
    #[test]
    fn a_file_that_is_missing_or_still_being_written_is_not_loaded() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("placements.yaml");
        fs::write(&path, "one").expect("written");
        let mut watch = FileWatch::new(&path);
        assert!(!watch.look());
        fs::remove_file(&path).expect("removed");
        assert!(!watch.look() && !watch.look());
        fs::write(&path, "").expect("written");
        assert!(!watch.look(), "first sight");
        fs::write(&path, "two two").expect("written");
        assert!(!watch.look(), "changed again");
        assert!(watch.look(), "settled");
        assert!(!watch.look(), "loaded once");
    }
}
