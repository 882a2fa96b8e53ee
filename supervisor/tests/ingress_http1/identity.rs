//! Items 31 to 41: which destination a request names.

use crate::data::{A, B, HTTPS, Plan, RULES, Tls, config, dial, is};
use crate::support::{HOST, ORDER, Stand, Wanted, get};

// covers: C5.31 (F-IH10)
#[test]
fn item_31_an_absolute_target_and_its_host_name_one_destination() {
    let stand = Stand::start();
    let absolute = |target: &str, host: &str| format!("GET {target} HTTP/1.1\r\n{host}\r\n");
    stand.declines(
        400,
        &[
            absolute("http://b.t.nova/v1/orders/42", HOST),
            absolute("http://service-a.t.nova:81/v1/orders/42", "Host: service-a.t.nova:82\r\n"),
            absolute("http://service-a.t.nova:81/v1/orders/42", HOST),
            absolute("http://service-a.t.nova/v1/orders/42", "Host: service-a.t.nova:81\r\n"),
            absolute("http://service-a.t.nova/v1/orders/42", "Host:\r\n"),
            absolute("http://service-a.t.nova:0/v1/orders/42", "Host: service-a.t.nova:0\r\n"),
            absolute("http://service-a.t.nova:65536/v1/orders/42", "Host: service-a.t.nova:65536\r\n"),
        ],
    );
    stand.refuses(
        400,
        &[
            absolute("http://service-a.t.nova/v1/orders/42", ""),
            absolute("http://x@service-a.t.nova/v1/orders/42", HOST),
            absolute("http:///v1/orders/42", HOST),
            absolute("http:service-a.t.nova/v1/orders/42", HOST),
        ],
    );
    let lines = stand.node.audited(4, |line| is(line, &[("detail", "authority_mismatch")]));
    assert!(lines.iter().all(|line| is(line, &[("reason", "bad_destination"), ("dest_host", "https")])), "{lines:#?}");
    for target in ["http://service-a.t.nova/v1/orders/42", "HTTP://SERVICE-A.t.nova.:80/v1/orders/42"] {
        stand.serves(absolute(target, HOST), &[200], &[Wanted::order()]);
    }
    stand.serves(
        absolute("http://service-a.t.nova:8443/v1/orders/42", "Host: Service-A.t.nova:8443\r\n"),
        &[200],
        &[Wanted::order().host("service-a.t.nova:8443")],
    );
}

// covers: C5.32
#[test]
fn item_32_a_connect_to_a_port_is_refused_whatever_its_host_says() {
    let stand = Stand::start();
    let connect = |host: &str| format!("CONNECT service-a.t.nova:8443 HTTP/1.1\r\n{host}\r\n{ORDER}");
    stand.refuses(400, &[connect(HOST), connect("Host: service-a.t.nova:8443\r\n"), connect("Host: b.t.nova\r\n")]);
}

// covers: C5.33
#[test]
fn item_33_neither_server_name_nor_host_leads_to_another_workload() {
    let stand = Stand::start();
    let tcp = dial(&stand.node.ip(99), &format!("{}:{HTTPS}", stand.node.ip(21))).expect("connected");
    let mut tls = Tls::over(tcp, config(Some(&stand.x)), "b.t.nova").expect("a handshake");
    assert_eq!(tls.ask("GET /v1/orders/42 HTTP/1.1\r\nHost: b.t.nova\r\n\r\n").status, 200);
    // What is granted for service-a is what counts, and b grants x nothing.
    assert_eq!(tls.ask("GET /anything HTTP/1.1\r\nHost: b.t.nova\r\n\r\n").status, 403);
    stand.app_got(&[Wanted::order().host("b.t.nova")]);
    assert!(stand.node.guest(B).app.seen().is_empty());
    let lines = stand.node.audited(2, |line| is(line, &[("kind", "request"), ("direction", "ingress")]));
    assert!(lines.iter().all(|line| line["workload"] == "service-a"), "{lines:#?}");
}

// covers: C5.34
#[test]
fn item_34_pseudo_headers_are_no_headers() {
    let stand = Stand::start();
    let with = |field: &str| get("/v1/orders/42", field);
    stand.refuses(
        400,
        &[
            with(":authority: b.t.nova\r\n"),
            with(":path: /v1/admin\r\n"),
            with(":host: b.t.nova\r\n"),
            with(":method: DELETE\r\n"),
        ],
    );
}

// covers: C5.35
#[test]
fn item_35_a_second_host_is_refused_in_every_spelling() {
    let stand = Stand::start();
    let with = |fields: &str| format!("GET /v1/orders/42 HTTP/1.1\r\n{fields}\r\n");
    stand.refuses(
        400,
        &[
            with(&format!("{HOST}{HOST}")),
            with(&format!("{HOST}Host: b.t.nova\r\n")),
            with(&format!("{HOST}hOsT: b.t.nova\r\n")),
            with(&format!("{HOST}Host:\r\n")),
            with(&format!("{HOST}X: y\r\nHost: b.t.nova\r\n")),
            with("Host: service-a.t.nova, b.t.nova\r\n"),
            with("Host: service-a.t.nova b.t.nova\r\n"),
            with("Host: service-a.t.nova\r\n b.t.nova\r\n"),
            with("Host: service-a.t.nova/x\r\n"),
            with("Host: x@service-a.t.nova\r\n"),
            with("Host: service-a.t.nova#b.t.nova\r\n"),
            with("Host: service-a%2et.nova\r\n"),
            with("Host:\r\n"),
            with("X: y\r\n"),
            format!("GET /v1/orders/42 HTTP/1.0\r\n{HOST}{HOST}\r\n"),
        ],
    );
}

