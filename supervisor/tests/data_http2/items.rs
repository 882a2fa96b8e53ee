//! The check list of request identity and smuggling over HTTP/2, frame by frame, as far as its items mean anything there.
//! Numbers in names are those of the list; what counts is what the app behind the port received.

use std::io::{Read, Write};

use crate::data::h2::{END_HEADERS, END_STREAM, H2, HEADERS, PREFACE, PROTOCOL_ERROR, Reply, frame, head};
use crate::data::{self, A, B, HTTPS, Node, Plan, RULES, Tls, hpack_of, read_answer, read_request};
use crate::support::with;

const ORDER: &str = "/v1/orders/42";
/// What a body looks like that wants to be the next request.
const SMUGGLED: &[u8] = b"GET /v1/orders/smuggled HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n";

struct Stand {
    node: Node,
    h2: H2<Tls>,
    next: u32,
}

impl Stand {
    fn start() -> Self {
        Self::with(Plan::default())
    }

    fn with(plan: Plan) -> Self {
        let node = Node::with(plan);
        let h2 = node.call_h2(&node.svid("x"), HTTPS);
        Self { node, h2, next: 1 }
    }

    fn stream(&mut self) -> u32 {
        self.next += 2;
        self.next - 2
    }

    /// A request as these fields, with a body if there is one.
    fn ask(&mut self, fields: &[(&str, &str)], body: Option<&[u8]>) -> Reply {
        let stream = self.stream();
        self.h2.headers(stream, fields, body.is_none());
        if let Some(body) = body {
            self.h2.data(stream, body, true);
        }
        self.h2.reply(stream)
    }

    fn get(&mut self, more: &[(&str, &str)]) -> Reply {
        self.ask(&with("GET", ORDER, more), None)
    }

    /// Refused as malformed, by us or by the library that reads the frames; and the connection goes on.
    fn refuses(&mut self, fields: &[(&str, &str)], body: Option<&[u8]>) {
        let reply = self.ask(fields, body);
        assert!(reply.reset == Some(PROTOCOL_ERROR) || reply.status() == 400, "{fields:?}: {reply:?}");
    }

    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut *self.node.guest(A).app.requests.lock().expect("no panic"))
    }
}

fn to(authority: &str) -> Vec<(&str, &str)> {
    let mut fields = head("GET", ORDER);
    fields[2].1 = authority;
    fields
}

/// How often a request has this line, whatever its case.
fn lines(request: &str, line: &str) -> usize {
    request.split("\r\n").filter(|seen| seen.eq_ignore_ascii_case(line)).count()
}

// covers: C5.38b
#[test]
fn item_38_ports_of_an_authority_are_plain_numbers_from_1_to_65535() {
    let mut stand = Stand::start();
    let ports =
        [":0", ":65536", ":99999", ":+443", ":0443", ":443x", ":", ":443:443", ":-1", ":4 43", ":\t443", ":0x1bb"];
    for port in ports {
        let name = format!("service-a.t.nova{port}");
        stand.refuses(&to(&name), None);
        stand.refuses(&[(":method", "GET"), (":scheme", "https"), (":path", ORDER), ("host", &name)], None);
    }
    assert_eq!(stand.seen(), [""; 0]);
    assert_eq!(stand.ask(&to("service-a.t.nova:65535"), None).status(), 200);
    let seen = stand.seen();
    assert_eq!((seen.len(), lines(&seen[0], "host: service-a.t.nova:65535")), (1, 1), "{seen:?}");
}

// covers: C5.39b
#[test]
fn item_39_a_connect_with_a_body_is_refused_with_its_body() {
    let mut stand = Stand::start();
    let connect = [(":method", "CONNECT"), (":authority", "service-a.t.nova:443")];
    let length = SMUGGLED.len().to_string();
    let bodies: [&[(&str, &str)]; 4] =
        [&[], &[("content-length", &length)], &[("content-length", "0")], &[("transfer-encoding", "chunked")]];
    for more in bodies {
        stand.refuses(&[&connect, more].concat(), Some(SMUGGLED));
    }
    // Nor one that says more than where to.
    stand.refuses(&with("CONNECT", ORDER, &[]), Some(SMUGGLED));
    assert_eq!(stand.seen(), [""; 0]);
    assert_eq!(stand.get(&[]).status(), 200);
}

