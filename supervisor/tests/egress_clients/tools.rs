//! Tools that fetch things, as people run them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::data::is;
use crate::programs::{Ended, installed, run};
use crate::stage::{PLAIN, SECURE, Stage};

fn fetched(stage: &Stage, command: &mut Command, path: &str, agent: &str) -> Ended {
    let ended = run(stage.node.dir.path(), command);
    assert!(ended.success, "{ended:#?}\n{:#?}", stage.seen());
    assert!(stage.saw(path, agent), "{:#?}", stage.seen());
    ended
}

// covers: D1e
#[test]
fn curl_works_in_each_of_its_ways() {
    let Some(curl) = installed("curl") else { return };
    let stage = Stage::start(Vec::new());
    let (http, socks) = (format!("http://{}", stage.proxy), format!("socks5h://{}", stage.proxy));
    let ca = stage.file("web.pem");
    let get = |words: &[&str], url: &str| {
        let mut command = Command::new(&curl);
        command.args(["-sS", "--max-time", "60", "-w", "%{http_code} %{http_connect} %{errormsg}", "-o"]);
        command.arg(stage.file("got")).args(words).arg(url);
        run(stage.node.dir.path(), &mut command).out
    };
    let (plain, secure) = (format!("{PLAIN}/files/hello"), format!("{SECURE}/files/hello"));
    for (words, url, wanted) in [
        (&["-x", &http][..], &plain, "200 000"),
        // A tunnel for plain HTTP, in both versions, and HTTP/1.0 to the proxy.
        (&["-x", &http, "-p"], &plain, "200 200"),
        (&["-x", &http, "-p", "--http2-prior-knowledge"], &plain, "200 200"),
        (&["-x", &http, "--proxy1.0", &stage.proxy], &secure, "200 200"),
        (&["-x", &http, "--cacert", &ca], &secure, "200 200"),
        (&["-x", &http, "-U", "user:hunter2", "--cacert", &ca], &secure, "200 200"),
        (&["-x", &socks], &plain, "200 000"),
        (&["-x", &socks, "--cacert", &ca], &secure, "200 000"),
        (&["-x", &http, "-X", "POST", "-d", "hello", "-H", "Expect: 100-continue"], &plain, "200 000"),
    ] {
        let words = [words, &["--cacert", &ca]].concat();
        if words.contains(&"--http2-prior-knowledge") {
            // The host speaks HTTP/1.1 alone: the request is granted and the destination fails, which is not a refusal.
            assert!(get(&words, url).starts_with("502 200"), "{words:?}");
            continue;
        }
        let got = get(&words, url);
        assert!(got.starts_with(wanted), "{words:?} {url}: {got}");
    }
    // Refusals: a request, a tunnel, a name behind SOCKS.
    assert!(get(&["-x", &http], &format!("{PLAIN}/secret")).starts_with("403 000"));
    assert!(get(&["-x", &http], "https://evil.test/").starts_with("000 403"));
    assert!(get(&["-x", &socks], "https://evil.test/").contains("000 000"));
    stage.node.audited(3, |line| is(line, &[("direction", "egress"), ("verdict", "deny")]));
    let log = format!("{:?}", stage.node.audit());
    assert!(!log.contains("hunter2") && !log.contains("dXNlcjpodW50ZXIy"), "{log}");
}

// covers: D1f
#[test]
fn pip_downloads_a_wheel() {
    let Some(python) = installed("python3") else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let wheel = dir.path().join("nova_thing-1.0-py3-none-any.whl");
    let make = "import sys, zipfile\nwith zipfile.ZipFile(sys.argv[1], 'w') as wheel:\n    \
        wheel.writestr('nova_thing-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: nova-thing\\nVersion: 1.0\\n')\n    \
        wheel.writestr('nova_thing-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n    \
        wheel.writestr('nova_thing-1.0.dist-info/RECORD', '')\n";
    let made = run(dir.path(), Command::new(&python).args(["-c", make]).arg(&wheel));
    assert!(made.success, "{made:#?}");
    let page = b"<a href=\"/files/nova_thing-1.0-py3-none-any.whl\">nova_thing-1.0-py3-none-any.whl</a>".to_vec();
    let stage = Stage::start(vec![
        ("/files/simple/nova-thing/", page),
        ("/files/nova_thing-1.0-py3-none-any.whl", fs::read(&wheel).expect("made")),
    ]);
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "--isolated", "--no-cache-dir", "--disable-pip-version-check", "download", "--no-deps"]);
    pip.args(["--index-url", &format!("{PLAIN}/files/simple"), "--trusted-host", "plain.test", "--retries", "0"]);
    pip.args(["--proxy", &format!("http://{}", stage.proxy), "-d", &stage.file("out"), "nova-thing"]);
    fetched(&stage, &mut pip, "/files/nova_thing-1.0", "pip/");
    assert!(PathBuf::from(stage.file("out")).join("nova_thing-1.0-py3-none-any.whl").is_file());
}

