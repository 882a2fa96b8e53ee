//! Rules and workloads from disk.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use nova_policy::compile::{Options, SourceText, compile_texts};
use nova_policy::data::NodeData;
use nova_policy::report::{self, Report};

use super::{MISTAKES, files};

/// Largest file of certificates: far above any list of CAs.
const MAX_PEM: u64 = 1024 * 1024;

/// The files every compile starts from.
#[derive(Args)]
pub(super) struct Sources {
    /// Rules; - is standard input, as for every file that is read
    #[arg(long)]
    rules: PathBuf,
    /// Workload table: endpoints.yaml or placements.yaml
    #[arg(long)]
    workloads: PathBuf,
    /// A lab: allow destinations on loopback
    #[arg(long)]
    lab: bool,
}

/// A node's name as the supervisor's configuration takes it: no other is ever asked for.
pub(super) fn node_id(text: &str) -> Result<String, String> {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let fits = (1..=253).contains(&text.len()) && text.bytes().all(good);
    if fits { Ok(text.to_owned()) } else { Err("write node.id of the supervisor: 1 to 253 of a-z 0-9 - .".to_owned()) }
}

impl Sources {
    /// Compiles for a node that somebody named, and says so when nothing runs there: most often the name is misspelt.
    pub(super) fn compile_for(&self, node: &str) -> anyhow::Result<Result<NodeData, Report>> {
        let compiled = self.compile(node)?;
        if compiled.as_ref().is_ok_and(|data| data.workloads.is_empty()) {
            eprintln!(
                "nova-policy: warning: {} places no workload on node {node}: everything is denied there; check --node",
                self.workloads.display()
            );
        }
        Ok(compiled)
    }

    /// Compiles for a node. The outer error is about reading, the inner one about what is written.
    fn compile(&self, node: &str) -> anyhow::Result<Result<NodeData, Report>> {
        let (rules, workloads) = (files::read(&self.rules)?, files::read(&self.workloads)?);
        let folder = self.rules.parent().unwrap_or(Path::new(".")).to_owned();
        let load = |name: &str| nova_policy::files::read(&folder.join(name), MAX_PEM).map_err(Into::into);
        let options = Options { node: node.to_owned(), lab: self.lab };
        let (rules_name, workloads_name) = (self.rules.display().to_string(), self.workloads.display().to_string());
        let (rules, workloads) = match (report::text(&rules_name, &rules), report::text(&workloads_name, &workloads)) {
            (Ok(rules), Ok(workloads)) => (rules, workloads),
            (rules, workloads) => {
                let mut mistakes = rules.err().unwrap_or_default();
                mistakes.append(workloads.err().unwrap_or_default());
                return Ok(Err(mistakes));
            }
        };
        Ok(compile_texts(
            SourceText { file: &rules_name, text: rules },
            SourceText { file: &workloads_name, text: workloads },
            &options,
            &load,
        ))
    }
}

/// Prints the mistakes.
pub(super) fn mistakes(report: &Report) -> ExitCode {
    eprintln!("{report}");
    eprintln!("{} mistake(s), nothing was written", report.problems.len());
    ExitCode::from(MISTAKES)
}

/// `nova-policy lint`
pub(super) fn lint(sources: &Sources, json: bool) -> anyhow::Result<ExitCode> {
    let compiled = sources.compile("")?;
    let report = compiled.err().unwrap_or_default();
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else if report.is_empty() {
        println!("no mistakes");
    } else {
        println!("{report}");
    }
    Ok(if report.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(MISTAKES) })
}

/// `nova-policy compile`
pub(super) fn compile(sources: &Sources, node: &str, output: Option<&Path>) -> anyhow::Result<ExitCode> {
    let data = match sources.compile_for(node)? {
        Ok(data) => data,
        Err(report) => return Ok(mistakes(&report)),
    };
    let text = serde_json::to_string_pretty(&serde_json::json!({ "nova": data }))?;
    match output {
        Some(path) => files::write(path, text.as_bytes())?,
        None => println!("{text}"),
    }
    Ok(ExitCode::SUCCESS)
}
