//! `check`: every mistake of the configuration and of the files it names, and nothing else.

use std::path::Path;
use std::process::ExitCode;

use nova_policy::workloads;
use nova_supervisor::app::preflight;
use nova_supervisor::config::{Config, EndpointSource};
use nova_supervisor::net::privileges;

use super::{CliError, OK, output};

/// Most bytes of a placement file; 20,000 endpoints have less.
const MAX_PLACEMENTS: u64 = 64 * 1024 * 1024;

/// The configuration, or all its mistakes.
pub(crate) fn load(config: &Path) -> Result<Config, CliError> {
    Config::load(config).map_err(|errors| CliError::BadInput(errors.to_string()))
}

pub(super) fn check(config: &Path, placements: Option<&Path>) -> Result<ExitCode, CliError> {
    let loaded = load(config);
    let mut mistakes: Vec<String> = loaded.as_ref().err().map(ToString::to_string).into_iter().collect();
    let of_config = match &loaded {
        Ok(Config { endpoints: EndpointSource::File { path }, .. }) => Some(path.as_path()),
        _ => None,
    };
    for file in of_config.into_iter().chain(placements) {
        match read(file).and_then(|bytes| parse(file, &bytes)) {
            // That of the configuration is told below, as the start would tell it.
            Err(_) if Some(file) == of_config => {}
            Err(report) => mistakes.push(report),
            Ok(table) => mistakes.extend(loaded.iter().flat_map(|config| unknown_certificates(file, &table, config))),
        }
    }
    if let Ok(config) = &loaded {
        mistakes.extend(as_the_supervisor(config)?);
    }
    if !mistakes.is_empty() {
        return Err(CliError::BadInput(mistakes.join("\n")));
    }
    output::print("no mistakes\n")?;
    Ok(OK.into())
}

/// What the start would fail on, for the user that the supervisor becomes.
fn as_the_supervisor(config: &Config) -> Result<Vec<String>, CliError> {
    if config.node.run_as.is_some() && nix::unistd::geteuid().is_root() {
        privileges::drop(&config.node).map_err(|error| CliError::Failure(preflight::told(error)))?;
    }
    Ok(preflight::mistakes(config))
}

fn parse(file: &Path, bytes: &[u8]) -> Result<workloads::Table, String> {
    let name = file.display().to_string();
    let parsed = nova_policy::report::text(&name, bytes).and_then(|text| workloads::parse(&name, text));
    parsed.map_err(|report| report.to_string())
}

/// Ports whose certificate the configuration does not have: the one thing that neither file can say alone.
fn unknown_certificates(file: &Path, table: &workloads::Table, config: &Config) -> Vec<String> {
    let known = |name: &str| config.certificates.iter().any(|certificate| certificate.name == name);
    let mistake = |endpoint: &workloads::Endpoint, port: &workloads::Port| {
        let name = port.tls.certificate.as_deref().filter(|name| !known(name))?;
        Some(format!(
            "{}:{}: endpoint {}: port {} names certificate {name:?}, which supervisor.toml does not have (remedy: add it to \
             [[certificates]], or remove the name)",
            file.display(),
            endpoint.at.line,
            endpoint.workload,
            port.name,
        ))
    };
    let ports = table.endpoints.iter().flat_map(|endpoint| endpoint.ports.iter().map(move |port| (endpoint, port)));
    ports.filter_map(|(endpoint, port)| mistake(endpoint, port)).collect()
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    let failed = |error| format!("{}: cannot be read: {error} (remedy: check the path and its rights)", file.display());
    nova_policy::files::read(file, MAX_PLACEMENTS).map_err(failed)
}
