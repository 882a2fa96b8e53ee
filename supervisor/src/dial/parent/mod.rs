//! Parent proxies: what the node may go through to hosts outside, by rule (`via`) or for all of them.
//!
//! ```text
//! permit --> rule says via? --> that proxy, or none at all: such a rule never goes out directly
//!        \-> [egress] proxy, unless `direct` covers the host
//! proxy: resolve, guard, connect, TLS if it is https:// --> CONNECT host:port --> 2xx: the stream is the host's
//! ```
//! The proxy resolves the name, so our guard cannot look at where it leads; an address that is called as such is checked as
//! always. What a proxy answers is its own affair: the app sees a failed upstream, never a refusal that looks like ours.

mod connect;
mod login;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};
use ipnet::IpNet;
use nova_policy::data::EgressTarget;
use nova_policy::host::Host;
use rustls::ClientConfig;

use super::resolve::Sources;
use super::{DialFailure, Dialer};
use crate::config::{Direct, EgressConfig, ProxyConfig, ProxyUrl};
use crate::identity::{IdentityError, RootSet};
use crate::reason::Reason;
use crate::state::endpoint::Endpoint;
use crate::tls::{ALPN_HTTP1, ExternalRoots, Versions, client_config_for_external};

pub(super) use self::connect::through;
use self::login::Login;

/// Why a proxy cannot be used as configured.
#[derive(Debug, thiserror::Error)]
pub enum ParentError {
    /// One of its files.
    #[error("proxy {name}")]
    File {
        /// The proxy.
        name: String,
        /// What is wrong with the file.
        #[source]
        source: IdentityError,
    },
    /// The credential is none.
    #[error("proxy {name}: {} does not hold one line user:password of visible characters", path.display())]
    Login {
        /// The proxy.
        name: String,
        /// Its file.
        path: PathBuf,
    },
    /// No CA.
    #[error("proxy {name}: no CA certificate that is valid now vouches for it")]
    Roots {
        /// The proxy.
        name: String,
        /// What the library says.
        #[source]
        source: rustls::Error,
    },
}

/// All proxies of the node.
#[derive(Default)]
pub struct Parents {
    by_name: BTreeMap<String, Arc<Parent>>,
    of_node: Option<Arc<Parent>>,
    direct: Vec<Direct>,
}

/// One proxy. A change of its files replaces what was read of them.
pub struct Parent {
    config: ProxyConfig,
    current: ArcSwap<Files>,
    /// Grows with every change, so that connections of before are not used again.
    version: AtomicU64,
    /// Why the files of now are not in force.
    problem: ArcSwapOption<String>,
}

/// What a proxy's files say.
struct Files {
    tls: Option<Arc<ClientConfig>>,
    login: Option<Login>,
}

impl Parents {
    /// Reads the files of all of them.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub fn open(config: &EgressConfig) -> Result<Self, ParentError> {
        let open = |config: &ProxyConfig| Ok((config.name.clone(), Arc::new(Parent::open(config)?)));
        let by_name: BTreeMap<_, _> = config.proxies.iter().map(open).collect::<Result<_, _>>()?;
        let of_node = config.proxy.as_ref().and_then(|name| by_name.get(name).cloned());
        Ok(Self { by_name, of_node, direct: config.direct.clone() })
    }

    /// What a supervisor with these proxies can do for rules.
    #[must_use]
    pub fn abilities(&self) -> Vec<Arc<str>> {
        if self.by_name.is_empty() { Vec::new() } else { vec!["via".into()] }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Parent>> {
        self.by_name.values()
    }

    /// What an operator should know of them.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let warning = |parent: &Arc<Parent>| {
            let problem = parent.problem.load();
            problem.as_deref().map(|problem| format!("what was read before stays in force: {problem}"))
        };
        self.iter().filter_map(warning).collect()
    }

    /// The proxy on the way to a destination, if there is one.
    pub(super) fn towards(&self, target: &EgressTarget, host: &str) -> Way<'_> {
        let node = || self.of_node.as_ref().filter(|_| !self.is_direct(host)).map_or(Way::Direct, Way::Through);
        match target {
            EgressTarget::Workload { .. } => Way::Direct,
            EgressTarget::External { via: Some(name), .. } => self.by_name.get(name).map_or(Way::Unknown, Way::Through),
            EgressTarget::External { via: None, .. } | EgressTarget::Cidr { .. } => node(),
        }
    }

    fn is_direct(&self, host: &str) -> bool {
        Host::parse(host).is_ok_and(|host| self.direct.iter().any(|direct| direct.covers(&host)))
    }
}

