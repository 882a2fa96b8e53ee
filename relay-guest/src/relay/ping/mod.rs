//! The app's pings. The guest's kernel sends every ICMP packet to a tun device; this reads it.
//!
//! ```text
//! app -- echo request --> tun0 -> packet::parse -> destination, id, sequence --> supervisor
//!                                   payload kept in Waiting                          |
//! app <-- echo reply ---- tun0 <- packet::reply <- payload taken out  <--- answered --
//! ```
//!
//! Everything that is not a whole IPv4 echo request of the workload's address is dropped and counted.

pub mod packet;
mod waiting;

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nova_proto::framed::Channel;
use nova_proto::hello::Kind;
use nova_proto::icmp::{Echo, LEN, Message};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use self::packet::{Drop, PACKET_MAX};
use self::waiting::Waiting;
use super::slots::Slots;
use super::stream::Stream;

/// The device's name.
pub const DEVICE: &str = "tun0";
/// For the supervisor to take a request; it takes fewer at a time than fit into a socket's buffer.
const SEND_DEADLINE: Duration = Duration::from_secs(5);
/// Between two tries to reach the supervisor.
const RETRY: Duration = Duration::from_secs(1);
/// Between two lines of the log about dropped packets.
const REPORT: Duration = Duration::from_secs(10);

/// Serves the device until it breaks, which it does only when it is taken down.
pub async fn serve(tun: AsyncFd<OwnedFd>, from: Ipv4Addr, slots: Arc<Slots>) {
    let mut pings =
        Pings { tun, from, slots, link: None, tried: None, waiting: Waiting::default(), drops: Drops::default() };
    let error = pings.run().await;
    tracing::error!(%error, device = DEVICE, "the app cannot ping any more: its device broke");
    // The relay goes on with everything else.
    std::future::pending::<()>().await;
}

struct Pings {
    tun: AsyncFd<OwnedFd>,
    from: Ipv4Addr,
    slots: Arc<Slots>,
    /// To the supervisor, from the first ping on.
    link: Option<Link>,
    /// When the supervisor was dialled last.
    tried: Option<Instant>,
    waiting: Waiting,
    drops: Drops,
}

enum Event {
    /// The app's kernel sent a packet of this length, or one too long to look at.
    Packet(usize),
    /// The supervisor said something, or is gone.
    Link(io::Result<Message>),
}

impl Pings {
    async fn run(&mut self) -> io::Error {
        // One byte more than a packet may have, so that longer ones are seen as such.
        let mut buffer = vec![0; PACKET_MAX + 1];
        loop {
            let event = tokio::select! {
                read = read_packet(&self.tun, &mut buffer) => match read {
                    Ok(length) => Event::Packet(length),
                    Err(error) => return error,
                },
                message = next_message(&mut self.link) => Event::Link(message),
            };
            match event {
                Event::Packet(length) => self.packet(&buffer[..length]).await,
                Event::Link(Ok(Message::Reply(echo))) => self.answered(echo),
                Event::Link(Ok(Message::Request(_)) | Err(_)) => self.link = None,
            }
            self.drops.report();
        }
    }

    async fn packet(&mut self, packet: &[u8]) {
        let (echo, payload) = match packet::parse(packet, self.from) {
            Ok(parsed) => parsed,
            Err(why) => return self.drops.count(why),
        };
        self.waiting.add(echo, payload, Instant::now());
        if self.link.is_none() {
            self.connect().await;
        }
        let Some(link) = &mut self.link else { return };
        if !matches!(timeout(SEND_DEADLINE, link.send(echo)).await, Ok(Ok(()))) {
            self.link = None;
        }
    }

    /// Dials the supervisor, at most once a second.
    async fn connect(&mut self) {
        if self.tried.is_some_and(|tried| tried.elapsed() < RETRY) {
            return;
        }
        match self.slots.open(Kind::Icmp, "").await {
            Ok(stream) => self.link = Some(Link::new(Channel::new(stream, self.slots.framed()))),
            Err(error) => tracing::debug!(%error, "a ping is lost: the supervisor does not answer"),
        }
        self.tried = Some(Instant::now());
    }

