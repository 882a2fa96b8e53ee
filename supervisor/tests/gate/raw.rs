//! The gate on raw bytes: what it releases, and why it stops.

use http::Method;
use nova_supervisor::gate::{Gate, Limits, Progress, Refusal};

/// Everything that a gate releases of `input`, and the refusal, when it comes in pieces of `cut` bytes.
pub(crate) fn run(mut gate: Gate, input: &[u8], cut: usize) -> (Vec<u8>, usize, usize, Option<Refusal>) {
    let (mut held, mut released) = (Vec::new(), Vec::new());
    let (mut heads, mut ends) = (0, 0);
    for piece in input.chunks(cut.max(1)) {
        held.extend_from_slice(piece);
        let Progress { release, heads: more_heads, ends: more_ends, refusal } = gate.feed(&held);
        released.extend(held.drain(..release));
        (heads, ends) = (heads + more_heads, ends + more_ends);
        if refusal.is_some() {
            return (released, heads, ends, refusal);
        }
    }
    (released, heads, ends, None)
}

pub(crate) fn requests(input: &[u8]) -> (Vec<u8>, usize, usize, Option<Refusal>) {
    run(Gate::requests(Limits::default()), input, usize::MAX)
}

pub(crate) fn answers(method: Method, input: &[u8]) -> (Vec<u8>, usize, usize, Option<Refusal>) {
    let mut gate = Gate::responses(Limits::default());
    gate.expect_response_to(&method);
    run(gate, input, usize::MAX)
}

/// Nothing of it may reach the parser, and the reason is this one.
#[track_caller]
pub(crate) fn refused(input: &str, refusal: Refusal) {
    assert_eq!(requests(input.as_bytes()), (Vec::new(), 0, 0, Some(refusal)), "{input:?}");
}

/// The head may reach the parser, but nothing behind it.
#[track_caller]
pub(crate) fn refused_in_body(head: &str, body: &str, refusal: Refusal) {
    let (released, heads, ends, got) = requests(format!("{head}{body}").as_bytes());
    assert_eq!((heads, ends, got), (1, 0, Some(refusal)), "{body:?}");
    assert!(released.starts_with(head.as_bytes()), "{body:?}");
}

#[track_caller]
pub(crate) fn accepted(input: &str, messages: usize) {
    assert_eq!(requests(input.as_bytes()), (input.as_bytes().to_vec(), messages, messages, None), "{input:?}");
}

pub(crate) const CHUNKED: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
