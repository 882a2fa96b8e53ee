//! Unix sockets that only the right people can reach: a private folder, a mode, and a check of who is calling.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

/// Why a socket cannot be served at a place.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Anybody could swap the socket.
    #[error("{0} can be written by others: chmod o-w it, or choose a folder of your own for the socket")]
    OpenFolder(PathBuf),
    /// Another program listens there.
    #[error("{0} is in use: stop the program that listens there, or choose another path")]
    InUse(PathBuf),
    /// Something else is at that path.
    #[error("{0} exists and is not a socket: remove it, or choose another path")]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot {what} {path}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Listens at `path` with `mode`; the group is `gid` when given. A left-over socket is replaced, anything else is refused.
///
/// # Errors
/// When the folder is writable by others, when somebody listens there, or when the system refuses.
pub fn listen(path: &Path, mode: u32, gid: Option<u32>) -> Result<UnixListener, SocketError> {
    check_folder(path)?;
    remove_stale(path)?;
    let listener = UnixListener::bind(path).map_err(failed("listen at", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed("set the mode of", path))?;
    if let Some(gid) = gid {
        std::os::unix::fs::chown(path, None, Some(gid)).map_err(failed("set the group of", path))?;
    }
    Ok(listener)
}

/// Whether the peer of `stream` runs as one of `uids`.
#[must_use]
pub fn peer_is_one_of(stream: &UnixStream, uids: &[u32]) -> bool {
    stream.peer_cred().is_ok_and(|peer| uids.contains(&peer.uid()))
}

fn check_folder(path: &Path) -> Result<(), SocketError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let meta = fs::metadata(folder).map_err(failed("read", folder))?;
    if meta.mode() & 0o002 != 0 {
        return Err(SocketError::OpenFolder(folder.to_path_buf()));
    }
    Ok(())
}

fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let Ok(meta) = fs::symlink_metadata(path) else { return Ok(()) };
    if !meta.file_type().is_socket() {
        return Err(SocketError::NotASocket(path.to_path_buf()));
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(SocketError::InUse(path.to_path_buf()));
    }
    fs::remove_file(path).map_err(failed("remove", path))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SocketError {
    let path = path.to_path_buf();
    move |source| SocketError::Io { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(mode: u32) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).expect("its mode");
        folder
    }

    // covers: A2
    #[tokio::test]
    async fn a_folder_that_others_can_write_is_refused() {
        let folder = folder(0o777);
        assert!(matches!(listen(&folder.path().join("s"), 0o660, None), Err(SocketError::OpenFolder(_))));
    }

    // covers: A2
    #[tokio::test]
    async fn a_file_or_a_served_socket_is_not_replaced_and_a_dead_one_is() {
        let folder = folder(0o750);
        let path = folder.path().join("s");
        fs::write(&path, "keep").expect("a file");
        assert!(matches!(listen(&path, 0o660, None), Err(SocketError::NotASocket(_))));
        fs::remove_file(&path).expect("removed");
        let first = listen(&path, 0o660, None).expect("listens");
        assert!(matches!(listen(&path, 0o660, None), Err(SocketError::InUse(_))));
        drop(first);
        let _second = listen(&path, 0o660, None).expect("listens again");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o660);
    }

    // covers: A2
    #[tokio::test]
    async fn a_peer_with_another_uid_is_not_one_of_ours() {
        let (left, _right) = UnixStream::pair().expect("a pair");
        let own = nix::unistd::geteuid().as_raw();
        assert!(peer_is_one_of(&left, &[own]));
        assert!(!peer_is_one_of(&left, &[own + 1]));
    }
}
