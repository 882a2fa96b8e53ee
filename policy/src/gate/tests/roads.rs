//! Other roads to the same end, each once found open or likely to be tried, and changes that are none.

use super::*;

fn x_out(host: &str, more: &str) -> String {
    let id: String = host.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("{{id: r-{id}, tenant: t, from: {{workload: x}}, to: {{external: '{host}', port: 443}}, {more}}}")
}

// covers: B9a
#[test]
fn the_same_rules_again_publish_in_any_order_and_under_other_ids() {
    assert!(kinds(&same(), &same()).is_empty());
    assert!(kinds(&same(), &edit("id: x-out,", "id: x-outside,")).is_empty(), "a new name for the same grant");
    let line = BASE.lines().find(|line| line.contains("x-to-a")).expect("there").trim_start_matches("  - ");
    assert!(kinds(&same(), &same().without("x-to-a").more(line)).is_empty(), "the order of alike rules");
}

// covers: B9a
#[test]
fn every_method_that_writes_is_held() {
    for method in ["POST", "PUT", "PATCH", "DELETE", "\"*\""] {
        let next =
            edit("methods: [GET], paths: [/v1/orders]", &format!("methods: [GET, {method}], paths: [/v1/orders]"));
        assert_eq!(kinds(&same(), &next), ["new_write_method"], "{method}");
    }
}

// covers: B9b
#[test]
fn a_relabelled_workload_that_a_selector_reaches_is_a_new_peer_too() {
    let next = place("labels: {app: y}", "labels: {app: raw}");
    assert_eq!(kinds(&same(), &next), ["new_tcp_peer", "labels_changed"]);
}

// covers: B9a
#[test]
fn no_http_block_is_every_path() {
    let next = more("{id: new, tenant: t, from: {workload: y}, to: {workload: service-a, port: https}}");
    assert_eq!(kinds(&same(), &next), ["wildcard_path"]);
}

// covers: B9b (attack T9)
#[test]
fn a_condition_that_goes_is_held_beside_a_rule_that_never_had_one() {
    let open = |more: &str| {
        format!("{{id: open, tenant: t, from: {{workload: x{more}}}, to: {{workload: service-a, port: https}}}}")
    };
    let narrow = |from: &str| more(&open(from));
    // x-to-a has no condition, but it grants no bytes.
    assert_eq!(kinds(&narrow(", cidr: 10.64.3.0/24"), &narrow("")), ["wider_range"]);
    let posts = |from: &str| {
        let rule = open(from);
        more(&format!("{}, http: {{methods: [POST], paths: [/a]}}}}", rule.strip_suffix('}').expect("a map")))
    };
    assert_eq!(kinds(&posts(", cidr: 10.64.3.0/24"), &posts("")), ["wider_range"]);
}

// covers: B9b (attacks T4, T9)
#[test]
fn an_audit_pair_that_loses_its_credential_is_held_under_a_new_name_too() {
    let rule = |id: &str, more: &str| {
        same().without("x-out").more(&format!(
            "{{id: {id}, tenant: t, from: {{workload: x}}, to: {{external: api.example.com, port: 443}}, http: {{methods: [GET], paths: [/status]}}, audit: true{more}}}"
        ))
    };
    for id in ["x-out", "renamed"] {
        let found = kinds(&rule("x-out", ", credential: stripe-live"), &rule(id, ""));
        assert_eq!(found, ["audit_on", "credential_changed"], "{id}");
    }
}

// covers: B9b, B10 (attacks T4, T9)
#[test]
fn an_unused_enforced_wildcard_that_goes_may_not_open_an_audit_pair_below_it() {
    let exact = x_out("www.example.org", "http: {methods: [GET], paths: [/a]}, audit: true");
    let wild = x_out("*.example.org", "http: {methods: [GET], paths: [/b]}");
    let (both, one) = (more(&exact).more(&wild), more(&exact));
    assert_eq!(named(&risks(&both, &one, Some(""))), ["audit_on"]);
    assert_eq!(named(&risks(&one, &both, Some(""))), ["wildcard_host", "audit_off"]);
    // The other way round: the enforced rule is the exact one.
    let exact = x_out("www.example.org", "http: {methods: [GET], paths: [/a]}");
    let wild = x_out("*.example.org", "http: {methods: [GET], paths: [/b]}, audit: true");
    assert_eq!(named(&risks(&more(&exact).more(&wild), &more(&wild), Some(""))), ["audit_on"]);
}

// covers: B9b (attack T9)
#[test]
fn rules_that_swap_places_are_held_under_new_names_too() {
    let charge = x_out("api.example.com", "http: {methods: [GET], paths: [/status]}, credential: stripe-live");
    let live = more(&charge);
    let next = same().first(&charge.replace("id: r-", "id: q-")).edit("id: x-out,", "id: outside,");
    assert_eq!(kinds(&live, &next), ["rule_order"]);
}

