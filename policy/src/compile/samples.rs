//! Decision vectors that travel in the bundle: for every rule a call it allows and one it does not. A node runs them on
//! its own engine before it activates the bundle.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use nova_proto::ids::SpiffeId;
use serde::{Deserialize, Serialize};

use crate::data::{Egress, IngressPort, NodeData, RuleEntry};
use crate::decision::Decision;
use crate::host::Host;
use crate::input::{Input, Peer, Phase, Token};
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
    /// What the policy must say.
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
    for entry in &egress.icmp {
        let ping = Input::egress_icmp(source, entry.cidr.addr(), "echo");
        inputs.extend([ping.connect(), Input::egress_icmp(source, entry.cidr.addr(), "timestamp"), ping]);
        // Leave to ping is no leave to connect.
        inputs.push(Input::egress_opaque(source, &Host::from(entry.cidr.addr()), 443));
    }
    if let Ok(host) = Host::parse("no-rule-names-this.invalid") {
        inputs.push(Input::egress_connect(source, &host, 443));
    }
}

fn ingress_inputs(target: &str, name: &str, port: &IngressPort, data: &NodeData, inputs: &mut Vec<Input>) {
    let mut ask = |peer: &Peer, rules: &[RuleEntry]| {
        variants(&Input::ingress_connect(target, name, peer, home(rules)), rules, inputs);
        if home(rules) != ELSEWHERE {
            inputs.push(Input::ingress_connect(target, name, peer, ELSEWHERE));
        }
    };
    let outside = |ca: &str, id: SpiffeId| Peer::External { ca: ca.into(), id };
    for (id, rules) in &port.peer {
        let Ok(id) = SpiffeId::new(id) else { continue };
        ask(&Peer::Own(id.clone()), rules);
        // The same identity out of every other CA must count for nothing.
        for ca in data.external_cas.keys() {
            ask(&outside(ca, id.clone()), &[]);
        }
    }
    for (ca, peers) in &port.external {
        for (id, rules) in &peers.exact {
            let Ok(id) = SpiffeId::new(id) else { continue };
            ask(&outside(ca, id), rules);
        }
        for entry in &peers.prefix {
            let Ok(id) = SpiffeId::new(format!("{}sample", entry.prefix)) else { continue };
            ask(&outside(ca, id.clone()), &entry.rules);
            ask(&Peer::Own(id), &[]);
        }
        let named = |dns: Option<Host>, cn: Option<&str>| {
            let (dns, cn) = (dns.into_iter().collect(), cn.map(Into::into));
            Peer::Named { ca: ca.as_str().into(), id: None, dns, cn }
        };
        for (host, rules) in &peers.dns {
            ask(&named(Host::parse(host).ok(), None), rules);
            // A DNS name is no common name.
            ask(&named(None, Some(host)), &[]);
        }
        for entry in &peers.dns_suffix {
            ask(&named(Host::parse(&format!("sample{}", entry.suffix)).ok(), None), &entry.rules);
            ask(&named(Host::parse(&entry.suffix[1..]).ok(), None), &[]);
        }
        for (cn, rules) in &peers.cn {
            ask(&named(None, Some(cn)), rules);
        }
    }
    for entry in &port.cidr {
        let input = Input::ingress_connect(target, name, &Peer::Anonymous, entry.cidr.addr());
        variants(&input, &entry.rules, inputs);
    }
    for rules in port.jwt.values() {
        tokens(target, name, rules, inputs);
    }
    inputs.push(Input::ingress_connect(target, name, &Peer::Anonymous, ELSEWHERE));
}

/// A documentation address that no rule names.
const ELSEWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

/// An address that the first rule accepts.
fn home(rules: &[RuleEntry]) -> IpAddr {
    rules.first().and_then(|rule| rule.src).map_or(ELSEWHERE, |range| range.addr())
}

/// For every rule a token that fits and one of another issuer.
fn tokens(target: &str, name: &str, rules: &[RuleEntry], inputs: &mut Vec<Input>) {
    for rule in rules.iter().take(8) {
        let Some(jwt) = &rule.jwt else { continue };
        let connect = Input::ingress_connect(target, name, &Peer::Anonymous, home(std::slice::from_ref(rule)));
        let claim = |(name, values): (&String, &BTreeMap<String, bool>)| {
            (name.as_str().into(), values.keys().take(1).map(|value| value.as_str().into()).collect())
        };
        let token = Token {
            issuer: jwt.issuer.as_str().into(),
            subject: Some(if jwt.subject.is_empty() { "sample" } else { &jwt.subject }.into()),
            claims: jwt.claims.iter().map(claim).collect(),
        };
        let forged = Token { issuer: "https://no-rule-names-this.invalid".into(), ..token.clone() };
        let mut asked = Vec::new();
        variants(&connect, std::slice::from_ref(rule), &mut asked);
        for input in asked {
            if input.phase() == Phase::Request {
                inputs.push(input.clone().with_token(Arc::new(forged.clone())));
                inputs.push(input.clone().with_token(Arc::new(token.clone())));
            }
            inputs.push(input);
        }
    }
}

/// All three phases of a pair, and for every rule a request it allows and one it does not.
fn variants(connect: &Input, rules: &[RuleEntry], inputs: &mut Vec<Input>) {
    inputs.push(connect.clone());
    inputs.push(connect.opaque());
    let Ok(elsewhere) = CanonicalPath::parse(b"/no/rule/names/this;x") else { return };
    inputs.push(connect.request("NOVA-SAMPLE", &elsewhere));
    // Nodes of an earlier version read no input with an escaped slash, nor any rule that accepts one.
    let escaped = rules.iter().any(|rule| rule.encoded_slash);
    for rule in rules.iter().take(8) {
        let method = rule.methods.keys().find(|method| *method != "*").map_or("GET", String::as_str);
        if let Some(path) = sample_path(rule, ESCAPED).filter(|_| escaped) {
            inputs.push(connect.request(method, &path));
            inputs.push(connect.request("NOVA-SAMPLE", &path));
        }
        if let Some(path) = sample_path(rule, SAMPLE) {
            inputs.push(connect.request(method, &path));
            inputs.push(connect.request("NOVA-SAMPLE", &path));
            if !rule.upgrade.is_empty() {
                inputs.push(connect.request(method, &path).with_upgrade("websocket"));
                inputs.push(connect.request(method, &path).with_upgrade("no-such-protocol"));
            }
            if !rule.needs.is_empty() {
                let can = rule.needs.iter().map(|need| need.as_str().into());
                inputs.push(connect.request(method, &path).with_abilities(can));
            }
        }
    }
}

/// A segment that no rule names, and one with an escaped slash.
const SAMPLE: &str = "sample";
const ESCAPED: &str = "sample%2Fsample";

/// A path that the rule names, with `sample` for what it leaves open.
fn sample_path(rule: &RuleEntry, sample: &str) -> Option<CanonicalPath> {
    let fill = |pattern: &Vec<String>, tail: &str| {
        let parts: Vec<&str> = pattern.iter().map(|part| if part == "*" { sample } else { part }).collect();
        format!("/{}{tail}", parts.join("/"))
    };
    let text = rule
        .exact
        .keys()
        .find(|path| *path != "*")
        .cloned()
        .or_else(|| rule.prefix.first().map(|prefix| format!("{prefix}{sample}")))
        .or_else(|| rule.segs.first().map(|pattern| fill(pattern, "")))
        .or_else(|| rule.segs_prefix.first().map(|pattern| fill(pattern, &format!("/{sample}"))))?;
    CanonicalPath::parse(text.as_bytes()).ok()
}
