//! docs/rules.schema.json and the parser agree: the same keys, and the same verdict on files whose form is wrong.
//!
//! What follows is as much of JSON Schema as that file uses; a word it does not know fails the test.

#![allow(clippy::panic, reason = "a test that cannot go on")]

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::{Caller, credentials, destination, parse, requests, source};
use crate::report::Report;
use crate::testing::{CASE_RULES, CASE_WORKLOADS, data};
use crate::yaml::{self, Node, Value};

const TOP: &str = "external_cas: [{name: p, pem_file: p}]
credentials: [{name: k, form: bearer, hosts: [a.example.com], owner: o}]
rules:
";
const GOOD: [&str; 16] = [
    "from: {workload: x}, to: {workload: service-a, port: https}, http: {methods: [GET], paths: [/a]}, audit: true",
    "from: {labels: {app: a}}, to: {labels: {app: a}, port: https}",
    "from: {workload: x, cidr: 10.0.0.0/8}, to: {workload: service-a, port: https}",
    "from: {external_ca: p, uri: 'spiffe://partner/*', cidr: 10.0.0.0/8}, to: {workload: service-a, port: https}",
    "from: {external_ca: p, dns: '*.partner.example'}, to: {workload: service-a, port: https}",
    "from: {external_ca: p, cn: Some Robot}, to: {workload: service-a, port: https}",
    "from: {cidr: 10.0.0.0/8}, to: {workload: service-a, port: health}",
    "from: {jwt: {issuer: 'https://i.example', subject: s, claims: {role: [a, b], aud: c}}}, to: {workload: service-a, port: health}",
    "from: {cidr: 10.0.0.0/8, jwt: {issuer: i, claims: {role: a}}}, to: {workload: service-a, port: health}",
    "from: {workload: x}, to: {external: a.example.com, port: 443, ca: p, addresses: [10.0.0.0/8], via: corp}, tls: originate",
    "from: {workload: x}, to: {external: a.example.com, port: 443}, http: {methods: [GET]}, credential: k, tls: intercept",
    "from: {workload: x}, to: {external: a.example.com, port: 443}, grpc: {services: [o.v1.O], methods: [Get]}",
    "from: {workload: x}, to: {cidr: 10.0.0.0/8, protocol: icmp}, icmp: {types: [echo], rate_per_s: 5}",
    "from: {workload: x}, to: {external: w.example.com, port: 443}, http: {methods: [GET]}, upgrade: [websocket]",
    "from: {workload: x}, to: {external: w.example.com, port: 443}, http: {methods: [GET], paths: ['/@s%2Fp', '/*'], encoded_slash: true}",
    "from: {workload: x}, to: {workload: service-a, port: https}, http: {encoded_slash: false}",
];
/// Wrong in form: both refuse.
const BAD: [&str; 29] = [
    "from: {workload: x}",
    "from: {}, to: {workload: service-a, port: https}",
    "from: {workload: x, labels: {a: b}}, to: {workload: service-a, port: https}",
    "from: {workload: x, uri: 'spiffe://p/a'}, to: {workload: service-a, port: https}",
    "from: {external_ca: p}, to: {workload: service-a, port: https}",
    "from: {external_ca: p, uri: 'spiffe://p/a', cn: b}, to: {workload: service-a, port: https}",
    "from: {external_ca: p, cn: 'a*'}, to: {workload: service-a, port: https}",
    "from: {jwt: {issuer: i}}, to: {workload: service-a, port: health}",
    "from: {jwt: {issuer: i, claims: {a: []}}}, to: {workload: service-a, port: health}",
    "from: {workload: x}, to: {workload: service-a}",
    "from: {workload: x}, to: {workload: service-a, port: https}, http: ~",
    "from: {workload: x, cidr: ~}, to: {workload: service-a, port: https}",
    "from: {workload: x}, to: {workload: service-a, port: https}, audit: null",
    "from: {workload: x}, to: {workload: service-a, port: https, via: corp}",
    "from: {workload: x}, to: {workload: service-a, port: https, protocol: icmp}",
    "from: {workload: x}, to: {external: a.example.com, port: 65536}",
    "from: {workload: x}, to: {cidr: 10.0.0.0/8}",
    "from: {workload: x}, to: {cidr: 10.0.0.0/8, protocol: icmp, port: 1}, icmp: {types: [echo], rate_per_s: 5}",
    "from: {workload: x}, to: {cidr: 10.0.0.0/8, protocol: icmp}, icmp: {types: [redirect], rate_per_s: 5}",
    "from: {workload: x}, to: {workload: service-a, port: https}, http: {methods: []}",
    "from: {workload: x}, to: {workload: service-a, port: https}, http: {methods: [TRACE]}",
    "from: {workload: x}, to: {workload: service-a, port: https}, http: {encoded_slash: yes}",
    "from: {workload: x}, to: {external: a.example.com, port: 443}, grpc: {services: [o.O], encoded_slash: true}",
    "from: {workload: x}, to: {workload: service-a, port: https}, http: {methods: [GET]}, grpc: {services: [o.O]}",
    "from: {workload: x}, to: {workload: service-a, port: https}, grpc: {methods: [Get]}",
    "from: {workload: x}, to: {workload: service-a, port: https}, audit: 1",
    "from: {workload: x}, to: {workload: service-a, port: https}, upgrade: [h2c]",
    "from: {workload: x}, to: {workload: service-a, port: https}, tls: sometimes",
    "from: {workload: x}, to: {workload: service-a, port: https}, htpp: {}",
];

