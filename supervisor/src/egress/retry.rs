//! A second ClientHello. A server may ask for one with a HelloRetryRequest (RFC 8446 section 4.1.4), still in the clear, and
//! some go by the name in it although it must be that of the first (section 4.1.2). So every ClientHello is looked at, until
//! the server has said that it asks for none, or the app speaks of something else.
//!
//! ```text
//! app    -> Hellos: records pass whole, each ClientHello in them only with the name of the host
//! server -> Answer: copied at once; ServerHello: over; HelloRetryRequest: over with the next ClientHello
//! ```
//! From there on the tunnel is a copy. What is encrypted cannot be seen: a server of TLS 1.2 that lets its clients negotiate
//! again, and goes by the name in that, is to be configured otherwise.

use tokio::io::AsyncReadExt;

use super::first::{self, HELLO_MAX, Opening, TLS, Verdict, send};
use crate::copy::Bounds;
use crate::net::stream::{Prefixed, Stream};
use crate::reason::Reason;

const CHANGE_CIPHER_SPEC: u8 = 0x14;
const ALERT: u8 = 0x15;
const APPLICATION_DATA: u8 = 0x17;
const RECORD_HEAD: usize = 5;
/// RFC 5246 section 6.2.3: the longest that any version takes.
const RECORD_MAX: usize = 16 * 1024 + 2048;

/// A ClientHello in the smallest records, and a record that has not come whole.
const UNREAD_MAX: usize = 128 * 1024;

const HELLO_REQUEST: u8 = 0;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
/// Type and length of a handshake message.
const MESSAGE_HEAD: usize = 4;
/// Where the random of a ServerHello ends.
const RANDOM_END: usize = MESSAGE_HEAD + 2 + RETRY.len();
/// The random that makes a ServerHello a HelloRetryRequest (RFC 8446 section 4.1.3).
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2, 0x11,
    0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// Carries the begin of a tunnel, until what the app may still say has no name in it that would have to be checked.
pub(super) async fn exchange(
    caller: Prefixed,
    callee: Stream,
    host: &str,
    to_workload: bool,
    bounds: &Bounds,
) -> Opening {
    let mut opening = first::exchange(caller, callee, host, to_workload, bounds).await;
    let goes_on = opening.refused.is_none() && opening.ended.is_none();
    if goes_on && opening.first.first() == Some(&TLS) && !first::is_address(host) {
        follow(&mut opening, host, bounds).await;
    }
    opening
}

/// Carries a tunnel that began with a ClientHello for `host` until no other one can follow. A refused one is in `first` then.
async fn follow(opening: &mut Opening, host: &str, bounds: &Bounds) {
    let mut hellos = Hellos::new(std::mem::take(&mut opening.first));
    let mut answer = Answer::default();
    let (mut from_caller, mut from_callee) = (vec![0; 4096], vec![0; 16 * 1024]);
    loop {
        let passed = match hellos.next(host) {
            Ok(passed) => passed,
            Err(Refused(hello)) => {
                opening.first = hello;
                opening.refused = Some(Reason::SniMismatch);
                return;
            }
        };
        if !passed.is_empty() {
            if send(&mut opening.callee, &passed, &bounds.up, bounds.idle).await.is_err() {
                opening.ended = Some(Reason::Reset);
                return;
            }
            opening.from_caller += passed.len() as u64;
        }
        if hellos.are_over(answer.said) {
            break;
        }
        tokio::select! {
            read = opening.caller.read(&mut from_caller) => match read {
                // The copy sees the same end again and passes it on.
                Ok(0) => break,
                Ok(read) => hellos.unread.extend_from_slice(&from_caller[..read]),
                Err(_) => opening.ended = Some(Reason::Reset),
            },
            read = opening.callee.read(&mut from_callee) => match read {
                // Nor does it ask for anything any more.
                Ok(0) => break,
                Ok(read) => {
                    answer.see(&from_callee[..read]);
                    match send(&mut opening.caller, &from_callee[..read], &bounds.down, bounds.idle).await {
                        Ok(()) => opening.to_caller += read as u64,
                        Err(_) => opening.ended = Some(Reason::Reset),
                    }
                }
                Err(_) => opening.ended = Some(Reason::Reset),
            },
            () = tokio::time::sleep(bounds.idle) => opening.ended = Some(Reason::IdleTimeout),
        }
        if opening.ended.is_some() {
            return;
        }
    }
    opening.first = hellos.unread;
}

