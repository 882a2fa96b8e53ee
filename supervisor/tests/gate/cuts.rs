//! Neither the cut of the input nor its mutation changes what the gate and httparse call a message.

use http::Method;
use nova_supervisor::gate::{Event, Gate, Limits};
use proptest::prelude::*;

use crate::raw::{CHUNKED, answers, requests, run};

/// One of each kind of message, good and bad.
fn samples() -> Vec<String> {
    let get = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
    vec![
        get.repeat(3),
        format!("\r\n{get}"),
        format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello{get}"),
        format!("{CHUNKED}5\r\nhello\r\n1\r\nx\r\n0\r\nA: b\r\n\r\n{get}"),
        format!("{CHUNKED}5\r\nhello\r\n5;x\r\nhello\r\n0\r\n\r\n"),
        format!("{CHUNKED}5\r\nhelloX\n"),
        format!("{CHUNKED}0\r\nHost: b\r\n\r\n{get}"),
        format!("{get}GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n"),
        format!("{get}CONNECT a:1 HTTP/1.1\r\n\r\n{get}"),
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
    ]
}

#[test]
fn the_cut_of_the_input_changes_nothing() {
    for sample in samples() {
        let whole = requests(sample.as_bytes());
        for cut in 1..sample.len() {
            assert_eq!(run(Gate::requests(Limits::default()), sample.as_bytes(), cut), whole, "{sample:?} by {cut}");
        }
        for at in 1..sample.len() {
            let mut gate = Gate::requests(Limits::default());
            let first = gate.feed(&sample.as_bytes()[..at]);
            if first.refusal.is_none() {
                let second = gate.feed(&sample.as_bytes()[first.release..]);
                assert_eq!(
                    (first.release + second.release, second.refusal),
                    (whole.0.len(), whole.3),
                    "{sample:?} at {at}"
                );
            }
        }
    }
}

/// Bytes that matter to a parser.
fn spice() -> impl Strategy<Value = u8> {
    prop_oneof![prop::sample::select(b"\r\n\t\0 :;,#/*0159afAF+-_.%[]@?\"HT".to_vec()), any::<u8>(),]
}

fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..3u8, spice()), 0..4);
    (prop::sample::select(samples()), edits).prop_map(|(sample, edits)| {
        let mut bytes = sample.into_bytes();
        for (at, kind, byte) in edits {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => {}
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    // covers: C13.1, D15a
    /// The smoke run of the fuzz targets: no panic, no dependence on the cut, and httparse ends every head where the gate
    /// does.
    #[test]
    fn fuzz_smoke_requests(input in mutated(), cut in 1..40usize) {
        let whole = requests(&input);
        prop_assert_eq!(&run(Gate::requests(Limits::default()), &input, cut), &whole);
        let mut gate = Gate::requests(Limits::default());
        let mut at = 0;
        while let Ok(step) = gate.step(&input[at..]) {
            if let Event::Request(_) = step.event {
                let mut fields = [httparse::EMPTY_HEADER; 100];
                let mut request = httparse::Request::new(&mut fields);
                prop_assert_eq!(request.parse(&input[at..]), Ok(httparse::Status::Complete(step.release)));
                let target = request.path.unwrap_or_default();
                prop_assert!(target.parse::<http::Uri>().is_ok(), "{}", target);
            }
            if step.event == Event::More || step.event == Event::Raw {
                break;
            }
            at += step.release;
        }
    }

    // covers: C13.1
    #[test]
    fn fuzz_smoke_answers(input in mutated(), status in 100..600u16, cut in 1..40usize) {
        let text = String::from_utf8_lossy(&input).replace("GET /a HTTP/1.1", &format!("HTTP/1.1 {status} x"));
        let input = text.replace("POST / HTTP/1.1", &format!("HTTP/1.1 {status} x")).into_bytes();
        let whole = answers(Method::GET, &input);
        let mut gate = Gate::responses(Limits::default());
        gate.expect_response_to(&Method::GET);
        prop_assert_eq!(&run(gate, &input, cut), &whole);
    }

    #[test]
    fn fuzz_smoke_noise(input in prop::collection::vec(any::<u8>(), 0..300), cut in 1..40usize) {
        prop_assert_eq!(run(Gate::requests(Limits::default()), &input, cut), requests(&input));
    }
}
