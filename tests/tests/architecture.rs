//! Reads the sources and fails when they leave the structure of ARCHITECTURE.md.

mod source;

use std::collections::{BTreeMap, BTreeSet};

use source::{Source, crate_sources, manifest, names_after, workspace_sources};

/// The rows of the supervisor, lowest first: a module may use its own row and the rows below, never one above.
const ROWS: [&[&str]; 8] = [
    &["sys", "reason"],
    &["config"],
    &[
        "state",
        "tls",
        "guestlink",
        "net",
        "drain",
        "metrics",
        "identity",
        "credentials",
        "gate",
        "headers",
        "bundles",
        "fetch",
        "tokens",
    ],
    &["audit"],
    &["conn"],
    &["accept", "identify", "decide", "dial", "copy", "serve"],
    &["ingress", "egress", "control", "admin"],
    &["app", "cli"],
];

/// Which of our crates a crate may depend on.
const CRATES: [(&str, &[&str]); 7] = [
    ("proto", &[]),
    ("policy", &["nova-proto"]),
    ("relay-guest", &["nova-proto"]),
    ("supervisor", &["nova-policy", "nova-proto"]),
    ("tests/novalet", &["nova-policy", "nova-proto"]),
    ("tests", &["nova-novalet", "nova-policy", "nova-proto", "nova-relay", "nova-supervisor"]),
    ("xtask", &[]),
];

// covers: A1a
#[test]
fn no_arrow_between_the_supervisors_modules_points_up() {
    let mut wrong = Vec::new();
    for (from, uses) in arrows() {
        let Some(row) = row_of(&from) else {
            wrong.push(format!("module {from} stands in no row of this test"));
            continue;
        };
        for (to, place) in uses {
            if row_of(&to).is_some_and(|below| below > row) {
                wrong.push(format!("{from} uses {to}, which stands above it ({place})"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// covers: A1a
#[test]
fn no_cycle_exists_between_the_supervisors_modules() {
    let arrows = arrows();
    let mut done = BTreeSet::new();
    for module in arrows.keys() {
        let mut path = Vec::new();
        let cycle = find_cycle(&arrows, module, &mut path, &mut done);
        assert_eq!(cycle, None, "a cycle of imports");
    }
}

// covers: A1a
#[test]
fn crates_depend_only_on_crates_below() {
    for (folder, allowed) in CRATES {
        for dependency in manifest(folder) {
            assert!(
                !dependency.starts_with("nova-") || allowed.contains(&dependency.as_str()),
                "{folder} must not depend on {dependency}"
            );
        }
    }
}

// covers: A1b
#[test]
fn unsafe_stands_in_sys_modules_only() {
    only_in(&workspace_sources(), &["unsafe {", "unsafe fn", "unsafe impl", "allow(unsafe_code"], |source| {
        source.path.ends_with("sys.rs") || source.path.contains("/sys/")
    });
}

// covers: A1b
#[test]
fn only_net_makes_sockets_and_guestlink_those_of_guests() {
    let made = ["TcpStream::connect", "TcpSocket::new", "UdpSocket::bind", "Socket::new(", "TcpListener::bind"];
    only_in(&crate_sources("supervisor"), &made, |source| ["net", "guestlink"].contains(&source.module.as_str()));
}

// covers: A1b
#[test]
fn only_dial_connects_upstream() {
    only_in(&crate_sources("supervisor"), &["outbound::connect", "outbound::{", "ping::echo"], |source| {
        source.module == "dial"
    });
}

// covers: A1b
#[test]
fn only_decide_calls_the_engine() {
    only_in(&crate_sources("supervisor"), &["Evaluator", ".evaluate("], |source| source.module == "decide");
}

// covers: A1b
#[test]
fn only_the_control_service_sees_grpc_types() {
    only_in(&crate_sources("supervisor"), &["nova_proto::control", "tonic::"], |source| source.module == "control");
}

#[test]
fn the_reader_of_imports_sees_every_spelling() {
    let source = Source::new(
        "src/dial/http.rs",
        "use crate::{audit::Line, state::{endpoint::Endpoint, table}};\n\
         // crate::comment::is_no_import\n\
         fn f() { crate::net::bind(); super::super::decide::decide() }\n\
         #[cfg(test)]\nmod tests { use crate::app::App; }\n",
    );
    let found: Vec<String> = source.uses().into_iter().collect();
    assert_eq!(found, ["audit", "decide", "net", "state"]);
}

fn row_of(module: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.contains(&module))
}

/// Module to the modules it uses, each with one place.
fn arrows() -> BTreeMap<String, BTreeMap<String, String>> {
    let mut arrows: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for source in crate_sources("supervisor") {
        if ["lib", "main"].contains(&source.module.as_str()) {
            continue;
        }
        let uses = arrows.entry(source.module.clone()).or_default();
        for to in source.uses() {
            if to != source.module {
                uses.entry(to).or_insert_with(|| source.path.clone());
            }
        }
    }
    arrows
}

fn find_cycle(
    arrows: &BTreeMap<String, BTreeMap<String, String>>,
    module: &str,
    path: &mut Vec<String>,
    done: &mut BTreeSet<String>,
) -> Option<String> {
    if let Some(start) = path.iter().position(|seen| seen == module) {
        let mut cycle = path[start..].to_vec();
        cycle.push(module.to_owned());
        return Some(cycle.join(" > "));
    }
    if !done.insert(module.to_owned()) {
        return None;
    }
    path.push(module.to_owned());
    let found = arrows.get(module).into_iter().flatten().find_map(|(to, _)| find_cycle(arrows, to, path, done));
    path.pop();
    found
}

fn only_in(sources: &[Source], tokens: &[&str], allowed: impl Fn(&Source) -> bool) {
    let wrong: Vec<String> = sources
        .iter()
        .filter(|source| !allowed(source))
        .flat_map(|source| {
            tokens.iter().filter(|token| names_after(&source.code, token)).map(move |token| (source, token))
        })
        .map(|(source, token)| format!("{} has `{token}`", source.path))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
