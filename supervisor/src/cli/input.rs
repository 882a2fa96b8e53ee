//! The call that `explain` asks about: from options, or as JSON.

use std::io::Read;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use super::CliError;

/// More than any input has.
const MAX_INPUT: u64 = 64 * 1024;

#[derive(Args)]
pub(crate) struct Call {
    /// A pair instead: "x -> service-a GET /v1/orders", "x -> api.example.com:443"
    #[arg(value_name = "PAIR", conflicts_with_all = ["input", "direction", "phase", "source", "target", "port", "peer", "peer_ca", "src_ip", "dest_host", "dest_port", "icmp", "method", "path"])]
    pub(super) pair: Option<String>,
    /// Revision to ask instead of the active one; with a pair only
    #[arg(long, value_name = "REVISION", requires = "pair")]
    pub(super) revision: Option<String>,
    /// The whole input as JSON, or - to read it from standard input
    #[arg(long, value_name = "JSON", conflicts_with_all = ["direction", "phase", "source", "target", "port", "peer", "peer_ca", "src_ip", "dest_host", "dest_port", "icmp", "method", "path"])]
    input: Option<String>,
    /// Seen from the workload
    #[arg(long, value_enum, required_unless_present_any = ["input", "pair"])]
    direction: Option<Direction>,
    /// connect: may they talk at all; opaque: uninspected bytes; request: one HTTP request. Default: request with --method,
    /// opaque with --icmp, else connect
    #[arg(long, value_enum)]
    phase: Option<Phase>,
    /// Egress: the workload that calls
    #[arg(long, value_name = "WORKLOAD")]
    source: Option<String>,
    /// Egress: host that is called
    #[arg(long, value_name = "HOST")]
    dest_host: Option<String>,
    /// Egress: port that is called
    #[arg(long, value_name = "PORT")]
    dest_port: Option<u16>,
    /// Egress: type of an ICMP message, instead of a port: echo
    #[arg(long, value_name = "TYPE", conflicts_with = "dest_port")]
    icmp: Option<String>,
    /// Ingress: the workload that is called
    #[arg(long, value_name = "WORKLOAD")]
    target: Option<String>,
    /// Ingress: name of the port that is called
    #[arg(long, value_name = "NAME")]
    port: Option<String>,
    /// Ingress: SPIFFE ID of the caller
    #[arg(long, value_name = "SPIFFE_ID")]
    peer: Option<String>,
    /// Ingress: external CA that vouches for the caller; default with --peer: spiffe, our own
    #[arg(long, value_name = "NAME")]
    peer_ca: Option<String>,
    /// Ingress: address of the caller
    #[arg(long, value_name = "IP")]
    src_ip: Option<String>,
    /// HTTP method
    #[arg(long)]
    method: Option<String>,
    /// HTTP path, without a query
    #[arg(long)]
    path: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Direction {
    Egress,
    Ingress,
}

#[derive(Clone, Copy, ValueEnum)]
enum Phase {
    Connect,
    Opaque,
    Request,
}

impl Call {
    /// The input in its canonical form; whether its fields make sense is for the supervisor to say.
    pub(super) fn input(&self) -> Result<Value, CliError> {
        match self.input.as_deref() {
            Some("-") => parse(&read_stdin()?),
            Some(text) => parse(text),
            None => Ok(Value::Object(self.spelled_out())),
        }
    }

    fn spelled_out(&self) -> Map<String, Value> {
        let request = self.method.is_some() || self.path.is_some();
        let phase = self.phase.unwrap_or(match (request, &self.icmp) {
            (true, _) => Phase::Request,
            (false, Some(_)) => Phase::Opaque,
            (false, None) => Phase::Connect,
        });
        let own_ca = || self.peer.is_some().then(|| nova_policy::input::OWN_CA.to_owned());
        let fields = [
            ("direction", self.direction.map(word)),
            ("phase", Some(word(phase))),
            ("source", self.source.clone()),
            ("target", self.target.clone()),
            ("port", self.port.clone()),
            ("peer", self.peer.clone()),
            ("peer_ca", self.peer_ca.clone().or_else(own_ca)),
            ("src_ip", self.src_ip.clone()),
            ("dest_host", self.dest_host.clone()),
            ("icmp", self.icmp.clone()),
            ("method", self.method.clone()),
            ("path", self.path.clone()),
        ];
        let mut input: Map<_, _> =
            fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), Value::String(value?)))).collect();
        if let Some(port) = self.dest_port {
            input.insert("dest_port".to_owned(), port.into());
        }
        input
    }
}

fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn parse(text: &str) -> Result<Value, CliError> {
    serde_json::from_str(text).map_err(|error| {
        CliError::BadInput(format!("--input is not JSON: {error} (remedy: give the \"input\" object of an audit line)"))
    })
}

fn read_stdin() -> Result<String, CliError> {
    let mut text = String::new();
    let read = std::io::stdin().take(MAX_INPUT).read_to_string(&mut text);
    read.map_err(|error| CliError::BadInput(format!("standard input cannot be read: {error}")))?;
    Ok(text)
}
