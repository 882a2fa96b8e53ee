//! Which accelerator QEMU can use is found out by trying: `/dev/kvm` may exist, open, and still not boot a guest.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::GuestError;

/// How long a kernel may take with KVM until it gives up for want of a root file system; about half a second on real KVM.
const KVM_DEADLINE: Duration = Duration::from_secs(8);

/// An accelerator, or the wish to have one chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Accel {
    /// KVM where it really boots, else the emulator.
    #[default]
    Auto,
    /// QEMU's emulator.
    Tcg,
    /// KVM.
    Kvm,
}

impl Accel {
    /// Name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Tcg => "tcg",
            Self::Kvm => "kvm",
        }
    }

    /// Replaces [`Accel::Auto`] by what boots `kernel`.
    ///
    /// # Errors
    /// When the kernel cannot be read.
    pub fn choose(self, qemu: &Path, kernel: &Path) -> Result<Self, GuestError> {
        if let Err(error) = std::fs::File::open(kernel) {
            let text = format!("cannot read the guest kernel {} ({error}): name one with --kernel", kernel.display());
            return Err(GuestError::Program(text));
        }
        if self != Self::Auto {
            return Ok(self);
        }
        let works = may_have_kvm() && boots_with_kvm(qemu, kernel);
        Ok(if works { Self::Kvm } else { Self::Tcg })
    }

    pub(super) fn qemu_args(self) -> Vec<String> {
        let words = match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Self::Tcg | Self::Auto => ["-accel", "tcg", "-cpu", "max"],
        };
        words.map(String::from).to_vec()
    }
}

/// Spares the try where it cannot work: without the processor's virtualisation there may be a `/dev/kvm` for
/// paravirtualised guests, on which an ordinary kernel hangs.
fn may_have_kvm() -> bool {
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = processor.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    Path::new("/dev/kvm").exists() && flags.split_whitespace().any(|flag| matches!(flag, "vmx" | "svm"))
}

/// Boots the kernel with nothing to run: a working machine panics and, with `panic=-1 -no-reboot`, ends QEMU with 0.
fn boots_with_kvm(qemu: &Path, kernel: &Path) -> bool {
    let child = Command::new(qemu)
        .args(["-no-user-config", "-nodefaults", "-display", "none", "-no-reboot", "-nic", "none", "-m", "128"])
        .args(Accel::Kvm.qemu_args())
        .args(["-machine", "q35", "-append", "panic=-1 quiet", "-kernel"])
        .arg(kernel)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return false };
    let deadline = Instant::now() + KVM_DEADLINE;
    while Instant::now() < deadline {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => std::thread::sleep(Duration::from_millis(20)),
            Err(_) => break,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}