fn schema() -> Json {
    serde_json::from_str(include_str!("../../../docs/rules.schema.json")).expect("JSON")
}

fn fits(schema: &Json, text: &str) -> bool {
    let root = yaml::parse("f.yaml", text, &mut Report::default()).expect("YAML");
    valid(schema, schema, &root)
}

// covers: B1g
#[test]
fn the_schema_and_the_parser_agree_on_good_and_bad_files() {
    let schema = schema();
    let file = |rule: &str| format!("{TOP}- {{id: r, tenant: t, {rule}}}\n");
    for rule in GOOD {
        assert!(fits(&schema, &file(rule)), "{rule}");
        data(&file(rule), CASE_WORKLOADS, "node-1").unwrap_or_else(|report| panic!("{rule}: {report}"));
    }
    for rule in BAD {
        assert!(!fits(&schema, &file(rule)), "{rule}");
        assert!(data(&file(rule), CASE_WORKLOADS, "node-1").is_err(), "{rule}");
    }
    assert!(fits(&schema, CASE_RULES) && fits(&schema, "[]") && !fits(&schema, "rules: 1"));
}

// covers: B1g
#[test]
fn the_schema_lists_every_key_the_parser_reads() {
    let schema = schema();
    let keys = |at: &str| -> BTreeSet<String> {
        schema.pointer(&format!("{at}/properties")).and_then(Json::as_object).expect(at).keys().cloned().collect()
    };
    for (at, read) in [
        ("/oneOf/1", &parse::FILE_KEYS[..]),
        ("/$defs/rule", &parse::KEYS),
        ("/$defs/external_ca", &parse::CA_KEYS),
        ("/$defs/credential", &credentials::KEYS),
        ("/$defs/from", &source::KEYS),
        ("/$defs/jwt", &source::JWT_KEYS),
        ("/$defs/to", &destination::KEYS),
        ("/$defs/http", &requests::HTTP_KEYS),
        ("/$defs/grpc", &requests::GRPC_KEYS),
        ("/$defs/icmp", &requests::ICMP_KEYS),
    ] {
        assert_eq!(keys(at), read.iter().map(|key| (*key).to_owned()).collect(), "{at}");
    }
    let forms = schema.pointer("/$defs/credential/properties/form/enum").expect("forms");
    assert_eq!(*forms, serde_json::json!(credentials::FORMS));
}

// covers: B1g
#[test]
fn the_documents_print_the_table_of_legal_combinations() {
    let page = include_str!("../../../docs/rules.md");
    for row in super::LEGAL {
        let callers: Vec<&str> = row
            .from
            .iter()
            .map(|caller| match caller {
                Caller::Workload => "workload",
                Caller::External => "external",
                Caller::Cidr => "cidr",
                Caller::Token => "token",
            })
            .collect();
        let word = |value: Json| value.as_str().unwrap_or_default().to_owned();
        let (mode, protocol) = (serde_json::json!(row.mode), serde_json::json!(row.protocol));
        let blocks = if row.blocks.is_empty() { "none".to_owned() } else { row.blocks.join(", ") };
        let line = format!("| {} | {} | {} | {blocks} |", word(mode), word(protocol), callers.join(", "));
        assert!(page.contains(&line), "docs/rules.md lacks {line:?}");
    }
}

