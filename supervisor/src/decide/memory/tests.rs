use std::collections::BTreeMap;

use nova_policy::data::NodeData;
use nova_policy::host::Host;
use nova_policy::input::{Peer, Token};
use nova_policy::path::CanonicalPath;

use super::*;
use crate::state::policy::testing::policy;

fn path(text: &str) -> CanonicalPath {
    CanonicalPath::parse(text.as_bytes()).expect("a path")
}

fn call(source: &str, to: &str) -> Arc<Input> {
    let host = Host::parse("a.example").expect("a host");
    Arc::new(Input::egress_request(source, &host, 443, "GET", &path(to)))
}

fn granted() -> Decision {
    let rule = DecisionReason::Rule;
    Decision { allow: true, would_deny: false, rule_id: "r".into(), credential: "".into(), reason: rule }
}

fn denied() -> Decision {
    Decision::deny(DecisionReason::L7Mismatch)
}

/// A caller that asks for a new path every time forgets its own denials at most.
// covers: B6a
#[test]
fn hostile_paths_of_one_endpoint_push_out_no_answer_of_another_and_no_grant_of_its_own() {
    let mut memory = Memory::default();
    let (others, own) = (call("b", "/v1"), call("x", "/v1"));
    memory.keep("pod-b", &others, &granted());
    memory.keep("pod-x", &own, &granted());
    for n in 0..10 * ANSWERS {
        memory.keep("pod-x", &call("x", &format!("/{n}")), &denied());
    }
    assert!(memory.recall("pod-b", &others).is_some() && memory.recall("pod-x", &own).is_some());
    for n in 0..10 * ANSWERS {
        memory.keep("pod-x", &call("x", &format!("/granted/{n}")), &granted());
    }
    assert!(memory.recall("pod-b", &others).is_some());
    assert!(memory.recall("pod-x", &own).is_none(), "its own end is reached");
}

// covers: B6b
#[test]
fn what_is_kept_has_an_end_per_endpoint_in_length_and_in_endpoints() {
    let mut memory = Memory::default();
    for n in 0..3 * ANSWERS {
        memory.keep("pod-x", &call("x", &format!("/{n}")), &granted());
        memory.keep("pod-x", &call("x", &format!("/no/{n}")), &denied());
        let answers = &memory.endpoints["pod-x"];
        assert!(answers.granted.len() <= ANSWERS && answers.denied.len() <= ANSWERS);
    }
    let long = call("x", &format!("/{}", "a".repeat(TEXT_MAX)));
    memory.keep("pod-x", &long, &granted());
    assert!(memory.recall("pod-x", &long).is_none());
    let busy = call("busy", "/");
    memory.keep("pod-busy", &busy, &granted());
    for n in 0..3 * ENDPOINTS {
        memory.keep(&format!("pod-{n}"), &call("x", "/"), &granted());
        assert!(memory.recall("pod-busy", &busy).is_some(), "one that is asked stays");
        assert!(memory.endpoints.len() <= ENDPOINTS);
    }
}

// covers: B6c
#[test]
fn an_answer_is_for_the_whole_input_of_its_own_endpoint_and_for_one_bundle() {
    let mut memory = Memory::default();
    let (one, two) = (policy(1, NodeData::default()), policy(2, NodeData::default()));
    assert!(memory.follow(Some(&one)).is_some());
    let input = call("x", "/v1");
    memory.keep("pod-x", &input, &granted());
    let (known, decision) = memory.recall("pod-x", &call("x", "/v1")).expect("an equal input");
    assert!(Arc::ptr_eq(&known, &input) && decision == granted());
    assert!(memory.recall("pod-y", &input).is_none());
    let host = Host::parse("a.example").expect("a host");
    for other in [
        Input::egress_request("x", &host, 443, "GET", &path("/v1/")),
        Input::egress_request("x", &host, 443, "PUT", &path("/v1")),
        Input::egress_request("x", &host, 444, "GET", &path("/v1")),
        Input::egress_request("y", &host, 443, "GET", &path("/v1")),
        input.opaque(),
        Input::clone(&input).with_upgrade("websocket"),
    ] {
        assert!(memory.recall("pod-x", &other).is_none(), "{other:?}");
    }
    assert!(memory.follow(Some(&one)).is_some());
    assert!(memory.recall("pod-x", &input).is_some(), "the same bundle keeps its answers");
    assert_eq!(memory.follow(Some(&two)).map(|policy| policy.serial()), Some(2));
    assert!(memory.recall("pod-x", &input).is_none(), "another one has none yet");
    memory.keep("pod-x", &input, &denied());
    assert!(memory.follow(None).is_none());
    assert!(memory.recall("pod-x", &input).is_none(), "and none is left without a bundle");
}

// covers: B6d
#[test]
fn answers_to_tokens_and_failures_of_the_engine_are_not_kept() {
    let mut memory = Memory::default();
    let peer = std::net::IpAddr::from([10, 0, 0, 1]);
    let request = Input::ingress_request("a", "https", &Peer::Anonymous, peer, "GET", &path("/v1"));
    let token = Token { issuer: "https://issuer.example".into(), subject: None, claims: BTreeMap::new() };
    let with_token = Arc::new(request.with_token(Arc::new(token)));
    assert!(with_token.token().is_some());
    memory.keep("pod-a", &with_token, &granted());
    memory.keep("pod-a", &with_token, &denied());
    assert!(memory.recall("pod-a", &with_token).is_none());
    let input = call("x", "/v1");
    memory.keep("pod-x", &input, &Decision::deny(DecisionReason::EngineError));
    assert!(memory.recall("pod-x", &input).is_none());
}
