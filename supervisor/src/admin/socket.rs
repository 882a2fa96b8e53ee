//! The Unix socket itself: where it may stand, who may talk on it, and that it goes when the process goes.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why the operator's socket cannot be opened.
#[derive(Debug, Error)]
pub enum SocketError {
    /// The folder is not there or cannot be looked at.
    #[error("the folder of admin.socket, {path}, cannot be used; create it for the supervisor's user with mode 0750", path = path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Others could put a socket of their own in its place.
    #[error("the folder of admin.socket, {path}, can be changed by others ({why}); use one that belongs to root or the supervisor's user, mode 0750", path = path.display())]
    UnsafeFolder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Something that we did not make is there.
    #[error("{path} is there already and {why}; remove it if it is not needed, or choose another admin.socket", path = path.display())]
    Occupied {
        /// The path.
        path: PathBuf,
        /// What it is.
        why: String,
    },
    /// Another supervisor answers there.
    #[error("another supervisor already answers on {path}; stop it, or choose another admin.socket", path = .0.display())]
    InUse(PathBuf),
    /// The kernel refused.
    #[error("cannot open the socket {path}", path = path.display())]
    Bind {
        /// The path.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// The bound socket. Dropping it removes the path, if what is there is still ours.
#[derive(Debug)]
pub struct AdminSocket {
    listener: UnixListener,
    path: PathBuf,
    inode: (u64, u64),
}

impl AdminSocket {
    /// Binds `path` with mode 0660.
    ///
    /// # Errors
    /// When the folder is not safe, or the path belongs to somebody else or to another running supervisor.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let folder = folder_of(path);
        check_folder(folder)?;
        clear(path)?;
        let failed = |source| SocketError::Bind { path: path.to_owned(), source };
        // Bound under another name first: by the time clients find it, its mode is set and it listens.
        let early = folder.join(format!(".{}", std::process::id()));
        let _ = fs::remove_file(&early);
        let listener = UnixListener::bind(&early).map_err(failed)?;
        let placed = fs::set_permissions(&early, fs::Permissions::from_mode(0o660))
            .and_then(|()| listener.set_nonblocking(true))
            .and_then(|()| fs::symlink_metadata(&early))
            .and_then(|meta| fs::rename(&early, path).map(|()| (meta.dev(), meta.ino())));
        let inode = placed.map_err(|error| {
            let _ = fs::remove_file(&early);
            failed(error)
        })?;
        Ok(Self { listener, path: path.to_owned(), inode })
    }

    /// Whether [`AdminSocket::bind`] could bind `path` if no other supervisor had it; changes nothing.
    ///
    /// # Errors
    /// When the folder is not safe, or what is at the path is no socket of the supervisor's user.
    pub fn check(path: &Path) -> Result<(), SocketError> {
        check_folder(folder_of(path))?;
        is_stale(path).map(drop)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same socket, for a runtime.
    pub(super) fn listener(&self) -> io::Result<tokio::net::UnixListener> {
        tokio::net::UnixListener::from_std(self.listener.try_clone()?)
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|meta| (meta.dev(), meta.ino()) == self.inode);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether a process with this uid may ask: root, and whoever runs the supervisor.
pub(super) fn may_ask(uid: u32, own: u32) -> bool {
    uid == 0 || uid == own
}

pub(super) fn own_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

fn check_folder(folder: &Path) -> Result<(), SocketError> {
    let failed = |source| SocketError::Folder { path: folder.to_owned(), source };
    let meta = fs::metadata(folder).map_err(failed)?;
    let why = if !meta.is_dir() {
        Some("it is not a folder".to_owned())
    } else if meta.uid() != 0 && meta.uid() != own_uid() {
        Some(format!("it belongs to uid {}", meta.uid()))
    } else if meta.mode() & 0o002 != 0 {
        Some(format!("its mode is {:o}", meta.mode() & 0o7777))
    } else if meta.mode() & 0o020 != 0 && meta.gid() != 0 && meta.gid() != nix::unistd::getegid().as_raw() {
        Some(format!("group {} may write to it", meta.gid()))
    } else {
        None
    };
    why.map_or(Ok(()), |why| Err(SocketError::UnsafeFolder { path: folder.to_owned(), why }))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Removes what a killed supervisor left at the path, and nothing else.
fn clear(path: &Path) -> Result<(), SocketError> {
    if !is_stale(path)? {
        return Ok(());
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|source| SocketError::Bind { path: path.to_owned(), source })
        }
        _ => Err(SocketError::InUse(path.to_owned())),
    }
}

/// Whether there is a socket of a supervisor of this user, which may have ended; `false`: nothing is there.
fn is_stale(path: &Path) -> Result<bool, SocketError> {
    let occupied = |why: &str| SocketError::Occupied { path: path.to_owned(), why: why.to_owned() };
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(SocketError::Bind { path: path.to_owned(), source }),
    };
    if !meta.file_type().is_socket() {
        return Err(occupied("is not a socket"));
    }
    if meta.uid() != own_uid() {
        return Err(occupied(&format!("belongs to uid {}", meta.uid())));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_own_user_may_ask() {
        assert!(!may_ask(1000, 64_000));
        assert!(!may_ask(64_000, 0), "root's supervisor does not answer other users");
        assert!(may_ask(0, 64_000) && may_ask(64_000, 64_000));
    }
}
