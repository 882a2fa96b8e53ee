//! What the engine said before is said again only where it would say the same.

mod data;

use data::{A, HTTPS, Node, RULES, is, read_request};

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

// covers: A5c, D17c
#[test]
fn a_remembered_answer_ends_with_its_bundle_and_fits_no_other_input() {
    let node = Node::start();
    node.guest(A).serve(|mut link, app| {
        while let Ok(request) = read_request(&mut link) {
            app.saw(&request);
            link.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let x = node.svid("x");
    let mut caller = node.call(Some(&x), HTTPS).expect("connected");
    for _ in 0..2 {
        assert_eq!(caller.ask(get("/v1/orders/42")).status, 200);
        for other in ["/v1/order/42", "/V1/orders/42", "/v1/orders42"] {
            assert_ne!(caller.ask(get(other)).status, 200, "{other}");
        }
        assert_eq!(caller.ask("DELETE /v1/orders/42 HTTP/1.1\r\nHost: a\r\n\r\n").status, 403);
    }

    // The pair may still talk, so the connection stays; what it asked before is asked anew.
    node.publish(&RULES.replace("'/v1/orders/**'", "'/v1/orders/7'"));
    assert_eq!(caller.ask(get("/v1/orders/42")).status, 403);
    assert_eq!(caller.ask(get("/v1/orders/7")).status, 200);
    node.publish(RULES);
    assert_eq!(caller.ask(get("/v1/orders/42")).status, 200);

    // Remembered or not, each request has its own record, with the input that replay needs.
    let asked = |path: &'static str| {
        move |line: &serde_json::Value| is(line, &[("kind", "request"), ("method", "GET"), ("path", path)])
    };
    let lines = node.audited(4, asked("/v1/orders/42"));
    let verdicts: Vec<_> = lines.iter().map(|line| line["verdict"].as_str().expect("a verdict")).collect();
    assert_eq!(verdicts, ["allow", "allow", "deny", "allow"]);
    assert!(lines.iter().all(|line| line["input"]["path"] == "/v1/orders/42" && line["revision"].is_string()));
}
