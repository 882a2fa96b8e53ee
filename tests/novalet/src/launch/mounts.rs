//! Mounts of a process guest. Everything happens in a mount namespace of its own and goes with it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use nix::mount::{MsFlags, mount};

use super::Mounts;

const NONE: Option<&str> = None;

impl Mounts {
    /// Builds the view. `/run` is prepared aside first, because what it is made of may lie under `/run` or `/tmp`.
    pub(super) fn apply(&self) -> anyhow::Result<()> {
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).context("cannot make mounts private")?;
        fs::create_dir_all(&self.stage).context("cannot make the stage")?;
        tmpfs(&self.stage, "mode=0755")?;
        let nova = self.stage.join("nova");
        let hosts = nova.join("hosts");
        fs::create_dir(&nova)?;
        fs::write(&hosts, "")?;
        set_mode(&nova, 0o755)?;
        set_mode(&hosts, 0o644)?;
        fs::copy(&self.config, nova.join("guest.json")).context("cannot copy guest.json")?;
        // The app makes its ingress sockets here.
        let sockets = nova.join("sockets");
        fs::create_dir(&sockets)?;
        set_mode(&sockets, 0o1777)?;
        let programs = nova.join("bin");
        bind_folder(&self.programs, &programs)?;
        let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | flags_to_keep(&programs)?;
        mount(NONE, &programs, NONE, read_only, NONE).context("cannot make the programs read-only")?;
        bind_folder(&self.link, &nova.join("link"))?;
        bind(&hosts, Path::new("/etc/hosts"))?;
        bind(&self.stage, Path::new("/run"))?;
        for folder in self.hide.iter().filter(|folder| folder.exists()) {
            tmpfs(folder, "mode=0755,size=4k")?;
        }
        tmpfs(Path::new("/tmp"), "mode=1777")?;
        // In a container parts of /proc may be covered, and then the kernel refuses a fresh one: the old one serves too.
        let _ = mount(Some("proc"), "/proc", Some("proc"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, NONE);
        std::env::set_current_dir("/").context("cannot go to /")
    }
}

fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn tmpfs(at: &Path, options: &str) -> anyhow::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some(options))
        .with_context(|| format!("cannot cover {}", at.display()))
}

fn bind_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir(to).with_context(|| format!("cannot make {}", to.display()))?;
    bind(from, to)
}

fn bind(from: &Path, to: &Path) -> anyhow::Result<()> {
    mount(Some(from), to, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)
        .with_context(|| format!("cannot show {} as {}", from.display(), to.display()))
}

/// A remount in a user namespace must keep the locked flags of the mount.
fn flags_to_keep(path: &Path) -> anyhow::Result<MsFlags> {
    use nix::sys::statvfs::{FsFlags, statvfs};
    let have = statvfs(path).context("cannot read mount flags")?.flags();
    let mut keep = MsFlags::empty();
    for (has, flag) in [
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME),
        (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
    ] {
        if have.contains(has) {
            keep |= flag;
        }
    }
    Ok(keep)
}
