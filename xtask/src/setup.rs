//! Tools that are not Rust: which are missing, how they are installed, and what to do where they cannot be.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use serde::Serialize;

use crate::go_tool::{self, GRPCURL, H2SPEC};
use crate::{opa, places, report};

/// The host side of vsock for QEMU, as a process with Unix sockets.
const VHOST: &str = "vhost-device-vsock";
const VHOST_VERSION: &str = "0.3.0";
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";

/// Arguments of `cargo xtask setup`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only say what is missing
    #[arg(long)]
    check: bool,
}

/// What tools are for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Namespaces, links and the app's curl.
    Lab,
    /// Virtual machines.
    Microvm,
    /// The peers that are measured against.
    Bench,
    /// Languages whose HTTP clients call the supervisor in tests.
    Clients,
}

/// A program, or a file by its whole path, and the Debian package that has it.
struct Tool {
    program: &'static str,
    package: &'static str,
    need: Need,
}

const TOOLS: [Tool; 19] = [
    Tool { program: "curl", package: "curl", need: Need::Lab },
    Tool { program: "ip", package: "iproute2", need: Need::Lab },
    Tool { program: "ping", package: "iputils-ping", need: Need::Lab },
    Tool { program: "openssl", package: "openssl", need: Need::Lab },
    Tool { program: "setpriv", package: "util-linux", need: Need::Lab },
    Tool { program: "qemu-system-x86_64", package: "qemu-system-x86", need: Need::Microvm },
    Tool { program: "busybox", package: "busybox-static", need: Need::Microvm },
    Tool { program: "haproxy", package: "haproxy", need: Need::Bench },
    Tool { program: "pip3", package: "python3-pip", need: Need::Bench },
    Tool { program: "python3", package: "python3", need: Need::Clients },
    Tool {
        program: "/usr/lib/python3/dist-packages/requests/api.py",
        package: "python3-requests",
        need: Need::Clients,
    },
    Tool { program: "/usr/lib/python3/dist-packages/socks.py", package: "python3-socks", need: Need::Clients },
    Tool { program: "/usr/lib/python3/dist-packages/httpx/_api.py", package: "python3-httpx", need: Need::Clients },
    Tool { program: "/usr/lib/python3/dist-packages/h2/config.py", package: "python3-h2", need: Need::Clients },
    Tool {
        program: "/usr/lib/python3/dist-packages/aiohttp/client.py",
        package: "python3-aiohttp",
        need: Need::Clients,
    },
    Tool { program: "node", package: "nodejs", need: Need::Clients },
    Tool { program: "npm", package: "npm", need: Need::Clients },
    Tool { program: "git", package: "git", need: Need::Clients },
    // The compiler as well: the client is run from its source.
    Tool { program: "javac", package: "default-jdk-headless", need: Need::Clients },
];

