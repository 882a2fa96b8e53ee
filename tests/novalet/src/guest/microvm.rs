//! microVM guests: QEMU without any NIC, its vsock served by vhost-device-vsock, each of the two processes in a network
//! namespace with nothing but `lo`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::config::{GuestPlace, Link};
use super::{Accel, Boot, Guest, GuestError, Owned, config_bytes, failed, wait_for_socket};
use crate::image::{BaseImage, ImageSpec, Machine};
use crate::launch::Launch;

/// First CID that a guest may have.
const FIRST_CID: u32 = 3;
/// Memory when a placement names none, in MiB.
const DEFAULT_MEMORY_MIB: u32 = 256;

/// What microVMs are made of.
#[derive(Debug, Clone)]
pub struct MicrovmOptions {
    /// Our own program: the launcher.
    pub self_exe: PathBuf,
    /// `qemu-system-x86_64`.
    pub qemu: PathBuf,
    /// `vhost-device-vsock`.
    pub vhost_device_vsock: PathBuf,
    /// Guest kernel.
    pub kernel: PathBuf,
    /// Machine type.
    pub machine: Machine,
    /// Wanted accelerator.
    pub accel: Accel,
}

/// A node's microVMs: one base image and one accelerator for all.
#[derive(Debug)]
pub struct Microvm {
    options: MicrovmOptions,
    base: BaseImage,
    next_cid: AtomicU32,
}

impl Microvm {
    /// Builds the base image into `run_dir` and chooses the accelerator by trying.
    ///
    /// # Errors
    /// When a program or a part of the image is missing.
    pub fn prepare(mut options: MicrovmOptions, image: &ImageSpec, run_dir: &Path) -> Result<Self, GuestError> {
        for (path, flag) in [(&options.qemu, "--qemu"), (&options.vhost_device_vsock, "--vhost-device-vsock")] {
            if !path.exists() {
                let remedy = format!("{} is missing: install it, or name it with {flag}", path.display());
                return Err(GuestError::Program(remedy));
            }
        }
        let base = image.build(&run_dir.join("base.cpio"))?;
        options.accel = options.accel.choose(&options.qemu, &options.kernel)?;
        tracing::info!(accel = options.accel.name(), machine = ?options.machine, "microVMs are ready to start");
        Ok(Self { options, base, next_cid: AtomicU32::new(FIRST_CID) })
    }

    pub(super) async fn start(&self, boot: &Boot<'_>) -> Result<Guest, GuestError> {
        if boot.placement.guest.command.is_empty() {
            return Err(GuestError::Placement("guest.command is empty: name the program that the guest runs".into()));
        }
        let own = &boot.folders.own;
        let initrd = own.join("initrd.cpio");
        self.base.with_pod_segment(&config_bytes(boot, self.place())?, &initrd)?;
        let uplink = own.join("vhost.sock");
        let _ = fs::remove_file(&uplink);
        let socket = boot.folders.shared.join(&boot.placement.socket_file);
        let device = self.device(&uplink, &socket);
        let vhost = self.launch("vhost-device-vsock", device, &own.join("vhost.log"))?;
        wait_for_socket(&uplink, &vhost).await?;
        wait_for_socket(&socket, &vhost).await?;
        let serial = own.join("serial.log");
        let _ = fs::remove_file(&serial);
        let command = self.qemu(boot.placement.guest.memory_mib, &initrd, &uplink, &serial);
        let qemu = self.launch("qemu", command, &own.join("qemu.log"))?;
        Ok(Guest { children: vec![qemu, vhost] })
    }

    fn launch(&self, name: &'static str, command: Vec<String>, log: &Path) -> Result<Owned, GuestError> {
        let exe = &self.options.self_exe;
        Owned::start(name, exe, &Launch::in_own_network(command), log).map_err(failed("start", exe))
    }

    fn place(&self) -> GuestPlace {
        GuestPlace {
            link: Link::Vsock { host_cid: 2 },
            modules: self.base.modules.clone(),
            is_guest_init: true,
            separate_users: true,
            has_tun: true,
            programs: "/nova".into(),
        }
    }

    fn device(&self, uplink: &Path, socket: &Path) -> Vec<String> {
        let cid = self.next_cid.fetch_add(1, Ordering::Relaxed);
        let vm = format!("guest-cid={cid},socket={},uds-path={}", uplink.display(), socket.display());
        vec![self.options.vhost_device_vsock.display().to_string(), "--vm".into(), vm]
    }

    fn qemu(&self, memory_mib: u32, initrd: &Path, uplink: &Path, serial: &Path) -> Vec<String> {
        let memory = if memory_mib == 0 { DEFAULT_MEMORY_MIB } else { memory_mib };
        let (machine, device) = match self.options.machine {
            Machine::Microvm => ("microvm,memory-backend=mem", "vhost-user-vsock-device,chardev=uplink"),
            Machine::Q35 => ("q35,memory-backend=mem", "vhost-user-vsock-pci,chardev=uplink"),
        };
        let mut words = vec![self.options.qemu.display().to_string()];
        words.extend(
            ["-no-user-config", "-nodefaults", "-display", "none", "-no-reboot", "-nic", "none"].map(String::from),
        );
        words.extend(self.options.accel.qemu_args());
        words.extend(["-smp", "1", "-machine", machine, "-m"].map(String::from));
        words.push(memory.to_string());
        // vhost-user: the device process maps the guest's memory, so it must be shared.
        words.extend(["-object".into(), format!("memory-backend-memfd,id=mem,size={memory}M,share=on")]);
        words.extend(["-chardev".into(), format!("socket,id=uplink,path={}", uplink.display())]);
        words.extend(["-device".into(), device.into()]);
        words.extend(["-serial".into(), format!("file:{}", serial.display())]);
        words.extend(["-kernel".into(), self.options.kernel.display().to_string()]);
        words.extend(["-initrd".into(), initrd.display().to_string()]);
        words.extend(["-append".into(), self.kernel_command_line()]);
        words
    }

    fn kernel_command_line(&self) -> String {
        let clock = match (self.options.machine, &self.options.accel) {
            // Under the emulator this machine has nothing that the kernel could calibrate the TSC against; it hangs without.
            (Machine::Microvm, Accel::Tcg) => "tsc_early_khz=2600000 ",
            _ => "",
        };
        format!("console=ttyS0 quiet panic=-1 {clock}-- --config /nova/guest.json")
    }
}