// covers: C5.36
#[test]
fn item_36_a_target_in_the_form_of_another_method_is_refused() {
    let stand = Stand::start();
    let post = |target: &str| format!("POST {target} HTTP/1.1\r\n{HOST}Content-Length: 0\r\n\r\n");
    stand.refuses(
        400,
        &[
            get("*", ""),
            get("service-a.t.nova:8443", ""),
            get("service-a.t.nova/v1/orders/42", ""),
            get("v1/orders/42", ""),
            get("?/v1/orders/42", ""),
            get("\\v1\\orders\\42", ""),
            get("ftp://service-a.t.nova/v1/orders/42", ""),
            get("file:///v1/orders/42", ""),
            post("*"),
            post("service-a.t.nova:8443"),
        ],
    );
    // `*` belongs to OPTIONS, and only a rule that says so grants it.
    stand.declines(403, &[format!("OPTIONS * HTTP/1.1\r\n{HOST}\r\n")]);
}

// covers: C5.37
#[test]
fn item_37_the_scheme_of_an_absolute_target_changes_nothing_and_others_are_refused() {
    let stand = Stand::start();
    let absolute = |scheme: &str| get(&format!("{scheme}://service-a.t.nova/v1/orders/42"), "");
    for scheme in ["https", "http", "HtTpS"] {
        stand.serves(absolute(scheme), &[200], &[Wanted::order()]);
    }
    stand.refuses(400, &["ws", "h2c", "httpx", "http+unix", ""].map(absolute));
}

// covers: C5.38
#[test]
fn item_38_ports_are_plain_numbers_from_1_to_65535() {
    let stand = Stand::start();
    let connect = |port: &str| format!("CONNECT service-a.t.nova{port} HTTP/1.1\r\n{HOST}\r\n{ORDER}");
    stand.refuses(400, &[":0", ":65536", ":99999", ":+443", ":0443", ":443x", ":", "", ":443:443", ":-1"].map(connect));
    let host = |port: &str| format!("GET /v1/orders/42 HTTP/1.1\r\nHost: service-a.t.nova{port}\r\n\r\n");
    stand.refuses(400, &[":+443", ":", ":443x", ":443:443", ":-1", ":4 43", ":\t443"].map(host));
    stand.declines(400, &[":0", ":65536", ":99999", ":0443"].map(host));
    stand.serves(host(":65535"), &[200], &[Wanted::order().host("service-a.t.nova:65535")]);
}

// covers: C5.39
#[test]
fn item_39_a_connect_with_a_body_is_refused_with_its_body() {
    let stand = Stand::start();
    let connect = |fields: &str, body: &str| format!("CONNECT a:1 HTTP/1.1\r\n{HOST}{fields}\r\n{body}");
    stand.refuses(
        400,
        &[
            connect("Content-Length: 4\r\n", ORDER),
            connect("Content-Length: 0\r\n", ORDER),
            connect("Transfer-Encoding: chunked\r\n", &format!("0\r\n\r\n{ORDER}")),
            connect("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", ORDER),
        ],
    );
}

// covers: C5.40
#[test]
fn item_40_what_is_not_http_is_refused_with_what_follows_it() {
    let stand = Stand::start();
    let before = |bytes: &[u8]| [bytes, ORDER.as_bytes()].concat();
    stand.refuses(
        400,
        &[
            before(b"\x05\x01\x00"),
            before(b"\x05\x01\x00\x05\x01\x00\x03\x10service-a.t.nova\x20\xfb"),
            before(b"\x04\x01\x20\xfb\x00\x00\x00\x01x\x00service-a.t.nova\x00"),
            before(b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n"),
            before(b"PROXY UNKNOWN\r\n"),
            before(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\x0a\x00\x00\x01\x0a\x00\x00\x02\x00\x01\x00\x02"),
            before(b"\x16\x03\x01\x00\x05hello"),
            before(b"SSH-2.0-x\r\n"),
        ],
    );
}

// covers: C5.41
#[test]
fn item_41_a_call_that_names_another_destination_is_never_forwarded_there() {
    // The port is no proxy: nothing loops through it, and nothing about hops is believed or added.
    let rules = format!(
        "{RULES}  - id: x-to-b\n    tenant: t\n    from: {{workload: x}}\n    to: {{workload: b, port: https}}\n"
    );
    let stand = Stand::with(Plan { rules, ..Plan::default() });
    let target = "GET http://b.t.nova:8443/v1/orders/42 HTTP/1.1\r\nHost: b.t.nova:8443\r\n\r\n";
    stand.serves(target, &[200], &[Wanted::order().host("b.t.nova:8443")]);
    assert!(stand.node.guest(B).app.seen().is_empty());
    stand.serves(
        get("/v1/orders/42", "Via: 1.1 nova-supervisor\r\nMax-Forwards: 0\r\n"),
        &[200],
        &[Wanted::order().with("via: 1.1 nova-supervisor").with("max-forwards: 0")],
    );
    assert!(stand.node.guest(A).app.seen().is_empty());
}
