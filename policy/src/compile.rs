//! Rules and workloads to the data of one node. Every rule is compiled once into the caller's egress and once into the
//! callee's ingress, from the same row, so the two sides of a call cannot drift apart.

mod emit;
mod entry;
mod pairs;
mod resolve;
mod samples;

pub use samples::{MAX_VECTORS, Vector, samples};

use std::collections::{BTreeMap, BTreeSet};

use crate::data::NodeData;
use crate::report::Report;
use crate::rules::{self, PemLoader, RuleSet};
use crate::workloads::{self, Table};

/// For whom to compile.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Node id: only workloads of this node get entries. Endpoints without a node belong to every node.
    pub node: String,
    /// A lab: loopback destinations are allowed.
    pub lab: bool,
}

/// A file with its name for messages.
#[derive(Debug, Clone, Copy)]
pub struct SourceText<'a> {
    /// Name.
    pub file: &'a str,
    /// Content.
    pub text: &'a str,
}

/// Compiles parsed rules and workloads.
///
/// # Errors
/// Every mistake with line, rule id and remedy.
pub fn compile(rules: &RuleSet, table: &Table, options: &Options) -> Result<NodeData, Report> {
    let mut report = Report::default();
    let resolved = resolve::all(rules, table, &mut report);
    pairs::check(&rules.file, &resolved, &mut report);
    report.sort();
    report.into_result()?;
    let mut nodes = emit::data(rules, &resolved, table, &[&options.node]);
    Ok(nodes.remove(&options.node).unwrap_or_default())
}

/// Compiles for every node that the table names, in one go.
///
/// # Errors
/// Every mistake with line, rule id and remedy.
pub fn compile_all(rules: &RuleSet, table: &Table) -> Result<BTreeMap<String, NodeData>, Report> {
    let mut report = Report::default();
    let resolved = resolve::all(rules, table, &mut report);
    pairs::check(&rules.file, &resolved, &mut report);
    report.sort();
    report.into_result()?;
    let nodes: BTreeSet<&str> = table.endpoints.iter().filter_map(|endpoint| endpoint.node.as_deref()).collect();
    Ok(emit::data(rules, &resolved, table, &nodes.into_iter().collect::<Vec<_>>()))
}

/// Parses and compiles in one go, and reports the mistakes of both files together.
///
/// # Errors
/// Every mistake of both files.
pub fn compile_texts(
    rules: SourceText<'_>,
    workloads: SourceText<'_>,
    options: &Options,
    load: PemLoader<'_>,
) -> Result<NodeData, Report> {
    let (table, mut report) = workloads::parse_all(workloads.file, workloads.text);
    let table_is_good = report.is_empty();
    let (rules, rule_report) = rules::parse_all(rules.file, rules.text, options.lab, load);
    report.append(rule_report);
    // Unknown workloads are only worth a word when the table itself could be read.
    let compiled = if table_is_good { compile(&rules, &table, options) } else { Err(Report::default()) };
    match compiled {
        Ok(data) => report.into_result().map(|()| data),
        Err(more) => {
            report.append(more);
            Err(report)
        }
    }
}

#[cfg(test)]
mod audit_tests;
#[cfg(test)]
mod tests;
