//! Chooses the identity source, and what signs the CAs of pods.

use std::sync::Arc;
use std::time::SystemTime;

use crate::config::{Config, IdentityConfig, InterceptionConfig};
use crate::identity::{DevCa, DevSource, FilesSource, IdentitySource, PodCas, TrustDomain};

use super::AppError;
use crate::state::endpoint::Endpoint;
use crate::state::table::EndpointTable;

/// Opens what makes the CAs of pods.
pub(super) fn pod_cas(config: &InterceptionConfig) -> Result<PodCas, AppError> {
    Ok(match &config.intermediate {
        None => PodCas::self_signed(config.lifetime),
        Some((chain, key)) => PodCas::signed_by(chain, key, config.lifetime)?,
    })
}

/// Pods that should be restarted because what their apps trust ends.
pub(super) fn pod_ca_warnings(pod_cas: &PodCas, endpoints: &EndpointTable, now: SystemTime) -> Vec<String> {
    let warning = |endpoint: &Arc<Endpoint>| {
        let ca = endpoint.pod_ca.get().filter(|ca| pod_cas.ends_soon(ca, now))?;
        let (spec, end) = (endpoint.spec(), humantime::format_rfc3339_seconds(ca.not_after()));
        Some(format!("the CA that intercepts for {} ({}) ends at {end}: restart the pod", spec.workload, spec.pod_uid))
    };
    endpoints.load().iter().filter_map(warning).collect()
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
                    .map_err(|error| AppError::System("[identity] bundle_out cannot be written", error))?;
            }
            Ok(Arc::new(source))
        }
        IdentityConfig::Files { dir, trust_domain } => {
            Ok(Arc::new(FilesSource::open(dir, TrustDomain::new(trust_domain)?)?))
        }
    }
}
