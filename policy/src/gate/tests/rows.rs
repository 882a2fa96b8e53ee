//! One table: for each kind of risk a bundle that differs from the live one in that one thing and is held, and a near miss
//! that publishes.

use super::*;

struct Row {
    kind: Kind,
    what: &'static str,
    live: Doc,
    held: Doc,
    /// What is live before the near miss.
    before: Doc,
    miss: Doc,
    /// What is in use; everything when absent.
    in_use: Option<&'static str>,
}

fn row(kind: Kind, what: &'static str, held: Doc, miss: Doc) -> Row {
    Row { kind, what, live: same(), held, before: same(), miss, in_use: None }
}

impl Row {
    /// Another live bundle than the base.
    fn over(self, live: Doc) -> Self {
        Self { live: live.clone(), before: live, ..self }
    }

    /// Another live bundle for the near miss alone.
    fn missing(self, before: Doc) -> Self {
        Self { before, ..self }
    }

    fn in_use(self, in_use: &'static str) -> Self {
        Self { in_use: Some(in_use), ..self }
    }
}

/// A rule from `y` to a port of service-a.
fn y_to(port: &str, more: &str) -> String {
    format!("{{id: new, tenant: t, from: {{workload: y}}, to: {{workload: service-a, port: {port}}}{more}}}")
}

/// A rule from `x` to a host outside.
fn x_to(host: &str, more: &str) -> String {
    format!("{{id: new, tenant: t, from: {{workload: x}}, to: {{external: {host}, port: 443}}{more}}}")
}

/// The base with something behind `http` of the rule to a host outside.
fn out(more: &str) -> Doc {
    edit("paths: [/status]}", &format!("paths: [/status]}}{more}"))
}

/// The base with something more about that host.
fn host(more: &str) -> Doc {
    edit("external: api.example.com, port: 443", &format!("external: api.example.com, port: 443{more}"))
}

/// The base with a condition on where the caller of service-a comes from.
fn narrowed(cidr: &str) -> Doc {
    let rule = |more: &str| format!("from: {{workload: x{more}}}, to: {{workload: service-a, port: https}}");
    edit(&rule(""), &rule(&format!(", cidr: {cidr}")))
}

const STATUS: &str = ", http: {methods: [GET], paths: [/status]}";
const SLASHED: &str = ", http: {methods: [GET], paths: [/a%2Fb], encoded_slash: true}";
const CHARGES: &str = ", http: {methods: [POST], paths: [/v1/charges]}";
const WEBSOCKET: &str = ", upgrade: [websocket]";
const ORDERS: &str = "paths: [/v1/orders]}}";
const OTHER: &str = "{id: new, tenant: t, from: {workload: x}, to: {external: www.example.org, port: 443";
const TOKEN: &str = "{id: token, tenant: t, from: {jwt: {issuer: i, subject: s}}, to: {workload: service-a, port: health}, http: {methods: [GET], paths: [/t]}}";

fn rows() -> Vec<Row> {
    let mut all = requests();
    all.extend(audit_and_credentials());
    all.extend(destinations());
    all.extend(workloads_and_callers());
    all
}