// covers: B9b (attack T9)
#[test]
fn credentials_are_compared_under_overlapping_host_patterns() {
    let charge = x_out("api.example.com", "http: {methods: [GET], paths: [/v1/x]}, credential: stripe-live");
    let wild = |paths: &str| x_out("*.example.com", &format!("http: {{methods: [GET], paths: [{paths}]}}"));
    let rules = |paths: &str| same().first(&charge).first(&wild(paths));
    // A wildcard that stands first takes the request, and with it the credential.
    assert_eq!(kinds(&rules("/status"), &rules("/status, /v1/x")), ["credential_changed"]);
    assert_eq!(kinds(&rules("/status, /v1/x"), &rules("/status")), ["credential_changed"]);
    assert!(kinds(&rules("/status"), &rules("/status, /other")).is_empty());
    // A host below a wildcard that gets one.
    let below = |more: &str| {
        same()
            .first(&wild("/status"))
            .first(&x_out("api.example.com", &format!("http: {{methods: [GET], paths: [/v1/x]}}{more}")))
    };
    assert_eq!(kinds(&same().first(&wild("/status")), &below(", credential: stripe-live")), ["credential_changed"]);
    assert!(kinds(&same().first(&wild("/status")), &below("")).is_empty());
}

// covers: B9b (attack T9)
#[test]
fn tls_ca_route_and_private_ranges_are_compared_under_overlapping_host_patterns() {
    let wild = x_out("*.example.org", "http: {methods: [GET], paths: [/a]}");
    let exact = |to: &str, more: &str| {
        format!(
            "{{id: new, tenant: t, from: {{workload: x}}, to: {{external: www.example.org, port: 443{to}}}, http: {{methods: [GET], paths: [/b]}}{more}}}"
        )
    };
    for (to, after, want) in [
        ("", ", tls: none", "tls_changed"),
        (", ca: partner-ca", "", "ca_changed"),
        (", via: corp", "", "route_changed"),
        (", addresses: [10.1.0.0/16]", "", "wider_range"),
    ] {
        assert_eq!(kinds(&more(&wild), &more(&wild).first(&exact(to, after))), [want], "{to}{after}");
    }
    assert!(kinds(&more(&wild), &more(&wild).first(&exact("", ""))).is_empty());
}

// covers: B9b, B1i
#[test]
fn an_escaped_slash_is_held_wherever_no_rule_of_the_pair_accepted_it_for_such_paths() {
    let wild = |paths: &str| x_out("*.example.org", &format!("http: {{methods: [GET], paths: [{paths}]}}"));
    let exact = |paths: &str| x_out("www.example.org", &format!("http: {{methods: [GET], paths: [{paths}]}}"));
    let slash = |rule: String| rule.replace("]}}", "], encoded_slash: true}}");
    let added = ["encoded_slash_added"];
    // Below a wildcard host that accepts none, and above an exact one that does.
    assert_eq!(
        kinds(&more(&wild("'/**'")), &more(&wild("'/**'")).more(&slash(exact("/a%2Fb").replace("www", "w2")))),
        added
    );
    assert_eq!(kinds(&more(&wild("'/**'")), &more(&wild("'/**'")).first(&slash(exact("'/**'")))), added);
    let below = more(&wild("/a")).more(&slash(exact("/b")));
    assert_eq!(kinds(&below, &more(&slash(wild("/a"))).more(&slash(exact("/b")))), added);
    // Under a new name, and beside a rule that grants bytes, which never granted such a request.
    assert_eq!(kinds(&more(&exact("/a")), &more(&slash(exact("/a")).replace("id: r-", "id: q-"))), added);
    let to_a = |more: &str| {
        format!("{{id: new, tenant: t, from: {{workload: x}}, to: {{workload: service-a, port: https}}{more}}}")
    };
    let bytes = || more(&to_a("").replace("id: new", "id: bytes"));
    let open = to_a(", http: {methods: [GET], paths: [/b%2Fc], encoded_slash: true}");
    assert_eq!(kinds(&bytes(), &bytes().more(&open)), added);
    // A rule that accepts some such paths does not stand for others.
    let some = more(&exact("'/a/**'")).more(&slash(exact("'/b/**'")).replace("id: r-", "id: q-"));
    let all = more(&slash(exact("'/a/**'"))).more(&slash(exact("'/b/**'")).replace("id: r-", "id: q-"));
    assert_eq!(kinds(&some, &all), added);
    // What is there already, in a wider rule or a wider pair, is nothing new; and less of it neither.
    let wide = more(&slash(wild("'/**'")));
    assert!(kinds(&wide, &more(&slash(wild("'/**'"))).more(&slash(exact("/a%2Fb")))).is_empty());
    assert!(kinds(&all, &some).is_empty());
    assert!(kinds(&wide, &more(&wild("'/**'"))).is_empty());
}

