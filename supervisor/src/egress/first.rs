//! The first bytes of an opaque tunnel. Nobody reads what follows, so what can be checked is checked here: TLS must name the
//! host that was decided, and an app must not wrap a call to a workload in TLS of its own.

use std::io;
use std::time::Duration;

use rustls::server::Acceptor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::copy::Bounds;
use crate::net::stream::{Prefixed, Stream};
use crate::reason::Reason;
use crate::state::pace::Pace;

/// First byte of TLS, and of no HTTP request.
pub(super) const TLS: u8 = 0x16;
/// Details of `sni_mismatch`.
pub(super) const ANOTHER_NAME: &str = "another_name";
pub(super) const NO_NAME: &str = "no_name";
pub(super) const TOO_LONG: &str = "hello_too_long";
/// A ClientHello that is not complete after this many bytes is refused: it exists to get past such checks.
pub(super) const HELLO_MAX: usize = 16 * 1024;

/// What the first bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// A whole ClientHello and the name in it.
    Tls {
        /// Lower case.
        sni: Option<String>,
    },
    /// What may be the begin of a ClientHello.
    Incomplete,
    /// Anything else.
    Other,
}

/// What a ClientHello said.
pub(super) enum Hello {
    /// The name of the host that is wanted, lower case and without a final dot, if it says one.
    Names(Option<String>),
    /// It is none that TLS 1.2 or later could answer, and names nobody: this alert says so.
    Unacceptable(Vec<u8>),
    /// It was not complete after 16 KiB.
    TooLong,
    /// The app went away.
    Ended,
}

/// How a tunnel started.
pub(super) struct Opening {
    pub(super) caller: Stream,
    pub(super) callee: Stream,
    /// Read from the caller, checked, not sent yet.
    pub(super) first: Vec<u8>,
    /// Bytes of the caller that the callee has got.
    pub(super) from_caller: u64,
    /// Bytes of the callee that the caller has got.
    pub(super) to_caller: u64,
    /// Why the tunnel must not go on.
    pub(super) refused: Option<Reason>,
    /// A side was reset, or neither said anything in time: the copy would not see that again.
    pub(super) ended: Option<Reason>,
}

/// Says what `bytes` are. Once that is known, more bytes do not change it.
#[must_use]
pub fn kind(bytes: &[u8]) -> Verdict {
    // What is not understood names nobody.
    look(bytes).unwrap_or(Verdict::Tls { sni: None })
}

/// The same; `Err` is the alert for TLS that holds no acceptable ClientHello.
fn look(bytes: &[u8]) -> Result<Verdict, Vec<u8>> {
    match bytes {
        [TLS, ..] => {}
        // Another record of TLS, such as a warning, which some servers pass over on their way to a ClientHello; and the hello
        // of SSL 2, which leads to TLS as well and names nobody.
        [0x14..=0x18] | [0x80..=0xff] | [0x80..=0xff, _] | [0x80..=0xff, _, 1] => return Ok(Verdict::Incomplete),
        [0x14..=0x18, 3, ..] | [0x80..=0xff, _, 1, 3, ..] => return Ok(Verdict::Tls { sni: None }),
        _ => return Ok(Verdict::Other),
    }
    let mut acceptor = Acceptor::default();
    let mut input = bytes;
    while !input.is_empty() {
        match acceptor.read_tls(&mut input) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                let sni = accepted.client_hello().server_name().map(str::to_ascii_lowercase);
                return Ok(Verdict::Tls { sni });
            }
            Err((_, mut alert)) => {
                let mut bytes = Vec::new();
                // Writing to memory cannot fail; without an alert it is refused all the same.
                let _ = alert.write_all(&mut bytes);
                return Err(bytes);
            }
        }
    }
    Ok(Verdict::Incomplete)
}

/// What is wrong with the name in a ClientHello that was refused for it, and the name.
pub(super) fn fault(first: &[u8]) -> (&'static str, Option<String>) {
    match kind(first) {
        Verdict::Tls { sni: Some(name) } => (ANOTHER_NAME, Some(name)),
        Verdict::Tls { sni: None } | Verdict::Other => (NO_NAME, None),
        Verdict::Incomplete => (TOO_LONG, None),
    }
}

/// Reads a ClientHello to its end, behind what of it is in `first` already. The caller sets a deadline.
pub(super) async fn hello(stream: &mut Stream, first: &mut Vec<u8>) -> Hello {
    let mut piece = vec![0; 4096];
    loop {
        match look(first) {
            Ok(Verdict::Tls { sni }) => return Hello::Names(sni.map(|name| name.trim_end_matches('.').to_owned())),
            Ok(Verdict::Other) => return Hello::Names(None),
            Err(alert) => return Hello::Unacceptable(alert),
            Ok(Verdict::Incomplete) if first.len() >= HELLO_MAX => return Hello::TooLong,
            Ok(Verdict::Incomplete) => {}
        }
        match stream.read(&mut piece).await {
            Ok(read @ 1..) => first.extend_from_slice(&piece[..read]),
            Ok(_) | Err(_) => return Hello::Ended,
        }
    }
}

