//! The egress sockets of the guest. Root makes them in a folder of root's, so neither the app nor the relay can put another
//! socket in the place of one.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::sys::socket::{Backlog, listen};

use super::config::{GuestConfig, are_nested};
use crate::relay::link::BACKLOG;

/// Everybody may enter and look, nobody but root may change it.
const FOLDER_MODE: u32 = 0o755;
/// Everybody in the guest may connect: what the app may reach is decided elsewhere.
const SOCKET_MODE: u32 = 0o666;

/// Why an egress socket cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the egress socket {path}: {source}", path = .path.display())]
pub struct SocketError {
    /// The socket, or the folder.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// Makes all sockets of the configuration, in its order. They take connections from now on, and the relay serves them.
///
/// # Errors
/// Names the first that cannot be made.
pub fn make(config: &GuestConfig) -> Result<Vec<UnixListener>, SocketError> {
    let Some(folder) = &config.egress_dir else { return Ok(Vec::new()) };
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| SocketError { path, source }
    };
    fs::create_dir_all(folder)
        .and_then(|()| fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE)))
        .map_err(failed(folder))?;
    // Links may lead the two where the configuration does not say.
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if are_nested(&real(folder), &real(&config.socket_dir)) {
        let why = "a link leads it into socket_dir or round it, which the app owns";
        return Err(failed(folder)(io::Error::other(why)));
    }
    let bind = |name: &str| {
        let path = folder.join(name);
        bind(&path).map_err(failed(&path))
    };
    config.egress_sockets().iter().map(|socket| bind(&socket.name)).collect()
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = UnixListener::bind(path)?;
    // The standard library's backlog of 128 fills in one burst.
    listen(&socket, Backlog::new(BACKLOG)?)?;
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::config::tests::sample;

    // covers: D3c
    #[test]
    fn a_link_that_leads_into_the_apps_folder_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let (app, link) = (dir.path().join("app"), dir.path().join("link"));
        fs::create_dir(&app).expect("a folder");
        std::os::unix::fs::symlink(&app, &link).expect("a link");
        let config = GuestConfig { socket_dir: app, egress_dir: Some(link.join("egress")), ..sample() };
        assert_eq!(config.validate(), Ok(()), "by their names they are apart");
        let refused = make(&config).expect_err("refused").to_string();
        assert!(refused.contains("socket_dir"), "{refused}");
        let apart = GuestConfig { egress_dir: Some(dir.path().join("egress")), ..config };
        assert_eq!(make(&apart).expect("made").len(), apart.egress_sockets().len());
    }
}
