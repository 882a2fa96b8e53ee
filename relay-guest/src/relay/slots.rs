//! The supervisor's instances as the relay sees them. One presence connection to each is kept open for as long as the
//! guest lives; it tells the supervisor that this boot of the guest is alive, and the relay which instance answers, so
//! that a new connection goes to a live one first instead of waiting for a dead one's time-out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nova_proto::hello::{Hello, Kind};
use nova_proto::ids::BootToken;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::stream::Stream;
use crate::config::Link;

/// To reach a host port, over all instances together.
const DIAL_DEADLINE: Duration = Duration::from_secs(5);
/// To write a hello: it fits into any socket buffer, so only a dead peer takes longer.
const HELLO_DEADLINE: Duration = Duration::from_secs(2);
/// A presence connection that lives this long has somebody behind it: an emulated muxer accepts first and closes when
/// it finds nobody.
const SETTLE: Duration = Duration::from_millis(200);
/// Between two tries for a presence connection, doubled each time.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// All instances.
#[derive(Debug)]
pub struct Slots {
    link: Link,
    token: BootToken,
    framed: bool,
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    port: u32,
    alive: AtomicBool,
}

impl Slots {
    /// Nothing is dialled yet.
    #[must_use]
    pub fn new(link: Link, token: BootToken, framed: bool, ports: &[u32]) -> Self {
        let slots = ports.iter().map(|port| Slot { port: *port, alive: AtomicBool::new(false) }).collect();
        Self { link, token, framed, slots }
    }

    /// Whether connections use records.
    #[must_use]
    pub fn framed(&self) -> bool {
        self.framed
    }

    /// How many instances there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// Opens a connection to the first instance that answers, live ones first, and says hello.
    ///
    /// # Errors
    /// When no instance answers in time.
    pub async fn open(&self, kind: Kind, target: &str) -> io::Result<Stream> {
        let mut last = io::Error::from(io::ErrorKind::NotConnected);
        for slot in self.in_order() {
            match self.open_slot(slot, kind, target).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn in_order(&self) -> impl Iterator<Item = &Slot> {
        let pick = |alive| self.slots.iter().filter(move |slot| slot.alive.load(Ordering::Relaxed) == alive);
        pick(true).chain(pick(false))
    }

    async fn open_slot(&self, slot: &Slot, kind: Kind, target: &str) -> io::Result<Stream> {
        let share = DIAL_DEADLINE / u32::try_from(self.slots.len()).unwrap_or(1);
        let mut stream = timeout(share, self.link.dial(slot.port)).await??;
        let hello = Hello { kind, framed: self.framed, token: self.token.0, target: target.to_owned() };
        let bytes = hello.encode().map_err(io::Error::other)?;
        timeout(HELLO_DEADLINE, stream.write_all(&bytes)).await??;
        Ok(stream)
    }

    /// Keeps the presence connection of one instance open, for ever.
    pub async fn keep_presence(self: Arc<Self>, index: usize) {
        let Some(slot) = self.slots.get(index) else { return };
        let mut backoff = BACKOFF.0;
        loop {
            if let Ok(mut stream) = self.open_slot(slot, Kind::Presence, "").await
                && timeout(SETTLE, stream.read_u8()).await.is_err()
            {
                slot.alive.store(true, Ordering::Relaxed);
                tracing::info!(port = slot.port, "the supervisor is there");
                backoff = BACKOFF.0;
                // The supervisor never writes here: whatever comes is the end.
                let _ = stream.read_u8().await;
                slot.alive.store(false, Ordering::Relaxed);
                tracing::warn!(port = slot.port, "the supervisor is gone, dialling again");
            }
            sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF.1);
        }
    }
}
