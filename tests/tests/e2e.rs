//! The scenario of the demo as tests: the same rows over process guests and over microVMs, and what an interrupted run
//! leaves behind.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nova_tests::demo::Report;
use nova_tests::lab::stage::{GuestKind, Stage};
use nova_tests::lab::wait_for;
use nova_tests::suite::Suite;

const LAB: &str = env!("CARGO_BIN_EXE_nova-lab");

fn main() -> ExitCode {
    let mut suite = Suite::from_env();
    rows(&mut suite, GuestKind::Process, 1);
    rows(&mut suite, GuestKind::Microvm, 3);
    leaves_nothing(&mut suite);
    suite.finish()
}

// covers: A10
fn rows(suite: &mut Suite, guest: GuestKind, tier: u8) {
    let name = |id: u8| format!("{} guests, row {id}", guest.name());
    let names: Vec<String> = (1..=15).map(name).collect();
    if !suite.wants(tier, &names) {
        return;
    }
    match play(guest) {
        Err(error) => suite.result(&format!("{} guests", guest.name()), Err(error)),
        Ok(report) => {
            for row in report.rows {
                let seen = format!("expected: {}\n  got: {}", row.expected, row.got);
                suite.result(&name(row.id), if row.ok { Ok(()) } else { Err(anyhow::anyhow!(seen)) });
            }
        }
    }
}

fn play(guest: GuestKind) -> anyhow::Result<Report> {
    let output = demo(guest)?.arg("--json").stderr(Stdio::inherit()).output()?;
    let report: Report = serde_json::from_slice(&output.stdout).context("the demo printed no report")?;
    if report.rows.len() != 15 {
        bail!("{} rows instead of 15", report.rows.len());
    }
    if report.ok != output.status.success() {
        bail!("the demo ended with {} although ok is {}", output.status, report.ok);
    }
    Ok(report)
}

fn demo(guest: GuestKind) -> anyhow::Result<Command> {
    let mut command = Command::new(LAB);
    command.args(["demo", "--guest", guest.name(), "--stage", &serde_json::to_string(Stage::shared(guest)?)?]);
    Ok(command)
}

// covers: A14
fn leaves_nothing(suite: &mut Suite) {
    let ends = [
        (Signal::SIGINT, "interrupted"),
        (Signal::SIGTERM, "terminated"),
        (Signal::SIGHUP, "left by its terminal"),
        (Signal::SIGKILL, "killed"),
    ];
    for (signal, word) in ends {
        let name = format!("a demo that is {word} leaves nothing behind");
        suite.case(&name, 1, || ends_clean(GuestKind::Process, signal));
    }
    let name = "a demo with microVMs that is killed leaves nothing behind";
    suite.case(name, 3, || ends_clean(GuestKind::Microvm, Signal::SIGKILL));
}

/// Interrupts a demo while its guests run, and looks for what it made: processes, mounts, folders.
fn ends_clean(guest: GuestKind, signal: Signal) -> anyhow::Result<()> {
    let mut demo = demo(guest)?.arg("--rows").arg("12").stderr(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let mut words = BufReader::new(demo.stderr.take().context("stderr")?);
    let run = until_guests_serve(&mut words)?;
    let before = processes_of(&run)?;
    if before < 10 {
        bail!("only {before} processes name {run}: this test looks for the wrong thing");
    }
    kill(Pid::from_raw(i32::try_from(demo.id())?), signal)?;
    let status = demo.wait()?;
    if signal != Signal::SIGKILL && status.code() != Some(128 + signal as i32) {
        bail!("a demo that was interrupted ends with {status}");
    }
    wait_for("all processes are gone", Duration::from_secs(10), || match processes_of(&run)? {
        0 => Ok(()),
        left => bail!("{left} processes are left"),
    })?;
    if std::fs::read_to_string("/proc/self/mounts")?.contains(&run) {
        bail!("a mount is left");
    }
    if signal == Signal::SIGKILL {
        // Nobody is left to remove the folder; that it is empty is the mount's doing.
        return std::fs::remove_dir(&run).with_context(|| format!("{run} is not an empty folder"));
    }
    if std::fs::exists(&run)? { bail!("{run} is left") } else { Ok(()) }
}

/// The folder of the run, once everything is up.
fn until_guests_serve(words: &mut impl BufRead) -> anyhow::Result<String> {
    let (mut run, mut line) = (None, String::new());
    while words.read_line(&mut line)? > 0 {
        if let Some(folder) = line.trim_end().strip_prefix("run folder ") {
            run = Some(folder.to_owned());
        }
        if line.contains("until their workloads serve") {
            return run.context("the demo named no folder");
        }
        line.clear();
    }
    bail!("the demo ended before its guests served")
}

/// How many processes were started for the run: its folder is in their environment.
fn processes_of(run: &str) -> anyhow::Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        count += usize::from(environ.windows(run.len()).any(|window| window == run.as_bytes()));
    }
    Ok(count)
}
