use std::time::Duration;

use super::*;

const PING: u8 = 6;

fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
    let mut bytes = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
    bytes.resize(HEAD + usize::from(length), 0xff);
    bytes
}

fn caller(now: Instant) -> Frames {
    let mut frames = Frames::new(Peer::Client, now);
    frames.received(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", now).expect("the preface");
    frames
}

/// How many such frames pass before the budget runs out.
fn passed(frames: &mut Frames, frame: &[u8], now: Instant) -> (u32, Flood) {
    for count in 0..100_000 {
        if let Err(flood) = frames.received(frame, now) {
            return (count, flood);
        }
    }
    unreachable!("no budget ran out")
}

// covers: C9h
#[test]
fn each_budget_lets_as_many_pass_as_it_says_and_not_one_more() {
    let now = Instant::now();
    let cases = [
        (frame(SETTINGS, 0, 6), SETTINGS_BURST, Flood::Settings),
        (frame(RST_STREAM, 0, 4), RESETS_BURST, Flood::Resets),
        (frame(PING, 0, 8), CONTROL_BURST, Flood::Control),
        (frame(PING, ACK, 8), CONTROL_BURST, Flood::Control),
        (frame(2, 0, 5), CONTROL_BURST, Flood::Control),
        (frame(8, 0, 4), CONTROL_BURST, Flood::Control),
        (frame(DATA, 0, 0), CONTROL_BURST, Flood::Control),
        (frame(9, 0, 0), CONTROL_BURST, Flood::Control),
        (frame(0xee, 0, 0), CONTROL_BURST, Flood::Control),
    ];
    for (bytes, most, flood) in cases {
        assert_eq!(passed(&mut caller(now), &bytes, now), (most, flood), "{bytes:?}");
        // It fills up with time, and only so far.
        let mut frames = caller(now);
        for _ in 0..most {
            frames.received(&bytes, now).expect("within the budget");
        }
        frames.received(&bytes, now + Duration::from_secs(2)).expect("it fills up");
        let (again, _) = passed(&mut frames, &bytes, now + Duration::from_secs(1_000_000));
        assert!((most..=most + 200).contains(&again), "{bytes:?}: {again}");
    }
}

// covers: C9h
#[test]
fn what_carries_something_pays_for_what_keeps_it_going() {
    let now = Instant::now();
    let mut frames = caller(now);
    for _ in 0..10_000 {
        frames.sent(&frame(DATA, 0, 9));
        for kind in [8, 8, PING] {
            frames.received(&frame(kind, 0, 4), now).expect("two windows and a ping for each piece");
        }
    }
    for _ in 0..10_000 {
        frames.received(&[frame(HEADERS, 5, 3), frame(DATA, 1, 0), frame(PING, 0, 8)].concat(), now).expect("calls");
    }
}

#[test]
fn streams_that_never_became_requests_are_told_once_with_the_code_of_their_refusal() {
    let now = Instant::now();
    let mut frames = caller(now);
    let on = |kind, stream: u8, payload: &[u8]| {
        let length = u8::try_from(payload.len()).expect("short");
        [&[0, 0, length, kind, 4, 0, 0, 0, stream], payload].concat()
    };
    for stream in [1, 3, 5, 7, 1] {
        frames.received(&on(HEADERS, stream, b"xyz"), now).expect("within the budget");
    }
    frames.seen(1);
    for stream in [1, 5, 7, 7] {
        for byte in on(RST_STREAM, stream, &[0, 0, 0, stream]) {
            frames.sent(&[byte]);
        }
    }
    // An answer, and then a reset for what its caller still sends.
    frames.sent(&[on(HEADERS, 3, b"431"), on(RST_STREAM, 3, &[0, 0, 0, 1])].concat());
    // It was a request after all, and broken already when that was seen.
    frames.seen(7);
    assert_eq!([(); 3].map(|()| frames.refused()), [Some(Turned::Reset(5)), Some(Turned::Answered), None]);
}

// covers: C11f
#[test]
fn heads_that_were_whole_when_the_connection_ended_are_told_unless_they_were_requests_or_refused() {
    let now = Instant::now();
    let mut frames = caller(now);
    let head = |flags, stream: u8| [&[0, 0, 3, HEADERS, flags, 0, 0, 0, stream], &b"xyz"[..]].concat();
    let more = |flags, stream: u8| [&[0, 0, 1, CONTINUATION, flags, 0, 0, 0, stream], &b"x"[..]].concat();
    let bytes = [
        head(END_HEADERS, 1),
        head(END_HEADERS, 3),
        // In two frames; given up again; trailers of an earlier one.
        head(0, 5),
        more(END_HEADERS, 5),
        head(END_HEADERS, 7),
        vec![0, 0, 4, RST_STREAM, 0, 0, 0, 0, 7, 0, 0, 0, 8],
        head(END_HEADERS, 3),
        // Not all of it came.
        head(0, 9),
        more(END_HEADERS, 9)[..9].to_vec(),
    ]
    .concat();
    for byte in bytes {
        frames.received(&[byte], now).expect("within the budget");
    }
    frames.seen(1);
    assert_eq!([(); 4].map(|()| frames.dropped()), [Some(3), Some(5), Some(7), None]);
    // The last byte that was missing.
    frames.received(b"x", now).expect("within the budget");
    assert_eq!(frames.dropped(), Some(9));
}

// covers: C9h
#[test]
fn an_app_may_send_as_many_heads_as_its_answers_can_have() {
    let now = Instant::now();
    let mut frames = Frames::new(Peer::Server, now);
    frames.sent(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    frames.sent(&[frame(SETTINGS, 0, 6), frame(HEADERS, 4, 7), frame(HEADERS, 4, 7)].concat());
    assert_eq!(passed(&mut frames, &frame(HEADERS, 4, 3), now), (2 * HEADS_PER_REQUEST, Flood::Heads));
}

// covers: C9h
#[test]
fn the_count_does_not_depend_on_how_the_bytes_are_cut() {
    let now = Instant::now();
    let flood = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(PING, 0, 8).repeat(1001)].concat();
    for cut in [1, 2, 7, 9, 17, 1000, flood.len()] {
        let mut frames = Frames::new(Peer::Client, now);
        let mut pieces = flood.chunks(cut);
        let refused = pieces.position(|piece| frames.received(piece, now).is_err());
        // The head of the last PING is where it ends, nine bytes before its payload.
        assert_eq!(refused, Some((flood.len() - 9) / cut), "{cut}");
    }
}
