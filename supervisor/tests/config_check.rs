//! `nova-supervisor check` and `run` with files that have mistakes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const CONFIG: &str = r#"
[node]
id = "node-1"
mode = "dev"
[endpoints]
file = "endpoints.yaml"
[policy]
bundle = "bundle.tar.gz"
keys = "keys.json"
store = "store"
[identity]
source = "dev"
[guests]
root = "guests"
[audit]
file = "audit.jsonl"
[admin]
socket = "admin.sock"
[routes]
mode = "none"
"#;

fn run(args: &[&str], dir: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nova-supervisor"));
    let Output { status, stderr, stdout } = command.args(args).current_dir(dir).output().expect("the command runs");
    let text = String::from_utf8([stdout, stderr].concat()).expect("UTF-8");
    (status.code(), text)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("the folder");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect();
    names.sort();
    names
}

// covers: A12
#[test]
fn check_reports_the_mistakes_of_both_files_and_changes_nothing() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broken = CONFIG.replace("id = \"node-1\"", "id = \"Node 1\"").replace("keys = ", "kees = ");
    fs::write(dir.path().join("supervisor.toml"), broken).expect("written");
    let placements = "endpoints:\n  - workload_id: Service_A\n    tenant: t\n    workload_ip: 10.0.0.300\n";
    fs::write(dir.path().join("endpoints.yaml"), placements).expect("written");
    let before = names(dir.path());
    let args = ["check", "--config", "supervisor.toml", "--placements", "endpoints.yaml"];
    let (code, text) = run(&args, dir.path());
    assert_eq!(code, Some(2), "{text}");
    for wanted in [
        "supervisor.toml:3:6: node.id: \"Node 1\" is not a name",
        "supervisor.toml:7:2: policy.keys: is missing",
        "supervisor.toml:9:1: policy.kees: there is no such key (remedy: did you mean keys?)",
        "endpoints.yaml:2:",
        "endpoints.yaml:4:",
    ] {
        assert!(text.contains(wanted), "{wanted:?} is not in:\n{text}");
    }
    assert_eq!(names(dir.path()), before);
}

// covers: A12
#[test]
fn check_looks_at_the_endpoints_file_of_the_configuration() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    fs::write(dir.path().join("supervisor.toml"), CONFIG).expect("written");
    let (code, text) = run(&["check", "--config", "supervisor.toml"], dir.path());
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("endpoints.yaml does not exist"), "{text}");
    let (ran, said) = run(&["run", "--config", "supervisor.toml"], dir.path());
    assert!(ran == code && said.ends_with(&text), "as the start says: {ran:?} {said}");
    fs::write(dir.path().join("endpoints.yaml"), "endpoints: []\n").expect("written");
    let (code, text) = run(&["check", "--config", "supervisor.toml"], dir.path());
    assert_eq!((code, text.as_str()), (Some(0), "no mistakes\n"));
}

// covers: C1b
#[test]
fn check_finds_a_port_whose_certificate_the_configuration_does_not_have() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let row = "endpoints:\n  - workload_id: a\n    tenant: t\n    pod_uid: pod-a\n    workload_ip: 10.0.0.3\n    ports: \
        [{name: edge, port: 443, mode: tls, protocol: http, certificate: edge}]\n";
    fs::write(dir.path().join("endpoints.yaml"), row).expect("written");
    fs::write(dir.path().join("supervisor.toml"), CONFIG).expect("written");
    let (code, text) = run(&["check", "--config", "supervisor.toml"], dir.path());
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("endpoints.yaml:2: endpoint a: port edge names certificate \"edge\""), "{text}");
    let with = format!("{CONFIG}[[certificates]]\nname = \"edge\"\nchain = \"a.crt\"\nkey = \"a.key\"\n");
    fs::write(dir.path().join("supervisor.toml"), with).expect("written");
    let (code, text) = run(&["check", "--config", "supervisor.toml"], dir.path());
    assert_eq!(code, Some(2), "its files are not there: {text}");
    assert!(text.starts_with("[[certificates]]: cannot read") && text.lines().count() == 1, "{text}");
}

// covers: C1a
#[test]
fn check_refuses_what_a_port_says_of_tls_that_it_does_not_speak() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    fs::write(dir.path().join("supervisor.toml"), CONFIG).expect("written");
    for (port, wanted) in [
        ("mode: tcp, protocol: http, tls12: true", "tls12 has no meaning on this port"),
        ("mode: mtls, protocol: http, certificate: edge", "certificate has no meaning on this port"),
        ("mode: mtls, protocol: http, strip_token: true", "strip_token has no meaning on this port"),
        ("mode: tls, protocol: tcp, strip_token: true", "strip_token has no meaning on this port"),
        ("mode: tls, protocol: http, certificate: ../edge", "certificate"),
        ("mode: tls, protocol: http, tls12: 1", "tls12 is neither true nor false"),
    ] {
        let row = format!(
            "endpoints:\n  - workload_id: a\n    tenant: t\n    pod_uid: pod-a\n    workload_ip: 10.0.0.3\n    ports: \
             [{{name: edge, port: 443, {port}}}]\n"
        );
        fs::write(dir.path().join("endpoints.yaml"), row).expect("written");
        let (code, text) = run(&["check", "--config", "supervisor.toml"], dir.path());
        assert!(code == Some(2) && text.contains(wanted), "{port}: {text}");
    }
}

