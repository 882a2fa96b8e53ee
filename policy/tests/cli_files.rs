//! What the command line reads and writes: only regular files are read and replaced, and nothing waits for ever.

mod cli_support;

use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cli_support::{build, code, folder, run, verify, words};
use nix::sys::stat::Mode;

fn pipe(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    nix::unistd::mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).expect("a pipe");
    path
}

fn is_pipe(path: &Path) -> bool {
    path.symlink_metadata().expect("still there").file_type().is_fifo()
}

/// Every command that writes a file, without the name of the file.
const WRITERS: [&str; 5] = [
    "compile --rules rules.yaml --workloads endpoints.yaml --node node-1 -o",
    "bundle build --rules rules.yaml --workloads endpoints.yaml --node node-1 --key key.pem --key-id k1 -o",
    "import map.json --tenant t -o",
    "bundle sign in --key key.pem --key-id k1 -o",
    "keygen -o other.pem --force --key-id k9 --public",
];

fn writers() -> tempfile::TempDir {
    let dir = folder();
    std::fs::write(dir.path().join("map.json"), r#"{"a":["b"]}"#).expect("written");
    std::fs::create_dir(dir.path().join("in")).expect("a folder");
    std::fs::write(dir.path().join("in/.manifest"), r#"{"revision":"r","roots":["nova"]}"#).expect("written");
    dir
}

// covers: A12c
#[test]
fn no_output_takes_the_place_of_a_pipe_or_a_link() {
    let dir = writers();
    let at = dir.path();
    let path = pipe(at, "out");
    for command in WRITERS {
        let got = words(at, &format!("{command} out"));
        let said = String::from_utf8_lossy(&got.stderr).into_owned();
        // keygen reads the file of public keys first: a pipe is none.
        let want = if command.starts_with("keygen") { "not a regular file" } else { "nobody reads the pipe" };
        assert!(code(&got) == Some(1) && said.contains(want), "{command}: {got:?}");
        assert!(is_pipe(&path), "{command}");
    }
    for command in &WRITERS[..4] {
        let mut reader = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
            .open(&path)
            .expect("opened");
        assert_eq!(code(&words(at, &format!("{command} out"))), Some(0), "{command}");
        let mut content = Vec::new();
        reader.read_to_end(&mut content).expect("what was written");
        assert!(!content.is_empty() && is_pipe(&path), "{command}");
    }
    let got = words(at, "keygen --public keys.json --force --key-id k2 -o out");
    assert!(code(&got) == Some(1) && is_pipe(&path), "{got:?}");
    for (link, to, want) in [("to-file", "b.tar.gz", Some(0)), ("to-nothing", "none", Some(1))] {
        std::os::unix::fs::symlink(to, at.join(link)).expect("a link");
        assert_eq!(code(&build(at, link)), want, "{link}");
        assert!(at.join(link).is_symlink(), "{link}");
    }
    assert!(!at.join("none").exists());
    assert_eq!(code(&build(at, "in")), Some(1), "a folder");
}

// covers: A12c
#[test]
fn standard_output_takes_what_a_file_takes_and_nothing_else() {
    let dir = writers();
    let at = dir.path();
    for command in WRITERS {
        let got = words(at, &format!("{command} -"));
        assert!(code(&got) == Some(0) && !got.stdout.is_empty(), "{command}: {got:?}");
        // This one is a pipe, and must stay the test's.
        if !command.starts_with("keygen") {
            let got = words(at, &format!("{command} /dev/stdout"));
            assert!(code(&got) == Some(0) && !got.stdout.is_empty(), "{command}: {got:?}");
        }
    }
    let bundle = words(at, &format!("{} -", WRITERS[1]));
    std::fs::write(at.join("s.tar.gz"), &bundle.stdout).expect("written");
    assert_eq!(code(&verify(at, "s.tar.gz", "--scope node-1")), Some(0), "{bundle:?}");
    let refused = words(at, "keygen -o - --public keys.json --key-id k2");
    assert!(code(&refused) == Some(1) && refused.stdout.is_empty(), "{refused:?}");
    assert!(!at.join("-").exists());
}

// covers: A12c
#[test]
fn no_input_may_be_a_pipe_or_a_device() {
    let dir = folder();
    let at = dir.path();
    pipe(at, "in");
    for bad in ["in", "/dev/zero", "."] {
        for command in [
            format!("lint --rules {bad} --workloads endpoints.yaml"),
            format!("lint --rules rules.yaml --workloads {bad}"),
            format!("bundle verify {bad} --keys keys.json"),
            format!("bundle verify b.tar.gz --keys {bad}"),
            format!("bundle inspect {bad}"),
            format!("bundle build --rules rules.yaml --workloads endpoints.yaml --node n --key {bad} --key-id k1 -o n"),
            format!("decide --bundle {bad} --pair x"),
            format!("decide --bundle b.tar.gz --input {bad}"),
            format!("import {bad} --tenant t"),
            format!("gate --live {bad} --next b.tar.gz"),
            format!("gate --live b.tar.gz --next b.tar.gz --in-use {bad}"),
        ] {
            let got = words(at, &command);
            let said = String::from_utf8_lossy(&got.stderr).into_owned();
            assert!(code(&got) == Some(1) && said.contains("not a regular file"), "{command}: {got:?}");
        }
        let rules = std::fs::read_to_string(at.join("rules.yaml")).expect("the rules");
        std::fs::write(at.join("bad.yaml"), rules.replace("partner-ca.pem", bad)).expect("written");
        let got = words(at, "lint --rules bad.yaml --workloads endpoints.yaml");
        let said = String::from_utf8_lossy(&got.stdout).into_owned();
        assert!(code(&got) == Some(3) && said.contains("not a regular file"), "{got:?}");
    }
}

// covers: A5a
#[test]
fn only_the_files_of_a_bundle_are_signed() {
    let dir = writers();
    let at = dir.path();
    let sign = |folder: &str| run(at, &["bundle", "sign", folder, "--key", "key.pem", "--key-id", "k1", "-o", "s"]);
    std::fs::create_dir(at.join("rules")).expect("a folder");
    std::fs::copy(at.join("rules.yaml"), at.join("rules/data.json")).expect("copied");
    for (file, want) in [("key.pem", "key.pem is no part of a bundle"), ("notes.txt", "notes.txt is no part")] {
        std::fs::write(at.join("in").join(file), "x").expect("written");
        let got = sign("in");
        let said = String::from_utf8_lossy(&got.stderr).into_owned();
        assert!(code(&got) == Some(1) && said.contains(want), "{got:?}");
        std::fs::remove_file(at.join("in").join(file)).expect("removed");
    }
    for (file, content, want) in [("data.json", r#"{"other":1}"#, "in: "), ("a.rego", "package other\n", "in: ")] {
        std::fs::write(at.join("in").join(file), content).expect("written");
        let got = sign("in");
        let said = String::from_utf8_lossy(&got.stderr).into_owned();
        assert!(code(&got) == Some(1) && said.contains(want), "what no node takes: {got:?}");
        std::fs::remove_file(at.join("in").join(file)).expect("removed");
    }
    std::fs::remove_file(at.join("in/.manifest")).expect("removed");
    let got = sign("in");
    assert!(code(&got) == Some(1) && String::from_utf8_lossy(&got.stderr).contains("no .manifest"), "{got:?}");
    assert!(!at.join("s").exists());
}
