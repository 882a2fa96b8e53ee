//! The lab's resolver: a fixed table, NXDOMAIN for the rest, and a record of every question and who asked it.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::Context;
use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{RData, Record, RecordType};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::{block_on, records::Records};

const TTL: u32 = 5;

/// Arguments of `nova-lab dns`.
#[derive(clap::Args)]
pub struct Args {
    /// Address to listen on, UDP and TCP
    #[arg(long)]
    listen: SocketAddr,
    /// A record: <name>=<address>
    #[arg(long = "record")]
    table: Vec<String>,
    /// File that gets one JSON line per question
    #[arg(long)]
    records: Option<PathBuf>,
}

struct Zone {
    table: HashMap<String, Vec<Ipv4Addr>>,
    records: Records,
}

/// Runs until it is stopped.
///
/// # Errors
/// When the table cannot be read or the address cannot be listened on.
pub fn run(args: Args) -> anyhow::Result<()> {
    let mut table: HashMap<String, Vec<Ipv4Addr>> = HashMap::new();
    for entry in &args.table {
        let (name, address) = entry.split_once('=').context("a record is <name>=<address>")?;
        table.entry(name.to_ascii_lowercase()).or_default().push(address.parse()?);
    }
    block_on(async move {
        let zone = std::rc::Rc::new(Zone { table, records: Records::with_file(args.records.as_deref())? });
        let (udp, tcp) = (UdpSocket::bind(args.listen).await?, TcpListener::bind(args.listen).await?);
        let mut buffer = [0; 4096];
        loop {
            tokio::select! {
                got = udp.recv_from(&mut buffer) => {
                    let (count, peer) = got?;
                    if let Some(answer) = zone.answer(&buffer[..count], peer, "udp") {
                        let _ = udp.send_to(&answer, peer).await;
                    }
                }
                got = tcp.accept() => {
                    let (stream, peer) = got?;
                    // One question per connection is all that the lab needs; who sends none is cut off.
                    let _ = tokio::time::timeout(std::time::Duration::from_secs(2), over_tcp(&zone, stream, peer)).await;
                }
            }
        }
    })
}

async fn over_tcp(zone: &Zone, mut stream: TcpStream, peer: SocketAddr) -> anyhow::Result<()> {
    let mut question = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut question).await?;
    if let Some(answer) = zone.answer(&question, peer, "tcp") {
        stream.write_u16(u16::try_from(answer.len())?).await?;
        stream.write_all(&answer).await?;
    }
    Ok(())
}

impl Zone {
    fn answer(&self, question: &[u8], peer: SocketAddr, over: &str) -> Option<Vec<u8>> {
        let question = Message::from_vec(question).ok()?;
        let query = question.queries.first()?.clone();
        let name = query.name().to_ascii().trim_end_matches('.').to_ascii_lowercase();
        self.records.push(
            json!({"name": name, "type": query.query_type().to_string(), "peer": peer.ip().to_string(), "over": over}),
        );
        let mut answer = Message::response(question.metadata.id, OpCode::Query);
        answer.metadata.recursion_desired = question.metadata.recursion_desired;
        answer.metadata.recursion_available = true;
        answer.metadata.authoritative = true;
        answer.add_query(query.clone());
        match self.table.get(&name) {
            None => answer.metadata.response_code = ResponseCode::NXDomain,
            Some(addresses) if query.query_type() == RecordType::A => {
                for address in addresses {
                    answer.add_answer(Record::from_rdata(query.name().clone(), TTL, RData::A(A(*address))));
                }
            }
            Some(_) => {}
        }
        answer.to_vec().ok()
    }
}
