//! Names to addresses, only ever for a name that a decision allowed.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig as HickoryConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;

use crate::config::ResolverConfig;

/// A resolver. Each data-plane thread has its own, with its own small cache.
pub struct Resolver {
    hosts: HashMap<String, Vec<IpAddr>>,
    dns: Option<TokioResolver>,
    timeout: Duration,
}

impl Resolver {
    /// Builds the resolver; it must be used on the runtime that is current now.
    ///
    /// # Errors
    /// When the DNS client cannot be built.
    pub fn new(config: &ResolverConfig) -> io::Result<Self> {
        let hosts = config.hosts.iter().cloned().collect();
        let dns = if config.servers.is_empty() { None } else { Some(build(config)?) };
        Ok(Self { hosts, dns, timeout: config.timeout })
    }

    /// All addresses of `name`, without search domains.
    ///
    /// # Errors
    /// `NotFound` when there is none, `TimedOut` when the server does not answer.
    pub async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        if let Some(addresses) = self.hosts.get(name) {
            return Ok(addresses.clone());
        }
        let Some(dns) = &self.dns else { return Err(io::ErrorKind::NotFound.into()) };
        // The final dot makes it absolute: no search domain may turn an allowed name into another one.
        let answer = tokio::time::timeout(self.timeout, dns.lookup_ip(format!("{name}.")));
        match answer.await {
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
            Ok(Err(error)) if error.is_no_records_found() || error.is_nx_domain() => {
                Err(io::ErrorKind::NotFound.into())
            }
            Ok(Err(error)) => Err(io::Error::other(error)),
            Ok(Ok(addresses)) => Ok(addresses.iter().collect()),
        }
    }
}

fn build(config: &ResolverConfig) -> io::Result<TokioResolver> {
    let mut servers = Vec::new();
    for server in &config.servers {
        let mut connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
        for connection in &mut connections {
            connection.port = server.port();
            connection.bind_addr = config.bind.map(|ip| std::net::SocketAddr::new(ip, 0));
        }
        servers.push(NameServerConfig::new(server.ip(), true, connections.to_vec()));
    }
    let mut options = ResolverOpts::default();
    options.timeout = config.timeout / 2;
    options.attempts = 2;
    options.ndots = 0;
    options.use_hosts_file = hickory_resolver::config::ResolveHosts::Never;
    let hickory = HickoryConfig::from_parts(None, Vec::new(), servers);
    TokioResolver::builder_with_config(hickory, TokioRuntimeProvider::default())
        .with_options(options)
        .build()
        .map_err(io::Error::other)
}
