//! Every form of a rule, from its text to the engine's answer and the explanation, refusals first.

use std::sync::Arc;

use nova_proto::ids::SpiffeId;

use crate::data::{CredentialForm, EgressTarget};
use crate::decision::{Decision, DecisionReason};
use crate::engine::{Evaluator, Policy};
use crate::explain::explain;
use crate::host::Host;
use crate::input::{Input, Peer, Token};
use crate::path::CanonicalPath;
use crate::testing::{data, policy};

const WORKLOADS: &str = "
trust_domain: n
endpoints:
- {workload_id: x, tenant: t, pod_uid: px, workload_ip: 10.0.0.1, node: n1, labels: {app: x}}
- {workload_id: a, tenant: t, pod_uid: pa, workload_ip: 10.0.0.2, node: n1, ports: [{name: web, port: 443, mode: mtls, protocol: http}, {name: rpc, port: 50051, mode: mtls, protocol: grpc}, {name: lb, port: 8080, mode: tls, protocol: http}]}
";
const TOP: &str = "external_cas: [{name: p, pem_file: p}, {name: q, pem_file: q}]
credentials: [{name: k, form: header, header: x-api-key, hosts: [api.example.com], owner: security}]
rules:
";

fn load(rules: &[&str]) -> Policy {
    let text: String =
        rules.iter().enumerate().map(|(index, rule)| format!("- {{id: r{index}, tenant: t, {rule}}}\n")).collect();
    let policy = policy(&format!("{TOP}{text}"), WORKLOADS, "n1");
    policy.self_test().expect("the engine says what the compiler says");
    policy
}

/// The decision, which engine and explanation agree on.
fn ask(policy: &Policy, input: &Input) -> Decision {
    let decision = Evaluator::new().decide(policy, input);
    let text = serde_json::to_string(input).expect("serialises");
    assert_eq!(serde_json::from_str::<Input>(&text).expect("reads back"), *input, "{text}");
    let explained = explain(policy, input);
    assert_eq!(explained.decision, decision, "{explained}");
    decision
}

fn failed(policy: &Policy, input: &Input) -> Vec<&'static str> {
    let explained = explain(policy, input);
    explained.rules[0].tests.iter().filter(|test| !test.ok).map(|test| test.test).collect()
}

fn path(text: &str) -> CanonicalPath {
    CanonicalPath::parse(text.as_bytes()).expect(text)
}

fn named(ca: &str, dns: &[&str], cn: Option<&str>) -> Peer {
    let dns = dns.iter().map(|name| Host::parse(name).expect("a name")).collect();
    Peer::Named { ca: ca.into(), id: None, dns, cn: cn.map(Into::into) }
}

fn from(peer: &Peer, address: [u8; 4]) -> Input {
    Input::ingress_connect("a", "web", peer, address.into())
}

// covers: B1b
#[test]
fn a_certificate_is_known_by_dns_or_common_name_only_under_its_own_ca() {
    let policy = load(&[
        "from: {external_ca: p, dns: one.partner.example}, to: {workload: a, port: web}",
        "from: {external_ca: p, dns: '*.many.example'}, to: {workload: a, port: web}",
        "from: {external_ca: p, cn: 'Billing Robot'}, to: {workload: a, port: web}",
    ]);
    for (peer, want) in [
        (named("q", &["one.partner.example"], None), None),
        (named("p", &["two.partner.example"], None), None),
        (named("p", &["x.one.partner.example"], None), None),
        (named("p", &["many.example"], None), None),
        (named("p", &["evilmany.example"], None), None),
        (named("p", &[], Some("one.partner.example")), None),
        (named("p", &[], Some("billing robot")), None),
        (named("p", &[], Some("Billing Robot 2")), None),
        (named("q", &["a.many.example"], Some("Billing Robot")), None),
        (Peer::Own(SpiffeId::new("spiffe://n/t/t/w/x").expect("valid")), None),
        (named("p", &["other.example", "one.partner.example"], None), Some("r0")),
        (named("p", &["a.b.many.example"], None), Some("r1")),
        (named("p", &[], Some("Billing Robot")), Some("r2")),
    ] {
        let got = ask(&policy, &from(&peer, [10, 9, 9, 9]).opaque());
        assert_eq!(got.allow.then_some(&*got.rule_id), want, "{peer:?}");
    }
    assert_eq!(failed(&policy, &from(&named("p", &["two.example"], None), [10, 0, 0, 9])), ["peer_dns"]);
}