/// A ClientHello that names somebody else, or what cannot be read as one.
#[derive(Debug, PartialEq, Eq)]
struct Refused(Vec<u8>);

/// What an app sends while it may still send a ClientHello.
#[derive(Default)]
struct Hellos {
    /// Not passed on yet; records before `at` were looked at.
    unread: Vec<u8>,
    at: usize,
    /// Of a handshake message, whose rest is still to come.
    message: Vec<u8>,
    /// Those that were whole and good.
    count: usize,
    /// The app has said something that follows a ServerHello only.
    is_past: bool,
}

impl Hellos {
    fn new(unread: Vec<u8>) -> Self {
        Self { unread, ..Self::default() }
    }

    fn are_over(&self, said: Said) -> bool {
        match said {
            _ if self.is_past => true,
            Said::Nothing => false,
            Said::Retry => self.count >= 2,
            Said::Other => true,
        }
    }

    /// What may be passed on now: records of which every handshake message is whole and names the host.
    fn next(&mut self, host: &str) -> Result<Vec<u8>, Refused> {
        let mut passes = 0;
        while let Some((kind, payload)) = self.record()? {
            self.at += RECORD_HEAD + payload.len();
            if kind == TLS {
                self.message.extend(payload);
                self.check_messages(host)?;
            }
            if self.message.is_empty() {
                passes = self.at;
            }
        }
        if self.unread.len() - passes > UNREAD_MAX {
            return Err(Refused(in_records(&self.message)));
        }
        self.at -= passes;
        let rest = self.unread.split_off(passes);
        Ok(std::mem::replace(&mut self.unread, rest))
    }

    /// The next whole record: its type and what is in it.
    fn record(&self) -> Result<Option<(u8, Vec<u8>)>, Refused> {
        let rest = &self.unread[self.at..];
        if !matches!(rest.first(), None | Some(&(TLS | CHANGE_CIPHER_SPEC | ALERT | APPLICATION_DATA))) {
            return Err(Refused(rest.to_vec()));
        }
        let Some(&[kind, _, _, high, low]) = rest.first_chunk::<RECORD_HEAD>() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length > RECORD_MAX {
            return Err(Refused(rest.to_vec()));
        }
        let payload = rest.get(RECORD_HEAD..RECORD_HEAD + length);
        Ok(payload.map(|payload| (kind, payload.to_vec())))
    }

    fn check_messages(&mut self, host: &str) -> Result<(), Refused> {
        while let Some(&[kind, high, middle, low]) = self.message.first_chunk::<MESSAGE_HEAD>() {
            if kind != CLIENT_HELLO {
                self.is_past = true;
                self.message.clear();
                return Ok(());
            }
            let length = MESSAGE_HEAD + (usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low));
            if self.message.len() < length && self.message.len() < HELLO_MAX {
                return Ok(());
            }
            let rest = self.message.split_off(length.min(self.message.len()));
            let hello = in_records(&std::mem::replace(&mut self.message, rest));
            let verdict = first::kind(&hello);
            if verdict == Verdict::Incomplete || first::check(&verdict, host, false).is_some() {
                return Err(Refused(hello));
            }
            self.count += 1;
        }
        Ok(())
    }
}

/// A handshake message as a client writes it.
fn in_records(message: &[u8]) -> Vec<u8> {
    let mut records = Vec::with_capacity(message.len() + 2 * RECORD_HEAD);
    for part in message.chunks(16 * 1024) {
        records.extend([TLS, 3, 1]);
        // At most 16 KiB.
        records.extend(u16::try_from(part.len()).unwrap_or_default().to_be_bytes());
        records.extend(part);
    }
    records
}

