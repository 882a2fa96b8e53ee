//! Pings of a guest. Its relay says whom the app pings; the supervisor pings in its place, with bytes of its own.
//!
//! ```text
//! request -> decide(opaque, icmp) -> place and rate of the rule -> dial::ping -> reply
//! ```
//!
//! One audit record each. A ping that is refused or stays without an answer is silence to the app.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use nova_policy::input::Input;
use nova_proto::icmp::{Echo, LEN, Message};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Guest;
use crate::audit::Record;
use crate::conn::Cut;
use crate::decide::until_revoked;
use crate::net::stream::Stream;
use crate::reason::Reason;
use crate::state::endpoint::{ECHOES_MAX, Stage};

/// The only type of message there is.
const ECHO: &str = "echo";
/// A connection on which no ping comes for this long is closed; the relay opens another one with the next.
const IDLE: Duration = Duration::from_secs(300);
/// For a guest to take a reply, which is nine bytes long.
const SEND_DEADLINE: Duration = Duration::from_secs(5);

/// Serves the pings of one connection until it ends.
pub(super) async fn serve(guest: Rc<Guest>, mut stream: Stream) {
    let mut stage = guest.endpoint.watch_stage();
    let mut requests = Requests::default();
    let mut running = FuturesUnordered::new();
    let ended = loop {
        tokio::select! {
            biased;
            _ = stage.wait_for(|stage| *stage >= Stage::Draining) => break Reason::Draining,
            Some(answered) = running.next(), if !running.is_empty() => {
                if let Some(echo) = answered && send(&mut stream, echo).await.is_err() {
                    break Reason::Reset;
                }
            }
            // What comes beyond that waits where it is, and costs nobody anything.
            request = requests.next(&mut stream), if running.len() < ECHOES_MAX => match request {
                Ok(Some(echo)) => running.push(ping(&guest, echo)),
                Ok(None) => break Reason::Done,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => break Reason::Malformed,
                Err(_) => break Reason::Reset,
            },
            () = tokio::time::sleep(IDLE) => break Reason::IdleTimeout,
        }
    };
    drop(running);
    guest.ended(ended);
}

/// Pings once; the echo if it was answered.
async fn ping(guest: &Guest, echo: Echo) -> Option<Echo> {
    let mut record = guest.record();
    match decide_and_ping(guest, echo, &mut record).await {
        Ok(()) => {
            record.close(Reason::Done);
            return Some(echo);
        }
        Err(reason) => record.close(reason),
    }
    drop(record);
    guest.throttle().await;
    None
}

async fn decide_and_ping(guest: &Guest, echo: Echo, record: &mut Record) -> Result<(), Reason> {
    let address = IpAddr::V4(echo.destination);
    record.dest(&address.to_string(), 0);
    // Holds if the endpoint ends before the answer comes.
    record.close(Reason::Aborted);
    let egress = &guest.egress;
    let input = Input::egress_icmp(guest.spec.workload.as_str(), address, ECHO);
    let permit = egress.decider.decide(input, record)?;
    guest.serves();
    let rate = permit.ping().map(|ping| ping.rate_per_s).unwrap_or_default();
    let Some(_place) = guest.endpoint.take_echo(permit.rule(), rate) else {
        record.deny(Reason::LimitRate);
        return Err(Reason::LimitRate);
    };
    let mut cut = Cut::watch(&guest.endpoint, &egress.policy);
    tokio::select! {
        biased;
        revoked = until_revoked(&mut cut, &egress.decider, &permit) => {
            record.deny(revoked);
            Err(revoked)
        }
        answered = egress.dialer.ping(&permit, &guest.endpoint) => answered.map_err(|failure| {
            record.not_dialled(None, failure.detail);
            record.fail(failure.reason);
            failure.reason
        }),
    }
}

async fn send(stream: &mut Stream, echo: Echo) -> io::Result<()> {
    let sending = async {
        stream.write_all(&Message::Reply(echo).encode()).await?;
        stream.flush().await
    };
    tokio::time::timeout(SEND_DEADLINE, sending).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// What is read of the next message.
#[derive(Default)]
struct Requests {
    bytes: [u8; LEN],
    read: usize,
}

impl Requests {
    /// The next request; none at the end. Loses nothing when it is dropped before it is done.
    async fn next(&mut self, stream: &mut Stream) -> io::Result<Option<Echo>> {
        while self.read < LEN {
            match stream.read(&mut self.bytes[self.read..]).await? {
                0 if self.read == 0 => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => self.read += read,
            }
        }
        self.read = 0;
        match Message::parse(self.bytes) {
            Ok(Message::Request(echo)) => Ok(Some(echo)),
            Ok(Message::Reply(_)) | Err(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