// covers: B1b (K34)
#[test]
fn a_cidr_on_an_mtls_port_only_narrows_a_peer() {
    let policy = load(&[
        "from: {workload: x, cidr: 10.0.0.0/24}, to: {workload: a, port: web}",
        "from: {external_ca: p, uri: 'spiffe://partner/*', cidr: 10.7.0.0/16}, to: {workload: a, port: web}",
    ]);
    let own = Peer::Own(SpiffeId::new("spiffe://n/t/t/w/x").expect("valid"));
    let partner = Peer::External { ca: "p".into(), id: SpiffeId::new("spiffe://partner/z").expect("valid") };
    for (peer, address, allow) in [
        (&own, [10, 0, 1, 1], false),
        (&partner, [10, 8, 0, 1], false),
        (&partner, [10, 0, 0, 1], false),
        (&Peer::Anonymous, [10, 0, 0, 1], false),
        (&own, [10, 0, 0, 1], true),
        (&partner, [10, 7, 0, 1], true),
    ] {
        assert_eq!(ask(&policy, &from(peer, address).opaque()).allow, allow, "{peer:?} {address:?}");
    }
    assert_eq!(failed(&policy, &from(&own, [10, 0, 1, 1])), ["source_address"]);
}

fn token(issuer: &str, subject: Option<&str>, roles: &[&str]) -> Arc<Token> {
    let claims = [("role".into(), roles.iter().map(|role| (*role).into()).collect())];
    Arc::new(Token {
        issuer: issuer.into(),
        subject: subject.map(Into::into),
        claims: claims.into_iter().filter(|_| !roles.is_empty()).collect(),
    })
}

// covers: B1b (K33)
#[test]
fn a_token_and_a_cidr_in_one_rule_are_both_asked_for() {
    let policy = load(&[
        "from: {cidr: 10.0.0.0/24, jwt: {issuer: i, subject: s, claims: {role: [admin, ops]}}}, to: {workload: a, port: lb}, http: {methods: [GET]}",
    ]);
    let at = |address: [u8; 4]| Input::ingress_connect("a", "lb", &Peer::Anonymous, address.into());
    let get = |address, token| at(address).request("GET", &path("/")).with_token(token);
    let (inside, outside) = ([10, 0, 0, 1], [10, 0, 1, 1]);
    for (input, want) in [
        (get(outside, token("i", Some("s"), &["admin"])), DecisionReason::NoGrant),
        (get(inside, token("j", Some("s"), &["admin"])), DecisionReason::NoGrant),
        (get(inside, token("i", Some("z"), &["admin"])), DecisionReason::NoGrant),
        (get(inside, token("i", None, &["admin"])), DecisionReason::NoGrant),
        (get(inside, token("i", Some("s"), &["guest"])), DecisionReason::NoGrant),
        (get(inside, token("i", Some("s"), &[])), DecisionReason::NoGrant),
        (at(inside).request("GET", &path("/")), DecisionReason::NoGrant),
        (at(inside).opaque(), DecisionReason::NoGrant),
        (at(outside), DecisionReason::NoGrant),
        (
            at(inside).request("POST", &path("/")).with_token(token("i", Some("s"), &["ops"])),
            DecisionReason::L7Mismatch,
        ),
        (at(inside), DecisionReason::Connect),
        (get(inside, token("i", Some("s"), &["guest", "ops"])), DecisionReason::Rule),
    ] {
        assert_eq!(ask(&policy, &input).reason, want, "{input:?}");
    }
    assert_eq!(failed(&policy, &get(outside, token("i", Some("z"), &[]))), ["source_address", "subject", "claims"]);
    assert_eq!(failed(&policy, &at(inside).request("GET", &path("/"))), ["issuer", "subject", "claims"]);
}

