//! Decides. A [`Policy`] is shared by all threads; every thread has its own [`Evaluator`]. Whatever is not an object with
//! `allow == true` is a deny.
//!
//! ```text
//!   VerifiedBundle --Policy::load--> Policy = data + Engine       Engine --machine()--> Machine, one per thread
//!      with policy.wasm:    Wasm    OPA's own compiler made it, wasmtime runs it
//!      without:             Rego    regorus compiles and runs the Rego
//!      on request:          Server  a real OPA on a Unix socket, for replay and conformance only
//! ```
//! The bundle chooses, so that every node decides with what the publisher tested.

mod evaluator;
mod rego;
mod server;
#[cfg(feature = "wasm")]
mod wasm;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
pub use evaluator::Evaluator;
pub use server::{OpaClient, OpaError};
use thiserror::Error;

use crate::bundle::{Manifest, VerifiedBundle};
use crate::compile::{MAX_VECTORS, Vector};
use crate::data::{EgressTarget, NodeData, SCHEMA};
use crate::decision::Decision;
use crate::host::Host;
use crate::input::Input;

/// Time one decision may take; longer means denied.
const TIME_BUDGET: Duration = Duration::from_millis(50);
/// Most machines that wait for a thread.
const MAX_READY: usize = 256;
/// The compiled policy of a bundle; its presence chooses the engine.
pub(crate) const WASM_FILE: &str = "policy.wasm";
/// The rule that is asked, as OPA's tools write it.
pub(crate) const WASM_ENTRY_POINT: &str = "nova/authz/decision";
/// Vectors of the bundle.
pub(crate) const VECTORS_FILE: &str = "nova/vectors.json";

/// A loaded policy: immutable, cheap to clone, the same for all threads.
#[derive(Clone)]
pub struct Policy {
    loaded: Arc<Loaded>,
    served: Arc<Served>,
}

/// One way to evaluate policy.
trait Engine: Send + Sync {
    /// Its name in audit lines.
    fn name(&self) -> &'static str;

    /// A machine for one thread.
    fn machine(&self) -> Result<Box<dyn Machine>, LoadError>;
}

/// What one thread evaluates with. After a failure, which is `None`, it is dropped and another one made.
trait Machine: Send {
    fn decide(&mut self, input: &Input) -> Option<Decision>;

    /// The raw answer to any JSON.
    fn answer(&mut self, input: &serde_json::Value) -> Option<serde_json::Value>;
}

/// An engine with machines that wait for threads: one that holds its own copy of the data takes long to make.
struct Served {
    engine: Box<dyn Engine>,
    ready: Mutex<Vec<Box<dyn Machine>>>,
}

struct Loaded {
    manifest: Manifest,
    serial: u64,
    expires: u64,
    sha256: String,
    data: NodeData,
    external_cas: BTreeMap<String, Vec<Vec<u8>>>,
    vectors: Vec<Vector>,
}

/// Why a verified bundle cannot be served.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The manifest lacks a member a node needs.
    #[error("the manifest has no metadata.{0}")]
    Metadata(&'static str),
    /// `data.nova` is missing or not in the layout this build reads.
    #[error("data.nova cannot be read: {0}")]
    Data(String),
    /// Another layout version.
    #[error("data.nova has schema {0}, this build reads {SCHEMA}")]
    Schema(u32),
    /// The Rego does not compile.
    #[error("the policy does not compile: {0}")]
    Compile(String),
    /// The vectors cannot be read.
    #[error("{VECTORS_FILE} cannot be read: {0}")]
    Vectors(String),
    /// The engine does not answer as the compiler said it must.
    #[error("self-test: {input} gave {got}, the compiler says {want}")]
    SelfTest {
        /// The input as JSON.
        input: String,
        /// What must come out.
        want: String,
        /// What came out.
        got: String,
    },
}

impl LoadError {
    /// The code for logs and metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Metadata(_) => "no_metadata",
            Self::Data(_) => "bad_data",
            Self::Schema(_) => "other_schema",
            Self::Compile(_) => "does_not_compile",
            Self::Vectors(_) => "bad_vectors",
            Self::SelfTest { .. } => "self_test_failed",
        }
    }
}

