//! WebSockets by rule at ingress, against the real program: raw bytes on both sides. Refusals first.

mod data;

use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use data::{A, App, HTTPS, Link, Node, Plan, RULES, Tls, is, polite, read_answer, read_head, read_request, until};
use nova_supervisor::identity::Issued;
use serde_json::Value;

const SOCKETS: &str = "
  - id: x-to-a-sockets
    tenant: t
    from: {workload: x}
    to: {workload: service-a, port: https}
    http: {methods: [GET], paths: ['/ws/**']}
    upgrade: [websocket]
";
const ORDER: &str = "GET /v1/orders/1 HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nServer: app\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

fn start() -> Node {
    with(Plan::default())
}

fn with(plan: Plan) -> Node {
    Node::with(Plan { rules: format!("{}{SOCKETS}", plan.rules), ..plan })
}

fn handshake_for(path: &str, upgrade: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: service-a.t.nova\r\nConnection: keep-alive, Upgrade, X-Hop\r\nUpgrade: {upgrade}\r\n\
         X-Hop: 1\r\nKeep-Alive: timeout=5\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

fn handshake() -> String {
    handshake_for("/ws/room", "websocket")
}

/// An app that switches and gives back what it gets, until its caller ends; other requests it answers as usual.
fn echo(mut link: Link, app: &App) {
    let Ok(head) = read_request(&mut link) else { return };
    app.saw(&head);
    if !head.to_ascii_lowercase().contains("upgrade: websocket") {
        let line = head.lines().next().unwrap_or_default();
        link.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{line}", line.len()));
        return polite(link, app);
    }
    link.send(SWITCH);
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = link.read(&mut buffer) {
        if link.write_all(&buffer[..read]).is_err() {
            return;
        }
    }
    link.finish();
}

/// A connection of `who` that is a WebSocket to [`echo`] and has carried something.
fn opened(node: &Node, who: &Issued) -> Tls {
    let mut tls = node.call(Some(who), HTTPS).expect("connected");
    let answer = tls.ask(handshake());
    assert_eq!(answer.status, 101, "{answer:?}");
    carries(&mut tls);
    tls
}

fn carries(tls: &mut Tls) {
    tls.send("ping");
    let mut got = [0; 4];
    tls.read_exact(&mut got).expect("the echo");
    assert_eq!(&got, b"ping");
}

fn is_cut(tls: &mut Tls) -> bool {
    !matches!(tls.read(&mut [0; 16]), Ok(1..))
}

fn request_line(node: &Node, id: &str) -> Value {
    node.audited_once(|line| line["decision_id"] == id)
}

// covers: C3f (F-IH12)
#[test]
fn a_websocket_that_no_rule_grants_is_refused_and_nothing_is_dialled() {
    let node = start();
    node.guest(A).serve(echo);
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    for upgrade in ["websocket", "WebSocket"] {
        let answer = tls.ask(handshake_for("/v1/orders/1", upgrade));
        assert_eq!(answer.status, 403, "{answer:?}");
        assert!(answer.header("upgrade").is_none(), "{answer:?}");
        let line = request_line(&node, &answer.decision_id());
        assert!(is(&line, &[("kind", "request"), ("verdict", "deny"), ("reason", "l7_mismatch")]), "{line}");
        assert_eq!(line["input"]["upgrade"], "websocket", "{line}");
    }
    assert!(node.guest(A).app.seen().is_empty());
    // What follows a refused handshake is the next request, decided on its own.
    let denied = ORDER.replace("GET", "DELETE");
    tls.send(format!("{}{denied}{ORDER}", handshake_for("/v1/orders/1", "websocket")));
    for status in [403, 403, 200] {
        assert_eq!(tls.answer().expect("an answer").status, status);
    }
    assert_eq!(node.guest(A).app.seen().len(), 1);
    assert!(node.audit().iter().all(|line| line["kind"] != "open"));
}

// covers: C3f (F-IH09)
#[test]
fn what_asks_for_anything_but_one_websocket_is_an_ordinary_request() {
    let node = start();
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    for upgrade in ["h2c", "TLS/1.0", "evil", "websocket, h2c", "h2c\r\nUpgrade: websocket"] {
        for path in ["/ws/room", "/v1/orders/1"] {
            let answer = tls.ask(handshake_for(path, upgrade));
            assert_eq!(answer.status, 200, "{upgrade}: {answer:?}");
        }
    }
    let unnamed = handshake().replace("keep-alive, Upgrade, X-Hop", "keep-alive");
    assert_eq!(tls.ask(unnamed).status, 200);
    let post = handshake_for("/v1/orders/1", "websocket").replace("GET", "POST");
    assert_eq!(tls.ask(post.replace("\r\n\r\n", "\r\nContent-Length: 0\r\n\r\n")).status, 200);
    let seen = node.guest(A).app.seen().join("").to_ascii_lowercase();
    assert!(!seen.contains("upgrade") && !seen.contains("\r\nconnection:"), "{seen}");
}

// covers: C3g (F-IH12)
#[test]
fn a_101_that_was_not_asked_for_or_names_something_else_becomes_502() {
    let node = start();
    let other = |fields: &str| format!("HTTP/1.1 101 Switching Protocols\r\n{fields}\r\nEVIL");
    let bad = [
        (ORDER.to_owned(), SWITCH.to_owned()),
        (handshake_for("/ws/room", "evil"), other("Connection: Upgrade\r\nUpgrade: evil\r\n")),
        (handshake(), other("Connection: Upgrade\r\nUpgrade: evil\r\n")),
        (handshake(), other("Connection: Upgrade\r\nUpgrade: websocket, evil\r\n")),
        (handshake(), other("Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: evil\r\n")),
        (handshake(), other("Upgrade: websocket\r\n")),
        (handshake(), other("")),
    ];
    for (request, switch) in bad {
        let bytes = switch.clone();
        node.guest(A).serve(move |mut link, app| {
            if let Ok(request) = read_request(&mut link) {
                app.saw(&request);
                link.send(&bytes);
                let _ = link.rest();
            }
        });
        let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
        let answer = tls.ask(request);
        assert_eq!(answer.status, 502, "{switch}: {answer:?}");
        assert!(!answer.text().contains("EVIL") && answer.header("upgrade").is_none(), "{answer:?}");
        let line = request_line(&node, &answer.decision_id());
        assert!(is(&line, &[("kind", "request"), ("verdict", "error"), ("reason", "upstream_malformed")]), "{line}");
        // Nothing of it is left: the next request finds an app that is itself again.
        node.guest(A).serve(polite);
        assert_eq!(tls.ask(ORDER).status, 200, "after {switch}");
    }
    assert!(node.audit().iter().all(|line| line["kind"] != "open"));
}

// covers: C3g
#[test]
fn an_app_that_declines_gives_an_ordinary_answer_and_its_connection_serves_the_next_request() {
    let node = start();
    node.guest(A).serve(polite);
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    tls.send(format!("{}{ORDER}", handshake()));
    for line in ["GET /ws/room HTTP/1.1", "GET /v1/orders/1 HTTP/1.1"] {
        let answer = tls.answer().expect("an answer");
        assert!(answer.status == 200 && answer.text() == line, "{answer:?}");
    }
    assert_eq!(node.guest(A).app.connections.load(std::sync::atomic::Ordering::Relaxed), 1);
    let lines = node.audited(2, |line| is(line, &[("kind", "request"), ("direction", "ingress"), ("close", "done")]));
    assert_eq!(lines[0]["status"], 200, "{lines:?}");
    // The end comes in good order although a request on the connection named an upgrade.
    tls.send("GET /v1/orders/1 HTTP/1.1\r\nHost: service-a.t.nova\r\nConnection: close\r\n\r\n");
    assert_eq!(read_answer(&mut tls).expect("an answer").status, 200);
    assert_eq!(tls.read(&mut [0; 16]).expect("a good end"), 0);
}

// covers: C3f (F-IH12)
#[test]
fn handshake_and_first_frame_in_one_segment_pass_in_both_directions() {
    for half_close in [true, false] {
        let node = with(Plan { half_close, ..Plan::default() });
        node.guest(A).serve(|mut link, app| {
            let Ok(head) = read_head(&mut link) else { return };
            app.saw(&head);
            link.send(format!("{SWITCH}first of the app"));
            let mut first = [0; 19];
            if link.read_exact(&mut first).is_ok() {
                app.saw(&String::from_utf8_lossy(&first));
            }
            let _ = link.rest();
        });
        let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
        tls.send(format!("{}first of the caller", handshake()));
        let answer = read_answer(&mut tls).expect("an answer");
        assert_eq!(answer.status, 101, "{answer:?}");
        let field = |name: &str| answer.header(name).unwrap_or_default();
        assert!(field("connection").eq_ignore_ascii_case("upgrade") && field("upgrade") == "websocket", "{answer:?}");
        assert_eq!(field("sec-websocket-accept"), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "{answer:?}");
        let mut first = [0; 16];
        tls.read_exact(&mut first).expect("the app's frame");
        assert_eq!(&first, b"first of the app");
        until("the app has the caller's frame", || node.guest(A).app.seen().len() == 2);
        let seen = node.guest(A).app.seen();
        assert_eq!(seen[1], "first of the caller");
        let head = seen[0].to_ascii_lowercase();
        for once in ["\r\nupgrade: websocket\r\n", "\r\nconnection: upgrade\r\n", "\r\nsec-websocket-version: 13\r\n"] {
            assert_eq!(head.matches(once).count(), 1, "{once:?} in {head}");
        }
        assert!(head.contains("sec-websocket-key") && head.contains("\r\nx-forwarded-client-cert: "), "{head}");
        assert!(!head.contains("keep-alive") && !head.contains("x-hop"), "{head}");
    }
}

// covers: C3h (F-IH12)
#[test]
fn a_mebibyte_each_way_arrives_whole_and_the_log_has_one_open_and_one_close() {
    const SIZE: usize = 1 << 20;
    let pattern = |seed: usize| (0..SIZE).map(|at| (at * 31 + at / 251 + seed) as u8).collect::<Vec<u8>>();
    for half_close in [true, false] {
        let node = with(Plan { half_close, ..Plan::default() });
        node.guest(A).serve(move |mut link, app| {
            if read_head(&mut link).is_err() {
                return;
            }
            link.send(SWITCH);
            let mut got = vec![0; SIZE];
            let whole = link.read_exact(&mut got).is_ok() && got == pattern(1);
            app.saw(if whole { "whole" } else { "broken" });
            link.send(pattern(2));
            let _ = link.rest();
            link.finish();
        });
        let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
        assert_eq!(tls.ask(handshake()).status, 101);
        tls.send(pattern(1));
        let mut got = vec![0; SIZE];
        tls.read_exact(&mut got).expect("all of it");
        assert!(got == pattern(2), "not what the app sent");
        assert_eq!(node.guest(A).app.seen(), ["whole"]);
        // It is listed while it is open, and the log says so.
        assert_eq!(node.connections().len(), 1);
        let open = node.audited_once(|line| line["kind"] == "open");
        assert!(is(&open, &[("verdict", "allow"), ("rule", "x-to-a-sockets"), ("path", "/ws/room")]), "{open}");
        tls.close_notify();
        assert_eq!(tls.read(&mut [0; 16]).expect("a good end"), 0);
        let close = node.audited_once(|line| line["kind"] == "close");
        assert_eq!(close["decision_id"], open["decision_id"]);
        assert!(close["bytes_in"] == SIZE && close["bytes_out"] == SIZE && close["status"] == 101, "{close}");
        assert!(
            is(&close, &[("close", "done"), ("method", "GET")]) && close["duration_us"].as_u64() > Some(0),
            "{close}"
        );
        node.audited_once(|line| is(line, &[("kind", "connection"), ("direction", "ingress"), ("close", "done")]));
        assert!(node.audit().iter().all(|line| line["kind"] != "request"), "{:#?}", node.audit());
    }
}

// covers: C3h
#[test]
fn the_end_of_one_direction_ends_only_that_direction() {
    for half_close in [true, false] {
        let node = with(Plan { half_close, ..Plan::default() });
        let (go, wait) = channel::<()>();
        let wait = Mutex::new(wait);
        node.guest(A).serve(move |mut link, app| {
            if read_head(&mut link).is_err() {
                return;
            }
            link.send(SWITCH);
            app.saw(&String::from_utf8_lossy(&link.rest().unwrap_or_default()));
            let _ = wait.lock().expect("no panic").recv();
            link.send("after your end");
            link.finish();
        });
        let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
        assert_eq!(tls.ask(handshake()).status, 101);
        tls.send("my last words");
        tls.close_notify();
        until("the app sees the end", || node.guest(A).app.seen() == ["my last words"]);
        go.send(()).expect("the app waits");
        let mut rest = Vec::new();
        tls.read_to_end(&mut rest).expect("a good end");
        assert_eq!(rest, b"after your end");
        let close = node.audited_once(|line| line["kind"] == "close");
        assert!(is(&close, &[("close", "done")]) && close["bytes_in"] == 13 && close["bytes_out"] == 14, "{close}");
    }
}

// covers: C3h
#[test]
fn a_connection_that_left_http_is_never_used_for_another_request() {
    let node = start();
    node.guest(A).serve(echo);
    let x = node.svid("x");
    let mut first = opened(&node, &x);
    let mut other = node.call(Some(&x), HTTPS).expect("connected");
    let answer = other.ask(ORDER);
    assert!(answer.status == 200 && answer.text() == "GET /v1/orders/1 HTTP/1.1", "{answer:?}");
    carries(&mut first);
    // A request of HTTP on the upgraded connection is bytes like others.
    first.send(ORDER);
    let mut back = vec![0; ORDER.len()];
    first.read_exact(&mut back).expect("the echo");
    assert_eq!(back, ORDER.as_bytes());
    first.close_notify();
    assert!(is_cut(&mut first));
    node.audited_once(|line| line["kind"] == "close");
    let answer = other.ask(ORDER);
    assert!(answer.status == 200 && answer.text() == "GET /v1/orders/1 HTTP/1.1", "{answer:?}");
    assert_eq!(node.guest(A).app.seen().len(), 3);
}

// covers: C3i
#[test]
fn a_bundle_that_no_longer_grants_it_cuts_the_websocket_and_no_other_does() {
    let node = start();
    node.guest(A).serve(echo);
    let x = node.svid("x");
    let mut tls = opened(&node, &x);
    let mut other = node.call(Some(&x), HTTPS).expect("connected");
    assert_eq!(other.ask(ORDER).status, 200);
    node.publish(&format!("{RULES}{SOCKETS}"));
    carries(&mut tls);
    // The request itself stays allowed: only what follows it does not.
    node.publish(&format!("{RULES}{}", SOCKETS.replace("    upgrade: [websocket]\n", "")));
    assert!(is_cut(&mut tls));
    let close = node.audited_once(|line| line["kind"] == "close");
    assert!(is(&close, &[("close", "policy_revoked")]) && close["bytes_in"] == 8 && close["bytes_out"] == 8, "{close}");
    node.audited_once(|line| is(line, &[("kind", "connection"), ("close", "policy_revoked")]));
    assert_eq!(other.ask(ORDER).status, 200, "the pair is still allowed");
    assert_eq!(other.ask(handshake()).status, 403);
}

// covers: C3i
#[test]
fn a_drain_leaves_a_websocket_its_time_and_then_cuts_it() {
    let node = start();
    node.guest(A).serve(echo);
    let mut tls = opened(&node, &node.svid("x"));
    node.edit_endpoint("service-a", "drain_timeout_ms: 8000", "drain_timeout_ms: 2000");
    node.edit_endpoint("service-a", "state: ready", "state: draining");
    until("it drains", || node.stage("service-a").as_deref() == Some("draining"));
    carries(&mut tls);
    assert!(is_cut(&mut tls));
    let close = node.audited_once(|line| line["kind"] == "close");
    assert!(is(&close, &[("close", "draining")]) && close["bytes_in"] == 8, "{close}");
    until("it is drained", || node.endpoint("service-a").is_none_or(|row| row["phase"] == "DRAINED"));
}

// covers: C3i
#[test]
fn a_websocket_ends_with_its_callers_certificate() {
    let node = with(Plan { identity: "peer_grace = \"1s\"\n".to_owned(), ..Plan::default() });
    node.guest(A).serve(echo);
    let id = nova_proto::ids::SpiffeId::new("spiffe://dev.invalid/t/t/w/x").expect("a SPIFFE ID");
    let short = node.ca.issue(&id, "x.t.nova", Duration::from_secs(4)).expect("issued");
    let mut tls = opened(&node, &short);
    assert!(is_cut(&mut tls));
    let close = node.audited_once(|line| line["kind"] == "close");
    assert!(is(&close, &[("close", "peer_expired")]), "{close}");
}

// covers: C3j
#[test]
fn a_certificate_that_ends_while_a_handshake_waits_for_the_app_opens_no_websocket() {
    // The app answers within the grace, so the answer itself is still the caller's.
    let node = with(Plan { identity: "peer_grace = \"8s\"\n".to_owned(), ..Plan::default() });
    node.guest(A).serve(|mut link, app| {
        let Ok(head) = read_request(&mut link) else { return };
        app.saw(&head);
        std::thread::sleep(Duration::from_secs(5));
        link.send(SWITCH);
        app.saw(&format!("then {:?}", link.rest().map(|bytes| bytes.len()).map_err(|error| error.kind())));
    });
    let id = nova_proto::ids::SpiffeId::new("spiffe://dev.invalid/t/t/w/x").expect("a SPIFFE ID");
    let short = node.ca.issue(&id, "x.t.nova", Duration::from_secs(3)).expect("issued");
    let mut tls = node.call(Some(&short), HTTPS).expect("connected");
    tls.send(format!("{}first frame", handshake()));
    until("the app has the handshake", || node.guest(A).app.seen().len() == 1);
    let mut all = Vec::new();
    let _ = tls.read_to_end(&mut all);
    until("the app's side ends", || node.guest(A).app.seen().len() == 2);
    assert!(!node.guest(A).app.seen()[1].contains("Ok(1"), "{:?}", node.guest(A).app.seen());
    let line = node.audited_once(|line| is(line, &[("path", "/ws/room")]));
    assert!(is(&line, &[("kind", "request"), ("close", "peer_expired")]), "{line}");
    assert!(node.audit().iter().all(|line| line["kind"] != "open"));
}

// covers: C3i
#[test]
fn a_websocket_keeps_to_the_endpoints_bytes_per_second_and_ends_when_nobody_speaks() {
    let plan = Plan::default();
    let token = "boot_token: 00000000000000000000000000000021";
    let limits = format!("{token}\n    limits: {{stream_idle_timeout_ms: 400, bytes_per_second: 100000}}");
    let node = with(Plan { endpoints: plan.endpoints.replace(token, &limits), ..plan });
    node.guest(A).serve(|mut link, _| {
        if read_head(&mut link).is_ok() {
            link.send(SWITCH);
            link.send(vec![7; 250_000]);
            let _ = link.rest();
        }
    });
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    let began = std::time::Instant::now();
    assert_eq!(tls.ask(handshake()).status, 101);
    tls.read_exact(&mut vec![0; 250_000]).expect("slowed, not cut");
    // 100,000 at once, and 150,000 in a second and a half.
    assert!(began.elapsed() >= Duration::from_millis(1_400), "{:?}", began.elapsed());
    assert!(is_cut(&mut tls), "silent for too long");
    let close = node.audited_once(|line| line["kind"] == "close");
    assert!(is(&close, &[("close", "idle_timeout")]) && close["bytes_out"] == 250_000, "{close}");
}
