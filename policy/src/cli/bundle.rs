//! `nova-policy bundle`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use nova_policy::bundle::{self, Claims, VerifiedBundle};
use nova_policy::publish::{Evaluation, Publish, bundle_for, is_part_of_bundle};
use nova_policy::{Policy, SigningKey, VerifyKeys, VerifyOptions, verify};

use super::{REFUSED, files, sources, time};

/// Far above every time in milliseconds, and exact for programs that read numbers of JSON as floating point.
const MAX_SERIAL: u64 = (1 << 53) - 1;

#[derive(Subcommand)]
pub(super) enum Bundle {
    /// Compile rules and write a signed bundle for one node
    Build(Build),
    /// Sign a directory as a bundle, for example what `opa build` unpacks to
    Sign(Sign),
    /// Verify a bundle: exit 0 when accepted, 2 when refused, with the reason code as JSON
    Verify(Verify),
    /// Show what a bundle says about itself, without verifying it
    Inspect {
        /// The bundle
        file: PathBuf,
    },
}

/// Who signs.
#[derive(Args)]
pub(super) struct Signer {
    /// PKCS#8 PEM key, mode 0600
    #[arg(long)]
    key: PathBuf,
    /// Id of the key at the verifiers
    #[arg(long)]
    key_id: String,
    /// How long the bundle is good: 90s, 15m, 24h, 7d
    #[arg(long, default_value = "24h", value_parser = time::duration)]
    expires: u64,
    /// Where to write the bundle; - is standard output
    #[arg(short, long)]
    output: PathBuf,
}

impl Signer {
    /// Says what was written, where the bundle itself is not.
    fn tell(&self, what: &str) {
        if files::is_standard(&self.output) {
            eprintln!("{what}");
        } else {
            println!("{what} in {}", self.output.display());
        }
    }
}

#[derive(Args)]
pub(super) struct Build {
    #[command(flatten)]
    sources: sources::Sources,
    /// Node id: also the scope of the signature
    #[arg(long, value_parser = sources::node_id)]
    node: String,
    /// Serial, or `auto`: the time in milliseconds, but always above the bundle that is replaced
    #[arg(long, default_value = "auto")]
    serial: String,
    /// What the node decides with: the Rego itself, or what OPA compiled it to
    #[arg(long, value_enum, default_value = "rego")]
    engine: Engine,
    #[command(flatten)]
    signer: Signer,
}

/// The choices of `--engine`.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Engine {
    /// regorus runs the Rego; all threads share the data
    Rego,
    /// wasmtime runs OPA's compilation; faster, but every thread copies the data
    Wasm,
}

impl From<Engine> for Evaluation {
    fn from(engine: Engine) -> Self {
        match engine {
            Engine::Rego => Self::Rego,
            Engine::Wasm => Self::Wasm,
        }
    }
}

#[derive(Args)]
pub(super) struct Sign {
    /// Directory with .manifest, data.json and Rego
    dir: PathBuf,
    /// Scope: the node id
    #[arg(long, default_value = "")]
    scope: String,
    #[command(flatten)]
    signer: Signer,
}

#[derive(Args)]
pub(super) struct Verify {
    /// The bundle
    file: PathBuf,
    /// Verification keys: {kid: [algorithm, PEM]}
    #[arg(long)]
    keys: PathBuf,
    /// The key that must have signed; the token chooses when absent or empty
    #[arg(long)]
    key_id: Option<String>,
    /// Scope: the node id
    #[arg(long, default_value = "")]
    scope: String,
    /// The time to verify at: Unix seconds or 2026-11-30T12:00:00Z
    #[arg(long, value_parser = time::instant)]
    now: Option<u64>,
    /// Only accept a serial above this one
    #[arg(long)]
    newer_than: Option<u64>,
    /// Also load the policy and run the vectors of the bundle
    #[arg(long)]
    self_test: bool,
}

