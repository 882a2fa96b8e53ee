//! Random inputs, hostile ones among them.

use nova_policy::Input;
use serde_json::{Value, json};

use crate::generator::Random;

const HOSTS: [&str; 21] = [
    "w0.t.nova",
    "w1.t.nova",
    "w2",
    "w0.u.nova",
    "api.example.com",
    "x.example.com",
    "a.api.example.com",
    "b.a.api.example.com",
    "example.com",
    "evilexample.com",
    "api.example.com.evil.org",
    "10.1.2.3",
    "10.1.2.4",
    "10.9.9.9",
    "11.1.2.3",
    "fd00:1::1",
    "fd00:1:0:1::1",
    "10.1.2.3.example.com",
    "a.via.example.com",
    "b.via.example.com",
    "rpc.example.com",
];
/// What a peer says it is, and who vouches for it: ours, each partner, a CA of no rule, and names that look like ours.
const PEERS: [&str; 8] = [
    "spiffe://n/t/t/w/w0",
    "spiffe://n/t/t/w/w1",
    "spiffe://n/t/u/w/w0",
    "spiffe://partner/a",
    "spiffe://partner/a/b",
    "spiffe://partner/ab",
    "spiffe://partnerx/a/b",
    "spiffe://partner/a/b/c",
];
const CAS: [&str; 4] = ["spiffe", "p", "q", "r"];
const NAMES: [&str; 5] =
    ["one.partner.example", "two.partner.example", "partner.example", "evilpartner.example", "a.one.partner.example"];
const COMMON_NAMES: [&str; 4] = ["Robot", "robot", "Robot 2", "one.partner.example"];
const ISSUERS: [&str; 3] = ["i", "j", "k"];
const SUBJECTS: [&str; 3] = ["s", "S", ""];
const VALUES: [&str; 4] = ["a", "b", "c", "z"];
const SOURCES: [&str; 6] = ["10.1.0.1", "10.1.0.2", "10.9.0.1", "11.0.0.1", "fd00::1", "::1"];
const ASKED_METHODS: [&str; 6] = ["GET", "POST", "DELETE", "OPTIONS", "get", "*"];
const ASKED_PATHS: [&str; 25] = [
    "/",
    "/a",
    "/a/",
    "/a/b",
    "/a/b/",
    "/a/b/c",
    "/a/x/c",
    "/a/b;v/c",
    "/a/b%3Bv/c",
    "/x/b/c",
    "/x/b/",
    "/x/b",
    "/ab",
    "/A/b",
    "/a%20b",
    "*",
    "/o.v1.Orders/Get",
    "/o.v1.Orders/Delete",
    "/o.v1.Admin/Get",
    "/o.v1.Orders",
    "/a%2Fb",
    "/a/b%2Fc",
    "/a/x%2Fy/c",
    "/a%2Fb;v",
    "/a%2Fb/c",
];

/// An input as a supervisor might write it.
pub(crate) fn input(random: &mut Random) -> Input {
    let mut input = if random.one_in(2) { egress(random) } else { ingress(random) };
    match random.below(4) {
        0 => input["phase"] = "connect".into(),
        1 => input["phase"] = "opaque".into(),
        _ if input.get("icmp").is_some() => input["phase"] = "opaque".into(),
        _ => request(random, &mut input),
    }
    if random.one_in(3) {
        input["can"] = random.pick(&[json!(["via"]), json!(["other"]), json!(["other", "via"])]).clone();
    }
    serde_json::from_value(input.clone()).unwrap_or_else(|error| panic!("{input}: {error}"))
}

fn egress(random: &mut Random) -> Value {
    let mut input = json!({
        "direction": "egress",
        "source": random.pick(&["w0", "w1", "w2", "nobody"]),
        "dest_host": random.pick(&HOSTS),
        "dest_port": random.pick(&[443, 443, 443, 9000, 8080, 50051]),
    });
    if random.one_in(8) {
        input["dest_host"] = Value::from(*random.pick(&["10.1.2.3", "10.9.9.9", "11.1.2.3", "fd00:1::1", "fd00:2::1"]));
        input["icmp"] = Value::from(*random.pick(&["echo", "echo", "redirect"]));
        input.as_object_mut().expect("an object").remove("dest_port");
    }
    input
}

fn ingress(random: &mut Random) -> Value {
    let mut input = json!({
        "direction": "ingress",
        "target": random.pick(&["w0", "w1", "w2", "nobody"]),
        "port": random.pick(&["web", "web", "raw", "lb", "lb", "rpc", "api", "none"]),
        "src_ip": random.pick(&SOURCES),
    });
    if random.one_in(4) {
        return input;
    }
    let ca = *random.pick(&CAS);
    input["peer_ca"] = ca.into();
    if ca == "spiffe" || random.one_in(2) {
        input["peer"] = Value::from(*random.pick(&PEERS));
    }
    if ca != "spiffe" && random.one_in(2) {
        let names: Vec<&str> = (0..=random.below(2)).map(|_| *random.pick(&NAMES)).collect();
        input["peer_dns"] = names.into();
    }
    if ca != "spiffe" && random.one_in(2) {
        input["peer_cn"] = Value::from(*random.pick(&COMMON_NAMES));
    }
    input
}

fn request(random: &mut Random, input: &mut Value) {
    input["phase"] = "request".into();
    input["method"] = Value::from(*random.pick(&ASKED_METHODS));
    input["path"] = Value::from(*random.pick(&ASKED_PATHS));
    if random.one_in(5) {
        input["upgrade"] = Value::from(*random.pick(&["websocket", "websocket", "h2c", ""]));
    }
    if input["direction"] == "ingress" && random.one_in(2) {
        let values = |random: &mut Random| (0..random.below(3)).map(|_| *random.pick(&VALUES)).collect::<Vec<_>>();
        let claims = json!({"role": values(random), "team": values(random)});
        input["jwt"] = json!({"issuer": random.pick(&ISSUERS), "subject": random.pick(&SUBJECTS), "claims": claims});
    }
}
