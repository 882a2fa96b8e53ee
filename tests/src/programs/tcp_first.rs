//! A TCP server that speaks first, echoes, and after the client's end of stream still says how much it got: what a tunnel
//! must carry, half-close included.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{block_on, records::Records};

/// What the server says before it has read anything.
pub const GREETING: &str = "the server speaks first\n";

/// Arguments of `nova-lab tcp-first`.
#[derive(clap::Args)]
pub struct Args {
    /// Address to listen on
    #[arg(long)]
    listen: SocketAddr,
    /// File that gets one JSON line per connection
    #[arg(long)]
    records: Option<PathBuf>,
}

/// Runs until it is stopped.
///
/// # Errors
/// When the address cannot be listened on.
pub fn run(args: Args) -> anyhow::Result<()> {
    block_on(async move {
        let records = Records::with_file(args.records.as_deref())?;
        serve(TcpListener::bind(args.listen).await?, records).await
    })
}

/// Serves every connection of `listener`.
///
/// # Errors
/// When accepting fails.
pub async fn serve(listener: TcpListener, records: Records) -> anyhow::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let records = records.clone();
        tokio::spawn(async move {
            records.push(json!({"peer": peer.ip().to_string(), "event": "open"}));
            let mut bytes = 0;
            let end = match converse(stream, &mut bytes).await {
                Ok(()) => "fin".to_owned(),
                Err(error) => error.to_string(),
            };
            records.push(json!({"peer": peer.ip().to_string(), "event": "close", "bytes": bytes, "end": end}));
        });
    }
}

async fn converse(mut stream: TcpStream, bytes: &mut u64) -> std::io::Result<()> {
    stream.write_all(GREETING.as_bytes()).await?;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            break;
        }
        *bytes += count as u64;
        stream.write_all(&buffer[..count]).await?;
    }
    stream.write_all(format!("\nbye after {bytes} bytes\n").as_bytes()).await?;
    stream.shutdown().await
}
