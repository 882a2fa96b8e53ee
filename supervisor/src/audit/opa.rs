//! The same decisions in the form of OPA's decision log, for collectors that know it.
//!
//! An event is written with the line of its decision, so each decision has one. It says what the policy answered; what came
//! of the call afterwards stands in the audit log only, under the same id.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use nova_policy::decision::Decision;
use nova_policy::engine::Policy;
use nova_policy::input::Input;
use serde::Serialize;
use serde_json::Value;

use super::line::{Kind, Line};

/// The rule that is asked, as OPA writes it.
const PATH: &str = "nova/authz/decision";

/// What is the same in every event of this process.
pub(super) struct Events {
    labels: Labels,
    asked: AtomicU64,
}

/// Who decided.
#[derive(Serialize)]
struct Labels {
    /// Of this process: another one has another id, also on the same node.
    id: String,
    node: String,
    version: &'static str,
}

/// The field names are OPA's.
#[derive(Serialize)]
struct Event<'a> {
    labels: &'a Labels,
    decision_id: &'a str,
    bundles: Bundles<'a>,
    path: &'static str,
    input: Asked<'a>,
    result: &'a Decision,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    erased: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    requested_by: String,
    timestamp: String,
    req_id: u64,
}

/// An input, without what no rule reads.
#[derive(Serialize)]
#[serde(untagged)]
enum Asked<'a> {
    Whole(&'a Input),
    Masked(Value),
}

#[derive(Serialize)]
struct Bundles<'a> {
    nova: Revision<'a>,
}

#[derive(Serialize)]
struct Revision<'a> {
    revision: &'a str,
}

impl Events {
    pub(super) fn new(node: &str) -> io::Result<Self> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|error| io::Error::other(error.to_string()))?;
        let labels = Labels { id: hex::encode(id), node: node.to_owned(), version: env!("CARGO_PKG_VERSION") };
        Ok(Self { labels, asked: AtomicU64::new(1) })
    }

    /// Writes the event of a line in which a policy was asked.
    pub(super) fn write(&self, line: &Line, to: &mut Vec<u8>) -> serde_json::Result<()> {
        let (Some((time, decision)), Some(policy), Some(input)) = (&line.decision, &line.policy, &line.input) else {
            return Ok(());
        };
        // Its `open` had the event.
        if line.kind == Kind::Close {
            return Ok(());
        }
        let (input, erased) = mask(policy, input)?;
        let event = Event {
            labels: &self.labels,
            decision_id: &line.decision_id,
            bundles: Bundles { nova: Revision { revision: policy.revision() } },
            path: PATH,
            input,
            result: decision,
            erased,
            requested_by: line.src.map_or_else(|| line.endpoint.ip.to_string(), |src| src.to_string()),
            timestamp: humantime::format_rfc3339_nanos(*time).to_string(),
            req_id: self.asked.fetch_add(1, Ordering::Relaxed),
        };
        serde_json::to_writer(&mut *to, &event)?;
        to.push(b'\n');
        Ok(())
    }
}

/// Takes out of a token what no rule of its issuer reads, and says what that was, as JSON pointers. An input has no other
/// secret: there is no query, header or body in it.
fn mask<'a>(policy: &Policy, input: &'a Input) -> serde_json::Result<(Asked<'a>, Vec<String>)> {
    let Some(token) = input.token() else { return Ok((Asked::Whole(input), Vec::new())) };
    let rules = policy.data().ingress.get(input.workload()).and_then(|ports| ports.get(input.port()?));
    let rules = rules.and_then(|port| port.jwt.get(&*token.issuer)).into_iter().flatten();
    let wanted: Vec<_> = rules.filter_map(|rule| rule.jwt.as_ref()).collect();
    let read: BTreeSet<&str> = wanted.iter().flat_map(|want| want.claims.keys()).map(String::as_str).collect();
    let mut value = serde_json::to_value(input)?;
    let mut erased = Vec::new();
    if wanted.iter().all(|want| want.subject.is_empty()) {
        erase(&mut value["jwt"], "subject", "/input/jwt", &mut erased);
    }
    for claim in token.claims.keys().filter(|claim| !read.contains(&***claim)) {
        erase(&mut value["jwt"]["claims"], claim, "/input/jwt/claims", &mut erased);
    }
    Ok((Asked::Masked(value), erased))
}

fn erase(object: &mut Value, name: &str, pointer: &str, erased: &mut Vec<String>) {
    if object.as_object_mut().and_then(|object| object.remove(name)).is_some() {
        erased.push(format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1")));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use nova_policy::data::{IngressPort, NodeData, RuleEntry, TokenEntry};
    use nova_policy::input::{Peer, Token};
    use nova_policy::path::CanonicalPath;
    use serde_json::json;

    use super::*;
    use crate::state::policy::testing::policy;

    const ISSUER: &str = "https://issuer.example";

    /// An input with a token of this issuer.
    fn asked(issuer: &str) -> Input {
        let claim = |name: &str| (Arc::from(name), vec![Arc::from(format!("secret of {name}"))]);
        let claims = BTreeMap::from(["group", "email", "a/b~c"].map(claim));
        let token = Token { issuer: issuer.into(), subject: Some("secret of sub".into()), claims };
        let path = CanonicalPath::parse(b"/v1").expect("a path");
        let from = std::net::IpAddr::from([10, 0, 0, 1]);
        Input::ingress_request("a", "web", &Peer::Anonymous, from, "GET", &path).with_token(Arc::new(token))
    }

    fn rules(subject: &str) -> NodeData {
        let claims = BTreeMap::from([("group".to_owned(), BTreeMap::from([("staff".to_owned(), true)]))]);
        let want = TokenEntry { issuer: ISSUER.to_owned(), subject: subject.to_owned(), claims };
        let rule = RuleEntry { id: "r".to_owned(), rank: 1, l4: true, jwt: Some(want), ..RuleEntry::default() };
        let port = IngressPort { jwt: BTreeMap::from([(ISSUER.to_owned(), vec![rule])]), ..IngressPort::default() };
        let ingress = BTreeMap::from([("a".to_owned(), BTreeMap::from([("web".to_owned(), port)]))]);
        NodeData { ingress, ..NodeData::default() }
    }

    fn masked(policy: &Policy, issuer: &str) -> (Value, Vec<String>) {
        let input = asked(issuer);
        let (asked, erased) = mask(policy, &input).expect("JSON");
        (serde_json::to_value(&asked).expect("JSON"), erased)
    }

    // covers: B12d
    #[test]
    fn of_a_token_only_what_rules_read_is_told_and_the_rest_is_named() {
        let (input, erased) = masked(&policy(1, rules("")), ISSUER);
        assert_eq!(input["jwt"], json!({"issuer": ISSUER, "claims": {"group": ["secret of group"]}}));
        assert_eq!(erased, ["/input/jwt/subject", "/input/jwt/claims/a~1b~0c", "/input/jwt/claims/email"]);
        let (input, erased) = masked(&policy(1, rules("somebody")), ISSUER);
        assert_eq!((&input["jwt"]["subject"], erased.len()), (&json!("secret of sub"), 2));
        let (input, erased) = masked(&policy(1, rules("somebody")), "https://other.example");
        assert_eq!(input["jwt"], json!({"issuer": "https://other.example", "claims": {}}));
        assert_eq!(erased.len(), 4, "{erased:?}");
        assert_eq!(input["path"], "/v1");
    }
}
