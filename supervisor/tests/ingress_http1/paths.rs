//! Items 60 to 62: the path that is decided is the path that is sent, and the method too.

use crate::data::{A, Plan, RULES, is, read_request};
use crate::support::{HOST, Stand, Wanted, get};

/// Everything that means `/v1/admin` to some server, or nothing to another.
const AMBIGUOUS: &[&str] = &[
    "/v1/orders/../admin",
    "/v1/orders/./42",
    "/v1/orders/..",
    "/v1/orders/.",
    "/../x",
    "/v1/orders/%2e%2e/admin",
    "/v1/orders/%2E./admin",
    "/v1/orders/.%2e/admin",
    "/v1/orders/..;a=b/admin",
    "/v1/orders/..;/admin",
    "/v1/orders/..%3b/admin",
    "/v1/orders/%2e%2e%3Ba=b/admin",
    "/v1/orders/..%20/admin",
    "/v1/orders%2f",
    "/v1/orders%2F/42",
    "/v1/orders/%2f42",
    "/v1/orders%2f..;a%2fadmin",
    "/%2Fv1/orders/42",
    "/v1/orders/..%2Fadmin",
    "/v1/orders/%5cadmin",
    "/v1/orders/..%5Cadmin",
    "/v1/orders/..\\admin",
    "/v1\\orders\\42",
    "/v1//orders/42",
    "//v1/orders/42",
    "/v1/orders//",
    "/v1/orders///42",
    "/v1/orders/%252e%252e/admin",
    "/v1/orders/%252fadmin",
    "/v1/orders/%25%32%65%25%32%65/admin",
    "/v1/orders/%252%65%252%65/admin",
    "/v1/orders/%25%32f..%25%32fadmin",
    "/v1/orders/%c0%ae%c0%ae/admin",
    "/v1/orders/%c0%af..%c0%afadmin",
    "/v1/orders/%e0%80%ae%e0%80%ae/admin",
    "/v1/orders/%f0%80%80%ae/admin",
    "/v1/orders/a%00b",
    "/v1/orders/a%0d%0aX:%20y",
    "/v1/orders/a%7f",
    "/v1/orders/%zz",
    "/v1/orders/%",
    "/v1/orders/%4",
    "/v1/orders/%u002e",
    "/v1/orders/{42}",
    "/v1/orders/a|b",
    "/v1/orders/a^b",
];

// covers: C5.60 (F-IH03, F-IH04, F-IH05, F-IH06)
#[test]
fn item_60_a_path_that_two_servers_read_in_two_ways_is_refused_before_any_decision() {
    let stand = Stand::start();
    let cases: Vec<_> = AMBIGUOUS.iter().map(|path| get(path, "")).collect();
    stand.declines(400, &cases);
    let lines = stand.node.audited(cases.len(), |line| is(line, &[("kind", "request"), ("reason", "bad_path")]));
    // Nothing was decided, and nothing of the path is in the log as if it had been one.
    assert!(lines.iter().all(|line| line["input"].is_null() && line["path"] == "unparsed"), "{lines:#?}");
}

/// The rules with something more in those for requests to service-a.
fn ordered(more: &str) -> Stand {
    let rules = RULES.replace("paths: ['/v1/orders/**']}", &format!("paths: ['/v1/orders/**']{more}"));
    Stand::with(Plan { rules, ..Plan::default() })
}

// covers: C5.60e (F-IH05)
#[test]
fn item_60_an_escaped_slash_is_refused_where_no_rule_of_the_port_accepts_it_also_in_audit_mode() {
    for (more, what) in [("}", "enforced"), ("}\n    audit: true", "in audit mode")] {
        let stand = ordered(more);
        let paths = ["/v1/orders/g%2fp", "/v1/orders%2f42", "/v1%2Forders/42"];
        stand.declines(400, &paths.map(|path| get(path, "")));
        let refused = [("kind", "request"), ("verdict", "deny"), ("reason", "escaped_slash")];
        let lines = stand.node.audited(paths.len(), |line| is(line, &refused));
        // It was decided, on this pair and in the one spelling.
        let path = |line: &serde_json::Value| line["input"]["path"].as_str().is_some_and(|path| path.contains("%2F"));
        assert!(lines.iter().all(|line| path(line) && line["input"]["peer"] == line["peer"]), "{what}: {lines:#?}");
        let answer = stand.caller().ask(get(paths[0], ""));
        assert!(answer.text().contains("encoded_slash"), "{answer:?}");
    }
}

// covers: C5.60e (F-IH05)
#[test]
fn item_60_where_a_rule_accepts_it_an_escaped_slash_is_sent_as_it_was_decided() {
    let stand = ordered(", encoded_slash: true}");
    for (sent, got) in [
        ("/v1/orders/g%2fs%2Fp?x=%2f", "/v1/orders/g%2Fs%2Fp?x=%2f"),
        ("/v1/orders/g%2Fp/", "/v1/orders/g%2Fp/"),
        ("/v1/orders/42", "/v1/orders/42"),
    ] {
        stand.serves(get(sent, ""), &[200], &[Wanted::line(&format!("GET {got}"))]);
        let path = got.split('?').next().unwrap_or_default();
        let lines = stand.node.audited(1, |line| is(line, &[("kind", "request"), ("path", path)]));
        assert_eq!(lines[0]["input"]["path"], path, "{lines:#?}");
    }
    // A slash it is not, so what it is in front of is not below the prefix; and what is ambiguous stays refused.
    stand.declines(403, &[get("/v1/orders%2F42", ""), get("/v1%2Forders/42", "")]);
    stand.declines(400, &AMBIGUOUS.iter().map(|path| get(path, "")).collect::<Vec<_>>());
}