/// What a server has said so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Said {
    /// Nothing that answers a ClientHello.
    #[default]
    Nothing,
    /// It wants another one.
    Retry,
    /// Anything else.
    Other,
}

/// Reads the begin of the first answer of a server.
#[derive(Default)]
struct Answer {
    said: Said,
    /// The head of a record, as far as it has come.
    head: Vec<u8>,
    /// Bytes of the record that are still to come.
    left: usize,
    /// The begin of a handshake message.
    message: Vec<u8>,
}

impl Answer {
    fn see(&mut self, mut bytes: &[u8]) {
        while let (Said::Nothing, [byte, rest @ ..]) = (self.said, bytes) {
            if self.left == 0 {
                bytes = rest;
                self.head.push(*byte);
                self.read_head();
                continue;
            }
            let (part, after) = bytes.split_at(self.left.min(bytes.len()));
            self.left -= part.len();
            bytes = after;
            if self.head.first() == Some(&TLS) {
                self.read_messages(part);
            }
            if self.left == 0 {
                self.head.clear();
            }
        }
    }

    fn read_head(&mut self) {
        match self.head[..] {
            // What may stand before an answer: a warning, for one.
            [TLS | ALERT | CHANGE_CIPHER_SPEC] | [_, 3] | [_, _, _] | [_, _, _, _] => {}
            [_, _, _, high, low] => {
                self.left = usize::from(u16::from_be_bytes([high, low]));
                if self.left == 0 {
                    self.head.clear();
                }
            }
            _ => self.said = Said::Other,
        }
    }