/// What starts a virtual machine.
#[derive(Debug, Serialize)]
pub(crate) struct VmTools {
    pub(crate) qemu: PathBuf,
    pub(crate) kernel: PathBuf,
    pub(crate) modules: PathBuf,
    pub(crate) vhost_device_vsock: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let needs = [Need::Lab, Need::Microvm, Need::Bench, Need::Clients];
    if args.check {
        let missing = missing_packages(&needs);
        let others = [
            (kernel().is_none(), KERNEL_PACKAGE),
            (vhost().is_none(), VHOST),
            (opa::find().is_none(), "opa"),
            (H2SPEC.find().is_none(), H2SPEC.name),
            (GRPCURL.find().is_none(), GRPCURL.name),
        ];
        let mut names = missing;
        names.extend(others.iter().filter(|(missing, _)| *missing).map(|(_, name)| *name));
        println!(
            "{}",
            if names.is_empty() { "nothing is missing".to_owned() } else { format!("missing: {}", names.join(" ")) }
        );
        return Ok(if names.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    install(&needs)?;
    opa::install()?;
    H2SPEC.install()?;
    GRPCURL.install()?;
    go_tool::build_clients()?;
    eprintln!("everything is there");
    Ok(ExitCode::SUCCESS)
}

/// Installs what is missing for `needs`, and says so.
pub(crate) fn install(needs: &[Need]) -> anyhow::Result<()> {
    let missing = missing_packages(needs);
    if !missing.is_empty() {
        apt_install(&missing)?;
    }
    if needs.contains(&Need::Microvm) {
        if kernel().is_none() {
            unpack_kernel()?;
        }
        if vhost().is_none() {
            cargo_install(VHOST, VHOST_VERSION, "about a minute")?;
        }
    }
    Ok(())
}

/// The tools for virtual machines, after [`install`].
pub(crate) fn vm_tools() -> anyhow::Result<VmTools> {
    let (kernel, modules) = kernel().context("no guest kernel; run cargo xtask setup")?;
    Ok(VmTools {
        qemu: places::find("qemu-system-x86_64").context("no QEMU; run cargo xtask setup")?,
        kernel,
        modules,
        vhost_device_vsock: vhost().context("no vhost-device-vsock; run cargo xtask setup")?,
    })
}

fn missing_packages(needs: &[Need]) -> Vec<&'static str> {
    let missing = |tool: &&Tool| needs.contains(&tool.need) && places::find(tool.program).is_none();
    TOOLS.iter().filter(missing).map(|tool| tool.package).collect()
}

fn apt_install(packages: &[&str]) -> anyhow::Result<()> {
    let by_hand = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    if places::find("apt-get").is_none() {
        bail!(
            "missing: {}; this is not Debian or Ubuntu, so install what has these programs by hand",
            packages.join(" ")
        );
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("missing: {}; run as root: {by_hand}", packages.join(" "));
    }
    // A failing update leaves the lists as they were, which may be good enough.
    let _ = report::command("updating the package lists", Command::new("apt-get").args(["update", "-qq"]));
    let mut install = Command::new("apt-get");
    install.args(["install", "-y", "-qq", "--no-install-recommends"]).args(packages);
    install.env("DEBIAN_FRONTEND", "noninteractive");
    report::command(&format!("installing packages: {}", packages.join(" ")), &mut install)
        .with_context(|| format!("try by hand: {by_hand}"))?;
    Ok(())
}

/// Downloads Debian's cloud kernel and unpacks it into the cache: installing it would change what the machine boots.
fn unpack_kernel() -> anyhow::Result<()> {
    let dir = places::cache_dir()?.join("kernel");
    std::fs::create_dir_all(&dir)?;
    let remedy = || format!("install the package {KERNEL_PACKAGE}, or put it unpacked into {}", dir.display());
    let depends = report::quiet(Command::new("apt-cache").args(["depends", KERNEL_PACKAGE])).with_context(remedy)?;
    let package = depends
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: ").filter(|name| name.starts_with("linux-image-")))
        .with_context(remedy)?;
    let what = format!("downloading the guest kernel {package} (into the cache, not installed)");
    report::command(&what, Command::new("apt-get").args(["download", "-qq", package]).current_dir(&dir))
        .with_context(remedy)?;
    let file = entries(&dir)
        .into_iter()
        .find(|path| path.extension().is_some_and(|end| end == "deb"))
        .context("no package came")?;
    report::quiet(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&dir))?;
    Ok(std::fs::remove_file(file)?)
}

/// Builds a program from crates.io into the cache.
pub(crate) fn cargo_install(name: &str, version: &str, duration: &str) -> anyhow::Result<()> {
    let root = places::cache_dir()?.join("tools");
    let build = root.join("build");
    let mut install = places::cargo();
    install.args(["install", "--locked", "--version", version, "--root"]).arg(&root).arg(name);
    install.env("CARGO_TARGET_DIR", &build);
    report::command(&format!("building {name} {version} (once, {duration})"), &mut install)?;
    Ok(std::fs::remove_dir_all(build)?)
}

/// Kernel image and the folder of its modules: from the cache, or the one of the machine.
fn kernel() -> Option<(PathBuf, PathBuf)> {
    let cache = places::cache_dir().ok()?.join("kernel");
    [cache, PathBuf::from("/")].iter().find_map(|root| {
        entries(&root.join("boot")).into_iter().rev().find_map(|image| {
            let version = image.file_name()?.to_str()?.strip_prefix("vmlinuz-")?.to_owned();
            let modules = root.join("lib/modules").join(&version);
            (version.ends_with("-cloud-amd64") && modules.is_dir()).then_some((image, modules))
        })
    })
}

fn vhost() -> Option<PathBuf> {
    let cached = places::cache_dir().ok()?.join("tools/bin").join(VHOST);
    if cached.is_file() { Some(cached) } else { places::find(VHOST) }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