fn requests() -> Vec<Row> {
    let wild = "'*.example.org'";
    let x_to_a = |http: &str| {
        format!(
            "{{id: new, tenant: t, from: {{workload: x}}, to: {{workload: service-a, port: https}}, http: {{{http}}}}}"
        )
    };
    let open = || edit(", http: {methods: [GET], paths: [/v1/orders]}}", "}");
    vec![
        row(Kind::WildcardHost, "a host under it", more(&x_to(wild, STATUS)), more(&x_to("www.example.org", STATUS))),
        row(
            Kind::WildcardPath,
            "one more path",
            edit(ORDERS, "paths: [/v1/orders, '/v1/orders/**']}}"),
            edit(ORDERS, "paths: [/v1/orders, /v1/items]}}"),
        ),
        row(
            Kind::WildcardPath,
            "a wildcard within one that is there",
            edit(ORDERS, "paths: ['/v1/*/detail', '/v2/**']}}"),
            edit(ORDERS, "paths: ['/v1/*/detail', '/v1/**']}}"),
        )
        .over(edit(ORDERS, "paths: ['/v1/**']}}")),
        row(
            Kind::WildcardPath,
            "a wildcard that is there for a method that writes, for one that reads",
            edit(ORDERS, "paths: ['/v1/**']}}").more(&x_to_a("methods: [POST], paths: [/v1/a, '/v1/**']")),
            edit(ORDERS, "paths: ['/v1/**']}}").more(&x_to_a("methods: [HEAD], paths: ['/v1/**']")),
        )
        .over(edit(ORDERS, "paths: ['/v1/**']}}").more(&x_to_a("methods: [POST], paths: [/v1/a]"))),
        row(
            Kind::NewWriteMethod,
            "one more method that reads",
            edit("methods: [GET], paths: [/v1/orders]", "methods: [GET, DELETE], paths: [/v1/orders]"),
            edit("methods: [GET], paths: [/v1/orders]", "methods: [GET, HEAD], paths: [/v1/orders]"),
        ),
        row(Kind::NewTcpPeer, "a peer of an http port", more(&y_to("raw", "")), more(&y_to("https", STATUS))),
        row(
            Kind::UpgradeAdded,
            "another path instead",
            out(WEBSOCKET),
            edit("paths: [/status]", "paths: [/status, /other]"),
        ),
        row(
            Kind::UpgradeAdded,
            "an upgrade that goes",
            out(WEBSOCKET).more(&x_to("www.example.org", &format!("{STATUS}{WEBSOCKET}"))),
            same(),
        )
        .over(out(WEBSOCKET)),
        row(
            Kind::EncodedSlashAdded,
            "another path instead",
            edit(ORDERS, "paths: [/v1/orders], encoded_slash: true}}"),
            edit(ORDERS, "paths: [/v1/orders, /v1/items], encoded_slash: false}}"),
        ),
        row(
            Kind::EncodedSlashAdded,
            "one that goes",
            more(&y_to("https", SLASHED)),
            same(),
        )
        .missing(edit(ORDERS, "paths: [/v1/orders], encoded_slash: true}}")),
        row(
            Kind::HttpBlockDropped,
            "a block on a pair that is open",
            open(),
            open().more(&x_to_a("methods: [POST], paths: ['/**']")),
        )
        .missing(open()),
        row(Kind::RuleRemoved, "a rule of another pair", same().without("x-to-raw"), same().without("by-label"))
            .in_use("x -> service-a:raw"),
        row(
            Kind::RuleRemoved,
            "a rule that no call was seen of",
            same().without("x-to-raw"),
            same().without("lb"),
        )
        .in_use(r#"{"verdict":"allow","rule":"x-to-raw","input":{"direction":"egress","phase":"opaque","source":"x","dest_host":"service-a.t.nova","dest_port":5432}}"#),
    ]
}

fn audit_and_credentials() -> Vec<Row> {
    let audit = || edit(ORDERS, "paths: [/v1/orders]}, audit: true}");
    let with = |name: &str| out(&format!(", credential: {name}"));
    // Two rules that both grant /status; only one of them brings the credential along.
    let plain = || more(&x_to("api.example.com", &format!("{STATUS}, credential: stripe-live")));
    let swapped = || same().first(&x_to("api.example.com", &format!("{STATUS}, credential: stripe-live")));
    vec![
        row(
            Kind::NewExternalCredential,
            "the same without the credential",
            more(&x_to("api.stripe.com", &format!("{CHARGES}, credential: stripe-live"))),
            more(&x_to("api.stripe.com", CHARGES)),
        ),
        row(Kind::AuditOn, "one more rule, enforced", audit(), edit(ORDERS, "paths: [/v1/orders, /a]}}")),
        row(Kind::AuditOff, "still audit", same(), audit().edit("/v1/orders]", "/v1/orders, /a]")).over(audit()),
        row(
            Kind::NewAuditPair,
            "a new pair that is enforced",
            more(&y_to("https", &format!("{STATUS}, audit: true"))),
            more(&y_to("https", STATUS)),
        ),
        row(Kind::CredentialChanged, "one more path with the same", with("stripe-test"), with("stripe-live").edit("[/status]", "[/status, /b]"))
            .over(with("stripe-live")),
        row(
            Kind::CredentialDefinition,
            "one that nothing names",
            with("stripe-live").edit("owner: security", "owner: payments"),
            with("stripe-live").edit("stripe-test, form: bearer", "stripe-test, form: basic"),
        )
        .over(with("stripe-live")),
        row(
            Kind::RuleOrder,
            "rules that carry the same",
            swapped(),
            plain().without("x-to-far").more("{id: x-to-far, tenant: t, from: {workload: x}, to: {workload: far, port: https}, http: {methods: [GET], paths: [/f]}}"),
        )
        .over(plain()),
    ]
}

fn destinations() -> Vec<Row> {
    vec![
        row(
            Kind::TlsChanged,
            "a new host without TLS",
            out(", tls: none"),
            more(&x_to("www.example.org", &format!("{STATUS}, tls: none"))),
        ),
        row(Kind::TlsChanged, "another path", out(", tls: intercept"), edit("[/status]", "[/status, /b]")),
        row(
            Kind::CaChanged,
            "a new host with that CA",
            host(", ca: partner-ca"),
            more(&format!("{OTHER}, ca: partner-ca}}{STATUS}}}")),
        ),
        row(
            Kind::CaChanged,
            "one certificate less",
            raw(|nova| nova["external_cas"]["partner-ca"][0] = json!("AAAA")),
            same(),
        )
        .over(raw(|nova| nova["external_cas"]["partner-ca"].as_array_mut().expect("a list").push(json!("QUJD")))),
        row(
            Kind::RouteChanged,
            "a new host through that proxy",
            host(", via: other"),
            host(", via: corp").more(&format!("{OTHER}, via: other}}{STATUS}}}")),
        )
        .over(host(", via: corp")),
        row(
            Kind::RouteChanged,
            "one more path through the same proxy",
            same(),
            host(", via: corp").edit("[/status]", "[/status, /b]"),
        )
        .over(host(", via: corp")),
        row(
            Kind::WiderRange,
            "a range within one that is there",
            host(", addresses: [10.0.0.0/8]"),
            host(", addresses: [10.1.2.0/24]"),
        )
        .over(host(", addresses: [10.1.0.0/16]")),
        row(
            Kind::PortChanged,
            "another target port",
            place("name: spare, port: 9000, mode: mtls", "name: spare, port: 9000, mode: tcp"),
            place("target_port: 8080", "target_port: 8090"),
        ),
        row(
            Kind::PortChanged,
            "a new port",
            place(
                "name: spare, port: 9000, mode: mtls, protocol: tcp",
                "name: spare, port: 9000, mode: mtls, protocol: http",
            ),
            place(
                "name: spare, port: 9000, mode: mtls, protocol: tcp}",
                "name: spare, port: 9000, mode: mtls, protocol: tcp}\n      - {name: more, port: 9001, mode: tcp, protocol: tcp}",
            ),
        ),
        row(
            Kind::IdentityChanged,
            "another address of the same callee",
            raw(|nova| {
                let moved = nova.to_string().replace("spiffe://n/t/t/w/far", "spiffe://n/t/t/w/other");
                *nova = serde_json::from_str(&moved).expect("JSON as before");
            }),
            place("workload_ip: 10.64.4.21", "workload_ip: 10.64.4.22"),
        ),
    ]
}

fn workloads_and_callers() -> Vec<Row> {
    let token = || more(TOKEN);
    vec![
        row(
            Kind::LabelsChanged,
            "a new workload with labels",
            place("labels: {app: y}", "labels: {app: other}"),
            place(
                "endpoints:\n",
                "endpoints:\n  - {workload_id: w, tenant: t, labels: {app: w}, pod_uid: pod-w, workload_ip: 10.64.3.14}\n",
            ),
        ),
        row(
            Kind::IdentityChanged,
            "a new workload with its own",
            raw(|nova| nova["workloads"]["w"] = json!({"tenant": "t", "spiffe_id": "spiffe://n/t/t/w/x"})),
            raw(|nova| nova["workloads"]["w"] = json!({"tenant": "t", "spiffe_id": "spiffe://n/t/t/w/w"})),
        ),
        row(
            Kind::WiderRange,
            "a narrower one that is not in use",
            edit("10.64.0.0/16", "10.0.0.0/8"),
            edit("10.64.0.0/16", "10.64.3.0/24"),
        )
        .in_use(""),
        row(Kind::WiderRange, "a narrower condition", same(), narrowed("10.64.3.0/24")).over(narrowed("10.64.0.0/16")),
        row(
            Kind::WiderPeer,
            "a narrower prefix that is not in use",
            edit("partner/a/*", "partner/*"),
            edit("partner/a/*", "partner/a/b/*"),
        )
        .in_use(""),
        row(
            Kind::WiderPeer,
            "one more path for the same token",
            token().edit("subject: s", "subject: z"),
            token().edit("[/t]", "[/t, /b]"),
        )
        .over(token()),
        row(Kind::PolicyCode, "the same code again", Doc { rego: format!("{REGO}\n# other\n"), ..same() }, same()),
        row(
            Kind::SchemaChanged,
            "a definition that nothing names, in the same layout",
            same(),
            raw(|nova| {
                nova["credentials"] = json!({"k": {"form": "bearer", "hosts": ["a.example.com"], "owner": "o"}})
            }),
        )
        .over(raw(|nova| nova["schema"] = json!(0)))
        .missing(same()),
        row(Kind::UnknownDifference, "a member that narrows", same(), narrowed("10.64.0.0/16"))
            .over(raw(|nova| nova["egress"]["x"]["exact"]["api.example.com:443"][0]["surprise"] = json!(true)))
            .missing(same()),
    ]
}

// covers: B9a, B9b
#[test]
fn each_kind_of_risk_is_held_alone_and_its_near_miss_publishes() {
    for Row { kind, what, live, held, before, miss, in_use } in rows() {
        let found = risks(&live, &held, in_use);
        assert_eq!(named(&found), [kind.as_str()], "{found:#?}");
        let found = risks(&before, &miss, in_use);
        assert!(found.is_empty(), "{kind}, near miss ({what}): {found:#?}");
    }
}

// covers: B9a, B9b
#[test]
fn no_kind_of_risk_is_without_a_row() {
    let rows = rows();
    for kind in Kind::ALL {
        assert!(rows.iter().any(|row| row.kind == *kind), "{kind} has no fixture");
    }
}
