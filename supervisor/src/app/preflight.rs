//! What the start would fail on, found without a change to anything: `check` prints it, and `run` looks first as well, so that
//! the two agree.

use std::error::Error;
use std::fs::FileType;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::trust::Trust;
use crate::admin::AdminSocket;
use crate::audit;
use crate::bundles::BundleStore;
use crate::causes;
use crate::config::{BundleSource, Config, EndpointSource, IdentityConfig, KeySource};
use crate::control::file::FileSource;
use crate::credentials::Credentials;
use crate::dial::Parents;
use crate::identity::{DevCa, DevSource, FilesSource, IdentityError, IdentitySource, TrustDomain};
use crate::tls::Certificates;

/// Every mistake, as a sentence with its section and what to do.
#[must_use]
pub fn mistakes(config: &Config) -> Vec<String> {
    let mut all = shared_files(config);
    let mut note = |section: &str, found: Result<(), String>| {
        all.extend(found.err().map(|problem| format!("{section}: {problem}")));
    };
    if let EndpointSource::File { path } = &config.endpoints {
        let read = FileSource::new(path.clone(), config.node.id.clone()).load();
        note("[endpoints]", read.map(drop).map_err(told));
    }
    note("[policy] store", BundleStore::check(&config.policy.store).map_err(told));
    match source(config) {
        Err(error) => note("[identity]", Err(told(error))),
        Ok(source) => {
            note("[[tokens]]", super::tokens(config, source.as_ref()).map(drop).map_err(told));
            note("[identity]", Trust::open(source, config.trust.clone()).map(drop).map_err(told));
        }
    }
    if let IdentityConfig::Dev { bundle_out: Some(path), .. } = &config.identity {
        note("[identity] bundle_out", writable(path, FileType::is_file));
    }
    note("[[certificates]]", Certificates::open(&config.certificates).map(drop).map_err(told));
    note("[interception]", super::identity::pod_cas(&config.interception).map(drop).map_err(told));
    note("[credentials]", Credentials::open(config.credentials.as_ref()).map(drop).map_err(told));
    note("[[proxies]]", Parents::open(&config.egress).map(drop).map_err(told));
    let takes_lines = |kind: &FileType| audit::takes_lines(*kind).is_ok();
    note("[audit] file", writable(&config.audit.file, takes_lines));
    if let Some(path) = &config.audit.opa_file {
        note("[audit] opa_file", writable(path, takes_lines));
    }
    note("[admin] socket", AdminSocket::check(&config.admin.socket).map_err(told));
    all
}

/// An error with its causes.
pub fn told(error: impl Error) -> String {
    causes::on_one_line(&error)
}

fn source(config: &Config) -> Result<Arc<dyn IdentitySource>, IdentityError> {
    Ok(match &config.identity {
        // The CA that an inherited descriptor holds can be read once, so another one stands for it.
        IdentityConfig::Dev { .. } => Arc::new(DevSource::new(config.node.mode, DevCa::generate()?)?),
        IdentityConfig::Files { dir, trust_domain } => {
            Arc::new(FilesSource::open(dir, TrustDomain::new(trust_domain)?)?)
        }
    })
}

/// Whether a file can be there: nothing else is, and its folder exists.
fn writable(path: &Path, fits: impl Fn(&FileType) -> bool) -> Result<(), String> {
    let shown = path.display();
    if let Ok(there) = path.metadata() {
        let kind = nova_policy::files::name(there.file_type());
        let remedy = "remove it, or write the path of a file";
        return if fits(&there.file_type()) { Ok(()) } else { Err(format!("{shown} is {kind}: {remedy}")) };
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match folder.metadata() {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(format!("{} is no folder: correct the path {shown}", folder.display())),
        Err(error) => {
            let folder = folder.display();
            Err(format!("{folder} cannot be used ({error}): create this folder, or correct the path {shown}"))
        }
    }
}

/// Files that are written and stand for something else, too: the one would end the other.
fn shared_files(config: &Config) -> Vec<String> {
    let mut roles: Vec<(&str, &Path)> = vec![("[policy] keys", &config.policy.keys)];
    if let EndpointSource::File { path } = &config.endpoints {
        roles.push(("[endpoints] file", path));
    }
    if let BundleSource::File(path) = &config.policy.source {
        roles.push(("[policy] bundle", path));
    }
    for token in &config.tokens {
        if let KeySource::File(path) = &token.keys {
            roles.push(("[[tokens]] keys", path));
        }
    }
    for certificate in &config.certificates {
        roles.extend([
            ("[[certificates]] chain", certificate.chain.as_path()),
            ("[[certificates]] key", &certificate.key),
        ]);
    }
    if let Some((chain, key)) = &config.interception.intermediate {
        roles.extend([("[interception] chain", chain.as_path()), ("[interception] key", key)]);
    }
    let mut written: Vec<(&str, &Path)> = vec![("[audit] file", &config.audit.file)];
    written.extend(config.audit.opa_file.as_deref().map(|path| ("[audit] opa_file", path)));
    if let IdentityConfig::Dev { bundle_out: Some(path), .. } = &config.identity {
        written.push(("[identity] bundle_out", path));
    }
    written.extend([("[admin] socket", config.admin.socket.as_path()), ("[policy] store", &config.policy.store)]);
    let mut mistakes = Vec::new();
    while let Some((role, path)) = written.pop() {
        for (other, _) in written.iter().chain(&roles).filter(|(_, other)| real(other) == real(path)) {
            mistakes.push(format!("{role} and {other} are both {}: give each a path of its own", path.display()));
        }
    }
    mistakes
}

/// The file that a path leads to, also before there is one.
fn real(path: &Path) -> PathBuf {
    let beside = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(folder.canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(beside).unwrap_or_else(|| path.to_owned())
}