// covers: B1c
#[test]
fn leave_to_ping_is_no_leave_to_connect() {
    let policy = load(&[
        "from: {workload: x}, to: {cidr: 10.64.0.0/16, protocol: icmp}, icmp: {types: [echo], rate_per_s: 5}",
        "from: {workload: x}, to: {cidr: 10.65.0.0/16, port: 7}",
    ]);
    let ping = |address: [u8; 4], kind: &str| Input::egress_icmp("x", address.into(), kind);
    let host = |text: &str| Host::parse(text).expect(text);
    for (input, allow) in [
        (ping([10, 65, 0, 1], "echo"), false),
        (ping([10, 64, 0, 1], "redirect"), false),
        (Input::egress_opaque("x", &host("10.64.0.1"), 7), false),
        (Input::egress_connect("x", &host("10.64.0.1"), 7), false),
        (ping([10, 64, 0, 1], "echo"), true),
        (ping([10, 64, 0, 1], "echo").connect(), true),
        (Input::egress_opaque("x", &host("10.65.0.1"), 7), true),
    ] {
        assert_eq!(ask(&policy, &input).allow, allow, "{input:?}");
    }
    assert!(policy.egress_target("x", "r0", &host("10.64.0.1"), 7).is_none(), "it leads nowhere");
    assert_eq!(policy.data().egress["x"].icmp[0].rules[0].icmp.as_ref().map(|icmp| icmp.rate_per_s), Some(5));
}

// covers: B1c
#[test]
fn grpc_is_post_to_the_paths_of_its_methods() {
    let policy = load(&[
        "from: {workload: x}, to: {workload: a, port: rpc}, grpc: {services: [o.v1.Orders], methods: [Get, List]}",
        "from: {workload: x}, to: {workload: a, port: rpc}, grpc: {services: [o.v1.Admin]}",
    ]);
    let call = |method: &str, target: &str| {
        let host = Host::parse("a.t.nova").expect("a name");
        ask(&policy, &Input::egress_request("x", &host, 50051, method, &path(target))).allow
    };
    for target in ["/o.v1.Orders/Get", "/o.v1.Orders/List", "/o.v1.Admin/Any"] {
        assert!(call("POST", target) && !call("GET", target), "{target}");
    }
    for target in ["/o.v1.Orders/Delete", "/o.v1.Orders", "/o.v1.OrdersX/Get", "/O.v1.Orders/Get"] {
        assert!(!call("POST", target), "{target}");
    }
}

// covers: B1i
#[test]
fn a_path_with_an_escaped_slash_is_for_rules_that_say_so() {
    let policy = load(&[
        "from: {workload: x}, to: {external: closed.test, port: 443}, http: {paths: ['/**', '/*']}",
        "from: {workload: x}, to: {external: bytes.test, port: 443}",
        "from: {workload: x}, to: {external: open.test, port: 443}, http: {methods: [GET], paths: ['/*', '/g%2Fp/**'], encoded_slash: true}",
    ]);
    let get = |host: &str, target: &str| {
        Input::egress_request("x", &Host::parse(host).expect(host), 443, "GET", &path(target))
    };
    for (input, want) in [
        (get("nobody.test", "/@s%2fp"), DecisionReason::NoGrant),
        (get("closed.test", "/@s%2fp"), DecisionReason::EscapedSlash),
        (get("bytes.test", "/@s%2fp"), DecisionReason::EscapedSlash),
        (get("open.test", "/@s%2fp/q"), DecisionReason::L7Mismatch),
        (get("open.test", "/g/p/q"), DecisionReason::L7Mismatch),
        (get("open.test", "/@s%2fp"), DecisionReason::Rule),
        (get("open.test", "/g%2fp/q%2Fr/s"), DecisionReason::Rule),
        (get("open.test", "/p"), DecisionReason::Rule),
    ] {
        assert_eq!(ask(&policy, &input).reason, want, "{input:?}");
    }
    assert_eq!(failed(&policy, &get("closed.test", "/@s%2fp")), ["encoded_slash"]);
    assert_eq!(failed(&policy, &get("bytes.test", "/@s%2fp")), ["encoded_slash"]);
    let hint = explain(&policy, &get("closed.test", "/@s%2fp")).hint;
    assert!(hint.contains("`encoded_slash: true`"), "{hint}");
}

