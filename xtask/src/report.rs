//! Steps that say what they do while they do it, and how long it took. Everything goes to stderr: stdout is for results.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// How often a step that takes long says that it still runs.
const HEARTBEAT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

/// Runs `action` as a named step.
pub(crate) fn step<T>(what: &str, action: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let start = Instant::now();
    eprint!("{what} ...");
    let _ = std::io::stderr().flush();
    let result = action();
    let word = if result.is_ok() { "done" } else { "FAILED" };
    eprintln!(" {word} ({:.1} s)", start.elapsed().as_secs_f64());
    result
}

/// Runs a command as a step, quiet unless it fails; a long one shows that it lives.
pub(crate) fn command(what: &str, command: &mut Command) -> anyhow::Result<String> {
    step(what, || quiet(command))
}

/// Runs a command to its end and returns its standard output; its standard error is shown only if it fails.
pub(crate) fn quiet(command: &mut Command) -> anyhow::Result<String> {
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {shown}"))?;
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let status = wait(&mut child)?;
    let text = |thread: std::thread::JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&thread.join().unwrap_or_default()).into_owned()
    };
    let (stdout, stderr) = (text(stdout), text(stderr));
    if !status.success() {
        bail!("{shown} ended with {status}\n{}{}", tail(&stdout), tail(&stderr));
    }
    Ok(stdout)
}

fn wait(child: &mut Child) -> anyhow::Result<std::process::ExitStatus> {
    let mut next = Instant::now() + HEARTBEAT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > next {
            eprint!(".");
            let _ = std::io::stderr().flush();
            next += HEARTBEAT;
        }
        std::thread::sleep(POLL);
    }
}

fn drain<R: Read + Send + 'static>(stream: Option<R>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // What could be read until the pipe broke is all there is to show.
            let _ = stream.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// The last lines are the ones that say what went wrong.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].iter().map(|line| format!("  {line}\n")).collect()
}