// covers: C5.41b
#[test]
fn item_41_a_stream_that_names_another_destination_is_never_forwarded_there() {
    let rules = format!(
        "{RULES}  - id: x-to-b\n    tenant: t\n    from: {{workload: x}}\n    to: {{workload: b, port: https}}\n"
    );
    let mut stand = Stand::with(Plan { rules, ..Plan::default() });
    assert_eq!(stand.ask(&to("b.t.nova:8443"), None).status(), 200);
    let seen = stand.seen();
    assert_eq!((seen.len(), lines(&seen[0], "host: b.t.nova:8443")), (1, 1), "{seen:?}");
    assert_eq!(stand.node.guest(B).app.seen(), [""; 0]);
    // Nothing about hops is believed or added.
    assert_eq!(stand.get(&[("via", "2 nova-supervisor"), ("max-forwards", "0")]).status(), 200);
    let seen = stand.seen();
    assert_eq!(lines(&seen[0], "via: 2 nova-supervisor") + lines(&seen[0], "max-forwards: 0"), 2, "{seen:?}");
    assert_eq!(seen[0].to_ascii_lowercase().matches("\r\nvia:").count(), 1, "{seen:?}");
}

// covers: C5.49b
#[test]
fn item_49_a_length_that_is_not_plain_digits_is_refused() {
    let mut stand = Stand::start();
    let values = [
        "+5",
        "-5",
        "0x5",
        "5 ",
        " 5",
        "\t5",
        "05",
        "5.0",
        "5e0",
        "5_0",
        "",
        "\"5\"",
        "5;x",
        "5,5",
        "18446744073709551616",
        "18446744073709551621",
        "9223372036854775808",
        "99999999999999999999999999999999999999",
    ];
    for value in values {
        stand.refuses(&with("POST", ORDER, &[("content-length", value)]), Some(b"hello"));
    }
    assert_eq!(stand.seen(), [""; 0]);
    assert_eq!(stand.ask(&with("POST", ORDER, &[("content-length", "5")]), Some(b"hello")).status(), 200);
    assert!(stand.seen()[0].ends_with("\r\n\r\nhello"));
}

// covers: C5.52b
#[test]
fn item_52_a_denied_stream_and_an_allowed_one_in_one_write_are_told_apart() {
    let mut stand = Stand::start();
    let begin = |stream, fields: &[(&str, &str)], end: bool| {
        frame(HEADERS, END_HEADERS | (u8::from(end) * END_STREAM), stream, &hpack_of(fields))
    };
    let data = |stream, bytes: &[u8], end: bool| frame(data::h2::DATA, u8::from(end), stream, bytes);
    let bytes = [
        // Denied, allowed, malformed, denied, allowed: their bodies interleave, and those of the refused are requests.
        begin(1, &head("DELETE", ORDER), false),
        begin(3, &head("POST", ORDER), false),
        data(1, SMUGGLED, false),
        data(3, b"hel", false),
        begin(5, &with("POST", ORDER, &[("transfer-encoding", "chunked")]), false),
        data(5, SMUGGLED, false),
        begin(7, &head("GET", "/v1/admin"), true),
        data(1, &frame(HEADERS, END_HEADERS | END_STREAM, 11, &hpack_of(&head("GET", "/v1/orders/framed"))), true),
        begin(9, &head("GET", "/v1/orders/9"), true),
        data(3, b"lo", true),
    ]
    .concat();
    stand.h2.bytes(&bytes);
    let mut ended = std::collections::BTreeMap::<u32, String>::new();
    while ended.len() < 5 {
        let (stream, how) = match stand.h2.event().expect("answers") {
            data::h2::Event::Headers { stream, fields, .. } => (stream, fields[0].1.clone()),
            data::h2::Event::Reset { stream, code } => (stream, format!("reset {code}")),
            data::h2::Event::GoAway { code, .. } => unreachable!("GOAWAY {code}"),
            data::h2::Event::Data { .. } => continue,
        };
        ended.entry(stream).or_insert(how);
    }
    let bad = ended.remove(&5).expect("the malformed one");
    assert!(bad == "400" || bad == format!("reset {PROTOCOL_ERROR}"), "{bad}");
    let told: Vec<_> = ended.iter().map(|(stream, how)| (*stream, how.as_str())).collect();
    assert_eq!(told, [(1, "403"), (3, "200"), (7, "403"), (9, "200")]);
    let mut seen = stand.seen();
    seen.sort();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen[0].starts_with("GET /v1/orders/9 HTTP/1.1\r\n"), "{seen:?}");
    assert!(seen[1].starts_with("POST /v1/orders/42 HTTP/1.1\r\n") && !seen[1].contains("smuggled"), "{seen:?}");
    assert!(seen[1].contains("hel") && seen[1].contains("lo"), "{seen:?}");
}