// covers: B1i
#[test]
fn a_path_that_can_never_match_for_its_slash_is_refused_with_the_remedy() {
    let rule = |http: &str| {
        let to = "from: {workload: x}, to: {external: a.example.com, port: 443}";
        data(&format!("{TOP}- {{id: r, tenant: t, {to}, http: {{{http}}}}}\n"), WORKLOADS, "n1")
    };
    for paths in ["/@s%2Fp", "/g%2Fp/**", "/*/a%2Fb", "/*/a%2Fb/**"] {
        for slash in ["", ", encoded_slash: false"] {
            let got = rule(&format!("paths: ['{paths}']{slash}")).expect_err(paths).to_string();
            assert!(
                got.contains("rule r: path: no request with %2F") && got.contains("add `encoded_slash: true`"),
                "{got}"
            );
        }
        assert!(rule(&format!("encoded_slash: true, paths: ['{paths}']")).is_ok(), "{paths}");
    }
    let got = rule("paths: [/@s%2Fp], encoded_slash: maybe").expect_err("no flag").to_string();
    assert!(got.contains("encoded_slash is neither true nor false") && !got.contains("no request"), "{got}");
    let written = |http: &str| serde_json::to_string(&rule(http).expect(http)).expect("JSON");
    // Nodes of an earlier version go on reading bundles in which no rule says so.
    assert!(
        !written("encoded_slash: false").contains("encoded_slash")
            && written("encoded_slash: true").contains("encoded_slash")
    );
}

// covers: B1c
#[test]
fn what_this_supervisor_cannot_do_grants_nothing() {
    let policy = load(&[
        "from: {workload: x}, to: {external: via.example.com, port: 443, via: corp}, http: {methods: [GET]}, audit: true",
        "from: {workload: x}, to: {external: ws.example.com, port: 443}, http: {methods: [GET]}, upgrade: [websocket]",
        "from: {workload: x}, to: {external: tls.example.com, port: 443}, http: {methods: [GET]}, tls: intercept",
        "from: {workload: x}, to: {external: audit.example.com, port: 443}, http: {methods: [POST]}, audit: true",
    ]);
    let connect = |name: &str| Input::egress_connect("x", &Host::parse(name).expect(name), 443);
    let get = |name: &str| connect(name).request("GET", &path("/"));
    for (input, want) in [
        (connect("via.example.com"), DecisionReason::NoGrant),
        (get("via.example.com"), DecisionReason::L7Mismatch),
        (get("ws.example.com").with_upgrade("h2c"), DecisionReason::L7Mismatch),
        (get("tls.example.com").with_upgrade("websocket"), DecisionReason::L7Mismatch),
        (get("audit.example.com").with_upgrade("websocket"), DecisionReason::L7Mismatch),
        (connect("tls.example.com").opaque(), DecisionReason::NeedsOpaqueGrant),
        (get("audit.example.com"), DecisionReason::WouldDeny),
        (get("via.example.com").with_abilities(["via".into()]), DecisionReason::Rule),
        (get("ws.example.com"), DecisionReason::Rule),
        (get("ws.example.com").with_upgrade("websocket"), DecisionReason::Rule),
        (get("tls.example.com"), DecisionReason::Rule),
    ] {
        assert_eq!(ask(&policy, &input).reason, want, "{input:?}");
    }
    assert_eq!(failed(&policy, &get("via.example.com")), ["supported"]);
    let host = Host::parse("tls.example.com").expect("a name");
    let Some(EgressTarget::External { tls, intercept, .. }) = policy.egress_target("x", "r2", &host, 443) else {
        unreachable!("the rule has a target")
    };
    assert_eq!((tls, intercept), (&crate::UpstreamTls::Originate, &true), "the host gets TLS in any case");
}

