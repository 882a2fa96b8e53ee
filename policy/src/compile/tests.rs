//! What the compiler refuses, each with its line and rule, and what it writes.

use proptest::prelude::*;

use crate::testing::{CASE_RULES, CASE_WORKLOADS, data};

/// Two credentials for one host.
const CREDENTIALS: &str = "credentials:
- {name: k, form: bearer, hosts: [a.example.com], owner: security}
- {name: l, form: header, header: x-api-key, hosts: [a.example.com, b.example.com], owner: security}
";

fn mistakes(rules: &str, workloads: &str) -> String {
    data(rules, workloads, "node-1").expect_err(rules).to_string()
}

/// One rule in a list, with a wrong part.
fn refused(rule: &str, want: &str) {
    let text = format!("rules:\n- {{id: r, tenant: t, {rule}}}\n{CREDENTIALS}");
    let got = mistakes(&text, CASE_WORKLOADS);
    assert!(got.contains(want), "{rule}: wanted {want:?} in\n{got}");
    assert!(got.starts_with("rules.yaml:2:") && got.contains("remedy: "), "{got}");
}

// covers: B1a
#[test]
fn metadata_services_of_every_cloud_are_refused_as_destinations() {
    for range in [
        "169.254.169.254/32",
        "168.63.129.16/32",
        "100.100.100.0/24",
        "100.64.0.0/10",
        "192.0.0.192/32",
        "64:ff9b::6464:64c8/128",
        "fd00:ec2::254/128",
        "fd20:ce::/32",
        "fd00:42::/32",
        "fd00:c1::a9fe:a9fe/128",
    ] {
        refused(&format!("from: {{workload: x}}, to: {{cidr: '{range}', port: 80}}"), "metadata");
        let addresses = format!("to: {{external: a.example.com, port: 80, addresses: ['{range}']}}");
        refused(&format!("from: {{workload: x}}, {addresses}"), "metadata");
    }
}

// covers: B1a, B2a
#[test]
fn workloads_that_share_an_identity_or_have_the_name_of_something_else_are_refused() {
    let table = |id: &str, more: &str| {
        format!(
            "trust_domain: n\nendpoints:\n- {{workload_id: x, tenant: t, pod_uid: p, workload_ip: 10.0.0.1}}\n- {{workload_id: {id}, tenant: t, pod_uid: q, workload_ip: 10.0.0.2{more}}}\n"
        )
    };
    let rules = "rules: []\n";
    assert!(data(rules, &table("y", ", spiffe_id: 'spiffe://n/t/t/w/y'"), "node-1").is_ok());
    for (table, want) in [
        // A rule for x would let y in.
        (
            table("y", ", spiffe_id: 'spiffe://n/t/t/w/x'"),
            "not the one of this workload (remedy: write spiffe://n/t/t/w/y, or leave it out)",
        ),
        (table("y", ", spiffe_id: 'spiffe://n/y'"), "not the one of this workload"),
        (table("y", ", spiffe_id: 'spiffe://m/t/t/w/y'"), "not in the trust domain"),
        (table("localhost", ""), "the name of the machine itself"),
        (table("metadata", ""), "metadata service"),
        (table("'10'", ""), "reads like a number"),
        (table("'0x7f'", ""), "reads like a number"),
    ] {
        let got = mistakes(rules, &table);
        assert!(got.contains(want) && got.contains(":4:"), "wanted {want:?} in\n{got}");
    }
}

// covers: B1b
#[test]
fn a_selector_with_a_bad_label_is_one_mistake_and_never_a_wider_selector() {
    for labels in ["{app: '*'}", "{app: [x]}", "{app: x, 'a b': c}", "[app]", "{'': x}"] {
        let rules = format!(
            "rules:\n- {{id: r, tenant: t, from: {{labels: {labels}}}, to: {{workload: service-a, port: https}}}}\n"
        );
        let got = mistakes(&rules, CASE_WORKLOADS);
        assert!(got.lines().count() == 1 && got.contains("label"), "{labels}: {got}");
    }
}

