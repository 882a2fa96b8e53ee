//! A folder with a signing key, a bundle file and a store, as a node has them.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of it")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nova_policy::bundle::{KeyPair, SigningKey, VerifyKeys};
use nova_policy::compile::{Options, SourceText};
use nova_policy::engine::Evaluator;
use nova_policy::input::Input;
use nova_policy::publish::{self, Publish};
use nova_supervisor::bundles::{BundleFeed, Timing};
use nova_supervisor::config::{BundleSource, PolicyConfig};
use nova_supervisor::state::policy::PolicyCell;

pub const NODE: &str = "node-1";
pub const KEY_ID: &str = "release";
pub const HOUR: u64 = 3600;

pub const WORKLOADS: &str = "
endpoints:
  - {workload_id: x, tenant: t, pod_uid: pod-x, generation: 1, workload_ip: 10.64.3.11, state: ready,
     boot_token: 00112233445566778899aabbccddeeff, backend: {hybrid: {file: v.sock, half_close: false}}, ports: []}
  - {workload_id: service-a, tenant: t, pod_uid: pod-a, generation: 1, workload_ip: 10.64.3.21, state: ready,
     boot_token: 10112233445566778899aabbccddeeff, backend: {hybrid: {file: v.sock, half_close: false}},
     ports: [{name: https, port: 443, target_port: 8080, mode: mtls, protocol: http}]}
  - {workload_id: b, tenant: t, pod_uid: pod-b, generation: 1, workload_ip: 10.64.3.31, state: ready,
     boot_token: 20112233445566778899aabbccddeeff, backend: {hybrid: {file: v.sock, half_close: false}},
     ports: [{name: https, port: 443, target_port: 8080, mode: mtls, protocol: http}]}
";