// covers: B1d (attack T36)
#[test]
fn a_credential_goes_only_where_its_owner_says() {
    let rule = |host: &str| {
        format!(
            "{TOP}- {{id: r, tenant: t, from: {{workload: x}}, to: {{external: {host}, port: 443}}, http: {{methods: [GET]}}, credential: k}}\n"
        )
    };
    let refused = data(&rule("other.example.com"), WORKLOADS, "n1").expect_err("another host").to_string();
    assert!(
        refused.contains("rule r: credential \"k\" may not go to other.example.com, only to api.example.com"),
        "{refused}"
    );
    let data = data(&rule("api.example.com"), WORKLOADS, "n1").expect("its host");
    let entry = &data.credentials["k"];
    assert_eq!(entry.form, CredentialForm::Header { header: "x-api-key".to_owned() });
    assert_eq!((entry.hosts.as_slice(), entry.owner.as_str()), (&["api.example.com".to_owned()][..], "security"));
}

// covers: B1d
#[test]
fn a_placeholder_stands_in_the_places_that_its_credential_names() {
    let text = "credentials:\n- {name: k, form: placeholder, header: x-key, parameter: key, body: [text, json], hosts: [api.example.com], owner: o}\n\
                rules:\n- {id: r, tenant: t, from: {workload: x}, to: {external: api.example.com, port: 443}, http: {methods: [GET]}, credential: k}\n";
    let entry = &data(text, WORKLOADS, "n1").expect("it compiles").credentials["k"];
    let json = serde_json::to_value(&entry.form).expect("JSON");
    assert_eq!(
        json,
        serde_json::json!({"placeholder": {"header": "x-key", "parameter": "key", "body": ["json", "text"]}})
    );
    assert_eq!(serde_json::from_value::<CredentialForm>(json).expect("reads back"), entry.form);
}

// covers: B1d
#[test]
fn credentials_that_say_too_little_or_too_much_are_refused() {
    for (credential, want) in [
        ("form: bearer, hosts: [a.example], owner: o", "key \"name\" is missing"),
        ("name: k, hosts: [a.example], owner: o", "key \"form\" is missing"),
        ("name: k, form: cookie, hosts: [a.example], owner: o", "form \"cookie\" is not known"),
        ("name: k, form: header, hosts: [a.example], owner: o", "key \"header\" is missing"),
        ("name: k, form: header, header: host, hosts: [a.example], owner: o", "frames or routes"),
        ("name: k, form: header, header: x-nova-id, hosts: [a.example], owner: o", "belongs to the supervisor"),
        ("name: k, form: bearer, header: x-key, hosts: [a.example], owner: o", "does not belong to form bearer"),
        ("name: k, form: sigv4, region: r, hosts: [a.example], owner: o", "key \"service\" is missing"),
        ("name: k, form: placeholder, hosts: [a.example], owner: o", "may stand nowhere"),
        ("name: k, form: placeholder, body: [], hosts: [a.example], owner: o", "body lists no kind"),
        ("name: k, form: placeholder, body: [xml], hosts: [a.example], owner: o", "body \"xml\" is not known"),
        ("name: k, form: placeholder, header: host, hosts: [a.example], owner: o", "frames or routes"),
        (
            "name: k, form: header, header: a, body: [json], hosts: [a.example], owner: o",
            "does not belong to form header",
        ),
        ("name: k, form: bearer, hosts: ['*.a.example'], owner: o", "hosts nobody listed"),
        ("name: k, form: bearer, hosts: [10.0.0.1], owner: o", "not a name"),
        ("name: k, form: bearer, hosts: [], owner: o", "can go nowhere"),
        ("name: k, form: bearer, hosts: [a.example]", "key \"owner\" is missing"),
        ("name: k, form: bearer, hosts: [a.example], owner: o, value: hunter2", "unknown key \"value\""),
    ] {
        let text = format!("credentials:\n- {{{credential}}}\nrules: []\n");
        let got = data(&text, WORKLOADS, "n1").expect_err(credential).to_string();
        assert!(got.contains(want) && got.starts_with("rules.yaml:2:"), "{credential}: {got}");
    }
}
