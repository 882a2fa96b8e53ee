//! A scripted conversation: exactly these bytes, in exactly these writes, and what came back.

use std::io::Read;
use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::block_on;
use super::link::{Duplex, Place};

/// Arguments of `nova-lab talk`.
#[derive(clap::Args)]
pub struct Args {
    /// Where to connect: tcp:<ip>:<port>, unix:<path>, vsock:<cid>:<port>
    #[arg(long)]
    to: Place,
    /// Deadline of the whole conversation
    #[arg(long, default_value_t = 20_000)]
    timeout_ms: u64,
}

/// One step of the script.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Write this text in one write.
    Send(String),
    /// Write these bytes (base64) in one write.
    SendB64(String),
    /// Write this many bytes.
    SendZeros(usize),
    /// Read until this text has come.
    ReadUntil(String),
    /// Read until the other side ends.
    ReadAll,
    /// End our direction.
    Shutdown,
    /// Wait; the one pause that tests a time-out.
    PauseMs(u64),
}

/// How it went.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// Whether the connection was made.
    pub connected: bool,
    /// Everything that was read, as text (not UTF-8: replaced).
    pub received: String,
    /// Everything that was read.
    pub received_b64: String,
    /// Number of steps that were done.
    pub steps: usize,
    /// `fin`, `reset`, `timeout`, `open` (nobody ended it) or an error.
    pub end: String,
}

/// Talks and prints the outcome as JSON. Ends with 0 whatever came: the lab judges.
///
/// # Errors
/// When the script cannot be read.
pub fn run(args: Args) -> anyhow::Result<()> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let script: Vec<Step> = serde_json::from_str(&text).context("the script on standard input")?;
    block_on(async move {
        let outcome = talk(&args.to, &script, Duration::from_millis(args.timeout_ms)).await;
        println!("{}", serde_json::to_string(&outcome)?);
        Ok(())
    })
}

/// Plays `script` over one connection to `to`.
pub async fn talk(to: &Place, script: &[Step], limit: Duration) -> Outcome {
    let mut outcome = Outcome { end: "open".into(), ..Outcome::default() };
    let mut received = Vec::new();
    let play = async {
        let mut stream = to.connect().await?;
        outcome.connected = true;
        for step in script {
            if one(&mut stream, step, &mut received).await? {
                outcome.end = "fin".into();
            }
            outcome.steps += 1;
        }
        Ok(())
    };
    match tokio::time::timeout(limit, play).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => outcome.end = name_of(&error),
        Err(_) => outcome.end = "timeout".into(),
    }
    outcome.received = String::from_utf8_lossy(&received).into_owned();
    outcome.received_b64 = STANDARD.encode(&received);
    outcome
}

/// Does one step; true when the other side has ended.
async fn one(stream: &mut Box<dyn Duplex>, step: &Step, received: &mut Vec<u8>) -> std::io::Result<bool> {
    match step {
        Step::Send(text) => write(stream, text.as_bytes()).await?,
        Step::SendB64(text) => write(stream, &STANDARD.decode(text).map_err(std::io::Error::other)?).await?,
        Step::SendZeros(count) => write(stream, &vec![0; *count]).await?,
        Step::Shutdown => stream.shutdown().await?,
        Step::PauseMs(pause) => tokio::time::sleep(Duration::from_millis(*pause)).await,
        Step::ReadUntil(text) => {
            let start = received.len();
            while !contains(&received[start..], text.as_bytes()) {
                if stream.read_buf(received).await? == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        Step::ReadAll => {
            stream.read_to_end(received).await?;
            return Ok(true);
        }
    }
    Ok(false)
}

async fn write(stream: &mut Box<dyn Duplex>, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len().max(1)).any(|window| window == needle)
}

fn name_of(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionReset => "reset".into(),
        std::io::ErrorKind::UnexpectedEof => "fin".into(),
        _ => error.to_string(),
    }
}
