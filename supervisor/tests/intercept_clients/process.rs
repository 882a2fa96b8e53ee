//! The guest as it is in production: nova-init and nova-relay as processes, alone in a network namespace, with an app that starts
//! programs as the test tells it. What changes meanwhile is the CA.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::data::{Node, Plan, Upstream, X, issue, token, until};
use crate::programs::installed;
use crate::{RULES, URL};

/// Runs one file after the other, each in a shell of its own.
const APP: &str = r#"
n=1
while :; do
    until [ -e "$DIR/ask.$n" ]; do sleep 0.02; done
    sh "$DIR/ask.$n" > "$DIR/out.$n" 2>&1
    echo "exit=$?" >> "$DIR/out.$n"
    mv "$DIR/out.$n" "$DIR/answer.$n"
    n=$((n + 1))
done
"#;

/// Reads its trust store once, as most programs do, and calls whenever it is asked to.
const READS_ONCE: &str = r#"
import os, ssl, sys, time, urllib.request
context = ssl.create_default_context()
place, number = os.environ["DIR"], 1
while True:
    while not os.path.exists(f"{place}/once.{number}"):
        time.sleep(0.02)
    try:
        said = urllib.request.urlopen(sys.argv[1], context=context, timeout=20).read().decode()
    except Exception as error:
        said = f"failed: {error}"
    with open(f"{place}/.said", "w") as file:
        file.write(said)
    os.rename(f"{place}/.said", f"{place}/said.{number}")
    number += 1
"#;

pub(crate) struct Guest {
    pub(crate) node: Node,
    _upstream: Upstream,
    init: Child,
    asked: AtomicUsize,
    asked_once: AtomicUsize,
}

impl Guest {
    /// `sections` are further ones of the supervisor's configuration.
    pub(crate) fn start(sections: &str) -> Self {
        let hosts = vec![("look.test".to_owned(), "NET.80".to_owned())];
        let plan = Plan {
            rules: RULES.to_owned(),
            hosts,
            half_close: false,
            sections: sections.to_owned(),
            ..Plan::default()
        };
        let node = Node::with(plan);
        let who = issue(&node.web, "spiffe://web/host", "look.test");
        let upstream = Upstream::https(&format!("{}:9443", node.ip(80)), &who);
        let dir = node.dir.path();
        let pod = dir.join("guests").join(X);
        let link = pod.join("relay");
        fs::create_dir(&link).expect("a folder");
        symlink(pod.join("v.sock_15001"), link.join("host_15001")).expect("linked");
        fs::write(dir.join("once.py"), READS_ONCE).expect("written");
        let config = serde_json::json!({
            "workload": "x", "workload_ip": node.ip(11), "boot_token": hex::encode(token(X)),
            "link": {"unix": {"dir": link}}, "host_ports": [15001], "guest_port": 15080, "framed": true,
            "proxy_port": 3128, "trust_dir": dir.join("trust"), "relay": programs().join("nova-relay"),
            "command": ["/bin/sh", "-c", APP], "env": {"DIR": dir},
        });
        let file = dir.join("guest.json");
        fs::write(&file, config.to_string()).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("allowed");
        let init = Command::new("unshare")
            .arg("-Urn")
            .arg(programs().join("nova-init"))
            .arg("--config")
            .arg(file)
            .stdin(Stdio::null())
            .spawn()
            .expect("unshare starts");
        Self { node, _upstream: upstream, init, asked: AtomicUsize::new(1), asked_once: AtomicUsize::new(1) }
    }

    /// What a shell of the app says to these commands.
    pub(crate) fn run(&self, commands: &str) -> String {
        self.ask(("ask", "answer"), self.asked.fetch_add(1, Ordering::Relaxed), commands)
    }

    /// Whether curl, started now, gets an answer.
    pub(crate) fn curl(&self) -> bool {
        self.run(&format!("curl -q -sSf --max-time 20 '{URL}'")).contains("GET /v1/things?of=mine HTTP/1.1")
    }

    /// Whether openssl, started now, believes the certificate.
    pub(crate) fn openssl(&self) -> bool {
        let tunnel = "openssl s_client -proxy 127.0.0.1:3128 -connect look.test:9443 -servername look.test";
        let strict = "-verify_return_error -verify_hostname look.test -x509_strict < /dev/null";
        self.run(&format!("{tunnel} {strict}")).contains("Verify return code: 0 (ok)")
    }

    /// Starts the program that reads its store once.
    pub(crate) fn start_reader(&self) {
        let python = installed("python3").expect("it was looked for");
        self.run(&format!("{} \"$DIR/once.py\" '{URL}' > /dev/null 2>&1 &", python.display()));
    }

    /// What it gets now.
    pub(crate) fn reader(&self) -> String {
        self.ask(("once", "said"), self.asked_once.fetch_add(1, Ordering::Relaxed), "")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.node.dir.path().join(name)
    }

    fn ask(&self, (question, answer): (&str, &str), number: usize, text: &str) -> String {
        let (beside, answer) = (self.file(".question"), self.file(&format!("{answer}.{number}")));
        fs::write(&beside, text).expect("written");
        fs::rename(beside, self.file(&format!("{question}.{number}"))).expect("renamed");
        until("the app answers", || answer.exists());
        fs::read_to_string(answer).expect("text")
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // nova-init ends everything that it started; unshare has become it.
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.init.id()).expect("a pid"));
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM);
        let _ = self.init.wait();
    }
}

/// The folder with nova-init and nova-relay: that of the supervisor's own program.
fn programs() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_nova-supervisor")).parent().expect("a folder");
        let mut build = Command::new(std::env::var("CARGO").as_deref().unwrap_or("cargo"));
        build.args(["build", "--quiet", "--package", "nova-relay", "--bins"]);
        if folder.ends_with("release") {
            build.arg("--release");
        }
        let built = build.output().expect("cargo starts");
        assert!(built.status.success(), "nova-relay: {}", String::from_utf8_lossy(&built.stderr));
        folder.to_owned()
    })
}
