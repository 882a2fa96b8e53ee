//! The guest image: one initramfs that all microVMs of a node share, and a small segment of its own for each pod.
//!
//! ```text
//! base:  /init = nova-init   /nova/{nova-relay,nova-lab}   /nova/modules/*.ko   /bin/busybox + links
//!        /usr/bin/curl + its libraries   /etc/{passwd,group,nsswitch.conf,resolv.conf}
//! pod:   /nova/guest.json (0600)
//! ```
//!
//! Nothing is compressed: unpacking gzip under an emulator costs more than loading the larger file.

pub mod cpio;
mod elf;
mod modules;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use modules::Machine;

use crate::guest::config::{APP_UID, RELAY_UID};

/// Folder of the modules in the guest.
const MODULES: &str = "nova/modules";
/// Programs of ours that go to `/nova`, when they are in the folder of guest binaries; the first two must be.
const PROGRAMS: [&str; 3] = ["nova-init", "nova-relay", "nova-lab"];

/// Why an image cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A file is missing.
    #[error("{path} is missing: {remedy}")]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
        /// What to do.
        remedy: &'static str,
    },
    /// The guest has no loader for it.
    #[error(
        "{0} is linked dynamically and cannot run as the guest's init: build it with -C target-feature=+crt-static"
    )]
    NotStatic(PathBuf),
    /// The kernel's folder has no such module.
    #[error(
        "no module {name} under {folder}: install the modules of the guest kernel, or name their folder with --modules"
    )]
    NoModule {
        /// Module name.
        name: String,
        /// Folder that was searched.
        folder: PathBuf,
    },
    /// A tool failed.
    #[error("{0} failed: is it installed?")]
    Tool(String),
    /// The system refused.
    #[error("cannot read or write {path}")]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What goes into the base image.
#[derive(Debug, Clone)]
pub struct ImageSpec {
    /// Folder with the static guest programs.
    pub bin_dir: PathBuf,
    /// Static busybox.
    pub busybox: PathBuf,
    /// curl of this machine; its libraries are copied too.
    pub curl: Option<PathBuf>,
    /// ping of this machine; its libraries are copied too.
    pub ping: Option<PathBuf>,
    /// `/lib/modules/<version>` of the guest kernel.
    pub modules: PathBuf,
    /// Decides which bus drivers are loaded.
    pub machine: Machine,
    /// Modules that are put into the image beside the usual ones, and not loaded.
    pub extra_modules: Vec<String>,
}

/// A built base image.
#[derive(Debug, Clone)]
pub struct BaseImage {
    /// The archive.
    pub file: PathBuf,
    /// Paths in the guest of the modules to load, in order.
    pub modules: Vec<String>,
}

impl ImageSpec {
    /// Builds the base image into `file`.
    ///
    /// # Errors
    /// When something that the image needs is missing, or not static.
    pub fn build(&self, file: &Path) -> Result<BaseImage, ImageError> {
        let mut archive = cpio::Archive::default();
        skeleton(&mut archive);
        self.add_programs(&mut archive, &file.with_extension("stripped"))?;
        self.add_busybox(&mut archive)?;
        if let Some(curl) = &self.curl {
            add_dynamic(&mut archive, curl, "usr/bin/curl")?;
        }
        if let Some(ping) = &self.ping {
            add_dynamic(&mut archive, ping, "usr/bin/ping")?;
        }
        let loaded = self.add_modules(&mut archive)?;
        let mut out = create(file, 0o644)?;
        archive.write(&mut out).and_then(|()| out.flush()).map_err(failed(file))?;
        Ok(BaseImage { file: file.to_path_buf(), modules: loaded })
    }

    fn add_programs(&self, archive: &mut cpio::Archive, scratch: &Path) -> Result<(), ImageError> {
        for (number, program) in PROGRAMS.iter().enumerate() {
            let path = self.bin_dir.join(program);
            if !path.exists() {
                if number < 2 {
                    return Err(ImageError::Missing { path, remedy: "build the guest programs, see --guest-bin-dir" });
                }
                continue;
            }
            let data = read_stripped(&path, scratch)?;
            if elf::is_dynamic(&data) {
                return Err(ImageError::NotStatic(path));
            }
            let place = if *program == "nova-init" { "init".to_owned() } else { format!("nova/{program}") };
            archive.file(&place, 0o755, data);
        }
        Ok(())
    }

    fn add_busybox(&self, archive: &mut cpio::Archive) -> Result<(), ImageError> {
        if !self.busybox.exists() {
            let path = self.busybox.clone();
            return Err(ImageError::Missing { path, remedy: "install busybox-static, or name it with --busybox" });
        }
        let data = read(&self.busybox)?;
        if elf::is_dynamic(&data) {
            return Err(ImageError::NotStatic(self.busybox.clone()));
        }
        archive.file("bin/busybox", 0o755, data);
        let applets = run(Command::new(&self.busybox).arg("--list"))?;
        for applet in applets.lines().filter(|name| !name.is_empty() && !name.contains('/') && *name != "busybox") {
            archive.link(&format!("bin/{applet}"), "busybox");
        }
        Ok(())
    }