// covers: A5c, B1a
#[test]
fn rules_that_open_too_much_or_can_never_match_are_refused() {
    let a = "to: {workload: service-a, port: https}";
    for (rule, want) in [
        (format!("from: {{workload: nobody}}, {a}"), "rule r: from: unknown workload \"nobody\" in tenant \"t\""),
        ("from: {workload: x}, to: {workload: nobody, port: https}".into(), "known workloads of the tenant: db, new, service-a, x"),
        ("from: {workload: x}, to: {workload: service-a, port: web}".into(), "no port \"web\" (remedy: ports of service-a: https, health)"),
        ("from: {workload: x}, to: {workload: service-a, port: 443}".into(), "named, not numbered"),
        ("from: {workload: x}, to: {workload: service-a}".into(), "key \"port\" is missing"),
        (format!("from: {{labels: {{app: zz}}}}, {a}"), "no workload has these labels"),
        (format!("from: {{labels: {{}}}}, {a}"), "empty selector"),
        (format!("from: {{}}, {a}"), "exactly one kind"),
        (format!("from: {{workload: x, jwt: {{issuer: i, subject: s}}}}, {a}"), "exactly one kind"),
        ("from: {workload: x, cidr: 10.0.0.0/8}, to: {external: a.example.com, port: 443}".into(), "a condition of the callee's port"),
        (format!("from: {{external_ca: p, uri: 'spiffe://partner/*', dns: a.partner.example}}, {a}"), "more than one of uri, dns and cn"),
        (format!("from: {{external_ca: p, dns: '*.example'}}, {a}"), "short name"),
        (format!("from: {{external_ca: p, dns: 'a*.partner.example'}}, {a}"), "not allowed in a host"),
        (format!("from: {{external_ca: p, dns: x.t.nova}}, {a}"), "workloads"),
        (format!("from: {{external_ca: p, cn: 'partner*'}}, {a}"), "compared whole"),
        (format!("from: {{external_ca: p, cn: ' partner'}}, {a}"), "no space at either end"),
        (format!("from: {{dns: a.partner.example}}, {a}"), "dns without external_ca"),
        (format!("from: {{jwt: {{issuer: i, subject: s}}}}, {a}"), "not by token"),
        ("from: {jwt: {issuer: i}}, to: {workload: service-a, port: health}".into(), "everybody in whom it knows"),
        ("from: {jwt: {subject: s}}, to: {workload: service-a, port: health}".into(), "\"issuer\" is missing"),
        ("from: {jwt: {issuer: i, subject: 's*'}}, to: {workload: service-a, port: health}".into(), "'*' is not expanded"),
        ("from: {jwt: {issuer: i, claims: {role: []}}}, to: {workload: service-a, port: health}".into(), "a claim without values"),
        ("from: {jwt: {issuer: i, subject: s}}, to: {external: a.example.com, port: 443}".into(), "neither side is a workload"),
        (format!("from: {{workload: x}}, {a}, grpc: {{services: [o.v1.O]}}"), "protocol http, not grpc"),
        (format!("from: {{workload: x}}, {a}, grpc: {{services: ['o.*']}}"), "not a full service name"),
        (format!("from: {{workload: x}}, {a}, grpc: {{services: [o.O], methods: ['*']}}"), "not a method name"),
        (format!("from: {{workload: x}}, {a}, grpc: {{methods: [Get]}}"), "\"services\" is missing"),
        (format!("from: {{workload: x}}, {a}, grpc: {{services: [o.O]}}, http: {{methods: [GET]}}"), "both http and grpc"),
        (format!("from: {{workload: x}}, {a}, icmp: {{types: [echo], rate_per_s: 5}}"), "needs `to: { cidr, protocol: icmp }`"),
        ("from: {workload: x}, to: {cidr: 10.0.0.0/8, protocol: icmp}".into(), "needs an icmp block"),
        ("from: {workload: x}, to: {cidr: 10.0.0.0/8, protocol: icmp, port: 1}, icmp: {types: [echo], rate_per_s: 5}".into(), "no ports"),
        ("from: {workload: x}, to: {cidr: 10.0.0.0/8, protocol: icmp}, icmp: {types: [redirect], rate_per_s: 5}".into(), "no such type"),
        ("from: {workload: x}, to: {cidr: 10.0.0.0/8, protocol: icmp}, icmp: {types: [echo], rate_per_s: 0}".into(), "from 1 to 1000"),
        ("from: {workload: x}, to: {cidr: 169.254.169.254/32, protocol: icmp}, icmp: {types: [echo], rate_per_s: 5}".into(), "metadata"),
        (format!("from: {{workload: x}}, {a}, upgrade: [websocket]"), "needs an http block"),
        (format!("from: {{workload: x}}, {a}, upgrade: [h2c], http: {{methods: [GET]}}"), "no such protocol"),
        (format!("from: {{workload: x}}, {a}, upgrade: [websocket], http: {{methods: [POST]}}"), "opens with GET"),
        (format!("from: {{workload: x}}, {a}, tls: intercept"), "needs an http block"),
        ("from: {workload: x}, to: {cidr: 10.0.0.0/8, port: 443}, tls: intercept, http: {methods: [GET]}".into(), "needs a host or a workload"),
        ("from: {workload: x}, to: {workload: service-a, port: https, via: corp}".into(), "only belongs to an external host"),
        ("from: {workload: x}, to: {external: a.example.com, port: 443, via: 'UP'}".into(), "1 to 63"),
        ("from: {workload: x}, to: {external: a.example.com, port: 443}, http: {methods: [GET]}, credential: nobody".into(), "not declared"),
        (format!("from: {{cidr: 10.64.0.0/16}}, {a}"), "a cidr alone would let any valid certificate in"),
        ("from: {workload: x}, to: {workload: service-a, port: health}".into(), "set the port's mode to mtls"),
        ("from: {workload: service-a}, to: {workload: db, port: postgres}, http: {methods: [GET]}".into(), "protocol tcp"),
        (format!("from: {{external_ca: nobody, uri: 'spiffe://partner/*'}}, {a}"), "unknown external CA"),
        (format!("from: {{external_ca: spiffe, uri: 'spiffe://partner/*'}}, {a}"), "our own trust bundle"),
        (format!("from: {{external_ca: p}}, {a}"), "key \"uri\" is missing"),
        (format!("from: {{external_ca: p, uri: 'spiffe://partner*'}}, {a}"), "a prefix must end in '/'"),
        (format!("from: {{external_ca: p, uri: 'spiffe://partner/../*'}}, {a}"), "not the start of a SPIFFE ID"),
        (format!("from: {{external_ca: p, uri: 'spiffe://partner//'}}, {a}"), "not the start of a SPIFFE ID"),
        (format!("from: {{external_ca: p, uri: 'spiffe://*'}}, {a}"), "not the start of a SPIFFE ID"),
        (format!("from: {{external_ca: p, uri: 'spiffe://par*/x'}}, {a}"), "SPIFFE ID"),
        ("from: {cidr: 10.0.0.0/8}, to: {external: api.example.com, port: 443}".into(), "neither side is a workload"),
        ("from: {workload: x}, to: {external: 10.0.0.1, port: 443}".into(), "an address is not a name"),
        ("from: {workload: x}, to: {external: localhost, port: 443}".into(), "the machine itself"),
        ("from: {workload: x}, to: {external: metadata.google.internal, port: 80}".into(), "the machine itself"),
        ("from: {workload: x}, to: {external: '*.google.internal', port: 80}".into(), "a metadata service"),
        ("from: {workload: x}, to: {external: '*.ec2.internal', port: 80}".into(), "a metadata service"),
        ("from: {workload: x}, to: {external: b.t.nova, port: 443}".into(), "use `workload`"),
        ("from: {workload: x}, to: {external: '*.com', port: 443}".into(), "at least two labels"),
        ("from: {workload: x}, to: {external: 'a.*.com', port: 443}".into(), "not allowed in a host"),
        ("from: {workload: x}, to: {external: a.example.com, port: 0443}".into(), ""),
        ("from: {workload: x}, to: {external: a.example.com, port: 65536}".into(), "from 1 to 65535"),
        ("from: {workload: x}, to: {external: a.example.com, port: 443, ca: nobody}".into(), "unknown external CA"),
        ("from: {workload: x}, to: {cidr: 169.254.0.0/16, port: 80}".into(), "link-local and metadata"),
        ("from: {workload: x}, to: {cidr: 0.0.0.0/0, port: 80}".into(), "overlaps 169.254.0.0/16"),
        ("from: {workload: x}, to: {cidr: 127.0.0.0/8, port: 80}".into(), "overlaps loopback"),
        ("from: {workload: x}, to: {cidr: '::1/128', port: 80}".into(), "overlaps loopback"),
        ("from: {workload: x}, to: {cidr: 'fe80::/10', port: 80}".into(), "link-local"),
        ("from: {workload: x}, to: {cidr: 'fd00:ec2::/32', port: 80}".into(), "metadata"),
        ("from: {workload: x}, to: {cidr: 'fec0::/10', port: 80}".into(), "site-local"),
        ("from: {workload: x}, to: {cidr: 'fd20:ce::254/128', port: 80}".into(), "metadata"),
        ("from: {workload: x}, to: {cidr: 168.63.129.0/24, port: 80}".into(), "metadata"),
        ("from: {workload: x}, to: {cidr: '64:ff9b::a9fe:a9fe/128', port: 80}".into(), "link-local and metadata"),
        ("from: {workload: x}, to: {cidr: '64:ff9b::7f00:0/104', port: 80}".into(), "overlaps loopback"),
        ("from: {workload: x}, to: {cidr: '64:ff9b::/64', port: 80}".into(), "reach any IPv4 address"),
        ("from: {workload: x}, to: {cidr: '64:ff9b:1::/48', port: 80}".into(), "hides an IPv4 address"),
        ("from: {workload: x}, to: {cidr: '2002:7f00:1::/48', port: 80}".into(), "overlaps loopback"),
        ("from: {workload: x}, to: {cidr: '2002:a9fe::/32', port: 80}".into(), "link-local and metadata"),
        ("from: {workload: x}, to: {cidr: '2000::/3', port: 80}".into(), "reach any IPv4 address"),
        ("from: {workload: x}, to: {external: a.example.com, port: 443, addresses: ['64:ff9b::a9fe:0/112']}".into(), "metadata"),
        ("from: {workload: x}, to: {cidr: 10.0.0.1/8, port: 80}".into(), "host bits are set, the network is 10.0.0.0/8"),
        ("from: {workload: x}, to: {cidr: '::ffff:10.0.0.0/104', port: 80}".into(), "IPv4-mapped"),
        ("from: {workload: x}, to: {external: a.example.com, port: 443, addresses: [127.0.0.0/8]}".into(), "loopback"),
        (format!("from: {{workload: x}}, {a}, http: {{methods: [get]}}"), "not an upper-case method"),
        (format!("from: {{workload: x}}, {a}, http: {{methods: [TRACE]}}"), "refused everywhere"),
        (format!("from: {{workload: x}}, {a}, http: {{methods: []}}"), "the rule allows nothing"),
        (format!("from: {{workload: x}}, {a}, http: {{paths: ['/v1/a*']}}"), "'*' may only be a whole segment"),
        (format!("from: {{workload: x}}, {a}, http: {{paths: ['/v1/**/x']}}"), "'*' may only be a whole segment"),
        (format!("from: {{workload: x}}, {a}, http: {{paths: ['/v1/../x']}}"), "can match no request"),
        (format!("from: {{workload: x}}, {a}, http: {{paths: ['/v1/%6f']}}"), "its canonical form is \"/v1/o\""),
        (format!("from: {{workload: x}}, {a}, http: {{path: [/a]}}"), "unknown key \"path\""),
        (format!("from: {{workload: x}}, {a}, htpp: {{paths: [/a]}}"), "unknown key \"htpp\""),
        (format!("from: {{workload: x}}, {a}, audit: yes"), "neither true nor false"),
        (format!("from: {{workload: x}}, {a}, http:"), "key \"http\" in the rule has no value"),
        (format!("from: {{workload: x}}, {a}, grpc: ~"), "key \"grpc\" in the rule has no value"),
        (format!("from: {{workload: x}}, {a}, http: {{methods: null}}"), "key \"methods\" in http has no value"),
        (format!("from: {{workload: x, cidr: }}, {a}"), "key \"cidr\" in from has no value"),
        ("from: {cidr: 10.0.0.0/8, jwt: }, to: {workload: service-a, port: health}".into(), "key \"jwt\" in from has no value"),
        (format!("from: {{workload: x}}, {a}, credential: k, http: {{methods: [GET]}}"), "only goes to an external host"),
        ("from: {workload: x}, to: {external: a.example.com, port: 443}, credential: k".into(), "needs an http block"),
        ("from: {workload: x}, to: {external: '*.example.com', port: 443}, http: {methods: [GET]}, credential: k".into(), "wildcard host with a credential"),
        ("from: {workload: x}, to: {external: a.example.com, port: 80}, http: {methods: [GET]}, credential: k, tls: none".into(), "plaintext"),
        ("from: {workload: x}, to: {external: a.example.com, port: 443}, http: {methods: [GET]}, tls: passthrough".into(), "the http block can never match"),
        (format!("from: {{workload: x}}, {a}, tls: originate"), "only belongs to rules to an external host"),
    ] {
        if !want.is_empty() {
            refused(&rule, want);
        }
    }
}