pub(super) fn run(command: Bundle) -> anyhow::Result<ExitCode> {
    match command {
        Bundle::Build(build) => self::build(&build),
        Bundle::Sign(sign) => self::sign(&sign),
        Bundle::Verify(verify) => self::check(&verify),
        Bundle::Inspect { file } => {
            println!("{}", serde_json::to_string_pretty(&bundle::inspect(&files::read(&file)?)?)?);
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn build(build: &Build) -> anyhow::Result<ExitCode> {
    let signer = &build.signer;
    let data = match build.sources.compile_for(&build.node)? {
        Ok(data) => data,
        Err(report) => return Ok(sources::mistakes(&report)),
    };
    let key = SigningKey::from_file(&signer.key)?;
    let how = Publish {
        key: &key,
        key_id: &signer.key_id,
        serial: serial(&build.serial, &signer.output)?,
        now: time::now(),
        expires_in: signer.expires,
    };
    let bytes = bundle_for(&data, build.engine.into(), &how)?;
    files::write(&signer.output, &bytes)?;
    signer.tell(&format!("{}@{}: {} bytes", build.node, how.serial, bytes.len()));
    Ok(ExitCode::SUCCESS)
}

fn serial(text: &str, output: &Path) -> anyhow::Result<u64> {
    if text != "auto" {
        let serial: u64 = text.parse().context("--serial is neither a number nor `auto`")?;
        anyhow::ensure!(
            serial <= MAX_SERIAL,
            "--serial {serial} leaves no room: a node takes no lower one ever again; at most {MAX_SERIAL}"
        );
        return Ok(serial);
    }
    let old = Some(output).filter(|output| !files::is_standard(output)).map(files::read);
    let replaced = match old {
        Some(Ok(old)) => bundle::inspect(&old).ok().and_then(|old| old.manifest.serial()).unwrap_or(0),
        // What does not keep what is written to it has no serial to stay above.
        _ => 0,
    };
    Ok(time::now_ms().max(replaced.saturating_add(1)))
}

fn sign(sign: &Sign) -> anyhow::Result<ExitCode> {
    let signer = &sign.signer;
    let mut all = BTreeMap::new();
    collect(&sign.dir, "", &mut all)?;
    all.remove(".signatures.json");
    anyhow::ensure!(
        all.contains_key(".manifest"),
        "{} has no .manifest, so it is no bundle: give the folder that `opa build` unpacks to",
        sign.dir.display()
    );
    let key = SigningKey::from_file(&signer.key)?;
    let now = time::now();
    let claims = Claims {
        key_id: &signer.key_id,
        scope: &sign.scope,
        issued_at: now,
        expires: Some(now.saturating_add(signer.expires)),
    };
    let bytes = bundle::build(&all, &key, &claims)?;
    // What every node refuses is not worth a signature.
    bundle::dangerous_unverified(&bytes).with_context(|| sign.dir.display().to_string())?;
    files::write(&signer.output, &bytes)?;
    signer.tell(&format!("{} files", all.len()));
    Ok(ExitCode::SUCCESS)
}

fn collect(dir: &Path, at: &str, all: &mut BTreeMap<String, Vec<u8>>) -> anyhow::Result<()> {
    let shown = dir.display();
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {shown}"))? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().with_context(|| format!("a name in {shown} is not UTF-8"))?;
        let path = format!("{at}{name}");
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(&entry.path(), &format!("{path}/"), all)?;
        } else if kind.is_file() {
            anyhow::ensure!(
                is_part_of_bundle(&path),
                "{path} is no part of a bundle, and whoever may read the bundle could read it: remove it from {}",
                dir.display()
            );
            all.insert(path, files::read(&entry.path())?);
        } else {
            anyhow::bail!("{path} is neither a file nor a directory");
        }
        anyhow::ensure!(all.len() <= bundle::MAX_ENTRIES, "more than {} files", bundle::MAX_ENTRIES);
    }
    Ok(())
}

fn check(check: &Verify) -> anyhow::Result<ExitCode> {
    let keys = VerifyKeys::from_json(&files::read_text(&check.keys)?)?;
    let options = VerifyOptions {
        keys: &keys,
        key_id: check.key_id.as_deref().filter(|id| !id.is_empty()),
        scope: &check.scope,
        now: check.now.unwrap_or_else(time::now),
        stale_grace: 0,
        newer_than: check.newer_than,
    };
    let bundle = match verify(&files::read(&check.file)?, &options) {
        Ok(bundle) => bundle,
        Err(error) => return refused(error.reason(), &error),
    };
    let shown = accepted(&bundle);
    let tested = check.self_test.then(|| Policy::load(bundle).and_then(|policy| policy.self_test()));
    if let Some(Err(error)) = tested {
        return refused(error.reason(), &error);
    }
    println!("{shown}");
    Ok(ExitCode::SUCCESS)
}

fn accepted(bundle: &VerifiedBundle) -> serde_json::Value {
    serde_json::json!({
        "accepted": true,
        "revision": bundle.manifest().revision,
        "serial": bundle.manifest().serial(),
        "key_id": bundle.key_id(),
        "expires": bundle.expires(),
        "sha256": bundle.sha256(),
    })
}

fn refused(reason: &str, error: &dyn std::fmt::Display) -> anyhow::Result<ExitCode> {
    println!("{}", serde_json::json!({ "accepted": false, "reason": reason, "message": error.to_string() }));
    Ok(ExitCode::from(REFUSED))
}
