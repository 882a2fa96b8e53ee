//! What ends streams and connections before their peers do.

use std::time::Duration;

use crate::data::h2::{CANCEL, Event, NO_ERROR, head};
use crate::data::{A, Node, is, read_request, until};
use crate::support::{as_x, endless, plan};

// covers: C3d
#[test]
fn a_revoked_stream_is_reset_alone_and_a_revoked_pair_is_closed() {
    let node = Node::with(plan());
    node.guest(A).serve(endless);
    let mut h2 = as_x(&node);
    h2.request(1, "GET", "/v1/orders/endless");
    h2.headers(3, &head("POST", "/v1/orders/endless"), true);
    for _ in 0..4 {
        let event = h2.event().expect("both begin");
        assert!(matches!(event, Event::Headers { .. } | Event::Data { .. }), "{event:?}");
    }
    // The same rules again: nothing happens. Without POST: one stream goes.
    let rules = plan().rules;
    node.publish(&rules);
    node.publish(&rules.replace("[GET, HEAD, POST, PUT], paths: ['/v1/orders/**']", "[GET], paths: ['/v1/orders/**']"));
    assert_eq!(h2.event().expect("goes on"), Event::Reset { stream: 3, code: CANCEL });
    assert_eq!(h2.ask(5, "GET", "/v1/orders/short").status(), 200);
    let cut = node.audited_once(|line| is(line, &[("kind", "request"), ("method", "POST")]));
    assert!(is(&cut, &[("verdict", "allow"), ("close", "policy_revoked")]), "{cut}");
    // Without the pair: all of it goes.
    node.publish(&rules.replace(
        "id: x-to-a\n    tenant: t\n    from: {workload: x}",
        "id: x-to-a\n    tenant: t\n    from: {workload: b}",
    ));
    assert_eq!(h2.goaway(), Some(NO_ERROR));
    assert_eq!(h2.goaway(), None, "and then the end");
    let closed = node.audited_once(|line| is(line, &[("kind", "connection"), ("direction", "ingress")]));
    assert_eq!(closed["close"], "policy_revoked");
}

// covers: C11h
#[test]
fn a_drain_says_goaway_and_lets_streams_finish() {
    let node = Node::with(plan());
    node.guest(A).serve(|mut link, app| {
        while let Ok(request) = read_request(&mut link) {
            app.saw(&request);
            link.send("HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nfirst ");
            // Ends 3 s later.
            std::thread::sleep(Duration::from_secs(3));
            link.send("second");
        }
    });
    let mut h2 = as_x(&node);
    let mut idle = as_x(&node);
    assert_eq!(idle.ask(1, "DELETE", "/v1/orders/1").status(), 403);
    h2.request(1, "GET", "/v1/orders/1");
    let event = h2.event().expect("the answer begins");
    assert!(matches!(event, Event::Headers { .. }), "{event:?}");
    node.edit_endpoint("service-a", "state: ready", "state: draining");
    assert_eq!(idle.goaway(), Some(NO_ERROR));
    let mut body = Vec::new();
    let mut said_goodbye = false;
    loop {
        match h2.event() {
            Ok(Event::Data { bytes, .. }) => body.extend(bytes),
            Ok(Event::GoAway { code: NO_ERROR, .. }) => said_goodbye = true,
            Ok(other) => unreachable!("{other:?}"),
            Err(_) => break,
        }
    }
    assert!(said_goodbye);
    assert_eq!(body, b"first second", "every byte of the answer in progress arrives");
    until("nothing is left open", || node.connections().is_empty());
}
