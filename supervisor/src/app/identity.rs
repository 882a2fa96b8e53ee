//! Chooses the identity source, and what signs the CAs of pods.

use std::sync::Arc;
use std::time::SystemTime;

use crate::config::{Config, IdentityConfig, InterceptionConfig};
use crate::identity::{DevCa, DevSource, Ending, FilesSource, IdentitySource, PodCas, TrustDomain};

use super::AppError;
use crate::identity::IdentityError;
use crate::state::endpoint::Endpoint;
use crate::state::table::EndpointTable;

/// Opens what makes the CAs of pods.
pub(super) fn pod_cas(config: &InterceptionConfig) -> Result<PodCas, IdentityError> {
    Ok(match &config.intermediate {
        None => PodCas::self_signed(config.lifetime),
        Some((chain, key)) => PodCas::signed_by(chain, key, config.lifetime)?,
    })
}

/// What ends of that which intercepts, and what is to be done about it.
pub(super) fn pod_ca_warnings(pod_cas: &PodCas, endpoints: &EndpointTable, now: SystemTime) -> Vec<String> {
    let time = |time| humantime::format_rfc3339_seconds(time).to_string();
    let warning = |endpoint: &Arc<Endpoint>| {
        let ending = endpoint.pod_ca.ending(now)?;
        let spec = endpoint.spec();
        let what = format!("the CA that intercepts for {} ({})", spec.workload, spec.pod_uid);
        Some(match ending {
            Ending::Over => format!("{what} is over, and its guest has not installed another: restart the pod"),
            Ending::Last { ends } => {
                format!("{what} ends at {}, and its guest has not installed another: restart the pod", time(ends))
            }
            Ending::Followed { ends, by } => format!(
                "{what} ends at {}: programs in it that started before {} must be restarted by then",
                time(ends),
                time(by)
            ),
        })
    };
    // Below a root that stays there is always another.
    let ends = endpoints.load().iter().filter(|_| !pod_cas.have_a_root()).filter_map(warning).collect();
    [pod_cas.warnings(now), ends].concat()
}

/// Opens the configured source.
pub(super) fn open(config: &Config) -> Result<Arc<dyn IdentitySource>, AppError> {
    match &config.identity {
        IdentityConfig::Dev { ca_fd, bundle_out } => {
            let ca = match ca_fd {
                Some(fd) => {
                    let fd = crate::sys::take_inherited_fd(*fd)
                        .map_err(|error| AppError::System("[identity] ca_fd names no inherited descriptor", error))?;
                    DevCa::from_fd(fd)?
                }
                None => DevCa::generate()?,
            };
            let source = DevSource::new(config.node.mode, ca)?;
            if let Some(path) = bundle_out {
                std::fs::write(path, source.ca_certificate_pem())
                    .map_err(|source| AppError::BundleOut { path: path.clone(), source })?;
            }
            Ok(Arc::new(source))
        }
        IdentityConfig::Files { dir, trust_domain } => {
            Ok(Arc::new(FilesSource::open(dir, TrustDomain::new(trust_domain)?)?))
        }
    }
}
