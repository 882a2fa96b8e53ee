//! What the documents say, held against the programs: the example runs, every command in a document exists, and the
//! operator's reference knows every key, reason and field of the sources.
#![allow(clippy::panic, reason = "a test that cannot read a document says which")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Binaries that the documents name, and the packages they come from.
const PROGRAMS: [(&str, &str); 6] = [
    ("nova-supervisor", "nova-supervisor"),
    ("nova-policy", "nova-policy"),
    ("nova-relay", "nova-relay"),
    ("novalet-ref", "nova-novalet"),
    ("nova-lab", "nova-tests"),
    ("xtask", "xtask"),
];
/// Documents with commands.
const DOCUMENTS: [&str; 3] = ["README.md", "examples/standalone/README.md", "docs/operator.md"];
/// Documents that `cargo xtask` writes; a fresh copy may not have them yet.
const WRITTEN_BY_TOOLS: [&str; 2] = ["docs/coverage.md", "docs/benchmarks.md"];
/// What the example prints, step by step.
const STEPS: [&str; 13] = [
    "configuration and endpoints are checked: no mistakes",
    "the node is ready: yes",
    "guest x reads an order: 200",
    "the app sees who calls: yes",
    "guest x reads an invoice: 403",
    "the app has seen it: no",
    "replay says that it would be refused now too: yes",
    "guest x reads the invoice without a restart: 200",
    "replay says that it would pass now: yes",
    "the partner reads an order: 200",
    "the same name from another CA: refused",
    "no certificate: refused",
    "the audit log says why: yes",
];
/// The example takes seconds; this is for a machine that does ten other things.
const PATIENCE_SECONDS: &str = "240";
/// Loopback of its own, and no capability at all: what the example needs is what any user has.
const WITHOUT_RIGHTS: &str =
    "ip link set lo up && exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs -- \"$@\"";

// covers: A13
#[test]
fn the_standalone_example_runs_without_any_right_and_leaves_nothing_behind() {
    let temporary = tempfile::Builder::new().prefix("nova-ex").tempdir().expect("a folder");
    let output = Command::new("timeout")
        .args(["--kill-after=10", PATIENCE_SECONDS, "unshare", "--user", "--map-root-user", "--net", "--"])
        .args(["sh", "-c", WITHOUT_RIGHTS, "sh"])
        .arg(root().join("examples/standalone/try.sh"))
        .arg(programs())
        .env("TMPDIR", temporary.path())
        .stdin(Stdio::null())
        .output()
        .expect("timeout and unshare are installed");
    let (printed, said) = texts(&output);
    assert!(output.status.success(), "the example failed:\n{printed}\n{said}");
    let steps: Vec<&str> = printed.lines().filter_map(|line| line.strip_prefix("ok: ")).collect();
    assert_eq!(steps, STEPS, "{said}");
    let left: Vec<_> = std::fs::read_dir(temporary.path()).expect("readable").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

// covers: A13
#[test]
fn the_standalone_example_is_ten_lines_of_configuration() {
    let lines = read("examples/standalone/supervisor.toml").lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines <= 10, "{lines} lines");
}

// covers: A13
#[test]
fn every_command_of_the_examples_readme_is_one_that_its_script_runs() {
    let script = read("examples/standalone/try.sh");
    let ours = ["openssl", "nova-policy", "nova-supervisor", "novalet-ref", "nova-relay", "nova-lab", "sed", "curl"];
    let mut missing = Vec::new();
    for line in commands(&read("examples/standalone/README.md")) {
        let Some(program) = line.split_whitespace().next().filter(|word| ours.contains(word)) else { continue };
        // The script adds where output goes, and takes a relay's input from a variable.
        let line = line.trim_end_matches('&').trim_end();
        let wanted = line.strip_prefix("curl -i ").unwrap_or(line.strip_prefix("nova-relay < ").unwrap_or(line));
        if !script.contains(wanted) {
            missing.push(format!("{program}: {line}"));
        }
    }
    assert!(missing.is_empty(), "not in try.sh:\n{}", missing.join("\n"));
}

