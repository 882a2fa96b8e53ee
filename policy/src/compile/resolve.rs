//! Finds the workloads that rules speak of.

use std::collections::BTreeMap;

use crate::path::pattern::PathPattern;
use crate::report::{Problem, Report};
use crate::rules::{Destination, PeerPattern, Rule, RuleSet, Source, foreign_uri, refusal};
use crate::workloads::{Endpoint, Port, Table};

/// Most (caller, callee) pairs of all rules together: selectors multiply, and every pair is an entry in some bundle.
const MAX_PAIRS: usize = 2_000_000;
/// Most bytes of rules in all those entries together, roughly: a rule of a thousand paths in each of them would fill any
/// memory, and no node accepts a bundle of more than 64 MiB.
const MAX_BYTES: usize = 2 << 30;

/// An entry without texts, and what a text takes beside its length.
const ENTRY_BYTES: usize = 400;
const TEXT_BYTES: usize = 60;

/// A rule with the workloads it speaks of. Lists are empty for sides that are not workloads.
pub(super) struct Resolved<'a> {
    pub(super) rule: &'a Rule,
    pub(super) rank: u32,
    pub(super) sources: Vec<&'a Endpoint>,
    pub(super) targets: Vec<(&'a Endpoint, &'a Port)>,
}

/// Resolves every rule; what cannot be resolved is in the report.
pub(super) fn all<'a>(rules: &'a RuleSet, table: &'a Table, report: &mut Report) -> Vec<Resolved<'a>> {
    let mut resolver =
        Resolver { file: &rules.file, table, by_tenant: BTreeMap::new(), by_label: BTreeMap::new(), report };
    resolver.index();
    let (mut pairs, mut bytes) = (0usize, 0usize);
    let mut all = Vec::new();
    for (rank, rule) in (0u32..).zip(&rules.rules) {
        let resolved = resolver.rule(rule, rank);
        let count = resolved.sources.len().max(1).saturating_mul(resolved.targets.len().max(1));
        pairs = pairs.saturating_add(count);
        bytes = bytes.saturating_add(count.saturating_mul(weight(rule)));
        if resolver.report.is_full() {
            break;
        }
        if pairs > MAX_PAIRS {
            let message = format!("with this rule the file covers more than {MAX_PAIRS} pairs of workloads");
            resolver.fail(rule, message, "narrow its selectors, or split the table");
            break;
        }
        if bytes > MAX_BYTES {
            let message = "with this rule the file compiles to more than 2 GiB".to_owned();
            resolver.fail(rule, message, "narrow its selectors, list fewer paths, or split the table");
            break;
        }
        all.push(resolved);
    }
    all
}

/// About how many bytes one entry of the rule takes.
fn weight(rule: &Rule) -> usize {
    let paths = rule.http.iter().flat_map(|http| &http.paths).map(PathPattern::bytes);
    let methods = rule.http.iter().flat_map(|http| &http.methods).map(String::len);
    let claims = rule.jwt.iter().flat_map(|jwt| jwt.claims.values()).flatten().map(String::len);
    paths.chain(methods).chain(claims).fold(ENTRY_BYTES, |sum, length| sum.saturating_add(length + TEXT_BYTES))
}

struct Resolver<'a, 'r> {
    file: &'a str,
    table: &'a Table,
    /// Tenant, then workload id; one endpoint stands for all pods of a workload.
    by_tenant: BTreeMap<&'a str, BTreeMap<&'a str, &'a Endpoint>>,
    /// Tenant, name and value of a label, to the workloads that have it.
    by_label: BTreeMap<(&'a str, &'a str, &'a str), Vec<&'a Endpoint>>,
    report: &'r mut Report,
}

impl<'a> Resolver<'a, '_> {
    fn index(&mut self) {
        for endpoint in &self.table.endpoints {
            let workloads = self.by_tenant.entry(endpoint.tenant.as_str()).or_default();
            workloads.entry(endpoint.workload.as_str()).or_insert(endpoint);
        }
        for (tenant, workloads) in &self.by_tenant {
            for endpoint in workloads.values() {
                for (name, value) in &endpoint.labels {
                    self.by_label.entry((tenant, name, value)).or_default().push(endpoint);
                }
            }
        }
    }

