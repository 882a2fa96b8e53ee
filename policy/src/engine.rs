//! Decides with the regorus virtual machine. A [`Policy`] is shared by all threads; every thread has its own
//! [`Evaluator`]. Whatever is not an object with `allow == true` is a deny.

mod evaluator;

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
pub use evaluator::Evaluator;
use regorus::Value;
use regorus::languages::rego::compiler::Compiler;
use regorus::rvm::program::Program;
use thiserror::Error;

use crate::bundle::{Manifest, VerifiedBundle};
use crate::compile::{MAX_VECTORS, Vector};
use crate::data::{EgressTarget, NodeData, SCHEMA};
use crate::host::Host;

/// The rule that is asked.
const ENTRY_POINT: &str = "data.nova.authz.decision";
/// Vectors of the bundle.
pub(crate) const VECTORS_FILE: &str = "nova/vectors.json";

/// A loaded policy: immutable, cheap to clone, the same for all threads.
#[derive(Clone)]
pub struct Policy(Arc<Loaded>);

struct Loaded {
    manifest: Manifest,
    serial: u64,
    expires: u64,
    sha256: String,
    data: NodeData,
    external_cas: BTreeMap<String, Vec<Vec<u8>>>,
    vectors: Vec<Vector>,
    value: Value,
    program: Arc<Program>,
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
        let value = Value::from_json_str(&text).map_err(|error| LoadError::Data(error.to_string()))?;
        let program = compile(&bundle.modules)?;
        let sha256 = bundle.sha256().to_owned();
        let manifest = bundle.manifest;
        Ok(Self(Arc::new(Loaded { manifest, serial, expires, sha256, data, external_cas, vectors, value, program })))
    }

    /// Runs the vectors that the compiler put into the bundle on this node's engine.
    ///
    /// # Errors
    /// The first vector that comes out differently.
    pub fn self_test(&self) -> Result<usize, LoadError> {
        let mut evaluator = Evaluator::new();
        for vector in &self.0.vectors {
            let got = evaluator.evaluate(self, &vector.input);
            if got != vector.want {
                return Err(LoadError::SelfTest {
                    input: serde_json::to_string(&vector.input).unwrap_or_default(),
                    want: serde_json::to_string(&vector.want).unwrap_or_default(),
                    got: serde_json::to_string(&got).unwrap_or_default(),
                });
            }
        }
        Ok(self.0.vectors.len())
    }

    /// Revision, for logs and audit records.
    #[must_use]
    pub fn revision(&self) -> &str {
        &self.0.manifest.revision
    }

    /// Serial; grows with every publish.
    #[must_use]
    pub fn serial(&self) -> u64 {
        self.0.serial
    }

    /// When the bundle expires, in Unix seconds.
    #[must_use]
    pub fn expires_at(&self) -> u64 {
        self.0.expires
    }

    /// Hash of the bundle file, hex.
    #[must_use]
    pub fn sha256(&self) -> &str {
        &self.0.sha256
    }

    /// The compiled rules.
    #[must_use]
    pub fn data(&self) -> &NodeData {
        &self.0.data
    }

    /// Whether the bundle was compiled with this workload on the node.
    #[must_use]
    pub fn knows_workload(&self, workload: &str) -> bool {
        self.0.data.workloads.contains_key(workload)
    }

    /// Whether any rule lets anybody come to this port.
    #[must_use]
    pub fn exposes(&self, target: &str, port: &str) -> bool {
        self.0.data.ingress.get(target).is_some_and(|ports| ports.contains_key(port))
    }

    /// External CAs: name to certificates in DER.
    #[must_use]
    pub fn external_cas(&self) -> &BTreeMap<String, Vec<Vec<u8>>> {
        &self.0.external_cas
    }

    /// What the rule that granted an egress call leads to.
    #[must_use]
    pub fn egress_target(&self, source: &str, rule_id: &str, host: &Host, port: u16) -> Option<&EgressTarget> {
        let targets = self.0.data.targets.get(source)?.get(rule_id)?;
        targets.iter().find(|target| target.covers(host, port))
    }

    /// Every rule of `source` that leads to `host`:`port`, for the phase in which no rule is known yet.
    pub fn egress_targets<'p>(
        &'p self,
        source: &str,
        host: &'p Host,
        port: u16,
    ) -> impl Iterator<Item = (&'p str, &'p EgressTarget)> {
        let rules = self.0.data.targets.get(source).into_iter().flatten();
        rules.flat_map(move |(rule, targets)| {
            targets.iter().filter(move |target| target.covers(host, port)).map(move |target| (rule.as_str(), target))
        })
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
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

pub(crate) fn compile(modules: &[(String, String)]) -> Result<Arc<Program>, LoadError> {
    let fail = |error: &dyn std::fmt::Display| LoadError::Compile(error.to_string());
    let mut engine = regorus::Engine::new();
    for (name, text) in modules {
        engine.add_policy(name.clone(), text.clone()).map_err(|error| fail(&error))?;
    }
    let compiled = engine.compile_with_entrypoint(&ENTRY_POINT.into()).map_err(|error| fail(&error))?;
    Compiler::compile_from_policy(&compiled, &[ENTRY_POINT]).map_err(|error| fail(&error))
}

#[cfg(test)]
mod tests;
