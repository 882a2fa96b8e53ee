//! The programs that call: where they are, and running one to its end.
#![allow(dead_code, reason = "each test binary uses its own part of it")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than any client takes, even one that is compiled first.
const LIMIT: Duration = Duration::from_secs(120);
const GRPCURL: &str = "grpcurl-1.9.4/grpcurl";

/// A program of the machine, or what the caller skips for: where nothing may be skipped that is a failure.
pub(crate) fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    dirs.push("/usr/local/go/bin".into());
    found(name, dirs.iter().map(|dir| dir.join(name)).find(|file| file.is_file()))
}

/// The system's Python with a library of the system. Another Python on the path would not see it.
pub(crate) fn python_with(library: &str) -> Option<PathBuf> {
    let python = Path::new("/usr/bin/python3");
    let has_it = Command::new(python).args(["-c", &format!("import {library}")]).stderr(Stdio::null()).status();
    found(&format!("{library} for Python"), has_it.is_ok_and(|status| status.success()).then(|| python.to_owned()))
}

/// A program of ours, from its source.
pub(crate) fn script(interpreter: &Path, file: &str) -> Command {
    let mut command = Command::new(interpreter);
    command.arg(sources().join(file));
    command
}

/// The same in Java. It is small and short-lived: what a server wants of a Java VM would only take time.
pub(crate) fn java_program(java: &Path, options: &[String], file: &str) -> Command {
    let mut command = Command::new(java);
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]).args(options).arg(sources().join(file));
    command
}

/// grpcurl, as `cargo xtask setup` builds it.
pub(crate) fn grpcurl() -> Option<PathBuf> {
    found("grpcurl", Some(tools().join(GRPCURL)).filter(|file| file.is_file()))
}

/// Our clients in Go, built of the sources as they are now.
pub(crate) fn go_clients() -> Option<PathBuf> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let go = installed("go")?;
    let built = BUILT.get_or_init(|| {
        let program = tools().join("clients/nova-clients");
        let mut build = Command::new(go);
        build.arg("build").arg("-o").arg(&program).arg(".").current_dir(sources().join("go"));
        let output = build.output().expect("go starts");
        assert!(output.status.success(), "go build: {}", String::from_utf8_lossy(&output.stderr));
        program
    });
    Some(built.clone())
}

/// The folder of the clients' sources.
pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("tests").join("clients")
}

fn tools() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("nova-cache").join("tools")
}

fn found(name: &str, path: Option<PathBuf>) -> Option<PathBuf> {
    if path.is_none() {
        let in_ci = ["CI", "NOVA_CI"].iter().any(|name| std::env::var_os(name).is_some());
        assert!(!in_ci, "no {name}: run cargo xtask setup");
        println!("SKIPPED: no {name}; cargo xtask setup installs it");
    }
    path
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) success: bool,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    /// What it printed, a line of JSON each.
    pub(crate) fn lines(&self) -> Vec<Value> {
        assert!(self.success, "{self:#?}");
        let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}\n{self:#?}"));
        self.out.lines().map(read).collect()
    }
}

/// Runs a program to its end.
pub(crate) fn run(dir: &Path, command: &mut Command) -> Ended {
    run_on(Stdio::null(), dir, command)
}

/// As [`run`], with an input. Its output goes through files in `dir`, so that no pipe can fill up.
pub(crate) fn run_on(input: Stdio, dir: &Path, command: &mut Command) -> Ended {
    // No proxy of the machine stands between client and supervisor.
    for name in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    run_with(input, dir, command)
}

/// As [`run_on`], in whatever environment the command has.
pub(crate) fn run_with(input: Stdio, dir: &Path, command: &mut Command) -> Ended {
    let (out, err) = (dir.join("client.out"), dir.join("client.err"));
    command.stdout(File::create(&out).expect("a file")).stderr(File::create(&err).expect("a file"));
    let spawned = command.stdin(input).spawn();
    let mut child = Running(spawned.unwrap_or_else(|error| panic!("{command:?}: {error}")));
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.0.try_wait().expect("a child") {
            break status;
        }
        assert!(Instant::now() < deadline, "{command:?} does not end");
        std::thread::sleep(Duration::from_millis(10));
    };
    let read = |path| String::from_utf8_lossy(&std::fs::read(path).expect("written")).into_owned();
    Ended { success: status.success(), out: read(out), err: read(err) }
}

/// A process that ends with this value.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The gRPC project's test server, with reflection.
pub(crate) struct GrpcApp {
    pub(crate) port: u16,
    records: tempfile::NamedTempFile,
    _process: Running,
}

impl GrpcApp {
    /// Listens at `address`, on any port where that is 0.
    pub(crate) fn start(program: &Path, address: &str) -> Self {
        let records = tempfile::NamedTempFile::new().expect("a file");
        let mut command = Command::new(program);
        command.args(["grpc-app", "--address", address, "--records"]).arg(records.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Running(command.spawn().expect("the app starts"));
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().expect("a pipe")).read_line(&mut line).expect("its port");
        let port = line.trim().parse().unwrap_or_else(|_| panic!("the app says {line:?}"));
        Self { port, records, _process: process }
    }

    /// Calls that have ended, as the app saw them.
    pub(crate) fn calls(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.records.path()).expect("written");
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}