    fn answered(&mut self, echo: Echo) {
        let Some(payload) = self.waiting.answer(echo, Instant::now()) else { return self.drops.late() };
        let packet = packet::reply(echo, self.from, &payload);
        // A device takes a packet at once or not at all, and a lost answer is what pings are for.
        if let Err(error) = rustix::io::write(self.tun.get_ref(), &packet) {
            tracing::debug!(%error, "an answer to a ping is lost");
        }
    }
}

async fn read_packet(tun: &AsyncFd<OwnedFd>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        let mut ready = tun.readable().await?;
        match ready.try_io(|tun| Ok(rustix::io::read(tun.get_ref(), &mut *buffer)?)) {
            Ok(read) => return read,
            Err(_would_block) => {}
        }
    }
}

/// The connection to the supervisor and what is read of its next message.
struct Link {
    stream: Channel<Stream>,
    bytes: [u8; LEN],
    read: usize,
}

impl Link {
    fn new(stream: Channel<Stream>) -> Self {
        Self { stream, bytes: [0; LEN], read: 0 }
    }

    async fn send(&mut self, echo: Echo) -> io::Result<()> {
        self.stream.write_all(&Message::Request(echo).encode()).await?;
        self.stream.flush().await
    }

    /// Loses nothing when it is dropped before it is done.
    async fn next(&mut self) -> io::Result<Message> {
        while self.read < LEN {
            match self.stream.read(&mut self.bytes[self.read..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => self.read += read,
            }
        }
        self.read = 0;
        Message::parse(self.bytes).map_err(io::Error::other)
    }
}

async fn next_message(link: &mut Option<Link>) -> io::Result<Message> {
    match link {
        Some(link) => link.next().await,
        None => std::future::pending().await,
    }
}

/// Counts what is dropped, and says so now and then.
#[derive(Debug, Default)]
struct Drops {
    counts: [u64; Drop::ALL.len()],
    /// Answers that nobody waited for.
    late: u64,
    /// Something was counted for the first time.
    is_news: bool,
    /// When there was a line last, and about how many.
    reported: Option<(Instant, u64)>,
}

impl Drops {
    fn count(&mut self, why: Drop) {
        Self::add(&mut self.counts[why as usize], &mut self.is_news);
    }

    fn late(&mut self) {
        Self::add(&mut self.late, &mut self.is_news);
    }

    fn add(count: &mut u64, is_news: &mut bool) {
        *is_news |= *count == 0;
        *count += 1;
    }

    fn total(&self) -> u64 {
        self.counts.iter().sum::<u64>() + self.late
    }

    /// A line when something happens for the first time, and else at most one in [`REPORT`].
    fn report(&mut self) {
        let (total, now) = (self.total(), Instant::now());
        let is_due = |(at, said)| total > said && now.saturating_duration_since(at) >= REPORT;
        if self.is_news || self.reported.is_some_and(is_due) {
            (self.is_news, self.reported) = (false, Some((now, total)));
            tracing::warn!(counts = %self, "dropped packets that are no echo requests of the workload, since the start");
        }
    }
}

impl std::fmt::Display for Drops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (why, count) in Drop::ALL.into_iter().zip(self.counts).filter(|(_, count)| *count > 0) {
            write!(f, "{}={count} ", why.as_str())?;
        }
        write!(f, "late_answers={}", self.late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: D10b
    #[test]
    fn drops_are_counted_by_reason_and_told_of_now_and_then() {
        let mut drops = Drops::default();
        for why in Drop::ALL {
            assert_eq!(Drop::ALL[why as usize], why, "the counters are in the order of the reasons");
        }
        drops.report();
        assert!(drops.reported.is_none(), "there is nothing to tell of");
        let told = |drops: &mut Drops| {
            drops.report();
            drops.reported.map(|(_, total)| total)
        };
        drops.count(Drop::Fragment);
        drops.count(Drop::Fragment);
        assert_eq!(told(&mut drops), Some(2));
        drops.count(Drop::Fragment);
        assert_eq!(told(&mut drops), Some(2), "more of the same waits for its time");
        drops.late();
        assert_eq!(told(&mut drops), Some(4), "something new does not");
        assert_eq!(drops.to_string(), "fragment=3 late_answers=1");
    }
}