// covers: B9b, B1i
#[test]
fn a_rule_that_takes_over_paths_with_an_escaped_slash_alone_changes_what_they_carry() {
    let charge = |more: &str| {
        x_out("api.example.com", &format!("http: {{methods: [GET], paths: ['/s/*']{more}}}, credential: stripe-live"))
    };
    let plain = |more: &str| {
        let rule = x_out("api.example.com", &format!("http: {{methods: [GET], paths: ['/s/*']{more}}}"));
        rule.replace("id: r-", "id: first-")
    };
    let slash = ", encoded_slash: true";
    let base = |first: &str, second: &str| same().without("x-out").more(&plain(first)).more(&charge(second));
    // The first rule takes all but such paths; then it takes them too.
    assert_eq!(kinds(&base("", slash), &base(slash, slash)), ["credential_changed"]);
    assert!(kinds(&base("", slash), &base("", "")).is_empty());
}

// covers: B9b
#[test]
fn a_private_range_that_moves_to_another_rule_of_the_host_is_held() {
    let rule = |id: &str, path: &str, more: &str| {
        format!(
            "{{id: {id}, tenant: t, from: {{workload: x}}, to: {{external: www.example.org, port: 443{more}}}, http: {{methods: [GET], paths: [{path}]}}}}"
        )
    };
    let range = ", addresses: [10.1.0.0/16]";
    let live = more(&rule("one", "/a", range)).more(&rule("two", "/b", ""));
    let next = more(&rule("one", "/a", "")).more(&rule("two", "/b", range));
    assert_eq!(kinds(&live, &next), ["wider_range"]);
}

// covers: B9b
#[test]
fn a_prefix_that_ends_within_a_segment_is_compared_with_nothing() {
    let live = raw(|nova| nova["egress"]["x"]["exact"]["api.example.com:443"][0]["segs_prefix"] = json!([["*", "b"]]));
    let next = raw(|nova| {
        nova["egress"]["x"]["exact"]["api.example.com:443"][0]["segs_prefix"] = json!([["*", "b"]]);
        nova["egress"]["x"]["exact"]["api.example.com:443"][0]["prefix"] = json!(["/a/b"]);
    });
    assert_eq!(kinds(&live, &next), ["unknown_difference"]);
}

// covers: B9a
#[test]
fn what_is_in_use_is_told_by_pairs_and_by_calls_that_were_allowed() {
    let next = same().without("x-to-raw");
    assert_eq!(kinds(&same(), &next), ["rule_removed"], "without a list everything counts as used");
    let input =
        r#"{"direction":"egress","phase":"opaque","source":"x","dest_host":"service-a.t.nova","dest_port":5432}"#;
    for (in_use, held) in [
        (String::new(), false),
        ("x -> service-a:raw".to_owned(), true),
        ("x -> service-a:https".to_owned(), false),
        (format!(r#"{{"verdict":"allow","rule":"x-to-raw","input":{input}}}"#), true),
        (format!(r#"{{"verdict":"deny","rule":"","input":{input}}}"#), false),
    ] {
        let found = risks(&same(), &next, Some(&in_use));
        assert_eq!(!found.is_empty(), held, "{in_use}: {found:?}");
        assert!(found.iter().all(|risk| risk.kind == Kind::RuleRemoved), "{found:?}");
    }
    assert!(InUse::parse("nonsense").is_err());
}

// covers: B9b
#[test]
fn members_that_no_build_knows_never_pass() {
    let mut next = base();
    next["surprise"] = json!({"a": 1});
    let refused = compare(&opened(&base(), REGO, 5), &opened(&next, REGO, 6), None);
    assert!(matches!(refused, Err(GateError::Load(_))), "no node would load it");
    // What a newer build of the gate's neighbours would load: the comparison itself must see it.
    for (at, value) in [
        ("/egress/x/exact/api.example.com:443/0/surprise", json!(true)),
        ("/surprise", json!(1)),
        ("/workloads/x/surprise", json!(1)),
        ("/targets/x/x-out/0/surprise", json!(1)),
    ] {
        let (mut changed, parts): (Value, Vec<&str>) = (base(), at.rsplitn(2, '/').collect());
        changed.pointer_mut(parts[1]).expect("there")[parts[0]] = value;
        let read = |data: &Value| {
            let text = json!({"nova": data}).to_string();
            flat::flatten(&crate::bundle::canonical::Json::parse(text.as_bytes()).expect("JSON"))
        };
        let (before, after) = (read(&base()), read(&changed));
        let mut found = risk::Found::default();
        differences(&before, &after, None, &mut found);
        let kinds: Vec<_> = found.into_risks().into_iter().map(|risk| risk.kind).collect();
        assert_eq!(kinds, [Kind::UnknownDifference], "{at}");
    }
}

// covers: B9a
#[test]
fn bundles_of_two_nodes_and_older_ones_are_not_compared() {
    let mut other = base();
    other["node"] = json!("node-2");
    let compared = compare(&opened(&base(), REGO, 5), &opened(&other, REGO, 6), None);
    assert!(matches!(compared, Err(GateError::OtherNode { .. })));
    let compared = compare(&opened(&base(), REGO, 6), &opened(&base(), REGO, 6), None);
    assert!(matches!(compared, Err(GateError::OlderSerial { .. })));
}
