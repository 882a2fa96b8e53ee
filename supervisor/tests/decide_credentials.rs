//! A bundle that is well signed, and sends a credential where its declaration does not allow it.

mod bundles_support;
mod endpoint_support;

use std::sync::Arc;

use bundles_support::{NODE, Node, now};
use endpoint_support::spec;
use nova_policy::data::NodeData;
use nova_policy::host::Host;
use nova_policy::input::Input;
use nova_policy::path::CanonicalPath;
use nova_supervisor::audit::{AuditSink, Kind, Record};
use nova_supervisor::bundles::Outcome;
use nova_supervisor::config::{AuditConfig, Mode, NodeConfig};
use nova_supervisor::decide::Decider;
use nova_supervisor::reason::Reason;
use nova_supervisor::state::endpoint::EndpointSpec;
use serde_json::{Value, json};

/// x may call pay.example with a credential. `hosts` are what its declaration lists.
fn rules(hosts: &Value) -> NodeData {
    let rule = json!({"id": "x-to-pay", "rank": 1, "methods": {"GET": true}, "prefix": ["/"], "credential": "pay-key"});
    let target = json!({"kind": "external", "host": "pay.example", "port": 443, "tls": "originate"});
    let data = json!({
        "schema": 1, "node": NODE, "trust_domain": "prod.example", "ingress": {}, "external_cas": {},
        "egress": {"x": {"exact": {"pay.example:443": [rule]}}},
        "targets": {"x": {"x-to-pay": [target]}},
        "workloads": {"x": {"tenant": "t", "spiffe_id": "spiffe://prod.example/t/t/w/x"}},
        "credentials": {"pay-key": {"form": "bearer", "hosts": hosts, "owner": "security"}},
    });
    serde_json::from_value(data).expect("the data of a bundle")
}

/// What the node says of x calling pay.example under these rules, and its audit line.
fn decided(hosts: &Value) -> (Option<Reason>, Value) {
    asked(&rules(hosts), get())
}

fn get() -> Input {
    let path = CanonicalPath::parse(b"/v1").expect("a path");
    Input::egress_request("x", &Host::parse("pay.example").expect("a host"), 443, "GET", &path)
}

fn asked(rules: &NodeData, input: Input) -> (Option<Reason>, Value) {
    let node = Node::new();
    let feed = node.feed();
    assert_eq!(feed.offer(&node.signed(1, rules), now()), Outcome::Activated(1), "well signed, it is taken");
    let file = node.dir.path().join("audit.jsonl");
    let audit = AuditConfig { file: file.clone(), required: true, opa_file: None, denials_per_second: 100 };
    let config = NodeConfig {
        id: NODE.to_owned(),
        mode: Mode::Production,
        instance: "a".to_owned(),
        slot: 0,
        workers: 1,
        run_as: None,
    };
    let sink = AuditSink::open(&audit, &config).expect("a log");
    let decider = Decider::new(Arc::clone(&node.cell), Arc::clone(&sink), Arc::default());
    let x = EndpointSpec { credentials: ["pay-key".to_owned()].into(), ..spec("x", "prod.example") };
    let mut record = Record::open(&sink, Kind::Request, "egress", &Arc::new(x));
    let refused = decider.decide(input, &mut record).err();
    drop(record);
    sink.flush();
    let line = std::fs::read_to_string(&file).expect("the log");
    (refused, serde_json::from_str(line.trim()).expect("one line"))
}

// covers: B1h, D17l
#[test]
fn a_credential_goes_nowhere_that_its_declaration_does_not_list() {
    for hosts in [json!(["other.example"]), json!([]), json!(["*.example"]), json!(["example"])] {
        let (refused, line) = decided(&hosts);
        assert_eq!(refused, Some(Reason::CredentialUnavailable), "{hosts}");
        assert_eq!((&line["verdict"], &line["detail"]), (&json!("deny"), &json!("credential_host")), "{hosts}: {line}");
        assert_eq!((&line["rule"], &line["credential"]), (&json!("x-to-pay"), &json!("pay-key")), "{line}");
    }
    let (_, line) = decided(&json!(["other.example", "pay.example"]));
    assert_eq!(line["detail"], "credential_missing", "where it may go, this is no reason against it: {line}");
}

// covers: D9l
#[test]
fn a_credential_goes_with_nothing_but_requests_over_tls() {
    let good = rules(&json!(["pay.example"]));
    let edited = |edit: fn(&mut Value)| {
        let mut data = serde_json::to_value(&good).expect("JSON");
        edit(&mut data);
        serde_json::from_value::<NodeData>(data).expect("the data of a bundle")
    };
    let tls = |tls: &str| {
        let mut data = serde_json::to_value(&good).expect("JSON");
        data["targets"]["x"]["x-to-pay"][0]["tls"] = json!(tls);
        serde_json::from_value::<NodeData>(data).expect("the data of a bundle")
    };
    let opaque = edited(|data| data["egress"]["x"]["exact"]["pay.example:443"][0]["l4"] = json!(true));
    let upgrade =
        edited(|data| data["egress"]["x"]["exact"]["pay.example:443"][0]["upgrade"] = json!({"websocket": true}));
    let workload = edited(|data| data["targets"]["x"]["x-to-pay"] = json!([]));
    for (rules, input) in [
        (tls("none"), get()),
        (tls("passthrough"), get()),
        (opaque, Input::egress_opaque("x", &Host::parse("pay.example").expect("a host"), 443)),
        (upgrade, get().with_upgrade("websocket")),
        (workload, get()),
    ] {
        let (refused, line) = asked(&rules, input);
        assert_eq!(refused, Some(Reason::CredentialUnavailable), "{line}");
        assert_eq!((&line["verdict"], &line["detail"]), (&json!("deny"), &json!("credential_plaintext")), "{line}");
    }
}
