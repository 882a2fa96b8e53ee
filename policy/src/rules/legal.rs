//! Which callers a port can tell apart: the one table of legal combinations, which the documents print too.

use super::{Rule, Source};
use crate::workloads::{Mode, Protocol};

/// A kind of `from`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// `workload` or `labels`, with or without `cidr`.
    Workload,
    /// `external_ca` with a name, with or without `cidr`.
    External,
    /// `cidr` alone.
    Cidr,
    /// `jwt`, with or without `cidr`.
    Token,
}

/// One row: on ports of this mode and protocol, who may stand in `from` and whether requests can be matched.
#[derive(Debug, Clone, Copy)]
pub struct Legal {
    /// How the port is terminated.
    pub mode: Mode,
    /// What is spoken on it.
    pub protocol: Protocol,
    /// Legal callers.
    pub from: &'static [Caller],
    /// Which of `http` and `grpc` a rule may have.
    pub blocks: &'static [&'static str],
}

const PROVEN: &[Caller] = &[Caller::Workload, Caller::External];
const PLACED: &[Caller] = &[Caller::Cidr, Caller::Token];
const PLACE: &[Caller] = &[Caller::Cidr];

/// Every combination there is. What is not listed is refused.
pub const LEGAL: [Legal; 9] = [
    Legal { mode: Mode::Mtls, protocol: Protocol::Http, from: PROVEN, blocks: &["http"] },
    Legal { mode: Mode::Mtls, protocol: Protocol::Grpc, from: PROVEN, blocks: &["http", "grpc"] },
    Legal { mode: Mode::Mtls, protocol: Protocol::Tcp, from: PROVEN, blocks: &[] },
    Legal { mode: Mode::Tls, protocol: Protocol::Http, from: PLACED, blocks: &["http"] },
    Legal { mode: Mode::Tls, protocol: Protocol::Grpc, from: PLACED, blocks: &["http", "grpc"] },
    // A token stands in a request, and here nobody reads requests.
    Legal { mode: Mode::Tls, protocol: Protocol::Tcp, from: PLACE, blocks: &[] },
    Legal { mode: Mode::Tcp, protocol: Protocol::Http, from: PLACE, blocks: &["http"] },
    Legal { mode: Mode::Tcp, protocol: Protocol::Grpc, from: PLACE, blocks: &["http", "grpc"] },
    Legal { mode: Mode::Tcp, protocol: Protocol::Tcp, from: PLACE, blocks: &[] },
];

/// The kind of a rule's caller.
pub(crate) fn caller(rule: &Rule) -> Caller {
    match &rule.from {
        Source::Workload(_) | Source::Labels(_) => Caller::Workload,
        Source::External { .. } => Caller::External,
        Source::Anyone if rule.jwt.is_some() => Caller::Token,
        Source::Anyone => Caller::Cidr,
    }
}

/// Why a rule does not fit a port: message and remedy.
pub(crate) fn refusal(rule: &Rule, mode: Mode, protocol: Protocol) -> Option<(&'static str, &'static str)> {
    let row = LEGAL.iter().find(|row| (row.mode, row.protocol) == (mode, protocol))?;
    let caller = caller(rule);
    if !row.from.contains(&caller) {
        return Some(match (caller, mode) {
            (Caller::Workload | Caller::External, _) => (
                "asks for no client certificate, so it cannot know its caller",
                "set the port's mode to mtls, or use a cidr in from",
            ),
            (Caller::Cidr, _) => (
                "is mtls: a cidr alone would let any valid certificate in",
                "name a workload or an external_ca beside the cidr, or set the port's mode to tls or tcp",
            ),
            (Caller::Token, Mode::Mtls) => {
                ("is mtls: its callers are known by certificate, not by token", "set the port's mode to tls")
            }
            (Caller::Token, Mode::Tcp) => ("would carry the token in plaintext", "set the port's mode to tls"),
            (Caller::Token, Mode::Tls) => {
                ("has protocol tcp: nobody reads a token there", "set the port's protocol to http or grpc")
            }
        });
    }
    let block = if rule.grpc { "grpc" } else { "http" };
    if rule.http.is_none() || row.blocks.contains(&block) {
        return None;
    }
    Some(match (protocol, rule.grpc) {
        (Protocol::Tcp, _) => (
            "has protocol tcp: nobody reads its requests, so the http block never matches",
            "set the port's protocol to http, or drop the block",
        ),
        _ => ("has protocol http, not grpc", "set the port's protocol to grpc, or write http instead of grpc"),
    })
}