/// Lets whoever speaks first speak, until the caller's first bytes are known and checked.
pub(super) async fn exchange(
    caller: Prefixed,
    mut callee: Stream,
    host: &str,
    to_workload: bool,
    bounds: &Bounds,
) -> Opening {
    let (first, mut caller) = caller.into_parts();
    let mut first = first.to_vec();
    let (mut to_caller, mut ended, mut callee_ended) = (0, None, false);
    let (mut from_caller, mut from_callee) = (vec![0; 4096], vec![0; 16 * 1024]);
    let mut refused = None;
    loop {
        let verdict = if first.is_empty() { Verdict::Incomplete } else { kind(&first) };
        if verdict != Verdict::Incomplete {
            refused = check(&verdict, host, to_workload);
            break;
        }
        if first.len() >= HELLO_MAX {
            refused = Some(Reason::SniMismatch);
            break;
        }
        tokio::select! {
            read = caller.read(&mut from_caller) => match read {
                // The copy sees the same end again and passes it on.
                Ok(0) => break,
                Ok(read) => first.extend_from_slice(&from_caller[..read]),
                Err(_) => {
                    ended = Some(Reason::Reset);
                    break;
                }
            },
            read = callee.read(&mut from_callee), if !callee_ended => {
                // A callee that only ends its side does not free the caller's first bytes of their check.
                let passed = match read {
                    Ok(0) => caller.shutdown().await.map(|()| 0),
                    Ok(read) => send(&mut caller, &from_callee[..read], &bounds.down, bounds.idle).await.map(|()| read),
                    Err(error) => Err(error),
                };
                let Ok(passed) = passed else {
                    ended = Some(Reason::Reset);
                    break;
                };
                callee_ended = passed == 0;
                to_caller += passed as u64;
            },
            () = tokio::time::sleep(bounds.idle) => {
                ended = Some(Reason::IdleTimeout);
                break;
            }
        }
    }
    Opening { caller, callee, first, from_caller: 0, to_caller, refused, ended }
}

