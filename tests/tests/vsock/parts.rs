//! What the machine is made of: tools of this machine, a guest kernel, and programs that are built here.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Tools of this machine, by what has them.
const TOOLS: [(&str, &str); 3] =
    [("qemu-system-x86_64", "qemu-system-x86"), ("busybox", "busybox-static"), ("setpriv", "util-linux")];
/// Highest tier of the lab, that of virtual machines.
const TIER: u8 = 3;
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Everything that a machine needs.
pub(crate) struct Parts {
    /// Guest kernel.
    pub(crate) kernel: PathBuf,
    /// Its modules.
    pub(crate) modules: PathBuf,
    /// Static busybox.
    pub(crate) busybox: PathBuf,
    /// Folder of the static programs.
    pub(crate) programs: PathBuf,
}

/// Why there is no machine.
pub(crate) enum Unavailable {
    /// This machine lacks something.
    Skip(String),
    /// Something that should work does not.
    Fail(String),
}

/// Finds the tools and builds the programs.
pub(crate) fn find() -> Result<Parts, Unavailable> {
    let tier = std::env::var("NOVA_TIER").ok().and_then(|tier| tier.parse::<u8>().ok());
    if tier.is_some_and(|tier| tier < TIER) {
        return Err(Unavailable::Skip(format!("virtual machines are tier {TIER} of the lab")));
    }
    for (program, package) in TOOLS {
        which(program).ok_or_else(|| missing(format!("no {program}: install {package}")))?;
    }
    let busybox = which("busybox").unwrap_or_default();
    let (kernel, modules) = kernel().ok_or_else(|| missing("no guest kernel: run cargo xtask setup".into()))?;
    if !can_link_static() {
        return Err(missing(format!("no static {TRIPLE}: install the target and a static C library (libc.a)")));
    }
    Ok(Parts { kernel, modules, busybox, programs: build().map_err(Unavailable::Fail)? })
}

/// Where everything should be there, nothing is skipped.
fn missing(why: String) -> Unavailable {
    let in_ci = std::env::var("CI").is_ok_and(|ci| ci == "true") || std::env::var_os("NOVA_CI").is_some();
    if in_ci { Unavailable::Fail(why) } else { Unavailable::Skip(why) }
}

fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.exists())
}

/// The one that `cargo xtask setup` unpacked, or the newest cloud kernel of this machine.
fn kernel() -> Option<(PathBuf, PathBuf)> {
    [target().join("nova-cache/kernel"), PathBuf::from("/")].iter().find_map(|root| {
        let mut found: Vec<_> = std::fs::read_dir(root.join("boot")).ok()?.flatten().map(|it| it.path()).collect();
        found.sort();
        found.into_iter().rev().find_map(|kernel| {
            let version = kernel.file_name()?.to_str()?.strip_prefix("vmlinuz-")?.to_owned();
            let modules = root.join("lib/modules").join(&version);
            (version.contains("-cloud-") && modules.is_dir()).then_some((kernel, modules))
        })
    })
}

fn can_link_static() -> bool {
    let prints = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let library = prints("cc", &["-print-file-name=libc.a"]).is_some_and(|path| Path::new(&path).is_absolute());
    let target =
        prints("rustc", &["--print", "target-libdir", "--target", TRIPLE]).is_some_and(|dir| Path::new(&dir).is_dir());
    library && target
}

/// The relay and nova-init exactly as `cargo xtask stage` builds them, so that neither rebuilds what the other built.
fn build() -> Result<PathBuf, String> {
    let target = std::env::var_os("NOVA_STATIC_TARGET").map_or_else(|| target().join("static"), PathBuf::from);
    let selections = [
        "-p nova-relay -p nova-tests --no-default-features --bin nova-init --bin nova-relay --bin nova-lab",
        "-p nova-tests --no-default-features --features vsock-check --bin nova-vsock-check",
        "-p nova-supervisor --no-default-features --bin nova-supervisor",
    ];
    for selection in selections {
        println!("building, static: {selection}");
        let mut cargo = Command::new(std::env::var("CARGO").as_deref().unwrap_or("cargo"));
        cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).args(["build", "--quiet", "--target", TRIPLE]);
        cargo.args(selection.split(' ')).arg("--target-dir").arg(&target);
        let output = cargo.env("RUSTFLAGS", "-C target-feature=+crt-static").output();
        let output = output.map_err(|error| format!("cargo: {error}"))?;
        if !output.status.success() {
            return Err(format!("{cargo:?} failed:\n{}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    Ok(target.join(TRIPLE).join("debug"))
}

/// Cargo's target folder.
fn target() -> PathBuf {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tmp.parent().unwrap_or(tmp).to_owned()
}