// covers: A12
#[test]
fn run_with_mistakes_starts_nothing_and_says_all_of_them() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    fs::write(dir.path().join("supervisor.toml"), "[node]\nslot = 9\n").expect("written");
    let (code, text) = run(&["run", "--config", "supervisor.toml"], dir.path());
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("8 mistakes; nothing was started or changed"), "{text}");
    assert_eq!(names(dir.path()), ["supervisor.toml"]);
    let (code, _) = run(&["run", "--config", "absent.toml"], dir.path());
    assert_eq!(code, Some(2));
    let (code, _) = run(&["run"], dir.path());
    assert_eq!(code, Some(2));
}

// covers: A12d
#[test]
fn check_finds_what_the_start_would_fail_on_and_both_say_it_once() {
    let with = |from: &str, to: &str| CONFIG.replace(from, to);
    let more = |sections: &str| format!("{CONFIG}{sections}");
    let files = "source = \"files\"\ndir = \"none\"\ntrust_domain = \"example.org\"";
    for (config, wanted) in [
        (with("\"store\"", "\"file\""), "[policy] store: "),
        (with("\"store\"", "\"file/store\""), "[policy] store: "),
        (with("source = \"dev\"", files), "[identity]: "),
        (
            with("source = \"dev\"", "source = \"dev\"\nbundle_out = \"none/ca.pem\""),
            "[identity] bundle_out: none cannot be",
        ),
        (with("source = \"dev\"", "source = \"dev\"\ncrls = [\"none.crl\"]"), "[identity]: cannot read none.crl"),
        (with("\"audit.jsonl\"", "\"none/audit.jsonl\""), "[audit] file: none cannot be used"),
        (with("\"audit.jsonl\"", "\"folder\""), "[audit] file: folder is a folder"),
        (with("\"audit.jsonl\"", "\"pipe\""), "[audit] file: pipe is a pipe"),
        (with("\"audit.jsonl\"", "\"audit.jsonl\"\nopa_file = \"pipe\""), "[audit] opa_file: pipe is a pipe"),
        (with("\"audit.jsonl\"", "\"./folder/../bundle.tar.gz\""), "are both"),
        (with("\"audit.jsonl\"", "\"endpoints.yaml\""), "[audit] file and [endpoints] file are both"),
        (with("\"admin.sock\"", "\"none/admin.sock\""), "[admin] socket: the folder of admin.socket"),
        (with("\"admin.sock\"", "\"open/admin.sock\""), "can be changed by others"),
        (with("\"admin.sock\"", "\"file\""), "is not a socket"),
        (with("\"endpoints.yaml\"", "\"large.yaml\""), "[endpoints]: large.yaml is larger than"),
        (with("\"endpoints.yaml\"", "\"pipe\""), "[endpoints]: pipe is not a regular file"),
        (more("[credentials]\ndir = \"none\"\n"), "[credentials]: the folder none"),
        (more("[interception]\nchain = \"none.pem\"\nkey = \"none.key\"\n"), "[interception]: cannot read none.pem"),
        (
            more("[[certificates]]\nname = \"c\"\nchain = \"none.pem\"\nkey = \"none.key\"\n"),
            "[[certificates]]: cannot read",
        ),
    ] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| dir.path().join(name);
        for (name, text) in [
            ("supervisor.toml", config.as_str()),
            ("endpoints.yaml", "endpoints: []\n"),
            ("file", ""),
            ("bundle.tar.gz", ""),
        ] {
            fs::write(at(name), text).expect("written");
        }
        fs::File::create(at("large.yaml")).and_then(|file| file.set_len(17 << 20)).expect("a large file");
        fs::create_dir(at("folder")).expect("a folder");
        fs::create_dir(at("open")).expect("a folder");
        fs::set_permissions(at("open"), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("opened to all");
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let before = names(dir.path());
        let (code, text) = run(&["check", "--config", "supervisor.toml"], dir.path());
        assert!(code == Some(2) && text.contains(wanted), "{wanted}: {code:?} {text}");
        assert_eq!(text.lines().count(), 1, "said once: {text}");
        assert!(text.matches("os error").count() <= 1, "{text}");
        let (ran, said) = run(&["run", "--config", "supervisor.toml"], dir.path());
        assert!(ran == Some(2) && said.ends_with(&text), "{wanted}: {ran:?} {said}");
        assert_eq!(names(dir.path()), before, "{wanted}: nothing is changed");
    }
}
