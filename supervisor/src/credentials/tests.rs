//! A folder of credentials, as it is written and swapped.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::*;

fn write(path: &Path, text: &str, mode: u32) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).expect("written");
    fs::set_permissions(&beside, fs::Permissions::from_mode(mode)).expect("allowed");
    fs::rename(&beside, path).expect("renamed");
}

fn open(dir: &Path) -> Credentials {
    Credentials::open(Some(&CredentialConfig { dir: dir.to_owned() })).expect("a folder")
}

/// Looks again, as every second.
fn look(credentials: &Credentials, before: &mut BTreeMap<String, Mark>) {
    let now = credentials.source.as_ref().expect("a source").list().expect("a folder");
    credentials.reread(before, &now);
    *before = now;
}

/// What is wrong with values; how much memory may be locked here is not known.
fn problems(credentials: &Credentials) -> String {
    let mut all = credentials.warnings();
    all.retain(|problem| !problem.contains("swapped"));
    all.join("\n")
}

fn text(credentials: &Credentials, name: &str) -> Option<String> {
    credentials.get(name).and_then(|held| held.value.text().map(|text| String::from_utf8_lossy(text).into_owned()))
}

// covers: D9f
#[test]
fn a_file_that_others_may_read_is_not_used_and_the_operator_is_told() {
    let dir = tempfile::tempdir().expect("a folder");
    write(&dir.path().join("open"), "hunter2", 0o644);
    write(&dir.path().join("good"), "s3cr3t", 0o400);
    fs::create_dir(dir.path().join("folder")).expect("made");
    nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRUSR).expect("made");
    write(&dir.path().join("Not_A_Name"), "hunter2", 0o400);
    let credentials = open(dir.path());
    assert_eq!(text(&credentials, "good").as_deref(), Some("s3cr3t"));
    assert!(["open", "folder", "pipe", "Not_A_Name"].iter().all(|name| credentials.get(name).is_none()));
    let warnings = problems(&credentials);
    assert!(warnings.contains("credential open: it cannot be used") && warnings.contains("0644"), "{warnings}");
    assert!(!warnings.contains("hunter2"));
    assert!(Credentials::open(Some(&CredentialConfig { dir: dir.path().join("none") })).is_err());
}

// covers: D9g
#[test]
fn a_changed_value_has_another_version_and_an_unchanged_one_keeps_its_own() {
    let dir = tempfile::tempdir().expect("a folder");
    // As Kubernetes mounts a secret: links over `..data`, which is swapped as a whole.
    let put = |number: u32, value: &str| {
        let data = dir.path().join(format!("..{number}"));
        fs::create_dir(&data).expect("made");
        write(&data.join("key"), value, 0o400);
        write(&data.join("same"), "same", 0o400);
        symlink(&data, dir.path().join("..new")).expect("linked");
        fs::rename(dir.path().join("..new"), dir.path().join("..data")).expect("swapped");
    };
    put(1, "one");
    for name in ["key", "same"] {
        symlink(format!("..data/{name}"), dir.path().join(name)).expect("linked");
    }
    let credentials = open(dir.path());
    let mut before = BTreeMap::new();
    look(&credentials, &mut before);
    let version = |name: &str| credentials.get(name).expect("held").version();
    let (key, same) = (version("key"), version("same"));
    put(2, "two");
    look(&credentials, &mut before);
    assert_eq!(text(&credentials, "key").as_deref(), Some("two"));
    assert!(version("key") > key && version("same") == same);
    // What cannot be used changes nothing, what is gone is gone.
    put(3, "a\nb");
    look(&credentials, &mut before);
    assert_eq!(text(&credentials, "key").as_deref(), Some("two"));
    assert!(problems(&credentials).contains("the old value stays in force"), "{}", problems(&credentials));
    fs::remove_file(dir.path().join("key")).expect("removed");
    look(&credentials, &mut before);
    assert!(credentials.get("key").is_none() && problems(&credentials).is_empty(), "{}", problems(&credentials));
}
