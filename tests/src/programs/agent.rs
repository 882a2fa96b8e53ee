//! The lab's hand in a guest. It *is* the app of the workload: what it runs has the app's user, namespaces and nothing
//! more, so a command that the lab runs through it is a command that hostile app code could run.
//!
//! Each connection carries requests and answers in turn: four bytes of length (big endian), then JSON.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;

use super::link::Place;
use super::records::Records;
use super::{app, block_on, tcp_first};

/// Port of the agent on the guest link.
pub const PORT: u32 = 16000;
const MESSAGE_MAX: u32 = 64 * 1024 * 1024;

/// Arguments of `nova-lab agent`.
#[derive(clap::Args)]
pub struct Args {
    /// Where to listen for the lab: vsock:any:16000, or unix:<relay folder>/guest_16000 in a process guest
    #[arg(long)]
    listen: Place,
    /// Apps to start: http:<port> or tcp-first:<port>, on 127.0.0.1
    #[arg(long)]
    app: Vec<String>,
    /// Name of the apps in answers and records
    #[arg(long, default_value = "app")]
    name: String,
}

/// What the lab asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Run a command and wait for it.
    Exec {
        /// Program and arguments; `nova-lab` is this binary.
        argv: Vec<String>,
        /// Further environment.
        #[serde(default)]
        env: HashMap<String, String>,
        /// Standard input, base64.
        #[serde(default)]
        stdin_b64: String,
        /// The command is killed after this long.
        timeout_ms: u64,
    },
    /// What an app received so far.
    Records {
        /// Port of the app.
        port: u16,
    },
}

/// What the agent answers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// Exit code; none when a signal ended the command.
    pub exit: Option<i32>,
    /// Standard output, base64.
    #[serde(default)]
    pub stdout_b64: String,
    /// Standard error, base64.
    #[serde(default)]
    pub stderr_b64: String,
    /// Whether the deadline ended the command.
    #[serde(default)]
    pub timed_out: bool,
    /// What an app received.
    #[serde(default)]
    pub records: Vec<Value>,
    /// Why the request could not be served.
    #[serde(default)]
    pub error: Option<String>,
}

type Apps = Arc<HashMap<u16, Records>>;

/// Runs until it is stopped.
///
/// # Errors
/// When an app or the link cannot be listened on.
pub fn run(args: Args) -> anyhow::Result<()> {
    block_on(async move {
        let mut apps = HashMap::new();
        for spec in &args.app {
            let (port, records) = start_app(spec, &args.name).await.with_context(|| format!("app {spec}"))?;
            apps.insert(port, records);
        }
        let apps = Arc::new(apps);
        let listener = args.listen.listen().await.with_context(|| format!("listening on {:?}", args.listen))?;
        loop {
            let mut stream = listener.accept().await?;
            let apps = Arc::clone(&apps);
            tokio::spawn(async move {
                // The lab sees a closed connection; there is nobody else to tell.
                let _ = serve(&mut stream, &apps).await;
            });
        }
    })
}

async fn start_app(spec: &str, name: &str) -> anyhow::Result<(u16, Records)> {
    let (kind, port) = spec.split_once(':').context("an app is http:<port> or tcp-first:<port>")?;
    let port = port.parse()?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let records = Records::default();
    match kind {
        "http" => drop(tokio::spawn(app::serve(listener, name.to_owned(), records.clone()))),
        "tcp-first" => drop(tokio::spawn(tcp_first::serve(listener, records.clone()))),
        other => bail!("unknown app {other:?}"),
    }
    Ok((port, records))
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, apps: &Apps) -> anyhow::Result<()> {
    loop {
        let ask: Ask = read_message(stream).await?;
        let answer = tokio::select! {
            answer = act(ask, apps) => answer.unwrap_or_else(|error| Answer { error: Some(format!("{error:#}")), ..Answer::default() }),
            // The lab went away (a byte here would break the protocol): the command is dropped, and killed with it.
            _ = stream.read_u8() => return Ok(()),
        };
        write_message(stream, &answer).await?;
    }
}

async fn act(ask: Ask, apps: &Apps) -> anyhow::Result<Answer> {
    match ask {
        Ask::Records { port } => {
            let records = apps.get(&port).with_context(|| format!("no app on port {port}"))?;
            Ok(Answer { records: records.all(), ..Answer::default() })
        }
        Ask::Exec { argv, env, stdin_b64, timeout_ms } => {
            exec(&argv, &env, &STANDARD.decode(stdin_b64)?, Duration::from_millis(timeout_ms)).await
        }
    }
}

async fn exec(argv: &[String], env: &HashMap<String, String>, stdin: &[u8], limit: Duration) -> anyhow::Result<Answer> {
    let (program, arguments) = argv.split_first().context("an empty command")?;
    let program = if program == "nova-lab" { std::env::current_exe()? } else { program.into() };
    let mut child = Command::new(&program)
        .args(arguments)
        .envs(env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("running {}", program.display()))?;
    let (mut input, mut output, mut errors) = (
        child.stdin.take().context("stdin")?,
        child.stdout.take().context("stdout")?,
        child.stderr.take().context("stderr")?,
    );
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let ended = tokio::time::timeout(limit, async {
        let feed = async {
            // A command that does not read its input closes the pipe; its exit code tells the story.
            let _ = input.write_all(stdin).await;
            drop(input);
        };
        let (_, out, err) = tokio::join!(feed, output.read_to_end(&mut stdout), errors.read_to_end(&mut stderr));
        out.and(err)?;
        child.wait().await
    })
    .await;
    let (exit, timed_out) = match ended {
        Ok(status) => (status?.code(), false),
        Err(_) => (None, true),
    };
    Ok(Answer {
        exit,
        timed_out,
        stdout_b64: STANDARD.encode(stdout),
        stderr_b64: STANDARD.encode(stderr),
        ..Answer::default()
    })
}

/// Writes one message.
///
/// # Errors
/// When the connection breaks.
pub async fn write_message<S: AsyncWrite + Unpin, M: Serialize>(stream: &mut S, message: &M) -> anyhow::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    stream.write_u32(u32::try_from(bytes.len())?).await?;
    stream.write_all(&bytes).await?;
    Ok(stream.flush().await?)
}

/// Reads one message.
///
/// # Errors
/// When the connection ends or the message is not what was expected.
pub async fn read_message<S: AsyncRead + Unpin, M: for<'a> Deserialize<'a>>(stream: &mut S) -> anyhow::Result<M> {
    let length = stream.read_u32().await?;
    if length > MESSAGE_MAX {
        bail!("a message of {length} bytes");
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await?;
    Ok(serde_json::from_slice(&bytes)?)
}