// covers: A5c
#[test]
fn an_external_ca_may_not_be_given_our_trust_domain() {
    let text = "external_cas: [{name: p, pem_file: p}]\nrules:\n- {id: r, tenant: t, from: {external_ca: p, uri: 'spiffe://n/*'}, to: {workload: service-a, port: https}}\n";
    assert!(
        mistakes(text, CASE_WORKLOADS)
            .contains("rules.yaml:3:3: rule r: an external CA cannot speak for our trust domain n")
    );
    let text = "external_cas: [{name: p, pem: 'hello'}]\nrules: []\n";
    assert!(mistakes(text, CASE_WORKLOADS).contains("no certificate in it"));
}

// covers: A5c, A12
#[test]
fn all_mistakes_of_both_files_come_at_once_in_order() {
    let rules = "
rules:
- {id: UPPER, tenant: t, from: {workload: x}, to: {workload: service-a, port: https}}
- {id: a, tenant: t, from: {workload: x}, to: {workload: service-a, port: nope}}
- {id: a, tenant: t, from: {workload: x}, to: {workload: service-a, port: https}}
- {tenant: t, from: {workload: x}, to: {workload: service-a, port: https}}
";
    let got = mistakes(rules, CASE_WORKLOADS);
    let lines: Vec<&str> = got.lines().collect();
    assert_eq!(lines.len(), 4, "{got}");
    for (line, want) in lines.iter().zip(["rules.yaml:3:", "rules.yaml:5:", "rules.yaml:6:", "rules.yaml:4:"]) {
        assert!(line.starts_with(want), "{got}");
    }
    let workloads = "
endpoints:
- {workload_id: x, tenant: t, pod_uid: pod-x, workload_ip: 169.254.169.254, generation: 0}
- {workload_id: y, tenant: t, pod_uid: pod-x, workload_ip: 10.0.0.1, backend: {vsock_cid: 2}, state: redy}
- {workload_id: z, tenant: t, pod_uid: pod-z, workload_ip: 10.0.0.1, ports: [{name: a, port: 70000, mode: mtsl}, {name: b, port: 1, mode: tcp}, {name: b, port: 1, mode: tcp}]}
- {workload_id: w, tenant: t, pod_uid: ../x, workload_ip: 224.0.0.1, boot_token: abc, color: red}
";
    let got = mistakes(rules, workloads);
    for want in [
        "endpoints.yaml:3:",
        "generation \"0\"",
        "link-local",
        "endpoints.yaml:4:",
        "vsock_cid 2 never belongs to a guest",
        "state \"redy\" is not known (remedy: write one of: pending, ready, draining)",
        "endpoints.yaml:5:",
        "port \"70000\"",
        "mode \"mtsl\"",
        "port name \"b\" is there twice",
        "port 1 is there twice",
        "endpoints.yaml:6:",
        "pod_uid",
        "boot_token",
        "unknown key \"color\"",
        "workload_ip 10.0.0.1 is already used by y",
        "rules.yaml:3:",
    ] {
        assert!(got.contains(want), "wanted {want:?} in\n{got}");
    }
}

