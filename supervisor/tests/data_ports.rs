//! A port that an update takes away, or makes another one: what is open on it ends, and the endpoint goes on.

mod data;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use data::h2::H2;
use data::{A, HTTPS, Node, Plan, RAW, RULES, is, read_answer, read_head, read_request, until};

/// A port without TLS on which HTTP is spoken.
const PLAIN: u16 = 8080;
const PLAIN_PORT: &str = "      - {name: plain, port: 8080, target_port: 18080, mode: tcp, protocol: http}\n";
const RAW_PORT: &str = "      - {name: raw, port: 5432, target_port: 15432, mode: tcp, protocol: tcp}\n";

/// Service-a with a port without TLS, too, and so long a drain.
fn node(drain_ms: u32) -> Node {
    let plan = Plan::default();
    let rule = "  - id: outside-to-a-plain
    tenant: t
    from: {cidr: NET.96/28}
    to: {workload: service-a, port: plain}
    http: {methods: [GET], paths: ['/v1/orders/**']}
";
    let endpoints = plan.endpoints.replacen(RAW_PORT, &format!("{PLAIN_PORT}{RAW_PORT}"), 1);
    let endpoints = endpoints.replace("drain_timeout_ms: 8000", &format!("drain_timeout_ms: {drain_ms}"));
    Node::with(Plan { endpoints, rules: format!("{RULES}{rule}"), ..plan })
}

fn call(node: &Node, port: u16) -> TcpStream {
    data::dial(&node.ip(99), &format!("{}:{port}", node.ip(21))).expect("connected")
}

const GET: &str = "GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n";

/// The app answers `/slow` on the test's word, and echoes what is no HTTP.
fn serve(node: &Node) -> std::sync::mpsc::Sender<()> {
    let (go, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    node.guest(A).serve(move |mut link, _| {
        if link.target == "15432" {
            return drop(link.rest());
        }
        while let Ok(request) = read_request(&mut link) {
            if request.contains("/slow") {
                link.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n");
                let _ = wait.lock().expect("no panic").recv();
                link.send("done");
            } else {
                link.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
        }
    });
    go
}

// covers: R12b
#[test]
fn connections_to_a_port_that_is_taken_away_drain_and_the_others_stay() {
    let node = node(8000);
    let go = serve(&node);
    let mut idle = call(&node, PLAIN);
    idle.write_all(GET.as_bytes()).expect("sent");
    assert_eq!(read_answer(&mut idle).expect("an answer").status, 200);
    let mut streams = H2::client(call(&node, PLAIN));
    streams.request(1, "GET", "/v1/orders/1");
    assert_eq!(streams.reply(1).status(), 200);
    let mut slow = call(&node, PLAIN);
    slow.write_all(GET.replace("/1 ", "/slow ").as_bytes()).expect("sent");
    read_head(&mut slow).expect("a head");
    let mut other = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    assert_eq!(other.ask(GET).status, 200);
    node.edit_endpoint("service-a", PLAIN_PORT, "");
    assert_eq!(idle.read(&mut [0; 8]).expect("a good end"), 0);
    assert_eq!(streams.goaway(), Some(0));
    until("new callers find nobody", || data::dial(&node.ip(99), &format!("{}:{PLAIN}", node.ip(21))).is_err());
    go.send(()).expect("the app waits");
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).expect("the whole answer, and a good end");
    assert_eq!(rest, b"done");
    assert_eq!(other.ask(GET).status, 200);
    assert_eq!(node.stage("service-a").as_deref(), Some("serving"));
}

// covers: R12b
#[test]
fn a_stream_to_a_port_that_is_taken_away_is_cut_after_the_drain_timeout() {
    let node = node(1500);
    let _go = serve(&node);
    let mut raw = call(&node, RAW);
    raw.write_all(b"x").expect("sent");
    until("it is carried", || node.open("service-a") == 1);
    let began = Instant::now();
    node.edit_endpoint("service-a", RAW_PORT, "");
    assert!(!matches!(raw.read(&mut [0; 8]), Ok(1..)));
    assert!(began.elapsed() >= Duration::from_millis(1400), "it was cut at once");
    let close = node.audited_once(|line| is(line, &[("kind", "close"), ("direction", "ingress")]));
    assert!(is(&close, &[("close", "draining")]), "{close}");
    assert_eq!(node.stage("service-a").as_deref(), Some("serving"));
}

// covers: R12b
#[test]
fn plaintext_callers_do_not_stay_on_a_port_that_asks_for_certificates_now() {
    let node = node(60_000);
    let _go = serve(&node);
    let mut changed = call(&node, PLAIN);
    changed.write_all(GET.replace("/1 ", "/slow ").as_bytes()).expect("sent");
    read_head(&mut changed).expect("a head");
    let mut removed = call(&node, RAW);
    removed.write_all(b"x").expect("sent");
    until("both are carried", || node.open("service-a") == 2);
    // The one becomes another port at once, the other one is away for a while first.
    node.edit_endpoint("service-a", RAW_PORT, "");
    until("the port is gone", || data::dial(&node.ip(99), &format!("{}:{RAW}", node.ip(21))).is_err());
    node.edit_endpoint(
        "service-a",
        PLAIN_PORT,
        &format!("{}{}", PLAIN_PORT.replace("tcp", "mtls"), RAW_PORT.replace("mode: tcp", "mode: mtls")),
    );
    let began = Instant::now();
    assert!(!matches!(changed.read(&mut [0; 8]), Ok(1..)));
    assert!(!matches!(removed.read(&mut [0; 8]), Ok(1..)));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    until("nothing is open", || node.open("service-a") == 0);
}

// covers: A12e
#[test]
fn what_the_endpoints_file_asks_for_in_vain_is_shown_to_operators() {
    let node = node(8000);
    node.edit_endpoint(
        "service-a",
        "boot_token: 00000000000000000000000000000021",
        "boot_token: 00000000000000000000000000000022",
    );
    let rows = || node.ask(&serde_json::json!({"op": "endpoints"})).expect("an answer");
    let refused = || rows().as_array().expect("rows").iter().find(|row| row["stage"] == "refused").cloned();
    until("the row is shown", || refused().is_some());
    let row = refused().expect("a row");
    assert!(is(&row, &[("pod_uid", A), ("reason", "changed_in_place"), ("phase", "REJECTED")]), "{row}");
    assert!(row["message"].as_str().is_some_and(|message| message.contains("newer generation")), "{row}");
    assert!(node.warnings().contains("refused as they are asked for: 1"), "{}", node.warnings());
    assert_eq!(node.stage("service-a").as_deref(), Some("serving"), "what was served before stays");
    node.edit_endpoint(
        "service-a",
        "boot_token: 00000000000000000000000000000022",
        "boot_token: 00000000000000000000000000000021",
    );
    until("it is taken back", || refused().is_none() && !node.warnings().contains("refused"));
    node.put("endpoints.yaml", b"endpoints: [\n");
    until("the file is not followed", || node.warnings().contains("the endpoints file is refused"));
    node.edit_endpoint("service-a", "generation: 1", "generation: 1 ");
    until("it is followed again", || !node.warnings().contains("the endpoints file is refused"));
}
