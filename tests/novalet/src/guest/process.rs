//! Process guests: nova-init and what it starts, in process, network and mount namespaces of their own, behind the
//! emulated muxer.
//!
//! ```text
//! <guest root>/<pod>/v.sock  <-- novalet-ref mux -->  <run dir>/pods/<pod>/link  ==  /run/nova/link in the guest
//! ```
//!
//! The guest sees a private `/run`, `/tmp` and `/etc/hosts`, and neither our folders nor those of other pods. It is not a
//! security boundary like a microVM: kernel and file system are the machine's.

use std::fs;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::config::{APP_UID, GuestPlace, Link, RELAY_UID};
use super::{Boot, Guest, GuestError, Owned, config_bytes, failed, wait_for_socket};
use crate::launch::{Launch, Mounts};

/// Where the launcher puts things in a process guest.
pub(crate) const GUEST_RUN: &str = "/run/nova";

/// What process guests are made of.
#[derive(Debug, Clone)]
pub struct ProcessGuests {
    /// Our own program: muxer and launcher.
    pub self_exe: PathBuf,
    /// Folder with nova-init, nova-relay, nova-lab.
    pub bin_dir: PathBuf,
    /// Folders that no guest may see: guest root and run dir.
    pub hide: Vec<PathBuf>,
}

/// Whether process guests can have a device for pings: their kernel is this machine's, and so is its `/dev`.
fn has_tun() -> bool {
    fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok()
}

impl ProcessGuests {
    pub(super) fn place(link: &str) -> GuestPlace {
        GuestPlace {
            link: Link::Unix { dir: link.to_owned() },
            modules: Vec::new(),
            is_guest_init: false,
            separate_users: has_uids(&fs::read_to_string("/proc/self/uid_map").unwrap_or_default()),
            has_tun: has_tun(),
            programs: format!("{GUEST_RUN}/bin"),
        }
    }

    pub(super) async fn start(&self, boot: &Boot<'_>) -> Result<Guest, GuestError> {
        if boot.placement.guest.command.is_empty() {
            return Err(GuestError::Placement("guest.command is empty: name the program that the guest runs".into()));
        }
        let own = &boot.folders.own;
        let link = own.join("link");
        make_link_folder(&link)?;
        write_config(boot, &Self::place(&format!("{GUEST_RUN}/link")))?;
        let socket = boot.folders.shared.join(&boot.placement.socket_file);
        let mux = self.mux(&socket, &link, &boot.ports.host);
        let log = own.join("mux.log");
        let mux = Owned::start("muxer", &self.self_exe, &mux, &log).map_err(failed("start", &self.self_exe))?;
        wait_for_socket(&socket, &mux).await?;
        let log = own.join("guest.log");
        let guest = self.init(own, link);
        let guest = Owned::start("guest", &self.self_exe, &guest, &log).map_err(failed("start", &self.self_exe))?;
        Ok(Guest { children: vec![guest, mux] })
    }

    fn mux(&self, socket: &Path, link: &Path, host_ports: &[u32]) -> Launch {
        let mut command = vec![self.self_exe.display().to_string(), "mux".into()];
        command.extend(["--socket".into(), socket.display().to_string()]);
        command.extend(["--guest".into(), link.display().to_string()]);
        for port in host_ports {
            command.extend(["--host-port".into(), port.to_string()]);
        }
        Launch::in_own_network(command)
    }

    fn init(&self, own: &Path, link: PathBuf) -> Launch {
        let command =
            [format!("{GUEST_RUN}/bin/nova-init"), "--config".into(), format!("{GUEST_RUN}/guest.json")].to_vec();
        let mounts = Mounts {
            stage: own.join("stage"),
            config: own.join("guest.json"),
            programs: self.bin_dir.clone(),
            link,
            hide: self.hide.clone(),
        };
        Launch::in_own_network(command).with_mounts(mounts)
    }
}

/// Writes `guest.json` for its owner only.
pub(super) fn write_config(boot: &Boot<'_>, place: &GuestPlace) -> Result<(), GuestError> {
    use std::io::Write;
    let path = boot.folders.own.join("guest.json");
    let _ = fs::remove_file(&path);
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let bytes = config_bytes(boot, place.clone())?;
    file.and_then(|mut file| file.write_all(&bytes)).map_err(failed("write", &path))
}

/// Relay and app have different users and both make sockets here; sticky, so that neither can replace the other's.
fn make_link_folder(link: &Path) -> Result<(), GuestError> {
    let _ = fs::remove_dir_all(link);
    fs::create_dir_all(link).map_err(failed("make", link))?;
    fs::set_permissions(link, fs::Permissions::from_mode(0o1777)).map_err(failed("set the mode of", link))
}

/// Whether a `uid_map` has the users of relay and app.
fn has_uids(map: &str) -> bool {
    [RELAY_UID, APP_UID].iter().all(|uid| {
        map.lines().any(|line| {
            let mut numbers = line.split_whitespace().map(str::parse::<u64>);
            let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) = (numbers.next(), numbers.next(), numbers.next())
            else {
                return false;
            };
            (first..first.saturating_add(count)).contains(&u64::from(*uid))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: A3
    #[test]
    fn relay_and_app_have_users_of_their_own_only_where_those_exist() {
        assert!(!has_uids("         0       1000          1\n"));
        assert!(!has_uids(""));
        assert!(has_uids("         0          0 4294967295\n"));
        assert!(has_uids("0 1000 1\n1 100000 65536\n"));
    }
}