impl Policy {
    /// Compiles a verified bundle. Run [`Policy::self_test`] before serving it.
    ///
    /// # Errors
    /// When the bundle is no nova bundle or its policy does not compile.
    pub fn load(bundle: VerifiedBundle) -> Result<Self, LoadError> {
        let serial = bundle.manifest.serial().ok_or(LoadError::Metadata("serial"))?;
        let expires = bundle.expires().ok_or(LoadError::Metadata("expires"))?;
        let text = bundle.data_json();
        let data = read_data(&text)?;
        let external_cas = decode_cas(&data)?;
        let vectors = read_vectors(&bundle)?;
        let engine: Box<dyn Engine> = match bundle.files.get(WASM_FILE) {
            #[cfg(feature = "wasm")]
            Some(wasm) => Box::new(wasm::Wasm::new(wasm, &bundle.manifest, text)?),
            #[cfg(not(feature = "wasm"))]
            Some(_) => return Err(LoadError::Compile("this build has no engine for policy.wasm".into())),
            None => Box::new(rego::Rego::new(&bundle.modules, &text)?),
        };
        let sha256 = bundle.sha256().to_owned();
        let manifest = bundle.manifest;
        let loaded = Loaded { manifest, serial, expires, sha256, data, external_cas, vectors };
        let policy = Self { loaded: Arc::new(loaded), served: Arc::new(Served::new(engine)) };
        // A bundle whose engine cannot even start is refused here and not at the first request.
        policy.warm(1)?;
        Ok(policy)
    }

    /// The same policy, asked of a real OPA that serves the same bundle on a Unix socket. For replay and conformance
    /// only: it blocks its thread, and nothing here verifies what that OPA has loaded.
    #[must_use]
    pub fn with_opa_server(&self, socket: &Path) -> Self {
        let engine = Box::new(server::Server::new(socket));
        Self { loaded: Arc::clone(&self.loaded), served: Arc::new(Served::new(engine)) }
    }

    /// Name of the engine that decides, for audit records: `regorus`, `opa-wasm` or `opa-server`.
    #[must_use]
    pub fn engine_name(&self) -> &'static str {
        self.served.engine.name()
    }

    /// Makes machines until `threads` of them wait, so that the first decision of a thread need not make its own. With
    /// `policy.wasm` each holds a copy of the data, and making one takes a tenth of a second for 6 MB.
    ///
    /// # Errors
    /// When the engine makes none.
    pub fn warm(&self, threads: usize) -> Result<(), LoadError> {
        let missing = threads.min(MAX_READY).saturating_sub(self.served.ready().len());
        for _ in 0..missing {
            self.keep(self.served.engine.machine()?);
        }
        Ok(())
    }

    fn keep(&self, machine: Box<dyn Machine>) {
        let mut ready = self.served.ready();
        if ready.len() < MAX_READY {
            ready.push(machine);
        }
    }

    fn take_machine(&self) -> Option<Box<dyn Machine>> {
        let waiting = self.served.ready().pop();
        waiting.or_else(|| self.served.engine.machine().ok())
    }

    /// Runs the vectors that the compiler put into the bundle on this node's engine.
    ///
    /// # Errors
    /// The first vector that comes out differently.
    pub fn self_test(&self) -> Result<usize, LoadError> {
        let mut evaluator = Evaluator::new();
        for vector in &self.loaded.vectors {
            let got = evaluator.decide(self, &vector.input);
            if got != vector.want {
                return Err(LoadError::SelfTest {
                    input: serde_json::to_string(&vector.input).unwrap_or_default(),
                    want: serde_json::to_string(&vector.want).unwrap_or_default(),
                    got: serde_json::to_string(&got).unwrap_or_default(),
                });
            }
        }
        evaluator.give_back();
        Ok(self.loaded.vectors.len())
    }

    /// Revision, for logs and audit records.
    #[must_use]
    pub fn revision(&self) -> &str {
        &self.loaded.manifest.revision
    }

    /// Serial; grows with every publish.
    #[must_use]
    pub fn serial(&self) -> u64 {
        self.loaded.serial
    }

    /// When the bundle expires, in Unix seconds.
    #[must_use]
    pub fn expires_at(&self) -> u64 {
        self.loaded.expires
    }

    /// Hash of the bundle file, hex.
    #[must_use]
    pub fn sha256(&self) -> &str {
        &self.loaded.sha256
    }

    /// The compiled rules.
    #[must_use]
    pub fn data(&self) -> &NodeData {
        &self.loaded.data
    }

    /// Whether the bundle was compiled with this workload on the node.
    #[must_use]
    pub fn knows_workload(&self, workload: &str) -> bool {
        self.loaded.data.workloads.contains_key(workload)
    }

    /// Whether any rule lets anybody come to this port.
    #[must_use]
    pub fn exposes(&self, target: &str, port: &str) -> bool {
        self.loaded.data.ingress.get(target).is_some_and(|ports| ports.contains_key(port))
    }

    /// External CAs: name to certificates in DER.
    #[must_use]
    pub fn external_cas(&self) -> &BTreeMap<String, Vec<Vec<u8>>> {
        &self.loaded.external_cas
    }

    /// What the rule that granted an egress call leads to.
    #[must_use]
    pub fn egress_target(&self, source: &str, rule_id: &str, host: &Host, port: u16) -> Option<&EgressTarget> {
        let targets = self.loaded.data.targets.get(source)?.get(rule_id)?;
        targets.iter().find(|target| target.covers(host, port))
    }

    /// How many ICMP messages of type `kind` a second the rule that granted one allows.
    #[must_use]
    pub fn icmp_rate(&self, source: &str, rule_id: &str, kind: &str) -> Option<u32> {
        let ranges = &self.loaded.data.egress.get(source)?.icmp;
        let rule = ranges.iter().flat_map(|range| &range.rules).find(|rule| rule.id == rule_id)?;
        rule.icmp.as_ref().filter(|_| rule.icmp_ok(kind)).map(|icmp| icmp.rate_per_s)
    }

    /// Every rule of `source` that leads to `host`:`port`, for the phase in which no rule is known yet.
    pub fn egress_targets<'p>(
        &'p self,
        source: &str,
        host: &'p Host,
        port: u16,
    ) -> impl Iterator<Item = (&'p str, &'p EgressTarget)> {
        let rules = self.loaded.data.targets.get(source).into_iter().flatten();
        rules.flat_map(move |(rule, targets)| {
            targets.iter().filter(move |target| target.covers(host, port)).map(move |target| (rule.as_str(), target))
        })
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.loaded, &other.loaded) && Arc::ptr_eq(&self.served, &other.served)
    }
}

