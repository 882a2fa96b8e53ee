//! Who reads slowly holds the other side back, and what is left over holds up nobody.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::data::h2::{CANCEL, Event, NO_ERROR, head};
use crate::data::{A, App, Link, Node, PATIENCE, is, polite, read_request, until};
use crate::support::{as_x, plan};

// covers: C12b, C12f
#[test]
fn a_denial_leaves_the_rest_of_an_upload_alone_for_a_moment() {
    let node = Node::with(plan());
    let mut h2 = as_x(&node);
    // Java and older versions of curl lose an answer that a reset follows while they send.
    h2.headers(1, &head("POST", "/v2/denied"), false);
    assert_eq!(h2.reply(1).status(), 403);
    // The whole window of the stream, and more once it opens again.
    (0..16).for_each(|_| h2.data(1, &[0; 16 * 1024], false));
    let mut more = 0;
    while more < 64 * 1024 {
        let frame = h2.frame().expect("room for more");
        assert_ne!(frame.kind, crate::data::h2::RST_STREAM, "{frame:?}");
        if (frame.kind, frame.stream) == (crate::data::h2::WINDOW_UPDATE, 1) {
            more += u32::from_be_bytes(frame.payload[..4].try_into().expect("four bytes"));
        }
    }
    (0..3).for_each(|_| h2.data(1, &[0; 16 * 1024], false));
    h2.data(1, b"the end", true);
    h2.request(3, "GET", "/v1/orders/1");
    let next = h2.event().expect("the next answer");
    assert!(matches!(next, Event::Headers { stream: 3, .. }), "and no reset before it: {next:?}");
    // Who never comes to an end is told so, and that it was no error.
    h2.headers(5, &head("POST", "/v2/denied"), false);
    assert_eq!(h2.reply(5).status(), 403);
    h2.data(5, b"more", false);
    assert_eq!(h2.event().expect("the end"), Event::Reset { stream: 5, code: NO_ERROR });
    assert_eq!(h2.ask(7, "GET", "/v1/orders/1").status(), 200);
    assert_eq!(node.guest(A).app.seen().len(), 2);
}

// covers: C12b, C12f
#[test]
fn what_an_app_leaves_of_an_upload_holds_up_neither_its_answer_nor_others() {
    let node = Node::with(plan());
    node.guest(A).serve(|mut link, app| {
        let Ok(head) = crate::data::read_head(&mut link) else { return };
        app.saw(&head);
        link.send("HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfull");
    });
    let mut h2 = as_x(&node);
    for stream in [1, 3, 5, 7, 9, 11] {
        h2.headers(stream, &head("POST", "/v1/orders/large"), false);
        let reply = h2.reply(stream);
        assert_eq!((reply.status(), reply.text().as_str()), (413, "full"));
        // Six times this is more than the window of the connection.
        (0..12).for_each(|_| h2.data(stream, &[0; 16 * 1024], false));
        h2.data(stream, b"the end", true);
    }
    assert_eq!(h2.ask(13, "DELETE", "/v1/orders/1").status(), 403);
    node.audited(6, |line| is(line, &[("kind", "request"), ("verdict", "allow"), ("method", "POST")]));
}

// covers: C8a
#[test]
fn a_caller_that_reads_slowly_holds_the_app_back() {
    let node = Node::with(plan());
    let written = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&written);
    node.guest(A).serve(move |mut link, _| {
        if read_request(&mut link).is_err() {
            return;
        }
        link.send("HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n");
        for _ in 0..1024 {
            if link.write_all(&[7; 64 * 1024]).is_err() {
                return;
            }
            count.fetch_add(64 * 1024, Ordering::SeqCst);
        }
    });
    let mut h2 = as_x(&node);
    h2.credits = false;
    h2.request(1, "GET", "/v1/orders/1");
    let mut got = 0;
    while got < 65_535 {
        if let Event::Data { bytes, .. } = h2.event().expect("the first window") {
            got += bytes.len();
        }
    }
    // The app comes to a stop: what it wrote stays within the buffers on the way.
    let stopped = std::cell::Cell::new((0, 0));
    until("the app waits", || {
        let now = written.load(Ordering::SeqCst);
        let (last, times) = stopped.get();
        stopped.set((now, if now == last { times + 1 } else { 0 }));
        times >= 50
    });
    assert!(written.load(Ordering::SeqCst) < 4 * 1024 * 1024, "{written:?}");
    // Another stream of the same connection is served meanwhile.
    h2.window(0, 1 << 20);
    assert_eq!(h2.ask(3, "DELETE", "/v1/orders/1").status(), 403);
    // And with room, all of it arrives.
    h2.credits = true;
    h2.window(1, 65_535);
    let mut rest = 0;
    loop {
        if let Event::Data { bytes, end, .. } = h2.event().expect("the rest") {
            rest += bytes.len();
            if end {
                break;
            }
        }
    }
    assert_eq!(got + rest, 67_108_864);
}

// covers: C8a (F-LB05)
#[test]
fn an_app_that_reads_slowly_holds_the_caller_back_and_resets_give_the_room_back() {
    let node = Node::with(plan());
    let stalled = |mut link: Link, app: &App| {
        let head = crate::data::read_head(&mut link).unwrap_or_default();
        if head.contains("/stalled") {
            app.saw(&head);
            // Reads nothing of the body until the other side gives up.
            std::thread::sleep(PATIENCE);
        } else if !head.is_empty() {
            app.saw(&head);
            link.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            polite(link, app);
        }
    };
    node.guest(A).serve(stalled);
    let mut h2 = as_x(&node);
    // Three times the window of the connection, which only resets open again.
    let mut stream = 1;
    for round in 1..=4 {
        let opened = stream;
        for _ in 0..12 {
            h2.headers(stream, &head("POST", "/v1/orders/stalled"), false);
            for _ in 0..4 {
                h2.data(stream, &[0; 16 * 1024], false);
            }
            stream += 2;
        }
        until("the app has them", || node.guest(A).app.seen().len() == 12 * round);
        (opened..stream).step_by(2).for_each(|stream| h2.reset(stream, CANCEL));
    }
    assert_eq!(h2.ask(101, "GET", "/v1/orders/1").status(), 200);
    node.audited(48, |line| is(line, &[("kind", "request"), ("method", "POST"), ("close", "aborted")]));
}