// covers: C5.54b
#[test]
fn item_54_other_versions_are_refused_and_the_app_gets_its_own() {
    let mut stand = Stand::start();
    // A preface of another version is a request of HTTP/1 with a version that nobody speaks.
    for preface in
        ["PRI * HTTP/2.1\r\n\r\nSM\r\n\r\n", "PRI * HTTP/1.1\r\n\r\nSM\r\n\r\n", "GET / HTTP/2.0\r\nHost: a\r\n\r\n"]
    {
        let mut tls = stand.node.call(Some(&stand.node.svid("x")), HTTPS).expect("connected");
        tls.send(preface);
        assert_eq!(read_answer(&mut tls).expect("an answer").status, 400, "{preface:?}");
    }
    // Whoever agreed on HTTP/2 and speaks HTTP/1 gets no answer of HTTP/1.
    let mut tls = stand.node.call_alpn(&stand.node.svid("x"), HTTPS, &["h2"]).expect("connected");
    tls.send("GET /v1/orders/42 HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n");
    let mut all = Vec::new();
    let _ = tls.read_to_end(&mut all);
    assert!(!all.windows(5).any(|window| window == b"HTTP/"), "{}", String::from_utf8_lossy(&all));
    // A version among the pseudo-headers is none of them, and ends the connection.
    let mut other = stand.node.call_h2(&stand.node.svid("x"), HTTPS);
    other.headers(1, &[&head("GET", ORDER)[..], &[(":version", "HTTP/1.0")]].concat(), true);
    assert_eq!(other.goaway(), Some(PROTOCOL_ERROR));
    assert_eq!(stand.seen(), [""; 0]);
    assert_eq!(stand.get(&[]).status(), 200);
    assert!(stand.seen()[0].starts_with("GET /v1/orders/42 HTTP/1.1\r\n"));
    // The preface is read to its end, in whatever pieces, before anything else.
    let mut tls = stand.node.call_alpn(&stand.node.svid("x"), HTTPS, &["h2"]).expect("connected");
    for byte in PREFACE {
        tls.write_all(&[*byte]).expect("sent");
        tls.flush().expect("sent");
    }
    let mut late = H2::begun(tls);
    late.settings(&[]);
    assert_eq!(late.ask(1, "GET", ORDER).status(), 200);
}

// covers: C5.57b
#[test]
fn item_57_headers_for_proxies_and_headers_of_ours_are_removed() {
    let mut stand = Stand::start();
    let fields = [
        ("proxy-authorization", "Basic dTpw"),
        ("proxy_authorization", "Basic dTpw"),
        ("proxy-authenticate", "Basic"),
        ("proxy", "http://evil.test"),
        ("te", "trailers"),
        ("x-nova-decision-id", "evil"),
        ("x_nova_peer", "evil"),
        ("x-nova", "evil"),
        ("x-forwarded-client-cert", "evil"),
        ("x.forwarded.client.cert", "evil"),
        ("authorization", "Bearer kept"),
    ];
    assert_eq!(stand.get(&fields).status(), 200);
    let seen = stand.seen().remove(0);
    assert_eq!(lines(&seen, "authorization: Bearer kept"), 1, "{seen}");
    let lower = seen.to_ascii_lowercase();
    assert!(!lower.contains("evil") && !lower.contains("dtpw") && !lower.contains("proxy"), "{seen}");
    assert!(!lower.contains("\r\nx-nova") && lower.matches("x-forwarded-client-cert:").count() == 1, "{seen}");
    // A request with as many fields as may come reaches the app; what the supervisor adds is not the caller's fault.
    let many = |count: usize| vec![("a", "b"); count];
    assert_eq!(stand.get(&many(100)).status(), 200);
    assert_eq!(lines(&stand.seen()[0], "a: b"), 100);
    stand.refuses(&with("GET", ORDER, &many(101)), None);
    assert_eq!(stand.seen(), [""; 0]);
}