/// x may read orders of service-a; nobody may talk to b.
pub const ONLY_A: &str = "
rules:
  - id: x-to-a
    tenant: t
    from: {workload: x}
    to: {workload: service-a, port: https}
    http: {methods: [GET], paths: [\"/v1/orders/**\"]}
";

/// The same, and x may read everything of b.
pub const ALSO_B: &str = "
rules:
  - id: x-to-a
    tenant: t
    from: {workload: x}
    to: {workload: service-a, port: https}
    http: {methods: [GET], paths: [\"/v1/orders/**\"]}
  - id: x-to-b
    tenant: t
    from: {workload: x}
    to: {workload: b, port: https}
    http: {methods: [GET], paths: [\"/**\"]}
";

pub struct Node {
    pub dir: tempfile::TempDir,
    pub config: PolicyConfig,
    /// Where bundles are published.
    pub file: PathBuf,
    pub cell: Arc<PolicyCell>,
    /// Revisions in the order in which the hook was told.
    pub told: Arc<Mutex<Vec<String>>>,
    key: SigningKey,
    /// When bundles are signed.
    clock: SystemTime,
}

impl Node {
    /// A node in the time of [`now`].
    pub fn new() -> Self {
        Self::at(now())
    }

    pub fn at(clock: SystemTime) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let pair = KeyPair::es256().expect("a key");
        let config = config_in(dir.path());
        let node = Self {
            file: dir.path().join("bundle.tar.gz"),
            key: SigningKey::from_pem(pair.private_pem.as_bytes()).expect("a signing key"),
            dir,
            config,
            cell: Arc::default(),
            told: Arc::default(),
            clock,
        };
        node.trust(&pair);
        node
    }

    pub fn trust(&self, pair: &KeyPair) {
        let mut keys = VerifyKeys::default();
        keys.insert(KEY_ID, pair.algorithm, &pair.public_pem);
        put(&self.config.keys, keys.to_json().as_bytes());
    }

    /// A feed that has not started.
    pub fn feed(&self) -> BundleFeed {
        let told = Arc::clone(&self.told);
        let hook = Box::new(move |policy: &nova_policy::engine::Policy| {
            told.lock().expect("no panic").push(policy.revision().to_owned());
        });
        BundleFeed::open(&self.config, NODE, Arc::clone(&self.cell), hook).expect("a store of our own")
    }

    /// A bundle for this node, good for a day.
    pub fn bundle(&self, serial: u64, rules: &str) -> Vec<u8> {
        self.bundle_until(serial, rules, 24 * HOUR)
    }

    pub fn bundle_until(&self, serial: u64, rules: &str, expires_in: u64) -> Vec<u8> {
        signed_at(self.clock, &self.key, NODE, serial, rules, expires_in)
    }

    /// A bundle of compiled rules, whatever they are.
    pub fn signed(&self, serial: u64, data: &nova_policy::data::NodeData) -> Vec<u8> {
        let now = seconds(self.clock);
        let how = Publish { key: &self.key, key_id: KEY_ID, serial, now, expires_in: 24 * HOUR };
        publish::bundle_of(data, &how).expect("a bundle")
    }

    /// Puts a bundle in place as publishers do.
    pub fn publish(&self, bytes: &[u8]) {
        put(&self.file, bytes);
    }

    /// Serial of what decides now.
    pub fn active(&self) -> Option<u64> {
        self.cell.load().map(|policy| policy.serial())
    }

    /// What decides now says about an input. Without a policy everything is denied.
    pub fn allows(&self, input: &str) -> bool {
        let input: Input = serde_json::from_str(input).expect("an input");
        self.cell.load().is_some_and(|policy| Evaluator::new().decide(&policy, &input).allow)
    }

    pub fn stored(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.config.store).expect("the store");
        let mut names: Vec<_> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect();
        names.retain(|name| name != "lock");
        names.sort();
        names
    }

    pub fn stored_path(&self, serial: u64) -> PathBuf {
        self.config.store.join(format!("bundle-{serial}.tar.gz"))
    }
}

/// The configuration of a node whose files are in `dir`.
pub fn config_in(dir: &Path) -> PolicyConfig {
    PolicyConfig {
        source: BundleSource::File(dir.join("bundle.tar.gz")),
        keys: dir.join("keys.json"),
        key_id: None,
        store: dir.join("store"),
        stale_grace: Duration::from_secs(HOUR),
        min_serial: 0,
    }
}

/// A feed of such a node that has not started and tells nobody.
pub fn feed_in(dir: &Path, cell: Arc<PolicyCell>) -> BundleFeed {
    BundleFeed::open(&config_in(dir), NODE, cell, Box::new(|_| {})).expect("a store of our own")
}

pub fn signed(key: &SigningKey, node: &str, serial: u64, rules: &str, expires_in: u64) -> Vec<u8> {
    signed_at(now(), key, node, serial, rules, expires_in)
}

fn signed_at(at: SystemTime, key: &SigningKey, node: &str, serial: u64, rules: &str, expires_in: u64) -> Vec<u8> {
    publish::publish(
        SourceText { file: "rules.yaml", text: rules },
        SourceText { file: "endpoints.yaml", text: WORKLOADS },
        &Options { node: node.to_owned(), lab: false },
        &|name| Err(std::io::Error::other(name.to_owned())),
        &Publish { key, key_id: KEY_ID, serial, now: seconds(at), expires_in },
    )
    .expect("a bundle")
}

/// The clock of tests that pass the time in.
pub fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

pub fn later(seconds: u64) -> SystemTime {
    now() + Duration::from_secs(seconds)
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// A feed that asks a server often and gives up soon.
pub fn impatient() -> Timing {
    Timing {
        first: Duration::from_millis(20),
        longest: Duration::from_millis(200),
        interval: Duration::from_millis(30),
        shortest: Duration::from_millis(30),
        patience: Duration::from_millis(400),
    }
}

/// Writes beside the place and renames.
pub fn put(path: &Path, bytes: &[u8]) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, bytes).expect("written");
    std::fs::rename(&beside, path).expect("renamed");
}

pub const X_READS_B: &str = r#"{"direction":"egress","phase":"request","source":"x","dest_host":"b.t.nova","dest_port":443,"method":"GET","path":"/v1/things"}"#;
pub const X_READS_A: &str = r#"{"direction":"egress","phase":"request","source":"x","dest_host":"service-a.t.nova","dest_port":443,"method":"GET","path":"/v1/orders/42"}"#;
pub const X_DELETES_A: &str = r#"{"direction":"egress","phase":"request","source":"x","dest_host":"service-a.t.nova","dest_port":443,"method":"DELETE","path":"/v1/orders/42"}"#;