fn valid(root: &Json, schema: &Json, node: &Node) -> bool {
    let schema = schema.as_object().expect("a schema is an object");
    schema.iter().all(|(word, want)| holds(root, schema, word, want, node))
}

fn holds(root: &Json, schema: &serde_json::Map<String, Json>, word: &str, want: &Json, node: &Node) -> bool {
    let all = |check: &dyn Fn(&Json) -> bool| want.as_array().expect(word).iter().filter(|one| check(one)).count();
    let total = want.as_array().map_or(0, Vec::len);
    let sub = |schema: &Json| valid(root, schema, node);
    let limit = usize::try_from(want.as_u64().unwrap_or(0)).unwrap_or(usize::MAX);
    match word {
        "$schema" | "$defs" | "title" | "description" | "then" | "else" => true,
        "$ref" => valid(root, root.pointer(&want.as_str().expect("a text")[1..]).expect("a definition"), node),
        "type" => is_a(want.as_str().expect("a text"), node),
        "oneOf" => all(&sub) == 1,
        "anyOf" => all(&sub) > 0,
        "allOf" => all(&sub) == total,
        "not" => !sub(want),
        "if" => schema.get(if sub(want) { "then" } else { "else" }).is_none_or(sub),
        "enum" => scalar(node).is_none_or(|text| all(&|one| one.as_str() == Some(text)) == 1),
        "pattern" => scalar(node).is_none_or(|text| matches(want.as_str().expect("a text"), text)),
        "minimum" => number(node).is_none_or(|number| number >= limit),
        "maximum" => number(node).is_none_or(|number| number <= limit),
        "minItems" => items(node).is_none_or(|items| items.len() >= limit),
        "maxItems" => items(node).is_none_or(|items| items.len() <= limit),
        "items" => items(node).is_none_or(|items| items.iter().all(|item| valid(root, want, item))),
        "minProperties" => members(node).is_none_or(|members| members.len() >= limit),
        "maxProperties" => members(node).is_none_or(|members| members.len() <= limit),
        "required" => members(node).is_none_or(|members| {
            all(&|name| members.iter().any(|(key, ..)| Some(key.as_str()) == name.as_str())) == total
        }),
        "properties" => members(node).is_none_or(|members| {
            members.iter().all(|(key, _, node)| want.get(key).is_none_or(|schema| valid(root, schema, node)))
        }),
        "additionalProperties" => members(node).is_none_or(|members| {
            let known = |key: &str| schema.get("properties").is_some_and(|properties| properties.get(key).is_some());
            members.iter().filter(|(key, ..)| !known(key)).all(|(_, _, node)| want != false && valid(root, want, node))
        }),
        _ => panic!("this test does not know {word:?}"),
    }
}

fn is_a(kind: &str, node: &Node) -> bool {
    match (kind, &node.value) {
        ("object", Value::Map(_)) | ("array", Value::List(_)) => true,
        ("string", Value::Scalar { .. }) => !node.is_null(),
        ("integer", _) => number(node).is_some(),
        ("boolean", Value::Scalar { text, plain: true }) => text == "true" || text == "false",
        ("object" | "array" | "string" | "boolean", _) => false,
        _ => panic!("this test does not know the type {kind:?}"),
    }
}

fn scalar(node: &Node) -> Option<&str> {
    if let Value::Scalar { text, .. } = &node.value { Some(text) } else { None }
}

fn number(node: &Node) -> Option<usize> {
    scalar(node).and_then(|text| text.parse().ok())
}

fn items(node: &Node) -> Option<&[Node]> {
    if let Value::List(items) = &node.value { Some(items) } else { None }
}

fn members(node: &Node) -> Option<&[(String, yaml::Position, Node)]> {
    if let Value::Map(members) = &node.value { Some(members) } else { None }
}

fn matches(pattern: &str, text: &str) -> bool {
    regex::Regex::new(pattern).expect(pattern).is_match(text)
}
