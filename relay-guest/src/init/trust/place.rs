//! The folder in which the app's programs find what to trust.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

use super::store;

const CLOSED: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);
const TMPFS: Option<&str> = Some("tmpfs");

/// Where the files are, and what else is in them.
#[derive(Debug)]
pub(super) struct Place {
    dir: PathBuf,
    /// The image's, read before the app started: by now it might have put anything there.
    roots: Vec<u8>,
    is_machine: bool,
}

impl Place {
    pub(super) fn new(dir: PathBuf, roots: Vec<u8>, is_machine: bool) -> Self {
        Self { dir, roots, is_machine }
    }

    /// Writes or replaces the files, each in one step: whoever reads one has the old or the new.
    pub(super) fn install(&self, ca: &str) -> io::Result<()> {
        let is_there = self.dir.join("bundle.pem").exists();
        fs::create_dir_all(&self.dir)?;
        if self.is_machine {
            let flags = if is_there { CLOSED | MsFlags::MS_REMOUNT } else { CLOSED };
            mount(TMPFS, &self.dir, TMPFS, flags, Some("mode=0755,size=16m"))?;
        }
        let written = self.write_all(ca);
        if self.is_machine {
            mount(TMPFS, &self.dir, TMPFS, CLOSED | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, None::<&str>)?;
        }
        written
    }

    fn write_all(&self, ca: &str) -> io::Result<()> {
        let bundle = [ca.as_bytes(), b"\n", &self.roots].concat();
        self.write("ca.pem", ca.as_bytes())?;
        self.write("truststore.p12", &store::pkcs12(&bundle))?;
        // Last: whoever waits for the bundle finds the others, too.
        self.write("bundle.pem", &bundle)
    }

    /// For everybody to read and nobody to write.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let beside = self.dir.join(format!(".{name}.new"));
        remove(&beside)?;
        // Made by us and by nobody else, and never what a link leads to.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o444).open(&beside)?;
        file.set_permissions(fs::Permissions::from_mode(0o444))?;
        file.write_all(bytes)?;
        fs::rename(beside, self.dir.join(name))
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: D6d
    #[test]
    fn the_bundle_holds_the_ca_and_the_roots_of_the_image() {
        let dir = tempfile::tempdir().expect("a folder");
        let place = Place::new(dir.path().to_owned(), b"roots".to_vec(), false);
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).expect("there");
        for round in ["first", "second"] {
            place.install(round).expect("written");
            assert_eq!((read("bundle.pem"), read("ca.pem")), (format!("{round}\nroots"), round.to_owned()));
            let mode = fs::metadata(dir.path().join("truststore.p12")).expect("there").permissions().mode();
            assert_eq!(mode & 0o777, 0o444);
        }
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 3, "nothing is left beside them");
    }

    // covers: D6k
    #[test]
    fn whoever_has_a_file_open_reads_it_to_its_end_and_no_link_leads_the_new_one_elsewhere() {
        let dir = tempfile::tempdir().expect("a folder");
        let place = Place::new(dir.path().to_owned(), Vec::new(), false);
        place.install("first").expect("written");
        let mut open = fs::File::open(dir.path().join("ca.pem")).expect("there");
        let elsewhere = dir.path().join("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, dir.path().join(".ca.pem.new")).expect("linked");
        place.install("second").expect("written");
        let mut text = String::new();
        io::Read::read_to_string(&mut open, &mut text).expect("readable");
        assert_eq!(text, "first");
        assert!(!elsewhere.exists());
    }

    // covers: D6k
    #[test]
    fn in_a_machine_the_files_are_replaced_and_the_file_system_is_read_only_again() {
        const INSIDE: &str = "INSIDE_A_MOUNT_NAMESPACE";
        if std::env::var_os(INSIDE).is_none() {
            let test =
                "init::trust::place::tests::in_a_machine_the_files_are_replaced_and_the_file_system_is_read_only_again";
            let mut again = std::process::Command::new("unshare");
            again.arg("-Urm").arg(std::env::current_exe().expect("a program")).args(["--exact", test]).env(INSIDE, "1");
            let output = again.output().expect("unshare starts");
            assert!(
                output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"),
                "{output:?}"
            );
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let place = Place::new(dir.path().to_owned(), b"roots".to_vec(), true);
        for round in ["first", "second", "third"] {
            place.install(round).expect("written");
            assert_eq!(fs::read_to_string(dir.path().join("ca.pem")).expect("there"), round);
            let error = fs::write(dir.path().join("more"), "").expect_err("read-only");
            assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
        }
        let mounts = fs::read_to_string("/proc/self/mounts").expect("readable");
        assert_eq!(mounts.matches(&*dir.path().to_string_lossy()).count(), 1, "one on top of another would never go");
        nix::mount::umount(dir.path()).expect("ours");
    }
}
