//! Kernel modules of the guest, in the order in which they load.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{ImageError, failed, read};

/// Machine type of the VMM, which decides the bus that the vsock device sits on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Machine {
    /// QEMU's `microvm`: virtio-mmio, no PCI.
    #[default]
    Microvm,
    /// QEMU's `q35`: virtio-pci.
    Q35,
}

impl Machine {
    /// Modules in load order: virtio.ko needs virtio_ring.ko although its name says otherwise.
    pub(super) fn modules(self) -> &'static [&'static str] {
        /// For the app's pings.
        const TUN: &str = "tun";
        const VSOCK: [&str; 3] = ["vsock", "vmw_vsock_virtio_transport_common", "vmw_vsock_virtio_transport"];
        match self {
            Self::Microvm => &["virtio_ring", "virtio", "virtio_mmio", VSOCK[0], VSOCK[1], VSOCK[2], TUN],
            Self::Q35 => &[
                "virtio_ring",
                "virtio",
                "virtio_pci_modern_dev",
                "virtio_pci_legacy_dev",
                "virtio_pci",
                VSOCK[0],
                VSOCK[1],
                VSOCK[2],
                TUN,
            ],
        }
    }
}

/// A `/lib/modules/<version>` folder.
pub(super) struct Folder {
    root: PathBuf,
    files: BTreeMap<String, PathBuf>,
    builtin: String,
}

impl Folder {
    pub(super) fn open(root: &Path) -> Result<Self, ImageError> {
        let mut files = BTreeMap::new();
        let kernel = root.join("kernel");
        if !kernel.is_dir() {
            return Err(ImageError::Missing {
                path: kernel,
                remedy: "install the guest kernel's package, see --modules",
            });
        }
        find(&kernel, &mut files)?;
        let builtin = fs::read_to_string(root.join("modules.builtin")).unwrap_or_default();
        Ok(Self { root: root.to_path_buf(), files, builtin })
    }

    /// The module, unpacked; nothing when it is built into the kernel.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, ImageError> {
        let Some(path) = self.files.get(name) else {
            let suffix = format!("/{name}.ko");
            if self.builtin.lines().any(|line| line.ends_with(&suffix)) {
                return Ok(None);
            }
            return Err(ImageError::NoModule { name: name.to_owned(), folder: self.root.clone() });
        };
        match path.extension().and_then(|end| end.to_str()) {
            Some("ko") => read(path).map(Some),
            Some("xz") => unpack(path, "xz").map(Some),
            Some("zst") => unpack(path, "zstd").map(Some),
            _ => unpack(path, "gzip").map(Some),
        }
    }
}

fn unpack(path: &Path, tool: &str) -> Result<Vec<u8>, ImageError> {
    match Command::new(tool).arg("-dc").arg(path).output() {
        Ok(output) if output.status.success() => Ok(output.stdout),
        _ => Err(ImageError::Tool(format!("{tool} -dc {}", path.display()))),
    }
}

fn find(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<(), ImageError> {
    for entry in fs::read_dir(folder).map_err(failed(folder))? {
        let entry = entry.map_err(failed(folder))?;
        let path = entry.path();
        if entry.file_type().map_err(failed(&path))?.is_dir() {
            find(&path, files)?;
        } else if let Some((name, _)) = entry.file_name().to_string_lossy().split_once(".ko") {
            files.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: A3
    #[test]
    fn a_module_that_is_missing_is_named_and_one_that_is_built_in_is_not_missed() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(root.path().join("kernel/net")).expect("a folder");
        fs::write(root.path().join("kernel/net/vsock.ko"), "module").expect("a module");
        fs::write(root.path().join("modules.builtin"), "kernel/drivers/virtio/virtio.ko\n").expect("a list");
        let folder = Folder::open(root.path()).expect("opens");
        assert!(matches!(folder.read("virtio_mmio"), Err(ImageError::NoModule { .. })));
        assert_eq!(folder.read("virtio").expect("built in"), None);
        assert_eq!(folder.read("vsock").expect("there").as_deref(), Some(&b"module"[..]));
    }
}
