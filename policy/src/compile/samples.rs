//! Decision vectors that travel in the bundle: for every rule a call it allows and one it does not. A node runs them on
//! its own engine before it activates the bundle.

use std::net::IpAddr;

use nova_proto::ids::SpiffeId;
use serde::{Deserialize, Serialize};

use crate::data::{Egress, IngressPort, NodeData, RuleEntry};
use crate::decision::Decision;
use crate::host::Host;
use crate::input::{Input, Peer};
use crate::judge;
use crate::path::CanonicalPath;

/// Most vectors of a bundle.
pub const MAX_VECTORS: usize = 2_000;

/// One expectation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vector {
    /// What is asked.
    pub input: Input,
    /// What the policy must say, before credentials are looked at.
    pub want: Decision,
}

/// The vectors of a node's data.
#[must_use]
pub fn samples(data: &NodeData) -> Vec<Vector> {
    let mut inputs = Vec::new();
    for (source, egress) in &data.egress {
        egress_inputs(source, egress, &mut inputs);
    }
    for (target, ports) in &data.ingress {
        for (name, port) in ports {
            ingress_inputs(target, name, port, data, &mut inputs);
        }
    }
    // With more inputs than room, take them evenly from the whole table.
    let step = inputs.len().div_ceil(MAX_VECTORS).max(1);
    let chosen = inputs.into_iter().step_by(step);
    chosen
        .map(|input| {
            let want = judge::verdict(&judge::candidates(data, &input), &input);
            Vector { input, want }
        })
        .collect()
}

fn egress_inputs(source: &str, egress: &Egress, inputs: &mut Vec<Input>) {
    for (key, rules) in &egress.exact {
        let Some((host, port)) = key.rsplit_once(':') else { continue };
        let (Ok(host), Ok(port)) = (Host::parse(host), port.parse()) else { continue };
        variants(&Input::egress_connect(source, &host, port), rules, inputs);
    }
    for entry in &egress.suffix {
        if let Ok(host) = Host::parse(&format!("sample{}", entry.suffix)) {
            variants(&Input::egress_connect(source, &host, entry.port), &entry.rules, inputs);
        }
        // The bare domain is not covered by its own wildcard.
        if let Ok(host) = Host::parse(&entry.suffix[1..]) {
            inputs.push(Input::egress_connect(source, &host, entry.port));
        }
    }
    for entry in &egress.cidr {
        let host = Host::from(entry.cidr.addr());
        variants(&Input::egress_connect(source, &host, entry.port), &entry.rules, inputs);
    }
    if let Ok(host) = Host::parse("no-rule-names-this.invalid") {
        inputs.push(Input::egress_connect(source, &host, 443));
    }
}

fn ingress_inputs(target: &str, name: &str, port: &IngressPort, data: &NodeData, inputs: &mut Vec<Input>) {
    let address = IpAddr::from([192, 0, 2, 1]);
    let mut peer_inputs = |ca: Option<&str>, id: &str, rules: &[RuleEntry]| {
        let Ok(id) = SpiffeId::new(id) else { return };
        let peer = match ca {
            None => Peer::Own(id),
            Some(ca) => Peer::External { ca: ca.into(), id },
        };
        variants(&Input::ingress_connect(target, name, &peer, address), rules, inputs);
    };
    for (id, rules) in &port.peer {
        peer_inputs(None, id, rules);
        // The same identity out of every other CA must count for nothing.
        for ca in data.external_cas.keys() {
            peer_inputs(Some(ca), id, &[]);
        }
    }
    for (ca, peers) in &port.external {
        for (id, rules) in &peers.exact {
            peer_inputs(Some(ca), id, rules);
        }
        for entry in &peers.prefix {
            peer_inputs(Some(ca), &format!("{}sample", entry.prefix), &entry.rules);
            peer_inputs(None, &format!("{}sample", entry.prefix), &[]);
        }
    }
    for entry in &port.cidr {
        let input = Input::ingress_connect(target, name, &Peer::Anonymous, entry.cidr.addr());
        variants(&input, &entry.rules, inputs);
    }
    inputs.push(Input::ingress_connect(target, name, &Peer::Anonymous, address));
}

/// All three phases of a pair, and for every rule a request it allows and one it does not.
fn variants(connect: &Input, rules: &[RuleEntry], inputs: &mut Vec<Input>) {
    inputs.push(connect.clone());
    inputs.push(connect.opaque());
    let Ok(elsewhere) = CanonicalPath::parse(b"/no/rule/names/this;x") else { return };
    inputs.push(connect.request("NOVA-SAMPLE", &elsewhere));
    for rule in rules.iter().take(8) {
        let method = rule.methods.keys().find(|method| *method != "*").map_or("GET", String::as_str);
        if let Some(path) = sample_path(rule) {
            inputs.push(connect.request(method, &path));
            inputs.push(connect.request("NOVA-SAMPLE", &path));
        }
    }
}

fn sample_path(rule: &RuleEntry) -> Option<CanonicalPath> {
    let fill = |pattern: &Vec<String>, tail: &str| {
        let parts: Vec<&str> = pattern.iter().map(|part| if part == "*" { "sample" } else { part }).collect();
        format!("/{}{tail}", parts.join("/"))
    };
    let text = rule
        .exact
        .keys()
        .find(|path| *path != "*")
        .cloned()
        .or_else(|| rule.prefix.first().map(|prefix| format!("{prefix}sample")))
        .or_else(|| rule.segs.first().map(|pattern| fill(pattern, "")))
        .or_else(|| rule.segs_prefix.first().map(|pattern| fill(pattern, "/sample")))?;
    CanonicalPath::parse(text.as_bytes()).ok()
}