    fn rule(&mut self, rule: &'a Rule, rank: u32) -> Resolved<'a> {
        let sources = match &rule.from {
            Source::Workload(id) => self.workload(rule, id.as_str(), "from"),
            Source::Labels(labels) => self.labels(rule, labels, "from"),
            Source::Anyone => Vec::new(),
            Source::External { name, .. } => {
                let ours = matches!(name, PeerPattern::Uri(uri) if !foreign_uri(uri, &self.table.trust_domain));
                if ours {
                    let message =
                        format!("an external CA cannot speak for our trust domain {}", self.table.trust_domain);
                    self.fail(rule, message, "name a workload, or an identity of the CA's own domain");
                }
                Vec::new()
            }
        };
        let (found, port) = match &rule.to {
            Destination::Workload { workload, port } => (self.workload(rule, workload.as_str(), "to"), Some(port)),
            Destination::Labels { labels, port } => (self.labels(rule, labels, "to"), Some(port)),
            Destination::External { .. } | Destination::Cidr { .. } | Destination::Icmp { .. } => (Vec::new(), None),
        };
        let mut targets = Vec::new();
        if let Some(name) = port {
            for endpoint in found {
                match endpoint.port(name.as_str()) {
                    Some(port) => {
                        self.port_fits(rule, endpoint, port);
                        targets.push((endpoint, port));
                    }
                    None => self.unknown_port(rule, endpoint, name.as_str()),
                }
            }
        }
        Resolved { rule, rank, sources, targets }
    }

    fn workload(&mut self, rule: &Rule, id: &str, side: &str) -> Vec<&'a Endpoint> {
        let known = self.by_tenant.get(rule.tenant.as_str());
        if let Some(endpoint) = known.and_then(|workloads| workloads.get(id)) {
            return vec![endpoint];
        }
        let names: Vec<&str> = known.into_iter().flatten().map(|(name, _)| *name).take(8).collect();
        let remedy = if names.is_empty() {
            format!("tenant {:?} has no workload: check the tenant", rule.tenant.as_str())
        } else {
            format!("known workloads of the tenant: {}", names.join(", "))
        };
        self.fail(rule, format!("{side}: unknown workload {id:?} in tenant {:?}", rule.tenant.as_str()), remedy);
        Vec::new()
    }

    fn labels(&mut self, rule: &Rule, labels: &BTreeMap<String, String>, side: &str) -> Vec<&'a Endpoint> {
        let fits =
            |endpoint: &&'a Endpoint| labels.iter().all(|(name, value)| endpoint.labels.get(name) == Some(value));
        // The rarest label first: the others only narrow it.
        let mut rarest: &[&'a Endpoint] = &[];
        for (index, (name, value)) in labels.iter().enumerate() {
            let known = self.by_label.get(&(rule.tenant.as_str(), name.as_str(), value.as_str()));
            let known = known.map(Vec::as_slice).unwrap_or_default();
            if index == 0 || known.len() < rarest.len() {
                rarest = known;
            }
        }
        let found: Vec<&'a Endpoint> = rarest.iter().copied().filter(fits).collect();
        if labels.is_empty() {
            self.fail(rule, format!("{side}: an empty selector covers the whole tenant"), "name at least one label");
        } else if found.is_empty() {
            self.fail(rule, format!("{side}: no workload has these labels"), "check the labels of the endpoints");
        }
        found
    }

    fn unknown_port(&mut self, rule: &Rule, endpoint: &Endpoint, name: &str) {
        let names: Vec<&str> = endpoint.ports.iter().map(|port| port.name.as_str()).collect();
        let remedy = if names.is_empty() {
            format!("give {} a port in its endpoint", endpoint.workload)
        } else {
            format!("ports of {}: {}", endpoint.workload, names.join(", "))
        };
        self.fail(rule, format!("to: workload {} has no port {name:?}", endpoint.workload), remedy);
    }

    /// Which callers a port can tell apart depends on its mode and protocol.
    fn port_fits(&mut self, rule: &Rule, endpoint: &Endpoint, port: &Port) {
        if let Some((message, remedy)) = refusal(rule, port.mode, port.protocol) {
            self.fail(rule, format!("port {} of {} {message}", port.name, endpoint.workload), remedy);
        }
    }

    fn fail(&mut self, rule: &Rule, message: String, remedy: impl Into<String>) {
        self.report.push(Problem {
            file: self.file.to_owned(),
            line: rule.at.line,
            column: rule.at.column,
            subject: format!("rule {}", rule.id),
            message,
            remedy: remedy.into(),
        });
    }
}