#[test]
fn every_command_of_the_documents_exists_with_its_options() {
    let mut wrong = Vec::new();
    for document in DOCUMENTS {
        for line in commands(&read(document)) {
            if let Some(mistake) = check_command(&line) {
                wrong.push(format!("{document}: {line}: {mistake}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_operators_reference_knows_every_configuration_key() {
    let reference = read("docs/operator.md");
    let keys = configuration_keys();
    assert!(keys.len() >= 10 && keys["[node]"].contains("uid"), "the reader of the sources finds too little: {keys:?}");
    for (section, keys) in keys {
        let heading = format!("### `{section}`");
        let text = reference.split_once(&heading).unwrap_or_else(|| panic!("no heading {heading}")).1;
        let rows = text.split("\n##").next().unwrap_or_default();
        let documented: BTreeSet<String> = first_cells(rows);
        assert_eq!(documented, keys, "the keys of {section}");
    }
}

#[test]
fn the_operators_reference_knows_every_reason_and_nothing_else() {
    let sources = read("supervisor/src/reason.rs");
    let labels = sources.split_once("fn as_str").expect("as_str").1.split("\n    }\n").next().expect("its body");
    let labels: BTreeSet<String> =
        labels.lines().filter_map(|line| Some(line.split_once("=> \"")?.1.split('"').next()?.to_owned())).collect();
    assert!(labels.len() > 30, "the reader of the sources finds too little: {labels:?}");
    let documented = first_cells(section("docs/operator.md", "## Reasons"));
    assert_eq!(documented, labels);
}

#[test]
fn the_operators_reference_knows_every_field_of_the_audit_log() {
    let sources = read("supervisor/src/audit/line.rs");
    let written = sources.split_once("impl Serialize for Line").expect("the writer").1;
    let mut fields = BTreeSet::new();
    for call in [".serialize_entry(\"", "text(&mut map, \"", "known(&mut map, \""] {
        fields.extend(written.split(call).skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned));
    }
    assert!(fields.len() > 20, "the reader of the sources finds too little: {fields:?}");
    assert_eq!(first_cells(section("docs/operator.md", "## Audit log")), fields);
}

#[test]
fn the_operators_reference_knows_every_reason_of_an_endpoint_and_of_a_bundle() {
    let listed = [
        ("supervisor/src/control/why.rs", "## Phases of an endpoint"),
        ("policy/src/bundle/error.rs", "## Bundles"),
        ("supervisor/src/bundles/refusal.rs", "## Bundles"),
    ];
    for (file, heading) in listed {
        let documented = first_cells(section("docs/operator.md", heading));
        for line in read(file).lines() {
            let Some((_, rest)) = line.split_once("=> \"") else { continue };
            let label = rest.split('"').next().unwrap_or_default();
            let family = label.split_once('_').map(|(first, _)| format!("{first}_*")).unwrap_or_default();
            let known = documented.contains(label) || documented.contains(&family);
            assert!(label.is_empty() || known, "{file}: {label} is not in \"{heading}\" of docs/operator.md");
        }
    }
}

#[test]
fn the_readme_states_the_non_goals_and_names_files_that_exist() {
    let readme = read("README.md");
    for goal in ["UDP and QUIC", "multi-tenant nodes", "transparent capture", "GPUs", "storage traffic"] {
        assert!(readme.contains(goal), "{goal}");
    }
    for document in ["README.md", "ARCHITECTURE.md"] {
        let text = read(document);
        let quoted = text.split('`').skip(1).step_by(2);
        let paths = quoted.filter(|word| word.ends_with(".rs") || (word.contains('/') && word.ends_with(".md")));
        for path in paths.filter(|path| !path.contains(['*', ' ', '{']) && !WRITTEN_BY_TOOLS.contains(path)) {
            assert!(root().join(path).exists(), "{document} names {path}, which does not exist");
        }
    }
}

/// What is wrong with a command line of a document, if it is one of ours.
fn check_command(line: &str) -> Option<String> {
    let mut words: Vec<&str> =
        line.split_whitespace().take_while(|word| !["&", "&&", "|", "<", ">"].contains(word)).collect();
    if words.starts_with(&["cargo", "xtask"]) {
        words.remove(0);
    }
    let program = *words.first()?;
    if !PROGRAMS.iter().any(|(name, _)| *name == program) || words.len() == 1 {
        return None;
    }
    let names =
        |word: &&&str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') && !word.starts_with('-');
    let mut sub: Vec<&str> = words[1..].iter().take_while(names).copied().collect();
    let mut output = help(program, &sub);
    // The last word may be an argument instead of a sub-command.
    if !output.status.success() && sub.len() > 1 {
        sub.pop();
        output = help(program, &sub);
    }
    let (printed, said) = texts(&output);
    if !output.status.success() {
        return Some(format!("{program} {} is no command: {said}", sub.join(" ")));
    }
    let options = words.iter().filter(|word| word.starts_with("--"));
    let unknown = options.map(|word| word.split('=').next().unwrap_or(word)).find(|option| !printed.contains(option));
    unknown.map(|option| format!("has no option {option}"))
}

fn help(program: &str, sub: &[&str]) -> Output {
    let path = programs().join(program);
    Command::new(&path).args(sub).arg("--help").stdin(Stdio::null()).output().expect("the program starts")
}

/// The lines of all blocks marked `sh`.
fn commands(document: &str) -> Vec<String> {
    let blocks = document.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("sh\n"));
    blocks.flat_map(str::lines).map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// Every configuration key by section, from the calls that read them.
fn configuration_keys() -> BTreeMap<String, BTreeSet<String>> {
    let source =
        ["sections", "tables", "egress"].map(|file| read(&format!("supervisor/src/config/{file}.rs"))).concat();
    let mut keys: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for function in source.replace("\npub(super) fn ", "\nfn ").split("\nfn ").skip(1) {
        let name = function.split(['(', '<']).next().unwrap_or_default();
        let own = ["document.section(\"", "document.optional_section(\"", "document.tables(\""]
            .iter()
            .find_map(|call| Some((*call, function.split_once(call)?.1.split('"').next()?)));
        // Three sections are read by more than one function.
        let section = match (own, name) {
            (Some(("document.tables(\"", table)), _) => format!("[[{table}]]"),
            (Some((_, section)), _) => format!("[{section}]"),
            (None, "key_source") => "[[tokens]]".to_owned(),
            (None, "run_as") => "[node]".to_owned(),
            (None, "bundle_source") => "[policy]".to_owned(),
            (None, "dev_identity" | "trust") => "[identity]".to_owned(),
            (None, _) => continue,
        };
        let entry = keys.entry(section).or_default();
        for call in [
            ".required(\"",
            ".optional(\"",
            ".list(\"",
            ".table_of_lists(\"",
            "(&mut section, \"",
            "path(section, \"",
            "file(\"",
        ] {
            let found = function.split(call).skip(1).filter_map(|rest| rest.split('"').next());
            entry.extend(found.map(str::to_owned));
        }
    }
    keys
}

/// The names in backquotes in the first column of a Markdown table.
fn first_cells(text: &str) -> BTreeSet<String> {
    let cells = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

fn section(document: &str, heading: &str) -> &'static str {
    let text = read(document);
    let rest = text.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading} in {document}")).1;
    rest.split("\n## ").next().unwrap_or_default().to_owned().leak()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// The folder of the binaries: beside the tests, as cargo puts them. Built when one is missing.
fn programs() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_nova-lab")).parent().expect("a folder").to_owned();
        let missing: Vec<_> = PROGRAMS.iter().filter(|(name, _)| !folder.join(name).exists()).collect();
        if !missing.is_empty() {
            let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
            let mut build = Command::new(cargo);
            build
                .current_dir(root())
                .args(["build", "--quiet", "--bins"])
                .args(missing.iter().flat_map(|(_, package)| ["-p", package]));
            let target = folder.parent().expect("the target folder");
            assert!(build.arg("--target-dir").arg(target).status().expect("cargo").success(), "cargo build failed");
        }
        folder
    })
}
