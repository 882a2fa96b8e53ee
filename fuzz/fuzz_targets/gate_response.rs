//! Any bytes as answers: the cut changes nothing, and httparse ends every head where the gate does. The first byte says
//! how the rest is cut, the second what was asked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nova_supervisor::gate::{Asked, Event, Gate, Limits, Refusal};

fuzz_target!(|data: &[u8]| {
    let [cut, asked, input @ ..] = data else { return };
    let asked = [Asked::Plain, Asked::Head, Asked::Connect, Asked::Upgrade][usize::from(asked % 4)];
    assert_eq!(run(asked, input, usize::from(*cut).max(1)), run(asked, input, usize::MAX));
    heads_end_where_httparse_says(asked, input);
});

fn gate(asked: Asked) -> Gate {
    let mut gate = Gate::responses(Limits::default());
    gate.expect(asked);
    gate
}

fn run(asked: Asked, input: &[u8], cut: usize) -> (usize, Option<Refusal>) {
    let mut gate = gate(asked);
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

fn heads_end_where_httparse_says(asked: Asked, input: &[u8]) {
    let mut gate = gate(asked);
    let mut at = 0;
    while let Ok(step) = gate.step(&input[at..]) {
        match step.event {
            Event::Answer { .. } => {
                let mut fields = [httparse::EMPTY_HEADER; 100];
                let parsed = httparse::Response::new(&mut fields).parse(&input[at..]);
                assert_eq!(parsed, Ok(httparse::Status::Complete(step.release)));
            }
            Event::End => gate.expect(asked),
            Event::More | Event::Raw => return,
            Event::Request(_) => {}
        }
        at += step.release;
    }
}