/// At the endpoint's rate, and not for ever to somebody who takes nothing.
pub(super) async fn send(to: &mut Stream, bytes: &[u8], pace: &Pace, idle: Duration) -> io::Result<()> {
    if pace.piece().is_some() {
        tokio::time::sleep(pace.charge(bytes.len())).await;
    }
    let sending = async {
        to.write_all(bytes).await?;
        to.flush().await
    };
    tokio::time::timeout(idle, sending).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

pub(super) fn check(verdict: &Verdict, host: &str, to_workload: bool) -> Option<Reason> {
    let Verdict::Tls { sni } = verdict else { return None };
    if to_workload {
        return Some(Reason::AppTlsToWorkload);
    }
    let matches = is_address(host) || sni.as_deref().map(|name| name.trim_end_matches('.')) == Some(host);
    (!matches).then_some(Reason::SniMismatch)
}

/// An address has no name to compare with; what the rule granted is the address.
pub(super) fn is_address(host: &str) -> bool {
    host.parse::<std::net::IpAddr>().is_ok() || host.starts_with('[')
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    pub(in crate::egress) fn client_hello(name: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = name.to_owned().try_into().expect("a name");
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).expect("a client");
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).expect("writes to memory");
        bytes
    }

    // covers: A7d
    #[test]
    fn tls_must_name_the_decided_host() {
        let verdict = kind(&client_hello("evil.test"));
        assert_eq!(verdict, Verdict::Tls { sni: Some("evil.test".into()) });
        assert_eq!(check(&verdict, "api.stripe.com", false), Some(Reason::SniMismatch));
        assert_eq!(check(&verdict, "evil.test", false), None);
        assert_eq!(check(&verdict, "evil.test", true), Some(Reason::AppTlsToWorkload));
        assert_eq!(check(&Verdict::Tls { sni: None }, "api.stripe.com", false), Some(Reason::SniMismatch));
        assert_eq!(check(&Verdict::Tls { sni: None }, "192.0.2.1", false), None);
    }

    #[test]
    fn a_split_hello_is_incomplete_until_its_last_byte() {
        let bytes = client_hello("api.stripe.com");
        for end in 1..bytes.len() {
            assert_eq!(kind(&bytes[..end]), Verdict::Incomplete, "{end} bytes");
        }
        assert_eq!(kind(b"GET / HTTP/1.1\r\n"), Verdict::Other);
        assert_eq!(kind(b"SSH-2.0-x\r\n"), Verdict::Other);
    }

    #[test]
    fn tls_records_without_a_hello_name_nobody() {
        assert_eq!(kind(&[0x16, 3, 1, 0, 4, 9, 9, 9, 9]), Verdict::Tls { sni: None });
    }

    // covers: D17h
    #[test]
    fn a_hello_of_tls_1_1_gets_an_alert_and_names_nobody_in_a_tunnel_that_nobody_reads() {
        let name = b"i.test";
        let short = |len: usize| u16::try_from(len).expect("short").to_be_bytes();
        let sni =
            [&[0, 0][..], &short(name.len() + 5), &short(name.len() + 3), &[0], &short(name.len()), name].concat();
        let suites = [0, 4, 0xc0, 0x13, 0, 0x2f];
        let body = [&[3, 2][..], &[7; 32], &[0], &suites, &[1, 0], &short(sni.len()), &sni].concat();
        let hello = [&[1, 0][..], &short(body.len()), &body].concat();
        let record = [&[0x16, 3, 1][..], &short(hello.len()), &hello].concat();
        let alert = look(&record).expect_err("no server of TLS 1.2 answers it");
        assert!(matches!(alert.as_slice(), [0x15, 3, _, 0, 2, 2, _]), "{alert:?}");
        assert_eq!(kind(&record), Verdict::Tls { sni: None });
        assert_eq!(check(&kind(&record), "i.test", false), Some(Reason::SniMismatch));
    }

    // covers: D17h
    #[test]
    fn nothing_of_tls_passes_in_front_of_a_hello() {
        let warning = [0x15, 3, 1, 0, 2, 1, 90];
        let hidden = [&warning[..], &client_hello("evil.test")].concat();
        assert_eq!(kind(&hidden[..1]), Verdict::Incomplete);
        assert_eq!(kind(&hidden), Verdict::Tls { sni: None });
        assert_eq!(kind(&[0x14, 3, 3, 0, 1, 1]), Verdict::Tls { sni: None });
        // The hello of SSL 2 that asks for TLS 1.2, and what only begins like one.
        let old = [0x80, 0x2e, 1, 3, 3];
        assert_eq!([1, 2, 3].map(|end| kind(&old[..end])), [const { Verdict::Incomplete }; 3]);
        assert_eq!(kind(&old), Verdict::Tls { sni: None });
        assert_eq!(
            [kind(&[0x80, 0x2e, 2]), kind(&[0x80, 0, 1, 0]), kind(&[0x17, b'x'])],
            [const { Verdict::Other }; 3]
        );
    }

    /// The same handshake bytes in records of other lengths.
    pub(in crate::egress) fn in_records(hello: &[u8], lengths: &[usize]) -> Vec<u8> {
        let mut records = Vec::new();
        let (mut rest, mut lengths) = (&hello[5..], lengths.iter().cycle());
        while !rest.is_empty() {
            let (part, after) = rest.split_at((*lengths.next().unwrap_or(&1)).min(rest.len()));
            records.extend([0x16, 3, 1]);
            records.extend(u16::try_from(part.len()).expect("short").to_be_bytes());
            records.extend(part);
            rest = after;
        }
        records
    }

    /// What is known of `bytes` when they come in pieces that end at `cuts`.
    fn known_first(bytes: &[u8], cuts: &[prop::sample::Index]) -> Vec<Verdict> {
        let mut ends: Vec<_> = cuts.iter().map(|cut| 1 + cut.index(bytes.len())).collect();
        ends.push(bytes.len());
        ends.sort_unstable();
        ends.iter().map(|end| kind(&bytes[..*end])).filter(|verdict| *verdict != Verdict::Incomplete).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        // covers: C13.3
        #[test]
        fn fuzz_smoke_a_hello_names_the_same_host_however_it_is_cut(
            lengths in prop::collection::vec(1..600usize, 1..8),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
            after in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut bytes = in_records(&client_hello("api.stripe.com"), &lengths);
            bytes.extend(after);
            for verdict in known_first(&bytes, &cuts) {
                prop_assert_eq!(verdict, Verdict::Tls { sni: Some("api.stripe.com".into()) });
            }
        }

        // covers: C13.3
        #[test]
        fn fuzz_smoke_what_is_known_of_any_bytes_stays_whatever_follows(
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..6),
            lengths in prop::collection::vec(1..600usize, 1..4),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
        ) {
            let mut bytes = in_records(&client_hello("api.stripe.com"), &lengths);
            for (at, byte, insert) in edits {
                let at = at.index(bytes.len());
                if insert { bytes.insert(at, byte) } else { bytes[at] = byte }
            }
            let known = known_first(&bytes, &cuts);
            prop_assert!(known.windows(2).all(|pair| pair[0] == pair[1]), "{:?}", known);
        }
    }
}
