//! The last good bundles on disk, byte for byte as they were signed.
//!
//! Nothing here is trusted when it is read back: whoever reads a bundle verifies it again. A bundle is complete or not
//! there: it is written beside its place, synced, renamed, and the folder is synced. The highest serial ever stored is the
//! mark below which no bundle is accepted, also after a restart.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::source::{self, ReadError};

/// How many bundles are kept, the live one included: the revisions that `replay` can go back to.
pub const KEPT: usize = 16;

const PREFIX: &str = "bundle-";
const SUFFIX: &str = ".tar.gz";
const HALF_WRITTEN: &str = ".tar.gz.tmp";
const LOCK: &str = "lock";

/// Why the store cannot be used.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The folder or a file in it cannot be used.
    #[error("cannot {action} {path}; {remedy}", path = path.display(), remedy = source::remedy(source, "the folder of policy.store must be writable by the supervisor's user"))]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Others could replace bundles, or take the mark away.
    #[error("{path} can be changed by others ({why}); run: chown <supervisor's user> and chmod 0700 on it", path = path.display())]
    Unsafe {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Another supervisor works with it.
    #[error("{path} is in use by the supervisor with pid {pid}; each instance needs a policy.store of its own", path = path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
        /// Who holds it, as far as it said.
        pid: String,
    },
}

/// A folder of bundles that this process alone works with.
pub struct BundleStore {
    dir: PathBuf,
    /// Held, never read: its lock ends with the process, however that ends.
    _lock: File,
}

impl BundleStore {
    /// Opens the folder, creates it (0700) if need be, takes it for this process and removes what a killed one left.
    ///
    /// # Errors
    /// When it cannot be used, others could write into it, or another supervisor has it.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed("create", dir))?;
        check_owner(dir)?;
        let lock = take_lock(dir)?;
        let store = Self { dir: dir.to_owned(), _lock: lock };
        store.remove_half_written()?;
        Ok(store)
    }

    /// Whether [`BundleStore::open`] could use the folder if no other supervisor had it; changes nothing.
    ///
    /// # Errors
    /// When something else is in the way, or others could write into it.
    pub fn check(dir: &Path) -> Result<(), StoreError> {
        if dir.symlink_metadata().is_ok() {
            return check_owner(dir);
        }
        // It would be made, and what leads there with it.
        let above = dir.ancestors().skip(1).find(|above| above.symlink_metadata().is_ok());
        match above.filter(|above| !above.is_dir()) {
            Some(above) => Err(StoreError::Unsafe { path: above.to_owned(), why: "it is not a folder".to_owned() }),
            None => Ok(()),
        }
    }

    /// Serials of the stored bundles, newest first.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn serials(&self) -> Result<Vec<u64>, StoreError> {
        let mut serials: Vec<u64> = self.names()?.iter().filter_map(|name| serial_of(name)).collect();
        serials.sort_unstable_by(|a, b| b.cmp(a));
        Ok(serials)
    }

    /// The bytes of a stored bundle.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn read(&self, serial: u64) -> Result<Vec<u8>, ReadError> {
        source::read(&self.path(serial)).map(|(bytes, _)| bytes)
    }

    /// Puts a bundle on disk, so that it is there whole, or not at all, whatever happens; and drops the oldest ones.
    ///
    /// # Errors
    /// When it cannot be written; what was there before is untouched.
    pub fn save(&self, serial: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let half = self.dir.join(format!("{PREFIX}{serial}{HALF_WRITTEN}"));
        let written = write_synced(&half, bytes).and_then(|()| fs::rename(&half, self.path(serial)));
        if let Err(error) = written {
            // A full disk must not stay full of our half-written file.
            let _ = fs::remove_file(&half);
            return Err(failed("write", &half)(error));
        }
        self.sync_dir()?;
        for old in self.serials()?.into_iter().skip(KEPT) {
            let path = self.path(old);
            fs::remove_file(&path).map_err(failed("remove", &path))?;
        }
        Ok(())
    }

    fn path(&self, serial: u64) -> PathBuf {
        self.dir.join(format!("{PREFIX}{serial}{SUFFIX}"))
    }

    fn names(&self) -> Result<Vec<String>, StoreError> {
        let entries = fs::read_dir(&self.dir).map_err(failed("list", &self.dir))?;
        let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
        Ok(entries.filter_map(name).collect())
    }

    fn remove_half_written(&self) -> Result<(), StoreError> {
        for name in self.names()? {
            if name.starts_with(PREFIX) && name.ends_with(HALF_WRITTEN) {
                let path = self.dir.join(name);
                fs::remove_file(&path).map_err(failed("remove", &path))?;
            }
        }
        Ok(())
    }

    fn sync_dir(&self) -> Result<(), StoreError> {
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(failed("sync", &self.dir))
    }
}

fn check_owner(dir: &Path) -> Result<(), StoreError> {
    let meta = fs::symlink_metadata(dir).map_err(failed("look at", dir))?;
    let own = nix::unistd::geteuid().as_raw();
    let why = if !meta.is_dir() {
        Some("it is not a folder itself".to_owned())
    } else if meta.uid() != own && meta.uid() != 0 {
        Some(format!("it belongs to uid {}", meta.uid()))
    } else if meta.mode() & 0o022 != 0 {
        Some(format!("its mode is {:o}", meta.mode() & 0o7777))
    } else {
        None
    };
    why.map_or(Ok(()), |why| Err(StoreError::Unsafe { path: dir.to_owned(), why }))
}

fn take_lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(LOCK);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
    let mut file = options.open(&path).map_err(failed("open", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let told = (&file).take(20).read_to_string(&mut pid);
            let pid = if told.is_ok() && !pid.is_empty() { pid } else { "unknown".into() };
            return Err(StoreError::InUse { path: dir.to_owned(), pid });
        }
        Err(TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
    }
    let pid = std::process::id().to_string();
    file.set_len(0).and_then(|()| file.write_all(pid.as_bytes())).map_err(failed("write", &path))?;
    Ok(file)
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn serial_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    // Only names that `save` writes: no sign, no leading zeros.
    let serial: u64 = digits.parse().ok()?;
    (serial.to_string() == digits).then_some(serial)
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { action, path, source }
}