// covers: C5.58b
#[test]
fn item_58_answers_without_a_body_end_and_answers_with_two_framings_are_none() {
    let mut stand = Stand::start();
    stand.node.guest(A).serve(|mut link, app| {
        while let Ok(request) = read_request(&mut link) {
            app.saw(&request);
            let answer = match request.split('/').nth(3).and_then(|rest| rest.split(' ').next()) {
                Some("none") => "HTTP/1.1 204 No Content\r\n\r\n",
                Some("same") => "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
                Some("interim") => {
                    "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
                }
                Some("head") => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
                Some("two") => {
                    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\
                     Content-Length: 4\r\n\r\nevil"
                }
                Some("body") => "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nevil",
                _ => "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine",
            };
            link.send(answer);
        }
    });
    for (method, name, status, body) in [
        ("GET", "none", 204, ""),
        ("GET", "same", 304, ""),
        ("GET", "interim", 200, "hello"),
        ("HEAD", "head", 200, ""),
        ("GET", "fine", 200, "fine"),
    ] {
        let path = format!("/v1/orders/{name}");
        let reply = stand.ask(&head(method, &path), None);
        assert_eq!((reply.status(), reply.text().as_str()), (status, body), "{name}: {reply:?}");
    }
    for name in ["two", "body"] {
        let path = format!("/v1/orders/{name}");
        let reply = stand.ask(&head("GET", &path), None);
        assert!(reply.status() == 502 && !reply.text().contains("evil"), "{name}: {reply:?}");
        // And nothing of it is the answer to somebody else.
        assert_eq!(stand.ask(&head("GET", "/v1/orders/fine"), None).text(), "fine", "{name}");
    }
}

// covers: C5.61d
#[test]
fn item_61_what_asks_for_another_method_is_refused_in_every_spelling() {
    let rules = RULES.replace("methods: [GET, HEAD, POST, PUT], paths: ['/v1/orders/**']", "paths: ['/v1/orders/**']");
    let mut stand = Stand::with(Plan { rules, ..Plan::default() });
    for name in [
        "x-http-method-override",
        "x_http_method_override",
        "x-http_method-override",
        "x-http-method",
        "x-method-override",
        "x.http.method.override",
    ] {
        stand.refuses(&with("GET", ORDER, &[(name, "DELETE")]), None);
    }
    for query in [
        "_method=DELETE",
        "a=b&_method=DELETE",
        "a=b;_method=DELETE",
        "_METHOD=delete",
        "%5fmethod=DELETE",
        "_%6dethod=DELETE",
        "_HttpMethod=PATCH",
        "x-http-method-override=PATCH",
        "$httpMethod=DELETE",
    ] {
        stand.refuses(&head("GET", &format!("{ORDER}?{query}")), None);
    }
    for method in ["TRACE", "TRACK", "trace", "Track", "connect", "Connect"] {
        stand.refuses(&head(method, ORDER), None);
    }
    assert_eq!(stand.seen(), [""; 0]);
    // The rule is for every method indeed.
    assert_eq!(stand.ask(&head("PURGE", ORDER), None).status(), 200);
}

// covers: C5.62b
#[test]
fn item_62_a_redirect_is_relayed_and_where_it_leads_is_judged_when_it_is_asked_for() {
    let mut stand = Stand::start();
    stand.node.guest(A).serve(|mut link, app| {
        while let Ok(request) = read_request(&mut link) {
            app.saw(&request);
            link.send("HTTP/1.1 302 Found\r\nLocation: /v1/admin\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let reply = stand.get(&[]);
    assert_eq!((reply.status(), reply.get("location")), (302, Some("/v1/admin")), "{reply:?}");
    assert_eq!(stand.ask(&head("GET", "/v1/admin"), None).status(), 403);
    assert_eq!(stand.seen().len(), 1);
}