// covers: D1g
#[test]
fn npm_reads_a_package() {
    let Some(npm) = installed("npm") else { return };
    let package = format!(
        r#"{{"name":"nova-thing","dist-tags":{{"latest":"1.0.0"}},"versions":{{"1.0.0":{{"name":"nova-thing","version":"1.0.0","dist":{{"tarball":"{PLAIN}/files/x.tgz"}}}}}}}}"#
    );
    let stage = Stage::start(vec![("/files/nova-thing", package.into_bytes())]);
    let mut command = Command::new(npm);
    command.args(["view", "nova-thing", "version", "--registry", &format!("{PLAIN}/files/")]);
    command.args(["--proxy", &format!("http://{}", stage.proxy), "--fetch-retries", "0", "--no-update-notifier"]);
    command.args(["--cache", &stage.file("npm"), "--userconfig", &stage.file("npmrc")]);
    let ended = fetched(&stage, &mut command, "/files/nova-thing", "npm/");
    assert_eq!(ended.out.trim(), "1.0.0", "{ended:#?}");
}

// covers: D1l (F-EH08)
#[test]
fn npm_installs_a_package_with_a_scope_where_a_rule_accepts_the_slash_in_its_name() {
    let Some(program) = installed("npm") else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (package, app) = (dir.path().join("package"), dir.path().join("app"));
    for folder in [&package, &app] {
        fs::create_dir(folder).expect("a folder");
    }
    fs::write(package.join("package.json"), r#"{"name": "@nova/thing", "version": "1.0.0"}"#).expect("written");
    fs::write(package.join("index.js"), "module.exports = 'hello'").expect("written");
    let npm = |command: &mut Command| {
        command.args(["--no-update-notifier", "--fetch-retries", "0", "--no-audit", "--no-fund", "--cache"]);
        command.arg(dir.path().join("cache")).arg("--userconfig").arg(dir.path().join("npmrc"));
        run(dir.path(), command)
    };
    let packed = npm(Command::new(&program).arg("pack").current_dir(&package));
    assert!(packed.success, "{packed:#?}");
    let tarball = fs::read(package.join("nova-thing-1.0.0.tgz")).expect("packed");
    let about = format!(
        r#"{{"name":"@nova/thing","dist-tags":{{"latest":"1.0.0"}},"versions":{{"1.0.0":{{"name":"@nova/thing","version":"1.0.0","dist":{{"tarball":"{PLAIN}/npm/@nova/thing/-/thing-1.0.0.tgz"}}}}}}}}"#
    );
    let stage =
        Stage::start(vec![("/npm/@nova%2Fthing", about.into_bytes()), ("/npm/@nova/thing/-/thing-1.0.0.tgz", tarball)]);
    let install = |registry: &str| {
        let mut command = Command::new(&program);
        command.args(["install", "@nova/thing", "--registry", registry, "--proxy"]);
        npm(command.arg(format!("http://{}", stage.proxy)).current_dir(&app))
    };
    // The rule for these paths accepts no escaped slash.
    let refused = install(&format!("{PLAIN}/files/"));
    assert!(!refused.success && refused.err.contains("E403"), "{refused:#?}");
    assert!(stage.seen().is_empty(), "{:#?}", stage.seen());
    let ended = install(&format!("{PLAIN}/npm/"));
    assert!(
        ended.success && app.join("node_modules/@nova/thing/index.js").is_file(),
        "{ended:#?}\n{:#?}",
        stage.seen()
    );
    assert!(stage.saw("/npm/@nova%2Fthing", "npm/"), "{:#?}", stage.seen());
    let line = |line: &serde_json::Value| {
        is(line, &[("path", "/npm/@nova%2Fthing"), ("verdict", "allow"), ("rule", "scoped")])
    };
    stage.node.audited_once(line);
}

// covers: D1j
#[test]
fn git_lists_the_branches_of_a_repository() {
    let Some(git) = installed("git") else { return };
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let refs = format!("{commit}\trefs/heads/main\n").into_bytes();
    let head = b"ref: refs/heads/main\n".to_vec();
    let stage = Stage::start(vec![("/files/r.git/info/refs", refs), ("/files/r.git/HEAD", head)]);
    for host in [PLAIN, SECURE] {
        let mut command = Command::new(&git);
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", stage.node.dir.path());
        command.env("GIT_SSL_CAINFO", stage.file("web.pem"));
        command.args([
            "-c",
            &format!("http.proxy=http://{}", stage.proxy),
            "-c",
            &format!("http.sslCAInfo={}", stage.file("web.pem")),
        ]);
        command.args(["ls-remote", &format!("{host}/files/r.git"), "main"]);
        let ended = fetched(&stage, &mut command, "/files/r.git/info/refs", "git/");
        assert!(ended.out.contains(commit), "{ended:#?}");
    }
}

// covers: D1j
#[test]
fn cargo_reads_an_index() {
    let cargo = std::env::var_os("CARGO").expect("cargo runs this test");
    let line = r#"{"name":"nova-thing","vers":"1.0.0","deps":[],"cksum":"0000000000000000000000000000000000000000000000000000000000000000","features":{},"yanked":false}"#;
    let stage = Stage::start(vec![
        ("/files/index/config.json", format!(r#"{{"dl":"{PLAIN}/files/crates"}}"#).into_bytes()),
        ("/files/index/no/va/nova-thing", line.as_bytes().to_vec()),
    ]);
    let package = PathBuf::from(stage.file("package"));
    fs::create_dir_all(package.join("src")).expect("a folder");
    fs::write(package.join("src/lib.rs"), "").expect("written");
    let manifest = "[package]\nname = \"p\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\nnova-thing = { version = \"1\", registry = \"test\" }\n[workspace]\n";
    fs::write(package.join("Cargo.toml"), manifest).expect("written");
    let mut command = Command::new(cargo);
    command.arg("generate-lockfile").current_dir(&package).env("CARGO_HOME", stage.file("cargo"));
    command.env("CARGO_HTTP_PROXY", format!("http://{}", stage.proxy)).env("CARGO_NET_RETRY", "0");
    command.env("CARGO_REGISTRIES_TEST_INDEX", format!("sparse+{PLAIN}/files/index/"));
    fetched(&stage, &mut command, "/files/index/no/va/nova-thing", "cargo/");
    assert!(fs::read_to_string(package.join("Cargo.lock")).expect("written").contains("nova-thing"));
}

// covers: D1j
#[test]
fn apt_updates_its_lists() {
    let Some(apt) = installed("apt-get") else { return };
    let packages = b"Package: nova-thing\nVersion: 1.0\nArchitecture: all\nMaintainer: n\nFilename: ./x.deb\nSize: 1\nSHA256: 0000000000000000000000000000000000000000000000000000000000000000\nDescription: d\n\n".to_vec();
    let stage =
        Stage::start(vec![("/files/debian/./Packages", packages.clone()), ("/files/debian/Packages", packages)]);
    let sources = stage.file("sources.list");
    fs::write(&sources, format!("deb [trusted=yes] {PLAIN}/files/debian/ /\n")).expect("written");
    let state = PathBuf::from(stage.file("apt"));
    fs::create_dir_all(state.join("lists/partial")).expect("a folder");
    fs::create_dir_all(state.join("cache/archives/partial")).expect("a folder");
    let mut command = Command::new(apt);
    for option in [
        format!("Acquire::http::Proxy=http://{}", stage.proxy),
        format!("Dir::Etc::sourcelist={sources}"),
        "Dir::Etc::sourceparts=-".to_owned(),
        format!("Dir::State::lists={}", state.join("lists").display()),
        format!("Dir::Cache={}", state.join("cache").display()),
        "APT::Sandbox::User=root".to_owned(),
        "Acquire::Retries=0".to_owned(),
        "Acquire::Languages=none".to_owned(),
        "APT::Get::List-Cleanup=0".to_owned(),
    ] {
        command.arg("-o").arg(option);
    }
    command.arg("update");
    let ended = fetched(&stage, &mut command, "/files/debian/", "Debian APT");
    assert!(!ended.err.contains("E: "), "{ended:#?}");
    assert!(ended.out.contains("Get:"), "{ended:#?}");
}