    fn add_modules(&self, archive: &mut cpio::Archive) -> Result<Vec<String>, ImageError> {
        let folder = modules::Folder::open(&self.modules)?;
        let mut loaded = Vec::new();
        for name in self.machine.modules() {
            if let Some(data) = folder.read(name)? {
                let place = format!("{MODULES}/{name}.ko");
                archive.file(&place, 0o644, data);
                loaded.push(format!("/{place}"));
            }
        }
        for name in &self.extra_modules {
            if let Some(data) = folder.read(name)? {
                archive.file(&format!("{MODULES}/{name}.ko"), 0o644, data);
            }
        }
        Ok(loaded)
    }
}

impl BaseImage {
    /// Writes the base and a segment with `guest_json` to `file`, readable by its owner only: it holds the boot token.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn with_pod_segment(&self, guest_json: &[u8], file: &Path) -> Result<(), ImageError> {
        let _ = fs::remove_file(file);
        let mut out = create(file, 0o600)?;
        let mut base = fs::File::open(&self.file).map_err(failed(&self.file))?;
        io::copy(&mut base, &mut out).map_err(failed(file))?;
        let mut segment = cpio::Archive::default();
        segment.file("nova/guest.json", 0o600, guest_json);
        segment.write(&mut out).and_then(|()| out.flush()).map_err(failed(file))
    }
}

fn skeleton(archive: &mut cpio::Archive) {
    for folder in ["dev", "proc", "sys", "run", "etc", "bin", "sbin", "usr/bin", "var", "nova"] {
        archive.folder(folder, 0o755);
    }
    archive.folder("tmp", 0o1777);
    archive.folder("root", 0o700);
    archive.character_device("dev/console", 0o600, 5, 1);
    archive.character_device("dev/null", 0o666, 1, 3);
    let passwd = format!(
        "root:x:0:0:root:/root:/bin/sh\nrelay:x:{RELAY_UID}:{RELAY_UID}:nova-relay:/:/bin/false\n\
         app:x:{APP_UID}:{APP_UID}:app:/tmp:/bin/sh\n"
    );
    archive.file("etc/passwd", 0o644, passwd);
    archive.file("etc/group", 0o644, format!("root:x:0:\nrelay:x:{RELAY_UID}:\napp:x:{APP_UID}:\n"));
    archive.file("etc/nsswitch.conf", 0o644, "passwd: files\ngroup: files\nhosts: files\n");
    archive.file("etc/resolv.conf", 0o644, "# no resolver in the guest: names are resolved by the supervisor\n");
}

/// Adds a dynamic program with every library that `ldd` names, at the places where its loader looks for them.
fn add_dynamic(archive: &mut cpio::Archive, program: &Path, place: &str) -> Result<(), ImageError> {
    archive.file(place, 0o755, read(program)?);
    for library in elf::libraries(&run(Command::new("ldd").arg(program))?) {
        let inside = library.trim_start_matches('/').to_owned();
        if !archive.contains(&inside) {
            archive.file(&inside, 0o755, read(Path::new(&library))?);
        }
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<String, ImageError> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        _ => Err(ImageError::Tool(name)),
    }
}

/// Symbols and debug information are most of a program, and the image is in the guest's memory twice while it unpacks.
/// Without `strip` the program goes in as it is.
fn read_stripped(path: &Path, scratch: &Path) -> Result<Vec<u8>, ImageError> {
    let stripped = run(Command::new("strip").arg("-o").arg(scratch).arg(path));
    let data = if stripped.is_ok() { read(scratch) } else { read(path) };
    let _ = fs::remove_file(scratch);
    data
}

fn read(path: &Path) -> Result<Vec<u8>, ImageError> {
    fs::read(path).map_err(failed(path))
}

fn create(path: &Path, mode: u32) -> Result<io::BufWriter<fs::File>, ImageError> {
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path);
    file.map(io::BufWriter::new).map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> ImageError {
    let path = path.to_path_buf();
    move |source| ImageError::Io { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(folder: &Path) -> ImageSpec {
        ImageSpec {
            bin_dir: folder.join("bin"),
            busybox: folder.join("busybox"),
            curl: None,
            ping: None,
            modules: folder.join("modules"),
            machine: Machine::Microvm,
            extra_modules: Vec::new(),
        }
    }

    // covers: A3
    #[test]
    fn a_missing_or_dynamic_guest_program_is_named_with_its_remedy() {
        let folder = tempfile::tempdir().expect("a folder");
        let spec = spec(folder.path());
        let error = spec.build(&folder.path().join("out")).expect_err("nothing is there");
        assert!(error.to_string().contains("nova-init is missing: build"), "{error}");
        fs::create_dir(&spec.bin_dir).expect("a folder");
        fs::copy("/proc/self/exe", spec.bin_dir.join("nova-init")).expect("a dynamic program");
        let error = spec.build(&folder.path().join("out")).expect_err("not static");
        assert!(error.to_string().contains("+crt-static"), "{error}");
    }

    // covers: A3
    #[test]
    fn the_pods_segment_follows_the_base_and_only_its_owner_reads_it() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().expect("a folder");
        let base = BaseImage { file: folder.path().join("base"), modules: Vec::new() };
        fs::write(&base.file, [0; 512]).expect("a base");
        let file = folder.path().join("pod");
        base.with_pod_segment(b"{}", &file).expect("written");
        let bytes = fs::read(&file).expect("read");
        assert_eq!(bytes.get(512..518), Some(&b"070701"[..]));
        assert_eq!(fs::metadata(&file).expect("there").mode() & 0o777, 0o600);
    }
}
