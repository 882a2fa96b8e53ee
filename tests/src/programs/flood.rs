//! Many hostile connections at once, from a guest against its uplink.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::block_on;
use super::link::Place;

/// Arguments of `nova-lab flood`.
#[derive(clap::Args)]
pub struct Args {
    /// Where to connect
    #[arg(long)]
    to: Place,
    /// How many connections in all
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// How many at once
    #[arg(long, default_value_t = 500)]
    at_once: usize,
    /// First bytes of each connection, base64
    #[arg(long, default_value = "")]
    first_b64: String,
    /// Bytes repeated for as long as they are taken, base64
    #[arg(long, default_value = "")]
    repeat_b64: String,
    /// How long each connection is held after its first bytes
    #[arg(long, default_value_t = 0)]
    hold_ms: u64,
}

/// Floods and prints how many connections were made, and how they ended.
///
/// # Errors
/// When the bytes are not base64.
pub fn run(args: Args) -> anyhow::Result<()> {
    let first = STANDARD.decode(&args.first_b64)?;
    let repeat = STANDARD.decode(&args.repeat_b64)?;
    block_on(async move {
        let (mut running, mut made, mut refused, mut started) = (JoinSet::new(), 0, 0, 0);
        while started < args.connections || !running.is_empty() {
            while started < args.connections && running.len() < args.at_once {
                started += 1;
                running.spawn(attack(
                    args.to.clone(),
                    first.clone(),
                    repeat.clone(),
                    Duration::from_millis(args.hold_ms),
                ));
            }
            match running.join_next().await {
                Some(Ok(true)) => made += 1,
                _ => refused += 1,
            }
        }
        println!("{}", json!({"connections": args.connections, "made": made, "refused": refused}));
        Ok(())
    })
}

async fn attack(to: Place, first: Vec<u8>, repeat: Vec<u8>, hold: Duration) -> bool {
    let Ok(Ok(mut stream)) = tokio::time::timeout(Duration::from_secs(10), to.connect()).await else { return false };
    let _ = tokio::time::timeout(hold.max(Duration::from_millis(200)), async {
        if stream.write_all(&first).await.is_err() {
            return;
        }
        while !repeat.is_empty() {
            if stream.write_all(&repeat).await.is_err() {
                return;
            }
        }
        // Held open until the other side ends it or the time is over.
        let _ = stream.read_u8().await;
    })
    .await;
    true
}
