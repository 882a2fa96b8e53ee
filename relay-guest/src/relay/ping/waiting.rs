//! The app's pings that wait for their answer, with the bytes that the app sent and must get back.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nova_proto::icmp::Echo;

/// Pings that wait at once. One more takes the place of the oldest, so pings that nobody answers keep out no others.
pub(super) const WAITING_MAX: usize = 256;
/// An answer that comes later is not passed on: the app has given up.
pub(super) const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// All of them, oldest first. At most [`WAITING_MAX`] times the longest payload, 377 KB.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pings: VecDeque<Ping>,
}

#[derive(Debug)]
struct Ping {
    echo: Echo,
    payload: Box<[u8]>,
    since: Instant,
}

impl Waiting {
    /// Remembers a ping.
    pub(super) fn add(&mut self, echo: Echo, payload: &[u8], now: Instant) {
        while self.pings.len() >= WAITING_MAX || self.pings.front().is_some_and(|ping| ping.is_late(now)) {
            self.pings.pop_front();
        }
        self.pings.push_back(Ping { echo, payload: payload.into(), since: now });
    }

    /// The payload of the ping that `echo` answers; none when nobody waits for it, or no more.
    pub(super) fn answer(&mut self, echo: Echo, now: Instant) -> Option<Box<[u8]>> {
        let at = self.pings.iter().position(|ping| ping.echo == echo && !ping.is_late(now))?;
        self.pings.remove(at).map(|ping| ping.payload)
    }
}

impl Ping {
    fn is_late(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) > ANSWER_DEADLINE
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet::tests::ECHO;
    use super::*;

    // covers: D10d (F-IC01)
    #[test]
    fn each_ping_gets_its_own_bytes_once() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        let second = Echo { sequence: 8, ..ECHO };
        let other = Echo { destination: [10, 64, 3, 2].into(), ..ECHO };
        for (echo, payload) in [(ECHO, b"one"), (second, b"two"), (other, b"six")] {
            waiting.add(echo, payload, now);
        }
        assert_eq!(waiting.answer(other, now).as_deref(), Some(&b"six"[..]));
        assert_eq!(waiting.answer(ECHO, now).as_deref(), Some(&b"one"[..]));
        assert_eq!(waiting.answer(ECHO, now), None, "a second answer");
        assert_eq!(waiting.answer(Echo { id: 1, ..second }, now), None, "another's");
        assert_eq!(waiting.answer(second, now + ANSWER_DEADLINE + Duration::from_millis(1)), None, "too late");
    }

    // covers: D10b
    #[test]
    fn pings_that_nobody_answers_are_bounded_and_keep_out_no_others() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        let of = |sequence| Echo { sequence, ..ECHO };
        for sequence in 0..1000 {
            waiting.add(of(sequence), b"x", now);
        }
        assert_eq!(waiting.pings.len(), WAITING_MAX);
        assert!(waiting.answer(of(0), now).is_none() && waiting.answer(of(999), now).is_some());
        waiting.add(of(1000), b"x", now + ANSWER_DEADLINE * 2);
        assert_eq!(waiting.pings.len(), 1, "late ones go");
    }
}
