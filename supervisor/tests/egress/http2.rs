//! HTTP/2 by prior knowledge inside a tunnel (F-EC07).

use crate::data::h2::{self, CANCEL, Event, H2, NO_ERROR};
use crate::data::{Link, Node, Upstream, is, until};
use crate::ways::connect;
use crate::world::{Target, World};

fn opened(world: &World) -> H2<Link> {
    H2::client(connect(&world.node, Target::Plain))
}

fn head<'a>(method: &'a str, path: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![(":method", method), (":scheme", "http"), (":authority", "plain.test:8080"), (":path", path)]
}

// covers: D4b
#[test]
fn each_stream_of_a_tunnel_is_decided_on_its_own() {
    let world = World::start();
    let mut h2 = opened(&world);
    for (stream, method, path) in
        [(1, "GET", "/v1/orders/1"), (3, "DELETE", "/v1/orders/1"), (5, "GET", "/v1/orders/2")]
    {
        h2.headers(stream, &head(method, path), true);
    }
    let mut statuses = Vec::new();
    while statuses.len() < 3 {
        if let Event::Headers { stream, fields, .. } = h2.event().expect("an answer") {
            statuses.push((stream, h2::find(&fields, ":status").expect("a status").to_owned()));
        }
    }
    statuses.sort();
    assert_eq!(statuses, [(1, "200".into()), (3, "403".into()), (5, "200".into())]);
    let mut seen = world.seen();
    seen.sort();
    // In HTTP/2 as well: the app knows that its destination understands it.
    assert!(
        seen[0].starts_with("GET /v1/orders/1 HTTP/2") && seen[1].starts_with("GET /v1/orders/2 HTTP/2"),
        "{seen:#?}"
    );
    assert_eq!(world.accepted(), 1, "one connection for both");
    let lines = world.node.audited(3, |line| is(line, &[("kind", "request"), ("phase", "request")]));
    assert_eq!(lines.iter().filter(|line| line["verdict"] == "deny").count(), 1, "{lines:#?}");
}

// covers: D4b
#[test]
fn the_next_stream_is_decided_by_the_bundle_of_now() {
    let rule = |path: &str| {
        format!(
            "rules:\n  - {{id: to-plain, tenant: t, from: {{workload: x}}, to: {{external: plain.test, port: 8080, \
             addresses: [NET.80/32]}}, http: {{methods: [GET], paths: [{path}]}}, tls: none}}\n"
        )
    };
    let world = World::start();
    world.node.publish(&rule("/a, /b"));
    let mut h2 = opened(&world);
    h2.headers(1, &head("GET", "/a"), true);
    assert_eq!(h2.reply(1).status(), 200);
    world.node.publish(&rule("/b"));
    h2.headers(3, &head("GET", "/a"), true);
    assert_eq!(h2.reply(3).status(), 403, "F-EC08");
    h2.headers(5, &head("GET", "/b"), true);
    assert_eq!(h2.reply(5).status(), 200);
}

// covers: D4b
#[test]
fn a_stream_on_its_way_is_cut_when_its_grant_ends() {
    let node = Node::start();
    let upstream = Upstream::start(&format!("{}:8080", node.ip(80)), |stream| {
        let Ok(mut h2) = H2::server(stream) else { return };
        while h2.event().is_ok() {}
    });
    let mut h2 = H2::client(connect(&node, Target::Plain));
    h2.headers(1, &head("GET", "/slow"), true);
    until("the request is on its way", || upstream.accepted() == 1);
    node.publish(&crate::data::RULES.replace("  - id: x-to-plain", "  - id: x-to-plain-2").replace(
        "plain.test, port: 8080, addresses: [NET.80/32]}\n    http: {methods: [GET, HEAD, POST, PUT]",
        "plain.test, port: 8080, addresses: [NET.80/32]}\n    http: {methods: [POST]",
    ));
    let reply = h2.reply(1);
    assert_eq!(reply.reset, Some(CANCEL), "{reply:?}");
    node.audited_once(|line| is(line, &[("path", "/slow"), ("close", "policy_revoked")]));
}

// covers: D4b
#[test]
fn frames_that_break_the_rules_end_the_connection_and_are_recorded() {
    let world = World::start();
    let mut h2 = opened(&world);
    h2.request(2, "GET", "/v1/orders/1");
    assert!(h2.goaway().is_some_and(|code| code != NO_ERROR));
    world
        .node
        .audited_once(|line| is(line, &[("kind", "request"), ("reason", "malformed"), ("detail", "h2_protocol")]));
    assert!(world.seen().is_empty());
}

// covers: D4b
#[test]
fn the_budgets_of_ingress_hold_for_apps() {
    let world = World::start();
    let mut h2 = opened(&world);
    let pings = h2::frame(h2::PING, 0, 0, &[0; 8]).repeat(3000);
    // It may be told to calm down before all of it is sent.
    let _ = h2.try_bytes(&pings);
    assert_eq!(h2.goaway(), Some(h2::ENHANCE_YOUR_CALM));
    world.node.audited_once(|line| is(line, &[("kind", "request"), ("detail", "control_flood")]));
}