// covers: C5.60b (F-IH07)
#[test]
fn item_60_a_target_with_a_fragment_is_refused() {
    let stand = Stand::start();
    let targets =
        ["/v1/orders/42#", "/v1/orders#/../admin", "/v1/orders/42?a#b", "http://service-a.t.nova/v1/orders/42#x"];
    stand.refuses(400, &targets.map(|target| get(target, "")));
}

// covers: C5.60c
#[test]
fn item_60_a_path_is_decided_in_exactly_the_spelling_that_is_sent() {
    let stand = Stand::start();
    for (sent, got) in [
        ("/v1/%6frders/42", "/v1/orders/42"),
        ("/v1/orders/caf%c3%a9", "/v1/orders/caf%C3%A9"),
        ("/v1/orders/a;v=1", "/v1/orders/a;v=1"),
        ("/v1/orders/42?a=/../b&c=%2e%2f", "/v1/orders/42?a=/../b&c=%2e%2f"),
        ("/v1/orders/?", "/v1/orders/?"),
        ("/v1/orders/", "/v1/orders/"),
        ("/v1/orders/...", "/v1/orders/..."),
        ("/v1/orders/a%25", "/v1/orders/a%25"),
        ("/v1/orders/~a", "/v1/orders/~a"),
    ] {
        stand.serves(get(sent, ""), &[200], &[Wanted::line(&format!("GET {got}"))]);
        let path = got.split('?').next().unwrap_or_default();
        let lines = stand.node.audited(1, |line| is(line, &[("kind", "request"), ("path", path)]));
        assert_eq!(lines[0]["input"]["path"], path, "{lines:#?}");
    }
}

// covers: C5.61
#[test]
fn item_61_a_header_that_asks_for_another_method_is_refused_in_every_spelling() {
    let stand = Stand::start();
    let names = [
        "X-HTTP-Method-Override",
        "x-http-method-override",
        "X_HTTP_Method_Override",
        "X-HTTP_Method-Override",
        "X-HTTP-Method",
        "X-Method-Override",
        "X.HTTP.Method.Override",
    ];
    stand.declines(400, &names.map(|name| get("/v1/orders/42", &format!("{name}: DELETE\r\n"))));
}

// covers: C5.61b
#[test]
fn item_61_a_parameter_that_asks_for_another_method_is_refused_in_every_spelling() {
    let stand = Stand::start();
    let queries = [
        "_method=DELETE",
        "a=b&_method=DELETE",
        "a=b;_method=DELETE",
        "_METHOD=delete",
        "%5fmethod=DELETE",
        "_%6dethod=DELETE",
        "_method%3dx=1&_method",
        "_HttpMethod=PATCH",
        "x-http-method-override=PATCH",
        "$httpMethod=DELETE",
    ];
    stand.declines(400, &queries.map(|query| get(&format!("/v1/orders/42?{query}"), "")));
    let target = "/v1/orders/42?method=DELETE&my_method=x&a=_method";
    stand.serves(get(target, ""), &[200], &[Wanted::line(&format!("GET {target}"))]);
}

// covers: C4c
// covers: C5.61c (T18)
#[test]
fn item_61_trace_and_track_are_refused_even_by_a_rule_for_every_method() {
    let rules = RULES.replace("methods: [GET, HEAD, POST, PUT], paths: ['/v1/orders/**']", "paths: ['/v1/orders/**']");
    let stand = Stand::with(Plan { rules, ..Plan::default() });
    let ask = |method: &str| format!("{method} /v1/orders/42 HTTP/1.1\r\n{HOST}Authorization: Bearer SECRET\r\n\r\n");
    for method in ["TRACE", "TRACK", "trace", "Track", "connect", "Connect"] {
        let mut tls = stand.caller();
        let answer = tls.ask(ask(method));
        assert_eq!(answer.status, 400, "{method}: {answer:?}");
        assert!(!format!("{}{}", answer.head, answer.text()).contains("SECRET"), "{answer:?}");
        // What a guest's proxy takes is of no use to whoever calls a service.
        assert!(
            answer.text().contains("call the service with another one") && !answer.text().contains("proxy"),
            "{answer:?}"
        );
    }
    stand.app_got(&[]);
    // The rule is for every method indeed.
    let wanted = Wanted::line("PURGE /v1/orders/42").with("authorization: Bearer SECRET");
    stand.serves(ask("PURGE"), &[200], &[wanted]);
}

// covers: C5.62
#[test]
fn item_62_a_redirect_is_relayed_and_where_it_leads_is_judged_when_it_is_asked_for() {
    let stand = Stand::start();
    stand.node.guest(A).serve(|mut link, app| {
        while let Ok(request) = read_request(&mut link) {
            app.saw(&request);
            link.send("HTTP/1.1 302 Found\r\nLocation: /v1/admin\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let mut tls = stand.caller();
    let answer = tls.ask(get("/v1/orders/42", ""));
    assert_eq!((answer.status, answer.header("location").as_deref()), (302, Some("/v1/admin")));
    assert_eq!(tls.ask(get("/v1/admin", "")).status, 403);
    stand.app_got(&[Wanted::order()]);
}
