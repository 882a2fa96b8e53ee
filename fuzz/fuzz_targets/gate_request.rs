//! Any bytes as requests: the cut changes nothing, and httparse ends every head where the gate does. The first byte says
//! how the rest is cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nova_supervisor::gate::{Event, Gate, Limits, Refusal};

fuzz_target!(|data: &[u8]| {
    let Some((&cut, input)) = data.split_first() else { return };
    assert_eq!(run(input, usize::from(cut).max(1)), run(input, usize::MAX));
    heads_end_where_httparse_says(input);
});

fn run(input: &[u8], cut: usize) -> (usize, Option<Refusal>) {
    let mut gate = Gate::requests(Limits::default());
    let (mut held, mut released) = (Vec::new(), 0);
    for piece in input.chunks(cut) {
        held.extend_from_slice(piece);
        let progress = gate.feed(&held);
        held.drain(..progress.release);
        released += progress.release;
        if progress.refusal.is_some() {
            return (released, progress.refusal);
        }
    }
    (released, None)
}

fn heads_end_where_httparse_says(input: &[u8]) {
    let mut gate = Gate::requests(Limits::default());
    let mut at = 0;
    while let Ok(step) = gate.step(&input[at..]) {
        match step.event {
            Event::Request(_) => {
                let mut fields = [httparse::EMPTY_HEADER; 100];
                let mut request = httparse::Request::new(&mut fields);
                let parsed = request.parse(&input[at..]);
                assert_eq!(parsed, Ok(httparse::Status::Complete(step.release)));
                assert!(request.path.is_some_and(|path| path.parse::<http::Uri>().is_ok()));
            }
            Event::More | Event::Raw => return,
            Event::Answer { .. } | Event::End => {}
        }
        at += step.release;
    }
}
