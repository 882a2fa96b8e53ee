//! The lab's view of a guest: commands go through the guest link, exactly as the supervisor's connections do.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::files::WORKLOADS;
use crate::programs::agent::{self, Answer, Ask};
use crate::programs::talk::{Outcome, Step};

/// Deadline of a command in a guest, unless told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Port of the HTTP app in every guest.
const HTTP_APP: u16 = 8080;
/// What the link may take on top of the command itself.
const LINK_PATIENCE: Duration = Duration::from_secs(30);

/// Arguments of `nova-lab in-guest`.
#[derive(clap::Args)]
pub struct InGuest {
    /// Folder of the run
    #[arg(long)]
    run: PathBuf,
    /// Workload
    workload: String,
    /// Program and arguments
    #[arg(required = true, last = true)]
    command: Vec<String>,
}

/// Runs a command in a guest and shows what it printed.
///
/// # Errors
/// When the guest cannot be reached.
pub fn in_guest(args: &InGuest) -> anyhow::Result<ExitCode> {
    let workload = WORKLOADS.iter().find(|workload| workload.id == args.workload).context("x, service-a or b")?;
    let socket = args.run.join("pods").join(workload.pod).join("v.sock");
    let argv: Vec<&str> = args.command.iter().map(String::as_str).collect();
    let ended = Guest { socket, uplink: String::new() }.exec(&argv, b"", PATIENCE)?;
    print!("{}", ended.stdout);
    eprint!("{}", ended.stderr);
    Ok(ExitCode::from(ended.exit.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// A guest and the way to it. Cheap to clone, so that commands can run at the same time.
#[derive(Debug, Clone)]
pub struct Guest {
    /// The hybrid socket of its pod.
    pub socket: PathBuf,
    /// Where programs in the guest dial the host: `vsock:2:15001` or `unix:<path>`.
    pub uplink: String,
}

/// How a command ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Exit code.
    pub exit: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// What curl got.
#[derive(Debug, Clone, Default)]
pub struct Curl {
    /// curl's exit code.
    pub exit: Option<i32>,
    /// Status of the answer; 0 when there was none.
    pub status: u16,
    /// Head of the answer.
    pub head: String,
    /// Body of the answer.
    pub body: String,
}

impl Curl {
    /// The value of a header of the answer.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let named = |line: &&str| line.split(':').next().is_some_and(|key| key.eq_ignore_ascii_case(name));
        self.head.lines().find(named).and_then(|line| line.split_once(':')).map(|(_, value)| value.trim())
    }
}

impl Guest {
    /// Runs a command as the app.
    ///
    /// # Errors
    /// When the guest cannot be reached or the command does not end in time.
    pub fn exec(&self, argv: &[&str], stdin: &[u8], limit: Duration) -> anyhow::Result<Ended> {
        let ask = Ask::Exec {
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            env: HashMap::new(),
            stdin_b64: STANDARD.encode(stdin),
            timeout_ms: u64::try_from(limit.as_millis())?,
        };
        let answer = self.ask(&ask, limit + LINK_PATIENCE).with_context(|| argv.join(" "))?;
        let text = |b64: &str| anyhow::Ok(String::from_utf8_lossy(&STANDARD.decode(b64)?).into_owned());
        if answer.timed_out {
            bail!("{} did not end within {} s", argv.join(" "), limit.as_secs());
        }
        Ok(Ended { exit: answer.exit, stdout: text(&answer.stdout_b64)?, stderr: text(&answer.stderr_b64)? })
    }

    /// curl, as an app would use it: the proxy comes from the environment that nova-init made.
    ///
    /// # Errors
    /// When the guest cannot be reached.
    pub fn curl(&self, arguments: &[&str]) -> anyhow::Result<Curl> {
        let mut argv = vec!["curl", "-sS", "-i", "--max-time", "25"];
        argv.extend(arguments);
        let ended = self.exec(&argv, b"", PATIENCE)?;
        let (head, body) = ended.stdout.split_once("\r\n\r\n").unwrap_or((&ended.stdout, ""));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let body = if ended.exit == Some(0) { body.to_owned() } else { format!("{body}{}", ended.stderr) };
        Ok(Curl { exit: ended.exit, status, head: head.to_owned(), body })
    }

    /// A scripted conversation from inside the guest.
    ///
    /// # Errors
    /// When the guest cannot be reached.
    pub fn talk(&self, to: &str, script: &[Step], limit: Duration) -> anyhow::Result<Outcome> {
        let limit_ms = limit.as_millis().to_string();
        let argv = ["nova-lab", "talk", "--to", to, "--timeout-ms", &limit_ms];
        let ended = self.exec(&argv, &serde_json::to_vec(script)?, limit + Duration::from_secs(10))?;
        serde_json::from_str(&ended.stdout).with_context(|| ended.stderr)
    }

    /// Requests that the HTTP app received so far. Health checks connect and send nothing: they are no requests.
    ///
    /// # Errors
    /// When the guest cannot be reached.
    pub fn requests(&self) -> anyhow::Result<Vec<Value>> {
        let records = self.records(HTTP_APP)?;
        Ok(records.into_iter().filter(|record| record["line"].is_string()).collect())
    }

    /// What the app on `port` recorded so far.
    ///
    /// # Errors
    /// When the guest cannot be reached.
    pub fn records(&self, port: u16) -> anyhow::Result<Vec<Value>> {
        Ok(self.ask(&Ask::Records { port }, LINK_PATIENCE)?.records)
    }

    fn ask(&self, ask: &Ask, limit: Duration) -> anyhow::Result<Answer> {
        let mut stream = self.dial(limit)?;
        let bytes = serde_json::to_vec(ask)?;
        stream.get_mut().write_all(&u32::try_from(bytes.len())?.to_be_bytes())?;
        stream.get_mut().write_all(&bytes)?;
        let mut length = [0; 4];
        stream.read_exact(&mut length).context("the guest's answer")?;
        let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut bytes)?;
        let answer: Answer = serde_json::from_slice(&bytes)?;
        match answer.error {
            Some(error) => bail!("in the guest: {error}"),
            None => Ok(answer),
        }
    }

    fn dial(&self, limit: Duration) -> anyhow::Result<BufReader<UnixStream>> {
        let mut stream = UnixStream::connect(&self.socket).with_context(|| self.socket.display().to_string())?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        // One write: the muxer takes what comes first for the whole line.
        stream.write_all(format!("CONNECT {}\n", agent::PORT).as_bytes())?;
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line)?;
        if !line.starts_with("OK ") {
            bail!("the guest does not answer");
        }
        Ok(stream)
    }
}