    fn read_messages(&mut self, mut part: &[u8]) {
        while self.said == Said::Nothing && !part.is_empty() {
            let (begin, rest) = part.split_at((RANDOM_END - self.message.len()).min(part.len()));
            self.message.extend(begin);
            part = rest;
            // Asks a client of TLS 1.2 for its first ClientHello, and is empty.
            while self.message.starts_with(&[HELLO_REQUEST, 0, 0, 0]) {
                self.message.drain(..MESSAGE_HEAD);
            }
            self.said = match self.message[..] {
                [] => Said::Nothing,
                [HELLO_REQUEST, ..] if self.message.len() < MESSAGE_HEAD => Said::Nothing,
                [SERVER_HELLO, ..] if self.message.len() < RANDOM_END => Said::Nothing,
                [SERVER_HELLO, ..] if self.message.ends_with(&RETRY) => Said::Retry,
                _ => Said::Other,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::first::tests::{client_hello, in_records as in_records_of};
    use super::*;

    const HOST: &str = "api.test";
    const CCS: [u8; 6] = [CHANGE_CIPHER_SPEC, 3, 3, 0, 1, 1];

    fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len()).expect("short").to_be_bytes();
        [&[kind, 3, 3][..], &length, payload].concat()
    }

    /// A ServerHello with this random, as one message.
    fn server_hello(random: [u8; 32]) -> Vec<u8> {
        [&[SERVER_HELLO, 0, 0, 38, 3, 3][..], &random, &[0, 0x13, 1, 0]].concat()
    }

    fn said(bytes: &[u8]) -> Said {
        let mut answer = Answer::default();
        answer.see(bytes);
        answer.said
    }

    /// What passes of `bytes` that come in pieces of this length.
    fn passed(bytes: &[u8], piece: usize) -> Result<Vec<u8>, Refused> {
        let mut hellos = Hellos::default();
        let mut all = Vec::new();
        for piece in bytes.chunks(piece) {
            hellos.unread.extend_from_slice(piece);
            all.extend(hellos.next(HOST)?);
        }
        Ok(all)
    }

    // covers: D17h
    #[test]
    fn a_second_hello_with_another_name_does_not_pass_however_it_comes() {
        let (good, evil) = (client_hello(HOST), client_hello("evil.test"));
        let in_one = record(TLS, &[&good[5..], &evil[5..]].concat());
        for bytes in [
            [&good[..], &evil].concat(),
            [&good[..], &CCS, &evil].concat(),
            [&good[..], &record(APPLICATION_DATA, b"early data"), &evil].concat(),
            [&good[..], &in_records_of(&evil, &[1, 7, 300])].concat(),
            [&good[..], &good, &evil].concat(),
            in_one,
        ] {
            for piece in [1, 5, 100, bytes.len()] {
                let Refused(hello) = passed(&bytes, piece).expect_err("refused");
                assert_eq!(first::fault(&hello), (first::ANOTHER_NAME, Some("evil.test".to_owned())));
            }
        }
    }

    // covers: D17h
    #[test]
    fn what_is_no_hello_in_the_place_of_one_does_not_pass() {
        let good = client_hello(HOST);
        let nameless = record(TLS, &[CLIENT_HELLO, 0, 0, 1, 0]);
        let endless =
            [&record(TLS, &[CLIENT_HELLO, 0, 0xf0, 0])[..], &record(TLS, &[0; 16_000]), &record(TLS, &[0; 16_000])]
                .concat();
        let padded = [record(TLS, &[CLIENT_HELLO]), record(ALERT, &[]).repeat(30_000)].concat();
        for (bytes, detail) in [
            (nameless, first::NO_NAME),
            (b"GET / HTTP/1.1".to_vec(), first::NO_NAME),
            (endless, first::TOO_LONG),
            (padded, first::TOO_LONG),
        ] {
            let Refused(hello) = passed(&[&good[..], &bytes].concat(), 4096).expect_err("refused");
            assert_eq!(first::fault(&hello).0, detail);
        }
    }

    #[test]
    fn what_names_the_host_passes_byte_for_byte() {
        let good = client_hello(HOST);
        let bytes = [&good[..], &CCS, &good, &record(APPLICATION_DATA, &[7; 16_384])].concat();
        for piece in [1, 5, 100, bytes.len()] {
            assert_eq!(passed(&bytes, piece).as_deref(), Ok(&bytes[..]));
        }
    }

    #[test]
    fn only_a_retry_request_keeps_a_tunnel_from_being_a_copy_until_the_next_hello() {
        let mut hellos = Hellos::new(client_hello(HOST));
        assert!(hellos.next(HOST).is_ok_and(|passed| !passed.is_empty()));
        assert_eq!([Said::Nothing, Said::Retry, Said::Other].map(|said| hellos.are_over(said)), [false, false, true]);
        hellos.unread = client_hello(HOST);
        assert!(hellos.next(HOST).is_ok());
        assert!(hellos.are_over(Said::Retry) && !hellos.are_over(Said::Nothing));
        // TLS 1.2 goes on with a key exchange, which follows a ServerHello only.
        hellos.unread = record(TLS, &[16, 0, 0, 1, 0]);
        assert!(hellos.next(HOST).is_ok() && hellos.are_over(Said::Nothing));
    }

    // covers: D17h
    #[test]
    fn a_retry_request_is_known_however_it_is_cut_and_whatever_stands_before_it() {
        let warning = record(ALERT, &[1, 112]);
        let hello_request = [HELLO_REQUEST, 0, 0, 0];
        for (random, want) in [(RETRY, Said::Retry), ([7; 32], Said::Other)] {
            let hello = server_hello(random);
            let halves = hello.split_at(20);
            for bytes in [
                record(TLS, &hello),
                [&warning[..], &record(TLS, &hello)].concat(),
                [record(TLS, halves.0), record(TLS, halves.1)].concat(),
                record(TLS, &[&hello_request[..], &hello].concat()),
            ] {
                assert_eq!(said(&bytes), want);
                let mut answer = Answer::default();
                bytes.iter().for_each(|byte| answer.see(&[*byte]));
                assert_eq!(answer.said, want, "byte by byte");
            }
            assert_eq!(said(&record(TLS, &hello)[..42]), Said::Nothing);
        }
        for other in
            [&b"220 ready"[..], &record(APPLICATION_DATA, &[0]), &record(TLS, &[HELLO_REQUEST, 0, 0, 1, 0]), &[TLS, 2]]
        {
            assert_eq!(said(other), Said::Other, "{other:?}");
        }
    }
}
