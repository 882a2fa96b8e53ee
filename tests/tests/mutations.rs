//! Three checks are taken out of a copy of the sources, one at a time, and each must turn its row of the scenario red: so
//! that the rows are known to be able to fail.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::SystemTime;

use anyhow::{Context, bail};
use nova_tests::demo::Report;
use nova_tests::lab::stage::{GuestKind, Stage};
use nova_tests::suite::Suite;

/// What a build of the supervisor needs of the sources.
const PARTS: [&str; 8] = ["Cargo.toml", "Cargo.lock", "proto", "policy", "supervisor", "relay-guest", "tests", "xtask"];

struct Mutation {
    /// Name of its patch.
    patch: &'static str,
    /// The row that must turn red.
    row: u8,
    /// A row that must stay green: the mutant still works otherwise.
    green: u8,
}

const MUTATIONS: [Mutation; 3] = [
    Mutation { patch: "ingress-check-skipped", row: 4, green: 1 },
    Mutation { patch: "canonicaliser-skipped", row: 13, green: 1 },
    Mutation { patch: "identity-from-hello", row: 14, green: 1 },
];

// covers: M
fn main() -> ExitCode {
    let mut suite = Suite::from_env();
    for mutation in &MUTATIONS {
        let name = format!("{} turns row {} red", mutation.patch, mutation.row);
        suite.case(&name, 1, || turns_red(mutation));
    }
    suite.finish()
}

fn turns_red(mutation: &Mutation) -> anyhow::Result<()> {
    let stage = Stage::shared(GuestKind::Process)?;
    let place = stage.host_bins.parent().context("the target folder")?.join("nova-mutations");
    let tree = copy_sources(&place)?;
    let patch = sources().join("tests/mutations").join(mutation.patch).with_extension("patch");
    apply(&tree, &patch)?;
    let mutant = build(&tree, &place, &stage.host_bins)?;
    let mut stage = stage.clone();
    stage.instead.insert("nova-supervisor".into(), mutant);
    let report = play(&stage, mutation)?;
    for row in &report.rows {
        if row.ok != (row.id != mutation.row) {
            bail!("row {} is {}: {}", row.id, if row.ok { "green" } else { "red" }, row.got);
        }
    }
    if report.rows.len() == 2 { Ok(()) } else { bail!("{} rows were played instead of 2", report.rows.len()) }
}

/// A fresh copy of the sources. Times are kept, so that only what a patch changes is compiled again.
fn copy_sources(place: &Path) -> anyhow::Result<PathBuf> {
    let tree = place.join("tree");
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    fs::create_dir_all(&tree)?;
    let mut copy = Command::new("cp");
    copy.arg("-a").args(PARTS.iter().map(|part| sources().join(part))).arg(&tree);
    if !copy.status()?.success() {
        bail!("the sources could not be copied to {}", tree.display());
    }
    // What any patch changes was compiled with another content before: its time must say so.
    for entry in fs::read_dir(sources().join("tests/mutations"))?.flatten() {
        for file in changed_files(&fs::read_to_string(entry.path())?) {
            let file = fs::File::options().append(true).open(tree.join(&file)).context(file)?;
            file.set_modified(SystemTime::now())?;
        }
    }
    Ok(tree)
}

fn changed_files(patch: &str) -> Vec<String> {
    patch.lines().filter_map(|line| line.strip_prefix("+++ b/")).map(ToOwned::to_owned).collect()
}

fn apply(tree: &Path, patch: &Path) -> anyhow::Result<()> {
    let mut git = Command::new("git");
    // The copy lies in the target folder, perhaps inside the project's own repository, which has no part in this.
    git.env("GIT_CEILING_DIRECTORIES", tree.parent().context("a parent")?).current_dir(tree);
    let output = git.args(["apply", "-C1", "--whitespace=nowarn"]).arg(patch).output().context("git")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("{} does not fit the sources any more, write it anew:\n{why}", patch.display());
    }
    Ok(())
}

/// Builds the mutant's supervisor. Compiled dependencies are shared with the real build, the result is not.
fn build(tree: &Path, place: &Path, host_bins: &Path) -> anyhow::Result<PathBuf> {
    let shared = host_bins.parent().context("the target folder")?;
    let output = Command::new(std::env::var("CARGO").as_deref().unwrap_or("cargo"))
        .args(["build", "--offline", "-p", "nova-supervisor", "--no-default-features", "--bin", "nova-supervisor"])
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", place)
        .env("CARGO_BUILD_BUILD_DIR", shared)
        .output()
        .context("cargo")?;
    if !output.status.success() {
        bail!("the mutant does not compile:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(place.join("debug/nova-supervisor"))
}

fn play(stage: &Stage, mutation: &Mutation) -> anyhow::Result<Report> {
    let rows = format!("{},{}", mutation.green, mutation.row);
    let output = Command::new(env!("CARGO_BIN_EXE_nova-lab"))
        .args(["demo", "--guest", "process", "--json", "--rows", &rows, "--stage", &serde_json::to_string(stage)?])
        .stderr(Stdio::null())
        .output()?;
    if output.status.success() {
        bail!("the demo ended well with a mutant");
    }
    serde_json::from_slice(&output.stdout).context("the demo printed no report")
}

fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}
