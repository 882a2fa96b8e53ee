//! Reads the sources and fails when they leave the structure of ARCHITECTURE.md.

mod source;

use std::collections::{BTreeMap, BTreeSet};

use source::{Source, crate_sources, document, files, manifest, names_after, workspace_sources};

/// The rows of the supervisor, lowest first: a module may use its own row and the rows below, never one above.
const ROWS: [&[&str]; 8] = [
    &["sys", "reason", "causes"],
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
    assert_eq!(first_cycle(&arrows()), None, "a cycle of imports");
}

// covers: A1a
#[test]
fn no_cycle_exists_between_the_files_of_a_crate() {
    for (folder, _) in CRATES {
        assert_eq!(first_cycle(&files::arrows(&crate_sources(folder))), None, "a cycle of imports");
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
fn what_the_architecture_document_names_exists_and_no_module_is_missing_in_it() {
    let document = document("ARCHITECTURE.md");
    let sources: Vec<Source> =
        ["supervisor", "policy", "relay-guest", "proto"].iter().flat_map(|folder| crate_sources(folder)).collect();
    let mut wrong: Vec<String> = quoted_paths(&document)
        .filter(|path| !sources.iter().any(|source| source.defines(path)))
        .map(|path| format!("nothing is called {}", path.join("::")))
        .collect();
    for module in ROWS.concat() {
        let is_there = sources.iter().any(|source| source.module == module);
        if is_there && !document.contains(&format!("| `{module}` |")) {
            wrong.push(format!("module {module} has no row"));
        }
    }
    assert!(wrong.is_empty(), "ARCHITECTURE.md: {}", wrong.join("\n"));
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

#[test]
fn the_reader_of_files_finds_who_defines_a_name() {
    let sources = [
        Source::new("src/lib.rs", "pub mod net;\nmod dial;\npub use net::{stream::Stream as Link, Port};"),
        Source::new(
            "src/net/mod.rs",
            "mod stream;\npub mod port;\npub use self::{port::*, stream::Stream};\npub struct Net;",
        ),
        Source::new(
            "src/net/stream.rs",
            "use super::Net;\nuse super::port;\nfn f() -> port::Port {}\npub struct Stream;",
        ),
        Source::new("src/net/port.rs", "pub struct Port;\n#[cfg(test)]\nmod tests { use crate::dial::Dial; }"),
        Source::new("src/dial.rs", "use crate::{Link, Port, net};\nfn f() { net::Net; }\npub struct Dial;"),
        Source::new("src/main.rs", "use crate::dial::Dial;"),
    ];
    let arrows = files::arrows(&sources);
    let found: Vec<String> = arrows
        .iter()
        .map(|(from, to)| format!("{from}: {}", to.keys().cloned().collect::<Vec<_>>().join(" ")))
        .collect();
    let dial = "src/dial.rs: src/net/mod.rs src/net/port.rs src/net/stream.rs";
    assert_eq!(found, [dial, "src/net/stream.rs: src/net/port.rs"]);
}

#[test]
fn a_cycle_between_files_is_found_and_named() {
    let sources = [
        Source::new("src/lib.rs", "mod a;\nmod b;\nmod c;"),
        Source::new("src/a.rs", "use crate::b::B;\npub struct A;"),
        Source::new("src/b.rs", "use crate::c;\nfn f() { c::C; }\npub struct B;"),
        Source::new("src/c.rs", "pub struct C(super::a::A);"),
    ];
    let found = first_cycle(&files::arrows(&sources));
    assert_eq!(found.as_deref(), Some("src/a.rs (B) > src/b.rs (C) > src/c.rs (A) > src/a.rs"));
}

/// Paths of modules and items between the backticks of a document: `conn::Cut`, `egress::tunnel::open`.
fn quoted_paths(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let quoted = text.split('`').skip(1).step_by(2);
    let paths = quoted.map(|quoted| quoted.split(['(', ' ']).next().unwrap_or_default());
    let is_name =
        |part: &&str| !part.is_empty() && part.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    let parts = paths.map(|path| path.trim_start_matches("nova_policy::").split("::").collect::<Vec<_>>());
    parts.filter(move |parts| parts.len() > 1 && parts.iter().all(is_name))
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

/// The first cycle of arrows: `a (what it takes) > b (what it takes) > a`.
fn first_cycle(arrows: &files::Arrows) -> Option<String> {
    let mut done = BTreeSet::new();
    arrows.keys().find_map(|start| find_cycle(arrows, start, &mut Vec::new(), &mut done))
}

fn find_cycle<'a>(
    arrows: &'a files::Arrows,
    at: &'a str,
    path: &mut Vec<(&'a str, &'a str)>,
    done: &mut BTreeSet<&'a str>,
) -> Option<String> {
    if let Some(start) = path.iter().position(|(seen, _)| *seen == at) {
        let steps: Vec<String> = path[start..].iter().map(|(from, taken)| format!("{from} ({taken})")).collect();
        return Some(format!("{} > {at}", steps.join(" > ")));
    }
    if !done.insert(at) {
        return None;
    }
    arrows.get(at).into_iter().flatten().find_map(|(to, taken)| {
        path.push((at, taken));
        let found = find_cycle(arrows, to, path, done);
        path.pop();
        found
    })
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