// covers: B1a
#[test]
fn two_rules_of_one_pair_may_not_differ_in_credential_tls_or_ca() {
    let pair = "from: {workload: x}, to: {external: a.example.com, port: 443}, http: {methods: [GET]}";
    for (one, two, want) in [
        ("credential: k", "credential: l", "with another credential"),
        ("tls: originate", "tls: none", "with another tls"),
        ("tls: originate", "tls: intercept", "with another tls"),
    ] {
        let text = format!(
            "rules:\n- {{id: a, tenant: t, {pair}, {one}}}\n- {{id: b, tenant: t, {pair}, {two}}}\n{CREDENTIALS}"
        );
        let got = mistakes(&text, CASE_WORKLOADS);
        assert!(got.starts_with("rules.yaml:3:3: rule b: rule a (line 2)") && got.contains(want), "{got}");
    }
    let good =
        format!("rules:\n- {{id: a, tenant: t, {pair}, credential: k}}\n- {{id: b, tenant: t, {pair}}}\n{CREDENTIALS}");
    assert!(data(&good, CASE_WORKLOADS, "node-1").is_ok());
}

// covers: A12, B1e (attack T35)
#[test]
fn hostile_files_cost_no_more_than_their_length() {
    let long = "a".repeat(10_000_000);
    for text in [
        format!("- {{id: {long}}}\n"),
        format!("- {{id: {}}}\n", &long[..100_000]),
        "- {id: \"a\\nb\", tenant: t}\n".to_owned(),
        "- {id: \"a\u{2028}b\", tenant: t}\n".to_owned(),
        "- {id: __proto__, tenant: t}\n".to_owned(),
        "[".repeat(100_000),
        "a: &a [*a]\n".to_owned(),
        format!("- {{\"{long}\": 1}}\n"),
        format!("- ? {long}\n  : 1\n"),
        format!("- ? {long}\n  : 1\n  ? {long}\n  : 1\n"),
    ] {
        let got = mistakes(&text, CASE_WORKLOADS);
        assert!(got.len() < 20_000, "{} bytes", got.len());
    }
}