impl Dialer {
    /// Where `parent` is. A destination that is called by its address is checked as without it: the proxy would dial whatever
    /// it is told.
    pub(super) async fn addresses_of(
        &self,
        parent: &Parent,
        (host, port): (&str, u16),
        target: &EgressTarget,
        caller: &Endpoint,
        sources: Sources,
    ) -> Result<Vec<SocketAddr>, DialFailure> {
        if host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
            self.addresses(host, port, target, caller, sources, &mut None).await?;
        }
        let url = parent.url();
        // What the configuration names may be private, as what a rule names by its address; never an own listener.
        let anywhere = EgressTarget::Cidr { cidr: IpNet::default(), port: url.port };
        let found = self.addresses(url.host.as_str(), url.port, &anywhere, caller, sources, &mut None).await;
        found.map_err(|failure| match failure.reason {
            Reason::ResolveFailed => DialFailure::because(Reason::UpstreamProxy, UNRESOLVED),
            Reason::AddressForbidden => DialFailure { reason: Reason::UpstreamProxy, detail: FORBIDDEN, ..failure },
            _ => failure,
        })
    }
}

/// The proxy's name does not resolve.
const UNRESOLVED: &str = "proxy_unresolved";
/// The proxy is where nothing outside may be: on loopback, at an own listener.
const FORBIDDEN: &str = "proxy_forbidden_address";
/// The proxy does not accept connections.
const UNREACHABLE: &str = "proxy_unreachable";
/// The rule names a proxy that the node does not have.
const UNKNOWN: &str = "proxy_unknown";

/// What it means that a proxy could not be connected to.
pub(super) fn unreachable(failure: DialFailure) -> DialFailure {
    let reason = if failure.reason == Reason::UpstreamRefused { Reason::UpstreamProxy } else { failure.reason };
    DialFailure { reason, detail: UNREACHABLE, ..failure }
}

/// How a destination is reached.
pub(super) enum Way<'a> {
    Direct,
    Through(&'a Arc<Parent>),
    /// Its rule names a proxy that this node does not have.
    Unknown,
}

impl<'a> Way<'a> {
    /// The proxy, if the way leads through one.
    pub(super) fn parent(self) -> Result<Option<&'a Arc<Parent>>, DialFailure> {
        match self {
            Self::Direct => Ok(None),
            Self::Through(parent) => Ok(Some(parent)),
            Self::Unknown => Err(DialFailure::because(Reason::UpstreamProxy, UNKNOWN)),
        }
    }
}

impl Parent {
    fn open(config: &ProxyConfig) -> Result<Self, ParentError> {
        let current = ArcSwap::from_pointee(Files::read(config)?);
        Ok(Self { config: config.clone(), current, version: AtomicU64::new(0), problem: ArcSwapOption::empty() })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Its files.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.config.ca.iter().chain(&self.config.credential)
    }

    /// Reads its files again. What cannot be used changes nothing.
    ///
    /// # Errors
    /// Why what was read before stays.
    pub fn reload(&self) -> Result<(), ParentError> {
        let read = Files::read(&self.config);
        self.problem.store(read.as_ref().err().map(|error| Arc::new(explained(error))));
        self.current.store(Arc::new(read?));
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn url(&self) -> &ProxyUrl {
        &self.config.url
    }
}

impl Files {
    fn read(config: &ProxyConfig) -> Result<Self, ParentError> {
        let name = || config.name.clone();
        let failed = |source| ParentError::File { name: name(), source };
        let tls = if config.url.tls {
            let roots = match &config.ca {
                None => ExternalRoots::Web,
                Some(path) => ExternalRoots::Custom(Arc::new(RootSet::read(path).map_err(failed)?)),
            };
            let config = client_config_for_external(&roots, &[ALPN_HTTP1], Versions::Tls12Too);
            Some(config.map_err(|source| ParentError::Roots { name: name(), source })?)
        } else {
            None
        };
        let login = match &config.credential {
            None => None,
            Some(path) => {
                let text = crate::identity::read_secret(path).map_err(failed)?;
                let login = Login::parse(&text);
                Some(login.ok_or_else(|| ParentError::Login { name: name(), path: path.clone() })?)
            }
        };
        Ok(Self { tls, login })
    }
}

fn explained(error: &ParentError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
