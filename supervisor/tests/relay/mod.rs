//! The real relay of a guest, as nova-init starts it, on a thread of the test.
#![allow(dead_code, reason = "each test binary uses its own part of it")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use nova_relay::handover::Handed;
use nova_relay::init::config::GuestConfig;
use nova_relay::init::surroundings::environment;
use nova_relay::init::trust::{self, Trust};
use nova_relay::relay::Relay as Serving;
use serde_json::{Value, json};

use crate::data::token;

pub(crate) struct Relay {
    config: GuestConfig,
    trust: Option<Trust>,
}

impl Relay {
    /// Takes the place of the relay of `pod` in the node's folder, with `more` in its `guest.json`. Returns when it listens and
    /// the app could start; serves until the test's process ends.
    pub(crate) fn start(dir: &Path, pod: &str, more: &Value) -> Self {
        let config = config(dir, pod, more);
        let (ready, wait) = mpsc::channel();
        let its_own = config.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let relay = Serving::start(its_own.for_relay(), Handed::default()).expect("the relay starts");
                let (trust, _keeper) = trust::prepare(&its_own).await.expect("the files are written");
                ready.send(trust).expect("somebody waits");
                relay.serve().await;
            });
        });
        Self { config, trust: wait.recv().expect("the relay is ready") }
    }

    /// `127.0.0.1:port` of the HTTP proxy and SOCKS5.
    pub(crate) fn proxy(&self) -> String {
        format!("127.0.0.1:{}", self.config.proxy_port)
    }

    /// Where the muxer finds the relay.
    pub(crate) fn inner_socket(&self) -> PathBuf {
        self.config.socket_dir.join("guest_15080")
    }

    /// The environment of the guest's app.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        in_image(environment(&self.config, self.trust.as_ref()))
    }

    /// The same where nobody told the app of the CA of its pod.
    pub(crate) fn environment_without_trust(&self) -> BTreeMap<String, String> {
        in_image(environment(&self.config, None))
    }
}

/// The machine is the image here.
fn in_image(mut variables: BTreeMap<String, String>) -> BTreeMap<String, String> {
    for name in ["PATH", "HOME"] {
        variables.insert(name.to_owned(), std::env::var(name).unwrap_or_default());
    }
    variables
}

fn config(dir: &Path, pod: &str, more: &Value) -> GuestConfig {
    let pod_dir = dir.join("guests").join(pod);
    let link = pod_dir.join("relay");
    std::fs::create_dir(&link).expect("a folder");
    symlink(pod_dir.join("v.sock_15001"), link.join("host_15001")).expect("linked");
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
    let hex = token(pod).iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string grows");
        hex
    });
    let mut config = json!({
        "workload": "app", "workload_ip": "127.0.0.1", "boot_token": hex, "link": {"unix": {"dir": link}},
        "host_ports": [15001], "guest_port": 15080, "framed": true, "proxy_port": free.port(), "socket_dir": link,
        "command": ["app"],
    });
    for (key, value) in more.as_object().expect("keys of guest.json") {
        config[key] = value.clone();
    }
    serde_json::from_value(config).expect("a configuration")
}
