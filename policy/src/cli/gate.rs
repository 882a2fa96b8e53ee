//! `nova-policy gate` and `nova-policy approve`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use nova_policy::gate::{self, Approval, Comparison, InUse};
use nova_policy::{SigningKey, VerifiedBundle, VerifyKeys, VerifyOptions, bundle, verify};

use super::{HELD, REFUSED, files, time};

/// What replaces what.
#[derive(Args)]
struct Change {
    /// The bundle that decides now
    #[arg(long)]
    live: PathBuf,
    /// The bundle that is to replace it
    #[arg(long)]
    next: PathBuf,
    /// Verification keys: {kid: [algorithm, PEM]}; without them no signature is checked, and no approval counts
    #[arg(long)]
    keys: Option<PathBuf>,
    /// What is in use: a piece of the audit log, or pairs; without it every rule counts as used
    #[arg(long)]
    in_use: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct Gate {
    #[command(flatten)]
    change: Change,
    /// The key that must have signed both bundles; their tokens choose when absent
    #[arg(long, requires = "keys")]
    key_id: Option<String>,
    /// What `approve` wrote
    #[arg(long, requires = "approvers")]
    approval: Option<PathBuf>,
    /// Keys that may approve: {kid: [algorithm, PEM]}
    #[arg(long, requires = "approval")]
    approvers: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(super) struct Approve {
    #[command(flatten)]
    change: Change,
    /// The approver's PKCS#8 PEM key, mode 0600; never the key that signed the next bundle
    #[arg(long)]
    key: PathBuf,
    /// Its id in the approvers file
    #[arg(long)]
    key_id: String,
    /// Where to write the approval; - is standard output
    #[arg(short, long)]
    output: PathBuf,
}

/// A comparison, the bytes of the next bundle, and whether signatures were checked.
struct Compared {
    comparison: Comparison,
    next: Vec<u8>,
    verified: bool,
}

pub(super) fn gate(gate: &Gate) -> anyhow::Result<ExitCode> {
    if gate.approval.is_some() {
        gate.change.need_keys()?;
    }
    let Compared { comparison, next, verified } = match gate.change.compare(gate.key_id.as_deref())? {
        Ok(compared) => compared,
        Err(refusal) => return Ok(refusal.print()),
    };
    let approved = match (&gate.approval, &gate.approvers) {
        (Some(approval), Some(approvers)) if comparison.is_held() => {
            let approvers = VerifyKeys::from_json(&files::read_text(approvers)?)?;
            let approval: Result<Approval, _> = serde_json::from_str(&files::read_text(approval)?);
            Some(approval.map_err(|error| ("bad_form", format!("not an approval: {error}"))).and_then(|approval| {
                let checked = gate::check(&approval, &comparison, &next, &approvers);
                checked.map_err(|error| (error.reason(), error.to_string()))
            }))
        }
        _ => None,
    };
    let by = match &approved {
        Some(Ok(approved)) => Some(approved.by.as_str()),
        // What is no risk needs nobody.
        None if !comparison.is_held() => Some("auto"),
        _ => None,
    };
    if gate.json {
        let refused = approved.as_ref().and_then(|approved| approved.as_ref().err());
        let refused = refused.map(|(reason, message)| serde_json::json!({ "reason": reason, "message": message }));
        let verdict = if by.is_some() { "publish" } else { "held" };
        let report = serde_json::json!({
            "verdict": verdict, "approved_by": by, "approval_refused": refused, "verified": verified,
            "node": comparison.node, "live": comparison.live, "next": comparison.next,
            "risks": comparison.risks, "risks_sha256": comparison.risks_sha256(),
        });
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print_risks(&comparison, by);
        if let Some(Err((reason, message))) = &approved {
            println!("the approval does not count ({reason}): {message}");
        }
    }
    Ok(if by.is_some() { ExitCode::SUCCESS } else { ExitCode::from(HELD) })
}

fn print_risks(comparison: &Comparison, by: Option<&str>) {
    let Comparison { live, next, risks, .. } = comparison;
    let verdict = match by {
        Some("auto") => "PUBLISH".to_owned(),
        Some(by) => format!("PUBLISH, approved by {by}"),
        None => "HELD".to_owned(),
    };
    println!("{verdict}: {} -> {}, {} risk(s)", live.revision, next.revision, risks.len());
    for risk in risks {
        let rule = if risk.rule.is_empty() { String::new() } else { format!("  rule {}", risk.rule) };
        println!("{:<24} {}{rule}", risk.kind, risk.pair);
        println!("    before: {}\n    after:  {}", risk.before, risk.after);
    }
    if by.is_none() {
        println!(
            "somebody other than its author must approve it: nova-policy approve --live A --next B --keys KEYS --key K --key-id ID -o F"
        );
    }
}

pub(super) fn approve(approve: &Approve) -> anyhow::Result<ExitCode> {
    approve.change.need_keys()?;
    let Compared { comparison, next, .. } = match approve.change.compare(None)? {
        Ok(compared) => compared,
        Err(refusal) => return Ok(refusal.print()),
    };
    let id = approve.key_id.as_str();
    let key = SigningKey::from_file(&approve.key)?;
    match gate::approve(&comparison, &next, &key, id) {
        Ok(approval) => {
            files::write(&approve.output, serde_json::to_string_pretty(&approval)?.as_bytes())?;
            if !files::is_standard(&approve.output) {
                print_risks(&comparison, Some(id));
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Ok(Refusal { reason: error.reason(), message: error.to_string() }.print()),
    }
}

/// Why there is no comparison.
struct Refusal {
    reason: &'static str,
    message: String,
}

impl Refusal {
    fn print(&self) -> ExitCode {
        let text = serde_json::json!({ "accepted": false, "reason": self.reason, "message": self.message });
        println!("{text}");
        ExitCode::from(REFUSED)
    }
}

impl Change {
    /// An approval of bundles that anybody may have made would be worth nothing.
    fn need_keys(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.keys.is_some(),
            "an approval is for bundles whose signatures were checked: add --keys FILE with the keys that may sign \
             bundles, {{kid: [algorithm, PEM]}}"
        );
        Ok(())
    }

    fn compare(&self, key_id: Option<&str>) -> anyhow::Result<Result<Compared, Refusal>> {
        let keys = match &self.keys {
            Some(path) => Some(VerifyKeys::from_json(&files::read_text(path)?)?),
            None => None,
        };
        if keys.is_none() {
            eprintln!("nova-policy: no signature was checked: give --keys");
        }
        let in_use = match &self.in_use {
            Some(path) => Some(in_use(path)?),
            None => None,
        };
        let (live, next) = (files::read(&self.live)?, files::read(&self.next)?);
        let trust = |bytes: &[u8], grace, path: &Path| {
            check(bytes, keys.as_ref(), key_id, grace)
                .map_err(|error| Refusal { reason: error.reason(), message: format!("{}: {error}", path.display()) })
        };
        // What is live may have expired: it is still what decides, or decided last.
        let both = trust(&live, u64::MAX, &self.live).and_then(|live| Ok((live, trust(&next, 0, &self.next)?)));
        let (live, verified_next) = match both {
            Ok(both) => both,
            Err(refusal) => return Ok(Err(refusal)),
        };
        Ok(match gate::compare(&live, &verified_next, in_use.as_ref()) {
            Ok(comparison) => Ok(Compared { comparison, next, verified: keys.is_some() }),
            Err(error) => Err(Refusal { reason: error.reason(), message: error.to_string() }),
        })
    }
}

/// Verified for the node that the bundle itself names: the gate compares what is for one node, whichever that is.
fn check(
    bytes: &[u8],
    keys: Option<&VerifyKeys>,
    key_id: Option<&str>,
    stale_grace: u64,
) -> Result<VerifiedBundle, bundle::BundleError> {
    let Some(keys) = keys else { return bundle::dangerous_unverified(bytes) };
    let scope = bundle::inspect(bytes)?.scope.unwrap_or_default();
    let options = VerifyOptions { keys, key_id, scope: &scope, now: time::now(), stale_grace, newer_than: None };
    verify(bytes, &options)
}

/// An empty file most often is a log that was rotated away: it must not let everything be removed.
fn in_use(path: &Path) -> anyhow::Result<InUse> {
    let (text, shown) = (files::read_text(path)?, path.display());
    anyhow::ensure!(
        !text.trim().is_empty(),
        "{shown} is empty, so nothing would count as in use: give a piece of the audit log, or leave --in-use out"
    );
    InUse::parse(&text).with_context(|| shown.to_string())
}