// covers: A5c, B2b
#[test]
fn the_same_input_gives_the_same_bytes_and_only_this_nodes_workloads() {
    let json = |node| serde_json::to_string(&data(CASE_RULES, CASE_WORKLOADS, node).expect("compiles")).expect("json");
    assert_eq!(json("node-1"), json("node-1"));
    let one = data(CASE_RULES, CASE_WORKLOADS, "node-1").expect("compiles");
    let two = data(CASE_RULES, CASE_WORKLOADS, "node-2").expect("compiles");
    assert_eq!(one.egress.keys().collect::<Vec<_>>(), ["service-a", "x"]);
    assert_eq!(one.ingress.keys().collect::<Vec<_>>(), ["service-a"]);
    assert_eq!(two.egress.len(), 0);
    assert_eq!(two.ingress.keys().collect::<Vec<_>>(), ["db", "new"]);
    let egress = &one.egress["x"].exact["service-a.t.nova:443"];
    let ingress = &one.ingress["service-a"]["https"].peer["spiffe://n/t/t/w/x"];
    assert_eq!(egress, ingress, "one row, the same rule on both sides");
}

// covers: A12, B1e (attack T35)
#[test]
fn selectors_cannot_multiply_without_bound() {
    use std::fmt::Write;
    let mut workloads = "endpoints:\n".to_owned();
    for index in 0..1000 {
        let (high, low) = (index / 250, index % 250 + 1);
        let _ = writeln!(
            workloads,
            "- {{workload_id: w{index}, tenant: t, labels: {{a: b}}, pod_uid: p{index}, workload_ip: 10.0.{high}.{low}, ports: [{{name: web, port: 443, mode: mtls}}]}}"
        );
    }
    let rule = |id: &str| {
        format!("- {{id: {id}, tenant: t, from: {{labels: {{a: b}}}}, to: {{labels: {{a: b}}, port: web}}}}\n")
    };
    let got = mistakes(&[rule("a"), rule("b"), rule("c")].concat(), &workloads);
    assert!(got.starts_with("rules.yaml:3:3: rule c: with this rule the file covers more than"), "{got}");
    // A million pairs are allowed, but not with a megabyte of paths in each.
    let paths: String = (0..1000).map(|path| format!("/{}{path}, ", "p".repeat(1000))).collect();
    let heavy = rule("a").replace("port: web}}", &format!("port: web}}, http: {{paths: [{paths}]}}}}"));
    let workloads = workloads.replace("mode: mtls", "mode: mtls, protocol: http");
    let got = mistakes(&heavy, &workloads);
    assert!(got.starts_with("rules.yaml:1:3: rule a: with this rule the file compiles to more than 2 GiB"), "{got}");
}

