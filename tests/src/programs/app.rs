//! The app of a workload: an HTTP/1.1 server on loopback that records every request it gets.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::json;
use tokio::net::TcpListener;

use super::{block_on, http, records::Records};

/// Arguments of `nova-lab app`.
#[derive(clap::Args)]
pub struct Args {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Name in answers and records
    #[arg(long, default_value = "app")]
    name: String,
    /// File that gets one JSON line per request
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
        let listener = TcpListener::bind(args.listen).await?;
        serve(listener, args.name, records).await
    })
}

/// Serves every connection of `listener`.
///
/// # Errors
/// When accepting fails.
pub async fn serve(listener: TcpListener, name: String, records: Records) -> anyhow::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let about = json!({"app": name, "peer": peer.to_string()});
        let records = records.clone();
        tokio::spawn(async move {
            if let Err(error) = http::serve(stream, about.clone(), records.clone()).await {
                records.push(json!({"error": error.to_string(), "app": about["app"]}));
            }
        });
    }
}
