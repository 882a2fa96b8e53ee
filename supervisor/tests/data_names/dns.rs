//! A DNS server on real sockets, UDP and TCP, whose every answer the test makes.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_resolver::proto::op::{Message, OpCode, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, CNAME};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};

use crate::data::Shared;

/// A question as it came.
#[derive(Clone)]
pub(crate) struct Asked {
    /// Lower case, with the final dot.
    pub(crate) name: String,
    pub(crate) kind: RecordType,
    pub(crate) tcp: bool,
    /// How many questions came before it.
    pub(crate) before: usize,
    message: Message,
}

pub(crate) struct Dns {
    asked: Shared<Vec<Asked>>,
}

impl Dns {
    /// Listens on `address`. Every packet of an answer is sent; none is silence. Over TCP the first one is.
    pub(crate) fn start(address: &str, answer: impl Fn(&Asked) -> Vec<Vec<u8>> + Send + Sync + 'static) -> Self {
        let udp = UdpSocket::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        let tcp = TcpListener::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        let asked: Shared<Vec<Asked>> = Arc::default();
        let answer = Arc::new(answer);
        let (seen, answers) = (Arc::clone(&asked), Arc::clone(&answer));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((count, peer)) = udp.recv_from(&mut buffer) {
                let Some(question) = note(&seen, &buffer[..count], false) else { continue };
                let (answers, udp) = (Arc::clone(&answers), udp.try_clone().expect("a descriptor"));
                std::thread::spawn(move || {
                    for packet in answers(&question) {
                        let _ = udp.send_to(&packet, peer);
                    }
                });
            }
        });
        let seen = Arc::clone(&asked);
        std::thread::spawn(move || {
            for mut stream in tcp.incoming().flatten() {
                let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
                std::thread::spawn(move || {
                    let mut length = [0; 2];
                    while stream.read_exact(&mut length).is_ok() {
                        let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
                        let Some(question) =
                            stream.read_exact(&mut bytes).ok().and_then(|()| note(&seen, &bytes, true))
                        else {
                            return;
                        };
                        for packet in answer(&question).into_iter().take(1) {
                            let length = u16::try_from(packet.len()).expect("fits").to_be_bytes();
                            let _ = stream.write_all(&[&length[..], &packet].concat());
                        }
                    }
                });
            }
        });
        Self { asked }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no panic").clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.asked().len()
    }

    /// The names that were asked about, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.name).collect()
    }
}

fn note(asked: &Mutex<Vec<Asked>>, bytes: &[u8], tcp: bool) -> Option<Asked> {
    let message = Message::from_vec(bytes).ok()?;
    let query = message.queries.first()?.clone();
    let mut asked = asked.lock().expect("no panic");
    let name = query.name().to_ascii().to_ascii_lowercase();
    let question = Asked { name, kind: query.query_type(), tcp, before: asked.len(), message };
    asked.push(question.clone());
    Some(question)
}

impl Asked {
    /// An answer with these records.
    pub(crate) fn with(&self, records: Vec<Record>) -> Message {
        let mut message = Message::response(self.message.metadata.id, OpCode::Query);
        message.metadata.recursion_available = true;
        message.add_queries(self.message.queries.iter().cloned());
        message.add_answers(records);
        message
    }

    /// The addresses of the asked kind, in one answer.
    pub(crate) fn addresses(&self, ttl: u32, addresses: &[&str]) -> Vec<Vec<u8>> {
        let parsed = addresses.iter().map(|address| address.parse::<IpAddr>().expect("an address"));
        let wanted = parsed.filter(|address| address.is_ipv4() == (self.kind == RecordType::A));
        packet(&self.with(wanted.map(|address| record(&self.name, ttl, address)).collect()))
    }

    pub(crate) fn refused(&self, code: ResponseCode) -> Vec<Vec<u8>> {
        let mut message = self.with(Vec::new());
        message.metadata.response_code = code;
        packet(&message)
    }
}

pub(crate) fn packet(message: &Message) -> Vec<Vec<u8>> {
    vec![message.to_vec().expect("a message")]
}

fn name(text: &str) -> Name {
    Name::from_ascii(text).expect("a name")
}

pub(crate) fn record(owner: &str, ttl: u32, address: IpAddr) -> Record {
    let data = match address {
        IpAddr::V4(v4) => RData::A(A(v4)),
        IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
    };
    Record::from_rdata(name(owner), ttl, data)
}

pub(crate) fn alias(owner: &str, to: &str) -> Record {
    Record::from_rdata(name(owner), 60, RData::CNAME(CNAME(name(to))))
}

pub(crate) fn late(by: Duration, answer: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    std::thread::sleep(by);
    answer
}