// covers: B1e (attack T35)
#[test]
fn too_many_of_anything_is_refused_with_a_reason() {
    let rule = "- {id: r, tenant: t, from: {workload: x}, to: {workload: service-a, port: https}}\n";
    let keys: String = (0..2000).map(|key| format!("k{key}: 1, ")).collect();
    let labels: String = (0..2000).map(|key| format!("\"l{key}\": a, ")).collect();
    for (text, want) in [
        ("- 1\n".repeat(100_001), "a list has more than 100000 items"),
        (format!("{{{keys}}}"), "a map has more than 1024 keys"),
        (rule.replace("workload: x", &format!("labels: {{{labels}}}")), "a map has more than 1024 keys"),
        (rule.replace("workload: x", "labels: {'__proto__ x': a}"), "is not valid"),
        (format!("{}{}", rule, "#".repeat(33 << 20)), "larger than 32 MiB"),
        (rule.replace("id: r", "id: \"r\\u2028\""), "rule id"),
        (rule.replace("id: r", "id: r_"), "rule id"),
    ] {
        let started = std::time::Instant::now();
        let got = mistakes(&text, CASE_WORKLOADS);
        assert!(got.contains(want), "wanted {want:?} in {}", &got[..got.len().min(400)]);
        assert!(started.elapsed() < std::time::Duration::from_secs(20), "{want}: {:?}", started.elapsed());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    // covers: A12
    #[test]
    fn no_text_makes_the_parsers_panic(
        noise in "[-a-z:{}\\[\\]\"'|>&*!#%@`,?~ \n\t0-9\u{85}\u{2028}]{0,80}", at in any::<prop::sample::Index>(),
    ) {
        for base in [CASE_RULES, CASE_WORKLOADS] {
            let at = at.index(base.len());
            let mixed = match base.split_at_checked(at) {
                Some((before, after)) => format!("{before}{noise}{after}"),
                None => noise.clone(),
            };
            let _ = data(&mixed, CASE_WORKLOADS, "node-1");
            let _ = data(CASE_RULES, &mixed, "node-1");
            let _ = data(&noise, &noise, "node-1");
        }
    }

    // covers: B2b
    #[test]
    fn the_order_of_maps_and_endpoints_changes_no_byte(seed in any::<u64>()) {
        let text = |rules: &str, workloads: &str, node: &str| {
            serde_json::to_string(&data(rules, workloads, node).expect("compiles")).expect("json")
        };
        let (rules, workloads) = (shuffled(CASE_RULES, seed, false), shuffled(CASE_WORKLOADS, seed, true));
        for node in ["node-1", "node-2"] {
            prop_assert_eq!(text(&rules, &workloads, node), text(CASE_RULES, CASE_WORKLOADS, node));
        }
    }
}

/// The same document with the keys of every map, and on demand its endpoints, in another order.
fn shuffled(text: &str, seed: u64, endpoints: bool) -> String {
    let mut report = crate::report::Report::default();
    let mut root = crate::yaml::parse("f.yaml", text, &mut report).expect("YAML");
    let mut state = seed | 1;
    shuffle(&mut root, &mut state, endpoints);
    flow(&root)
}

fn shuffle(node: &mut crate::yaml::Node, state: &mut u64, lists: bool) {
    fn swap<T>(items: &mut [T], state: &mut u64) {
        for at in (1..items.len()).rev() {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            items.swap(at, usize::try_from(*state >> 33).unwrap_or(0) % (at + 1));
        }
    }
    match &mut node.value {
        crate::yaml::Value::Map(members) => {
            swap(members, state);
            members.iter_mut().for_each(|(_, _, node)| shuffle(node, state, lists));
        }
        crate::yaml::Value::List(items) => {
            if lists {
                swap(items, state);
            }
            items.iter_mut().for_each(|node| shuffle(node, state, lists));
        }
        crate::yaml::Value::Scalar { .. } => {}
    }
}

fn flow(node: &crate::yaml::Node) -> String {
    match &node.value {
        crate::yaml::Value::Scalar { text, plain: true } if !text.contains(['*', ':', ',', '[', '{']) => text.clone(),
        crate::yaml::Value::Scalar { text, .. } => format!("{text:?}"),
        crate::yaml::Value::List(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        crate::yaml::Value::Map(members) => {
            let one = |(name, _, node): &(String, crate::yaml::Position, crate::yaml::Node)| {
                format!("{name}: {}", flow(node))
            };
            format!("{{{}}}", members.iter().map(one).collect::<Vec<_>>().join(", "))
        }
    }
}
