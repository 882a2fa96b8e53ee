//! Rules as people write them: one row says who may talk to whom, and is compiled into both directions.

mod check;
mod credentials;
mod destination;
mod legal;
mod names;
mod parse;
mod requests;
mod source;

pub(crate) use check::foreign_uri;
pub(crate) use legal::refusal;
pub use legal::{Caller, LEGAL, Legal};

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use nova_proto::ids::{PortName, RuleId, SpiffeId, TenantId, WorkloadId};

use crate::data::{CredentialEntry, UpstreamTls};
use crate::host::Host;
use crate::path::pattern::PathPattern;
use crate::report::Report;
use crate::yaml::Position;

/// Most rules of a file.
pub const MAX_RULES: usize = 100_000;

/// A validated rules file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// Name of the file, for messages.
    pub file: String,
    /// Rules in the order of the file, which is their rank.
    pub rules: Vec<Rule>,
    /// CAs of peers and servers outside.
    pub external_cas: Vec<ExternalCa>,
    /// Credentials that rules may name.
    pub credentials: BTreeMap<String, CredentialEntry>,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its id, unique in the file.
    pub id: RuleId,
    /// The tenant both sides belong to.
    pub tenant: TenantId,
    /// Who calls.
    pub from: Source,
    /// Where the caller must also come from; with [`Source::Anyone`] it may be all that is asked.
    pub cidr: Option<IpNet>,
    /// What the caller's token must say.
    pub jwt: Option<Token>,
    /// Who is called.
    pub to: Destination,
    /// Requests it allows; absent: everything, also uninspected bytes.
    pub http: Option<Http>,
    /// The requests are gRPC calls: written as `grpc`, kept as `http`.
    pub grpc: bool,
    /// What may be sent by ICMP, to a [`Destination::Icmp`].
    pub icmp: Option<Icmp>,
    /// Protocols a request may change to.
    pub upgrade: BTreeSet<String>,
    /// Credential to inject.
    pub credential: Option<String>,
    /// Audit mode.
    pub audit: bool,
    /// TLS towards an external host.
    pub tls: UpstreamTls,
    /// The app's own TLS is terminated by the supervisor.
    pub intercept: bool,
    /// Where it stands.
    pub at: Position,
}

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// One workload.
    Workload(WorkloadId),
    /// Every workload of the tenant with all these labels.
    Labels(BTreeMap<String, String>),
    /// Certificates of an external CA.
    External {
        /// Name of the CA.
        ca: String,
        /// Which of them.
        name: PeerPattern,
    },
    /// Whoever comes from the rule's `cidr`, brings its `jwt`, or both; on ports without client certificates.
    Anyone,
}

/// Which certificates of an external CA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerPattern {
    /// By SPIFFE ID.
    Uri(UriPattern),
    /// By DNS name.
    Dns(HostPattern),
    /// By common name, exactly.
    CommonName(String),
}

/// What a token must say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Who issued it.
    pub issuer: String,
    /// Whom it speaks of.
    pub subject: Option<String>,
    /// Claim to the values of which it must have one.
    pub claims: BTreeMap<String, BTreeSet<String>>,
}

/// What may be sent by ICMP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Icmp {
    /// Types, by name.
    pub types: BTreeSet<String>,
    /// Messages per second.
    pub rate_per_s: u32,
}

/// Who is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// A port of one workload.
    Workload {
        /// The workload.
        workload: WorkloadId,
        /// Its port.
        port: PortName,
    },
    /// A port of every workload of the tenant with all these labels.
    Labels {
        /// The labels.
        labels: BTreeMap<String, String>,
        /// The port.
        port: PortName,
    },
    /// A host outside.
    External {
        /// Exact name or suffix.
        host: HostPattern,
        /// Port.
        port: u16,
        /// External CA that must have signed the server.
        ca: Option<String>,
        /// Private ranges the name may resolve to.
        addresses: Vec<IpNet>,
        /// Parent proxy to go through, by its name in the supervisor's configuration.
        via: Option<String>,
    },
    /// Addresses to ping.
    Icmp {
        /// The range.
        cidr: IpNet,
    },
    /// Address literals.
    Cidr {
        /// The range.
        cidr: IpNet,
        /// Port.
        port: u16,
    },
}

/// An external host or a family of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostPattern {
    /// This name.
    Exact(Host),
    /// Every name that ends in this suffix, which starts with a dot.
    Suffix(String),
}

/// Identities of an external CA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UriPattern {
    /// This one.
    Exact(SpiffeId),
    /// Every one below; ends in `/`.
    Prefix(String),
}

/// Requests a rule allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http {
    /// Methods; empty: all.
    pub methods: BTreeSet<String>,
    /// Paths.
    pub paths: Vec<PathPattern>,
    /// Paths with an escaped slash match too, which keeps its spelling and is a part of its segment.
    pub encoded_slash: bool,
}

/// A CA outside our trust domain. It travels in the bundle, so that a rule and its CA change together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalCa {
    /// Its name.
    pub name: String,
    /// Certificates in DER.
    pub certificates: Vec<Vec<u8>>,
    /// Where it stands.
    pub at: Position,
}

/// Reads the PEM files that a rules file names. Kept out of the parser, which touches no disk.
pub type PemLoader<'a> = &'a dyn Fn(&str) -> std::io::Result<Vec<u8>>;

/// Parses a rules file. What it says about workloads is checked by [`crate::compile`].
///
/// # Errors
/// Every mistake of the file with line, rule id and remedy.
pub fn parse(file: &str, text: &str, lab: bool, load: PemLoader<'_>) -> Result<RuleSet, Report> {
    let (rules, report) = parse_all(file, text, lab, load);
    report.into_result().map(|()| rules)
}

/// Parses what can be parsed, and says what is wrong with the rest.
pub(crate) fn parse_all(file: &str, text: &str, lab: bool, load: PemLoader<'_>) -> (RuleSet, Report) {
    let mut report = Report::default();
    let rules = parse::file(file, text, lab, load, &mut report);
    report.sort();
    (rules, report)
}

#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod tests;
