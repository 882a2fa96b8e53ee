//! Heads of answers: as long as the endpoint says, in both versions of HTTP.

mod data;

use data::h2::{Event, H2};
use data::{A, HTTPS, Node, Plan, RULES, is, read_request};

const RPC: u16 = 50051;
const GET: &str = "/orders.v1.Orders/Get";

/// The default node, where no head of service-a is longer than 2048 bytes, with a port for gRPC.
fn plan() -> Plan {
    let plan = Plan::default();
    let https = "      - {name: https, port: 8443, target_port: 18080, mode: mtls, protocol: http}\n      - {name: raw";
    let rpc = "      - {name: rpc, port: 50051, target_port: 18051, mode: mtls, protocol: grpc}\n";
    let token = "boot_token: 00000000000000000000000000000021";
    let endpoints = plan.endpoints.replacen(https, &format!("{rpc}{https}"), 1);
    let rule = "  - id: x-to-a-rpc
    tenant: t
    from: {workload: x}
    to: {workload: service-a, port: rpc}
    grpc: {services: [orders.v1.Orders], methods: [Get]}
";
    Plan {
        endpoints: endpoints.replace(token, &format!("{token}\n    limits: {{max_header_bytes: 2048}}")),
        rules: format!("{RULES}{rule}"),
        ..plan
    }
}

// covers: C9f
#[test]
fn the_head_of_an_answer_may_be_as_long_as_its_endpoint_says_and_not_a_byte_longer() {
    let node = Node::with(plan());
    node.guest(A).serve(|mut link, app| {
        while let Ok(request) = read_request(&mut link) {
            app.saw(&request);
            let bare = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Pad: \r\n\r\n";
            let wanted: usize =
                request.split(['/', ' ']).nth(4).and_then(|number| number.parse().ok()).expect("a size");
            link.send(bare.replace("X-Pad: ", &format!("X-Pad: {}", "p".repeat(wanted - bare.len()))));
        }
    });
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    let mut ask = |bytes: usize| tls.ask(format!("GET /v1/orders/{bytes} HTTP/1.1\r\nHost: a\r\n\r\n")).status;
    assert_eq!(ask(2048), 200);
    assert_eq!(ask(2049), 502);
    assert_eq!(ask(2048), 200, "the caller's connection goes on");
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("verdict", "error")]));
    assert!(is(&line, &[("reason", "upstream_malformed"), ("detail", "head_too_large")]), "{line}");
}

// covers: C9f
#[test]
fn the_head_of_an_answer_that_never_ends_is_a_timeout() {
    let node = Node::with(plan());
    node.guest(A).serve(|mut link, _| {
        let _ = read_request(&mut link);
        link.send("HTTP/1.1 200 OK\r\nX-Slow: ");
        let _ = link.rest();
    });
    let mut tls = node.call(Some(&node.svid("x")), HTTPS).expect("connected");
    assert_eq!(tls.ask("GET /v1/orders/1 HTTP/1.1\r\nHost: a\r\n\r\n").status, 504);
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("verdict", "error")]));
    assert!(is(&line, &[("reason", "upstream_timeout"), ("detail", "head_timeout")]), "{line}");
}

// covers: C9f
#[test]
fn so_may_that_of_an_answer_in_http2() {
    let node = Node::with(plan());
    node.guest(A).serve(|link, _| {
        let Ok(mut h2) = H2::server(link) else { return };
        while let Ok(event) = h2.event() {
            let Event::Headers { stream, fields, .. } = event else { continue };
            let asked = |name: &str| data::h2::find(&fields, name).map(ToOwned::to_owned);
            let pad = "p".repeat(asked("x-size").and_then(|size| size.parse().ok()).expect("a size"));
            let head =
                [(":status", "200"), ("content-type", "application/grpc"), ("x-pad", &pad), ("grpc-status", "0")];
            h2.headers(stream, &head, true);
        }
    });
    let mut h2 = node.call_h2(&node.svid("x"), RPC);
    let mut ask = |stream: u32, size: &str| {
        let mut fields = data::h2::head("POST", GET);
        fields.extend([("content-type", "application/grpc"), ("te", "trailers"), ("x-size", size)]);
        h2.headers(stream, &fields, true);
        h2.reply(stream).get("grpc-status").map(ToOwned::to_owned)
    };
    assert_eq!(ask(1, "1500").as_deref(), Some("0"));
    assert_eq!(ask(3, "3000").as_deref(), Some("14"), "nothing of it reaches the caller");
    assert_eq!(ask(5, "1500").as_deref(), Some("0"));
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("verdict", "error")]));
    assert!(is(&line, &[("reason", "upstream_malformed")]), "{line}");
}