impl Served {
    fn new(engine: Box<dyn Engine>) -> Self {
        Self { engine, ready: Mutex::default() }
    }

    fn ready(&self) -> std::sync::MutexGuard<'_, Vec<Box<dyn Machine>>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Policy").field("revision", &self.revision()).field("serial", &self.serial()).finish()
    }
}

#[derive(serde::Deserialize)]
struct Root {
    nova: NodeData,
}

#[derive(serde::Deserialize)]
struct SchemaRoot {
    nova: SchemaOnly,
}

#[derive(serde::Deserialize)]
struct SchemaOnly {
    schema: u32,
}

fn read_data(text: &str) -> Result<NodeData, LoadError> {
    let bad = |error: serde_json::Error| LoadError::Data(error.to_string());
    // The version first: a newer layout would fail with a message about some unknown member.
    let schema = serde_json::from_str::<SchemaRoot>(text).map_err(bad)?.nova.schema;
    if schema != SCHEMA {
        return Err(LoadError::Schema(schema));
    }
    serde_json::from_str::<Root>(text).map(|root| root.nova).map_err(bad)
}

fn decode_cas(data: &NodeData) -> Result<BTreeMap<String, Vec<Vec<u8>>>, LoadError> {
    let decode =
        |text: &String| STANDARD.decode(text).map_err(|_| LoadError::Data("a CA certificate is not base64".to_owned()));
    let cas = data.external_cas.iter();
    cas.map(|(name, all)| Ok((name.clone(), all.iter().map(decode).collect::<Result<_, _>>()?))).collect()
}

fn read_vectors(bundle: &VerifiedBundle) -> Result<Vec<Vector>, LoadError> {
    let Some(content) = bundle.files.get(VECTORS_FILE) else { return Ok(Vec::new()) };
    let vectors: Vec<Vector> =
        serde_json::from_slice(content).map_err(|error| LoadError::Vectors(error.to_string()))?;
    if vectors.len() > MAX_VECTORS {
        return Err(LoadError::Vectors(format!("more than {MAX_VECTORS} vectors")));
    }
    Ok(vectors)
}

#[cfg(test)]
mod tests;
