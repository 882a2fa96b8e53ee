//! Which calls share a connection to the app.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::data::h2::{Event, H2, find};
use crate::data::{A, App, Node, is, until};
use crate::support::{GET, WATCH, as_x, call, head, message, plan, polite, serve, unary};

// covers: C8b
#[test]
fn calls_of_one_caller_share_a_connection_to_the_app_and_callers_do_not() {
    let node = Node::with(plan());
    // Answers only once all are there: each needs a place at the same time.
    let waiting: Arc<Mutex<Vec<u32>>> = Arc::default();
    serve(&node, move |h2, event, _| {
        let Event::Data { stream, end: true, .. } = event else { return };
        let mut waiting = waiting.lock().expect("no panic");
        waiting.push(stream);
        if waiting.len() == 60 {
            for stream in waiting.drain(..) {
                polite(h2, Event::Headers { stream, fields: Vec::new(), end: true }, &App::default());
            }
        }
    });
    let mut h2 = as_x(&node);
    let streams: Vec<u32> = (0..60).map(|n| 2 * n + 1).collect();
    for stream in &streams {
        h2.headers(*stream, &head(GET, &[]), false);
        h2.data(*stream, &message("ask"), true);
    }
    let mut ended = 0;
    while ended < streams.len() {
        if let Event::Headers { fields, end: true, .. } = h2.event().expect("answers") {
            assert_eq!(find(&fields, "grpc-status"), Some("0"), "{fields:?}");
            ended += 1;
        }
    }
    let connections = || node.guest(A).app.connections.load(Ordering::SeqCst);
    assert_eq!(connections(), 1);
    serve(&node, polite);
    let mut b = call(&node, &node.svid("b"));
    assert_eq!(unary(&mut b, 1, GET).status(), 200);
    assert_eq!(connections(), 2);
}

// covers: C8b
#[test]
fn an_app_that_allows_few_streams_gets_more_connections() {
    let node = Node::with(plan());
    let open = Arc::<AtomicUsize>::default();
    let most = Arc::<AtomicUsize>::default();
    let (now, peak) = (Arc::clone(&open), Arc::clone(&most));
    node.guest(A).serve(move |link, app| {
        let Ok(mut h2) = H2::server(link) else { return };
        h2.settings(&[(3, 2)]);
        app.connections.fetch_add(1, Ordering::SeqCst);
        let mut here = 0;
        while let Ok(event) = h2.event() {
            match event {
                Event::Headers { end: false, .. } => {
                    here += 1;
                    peak.fetch_max(here, Ordering::SeqCst);
                    now.fetch_add(1, Ordering::SeqCst);
                }
                Event::Data { stream, end: true, .. } => {
                    here -= 1;
                    now.fetch_sub(1, Ordering::SeqCst);
                    polite(&mut h2, Event::Headers { stream, fields: Vec::new(), end: true }, app);
                }
                _ => {}
            }
        }
    });
    let mut h2 = as_x(&node);
    assert_eq!(unary(&mut h2, 1, GET).status(), 200, "and the settings are known");
    for stream in [3, 5, 7, 9, 11] {
        h2.headers(stream, &head(WATCH, &[]), false);
    }
    until("all five are open", || open.load(Ordering::SeqCst) == 5);
    assert!(most.load(Ordering::SeqCst) <= 2, "{most:?}");
    for stream in [3, 5, 7, 9, 11] {
        h2.data(stream, &message("bye"), true);
    }
    until("all five are closed", || open.load(Ordering::SeqCst) == 0);
}

// covers: C8b
#[test]
fn a_connection_on_which_an_app_allows_no_more_streams_is_left_for_another_one() {
    let node = Node::with(plan());
    serve(&node, |h2, event, app| {
        if matches!(event, Event::Data { end: true, .. }) {
            h2.settings(&[(3, 0)]);
        }
        polite(h2, event, app);
    });
    let mut h2 = as_x(&node);
    for stream in [1, 3, 5] {
        assert_eq!(unary(&mut h2, stream, GET).status(), 200, "{stream}");
    }
    assert_eq!(node.guest(A).app.connections.load(Ordering::SeqCst), 3, "each shut for the others");
}

// covers: C8b
#[test]
fn a_call_to_an_app_that_allows_no_streams_at_all_fails_soon() {
    let node = Node::with(plan());
    node.guest(A).serve(|link, _| {
        let Ok(mut h2) = H2::server(link) else { return };
        h2.settings(&[(3, 0)]);
        while h2.event().is_ok() {}
    });
    let mut h2 = as_x(&node);
    let reply = unary(&mut h2, 1, GET);
    assert_eq!(reply.get("grpc-status"), Some("4"), "{reply:?}");
    node.audited_once(|line| is(line, &[("kind", "request"), ("reason", "upstream_timeout")]));
}
