//! Names to addresses, only ever for a name that a decision allowed.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig as HickoryConfig, ResolverOpts};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::{DnsError, NetError, runtime::TokioRuntimeProvider};
use hickory_resolver::proto::rr::{Name, RData, RecordType};

use crate::config::ResolverConfig;

/// When one family has addresses, those of the other are waited for this long at most (RFC 8305, section 3, asks for 50 ms;
/// a busy server may take longer for a name that it must ask for itself).
const OTHER_FAMILY: Duration = Duration::from_millis(500);

/// A resolver. Each data-plane thread has its own; what it learns is remembered by the endpoints.
pub struct Resolver {
    hosts: HashMap<String, Vec<IpAddr>>,
    dns: Option<TokioResolver>,
    timeout: Duration,
}

/// Which kinds of addresses are asked for: those that the workload has an address of its own for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Families {
    /// A records.
    pub v4: bool,
    /// AAAA records.
    pub v6: bool,
}

/// What a server answered.
#[derive(Debug, Default)]
pub struct Answer {
    /// At least one.
    pub addresses: Vec<IpAddr>,
    /// The name at the end of a chain of aliases (CNAME), if there is one; the server's own words.
    pub canonical: Option<String>,
    /// How long it is good.
    pub ttl: Duration,
}

/// Why there are no addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupError {
    /// The name does not exist.
    NoName,
    /// It exists, without addresses of these families.
    NoAddress,
    /// The server said that it failed, or will not answer.
    ServerFailed,
    /// What it answered is no DNS message, or leads nowhere.
    BadAnswer,
    /// It did not answer in time.
    TimedOut,
    /// No server is configured, and the name is not in `hosts`.
    NoServer,
}

impl LookupError {
    /// For the record's detail.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoName => "dns_no_name",
            Self::NoAddress => "dns_no_address",
            Self::ServerFailed => "dns_server_failed",
            Self::BadAnswer => "dns_bad_answer",
            Self::TimedOut => "dns_timeout",
            Self::NoServer => "dns_no_server",
        }
    }
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

    /// The addresses that the configuration gives a name. No server is asked about such a name.
    #[must_use]
    pub fn fixed(&self, name: &str) -> Option<&[IpAddr]> {
        self.hosts.get(name).map(Vec::as_slice)
    }

    /// Asks for the addresses of `name`, without search domains: one question per family.
    ///
    /// # Errors
    /// When there are none, of either family. One family's failure is not the other's.
    pub async fn ask(&self, name: &str, families: Families) -> Result<Answer, LookupError> {
        let dns = self.dns.as_ref().ok_or(LookupError::NoServer)?;
        let ask = async |kind: RecordType, wanted: bool| {
            if !wanted {
                return Err(LookupError::NoAddress);
            }
            let answer = tokio::time::timeout(self.timeout, question(dns, name, kind)).await;
            answer.unwrap_or(Err(LookupError::TimedOut))
        };
        let (v4, v6) = both(ask(RecordType::A, families.v4), ask(RecordType::AAAA, families.v6)).await;
        match (v4, v6) {
            (Ok(v4), Ok(v6)) => {
                let addresses = [v6.addresses, v4.addresses].concat();
                Ok(Answer { addresses, canonical: v4.canonical.or(v6.canonical), ttl: v4.ttl.min(v6.ttl) })
            }
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
            (Err(v4), Err(v6)) => Err(if families.v4 { v4 } else { v6 }),
        }
    }
}

async fn question(dns: &TokioResolver, name: &str, kind: RecordType) -> Result<Answer, LookupError> {
    // The final dot makes it absolute: no search domain may turn an allowed name into another one.
    let absolute = Name::from_ascii(format!("{name}.")).map_err(|_| LookupError::NoName)?;
    let answer = dns.lookup(absolute, kind).await.map_err(|error| {
        tracing::debug!(name, %kind, %error, "name does not resolve");
        reason_of(&error)
    })?;
    let addresses: Vec<_> = answer.answers().iter().filter_map(|record| record.data.ip_addr()).collect();
    if addresses.is_empty() {
        return Err(LookupError::NoAddress);
    }
    let canonical = canonical(&answer);
    tracing::debug!(name, alias_of = canonical, ?addresses, "name resolved");
    let ttl = answer.answers().iter().map(|record| record.ttl).min().unwrap_or(0);
    Ok(Answer { addresses, canonical, ttl: Duration::from_secs(ttl.into()) })
}

/// The end of a chain of CNAMEs, in ASCII and without the final dot. DNS bounds a name to 255 bytes.
fn canonical(answer: &Lookup) -> Option<String> {
    answer.answers().iter().rev().find_map(|record| match &record.data {
        RData::CNAME(target) => Some(target.to_ascii().trim_end_matches('.').to_owned()),
        _ => None,
    })
}

fn reason_of(error: &NetError) -> LookupError {
    match error {
        NetError::Timeout => LookupError::TimedOut,
        NetError::Dns(DnsError::NoRecordsFound(_)) if error.is_nx_domain() => LookupError::NoName,
        NetError::Dns(DnsError::NoRecordsFound(_)) => LookupError::NoAddress,
        NetError::Dns(DnsError::ResponseCode(_)) | NetError::Io(_) | NetError::NoConnections | NetError::Busy => {
            LookupError::ServerFailed
        }
        _ => LookupError::BadAnswer,
    }
}

type Asked = Result<Answer, LookupError>;

/// Both answers; when one has addresses, the other is waited for a moment only. What comes later is not looked at, and so
/// not dialled either.
async fn both(v4: impl Future<Output = Asked>, v6: impl Future<Output = Asked>) -> (Asked, Asked) {
    let (mut v4, mut v6) = (std::pin::pin!(v4), std::pin::pin!(v6));
    tokio::select! {
        first = &mut v4 => {
            let second = rest(first.is_ok(), v6).await;
            (first, second)
        }
        second = &mut v6 => {
            let first = rest(second.is_ok(), v4).await;
            (first, second)
        }
    }
}

async fn rest(enough: bool, other: impl Future<Output = Asked>) -> Asked {
    if !enough {
        return other.await;
    }
    tokio::time::timeout(OTHER_FAMILY, other).await.unwrap_or(Err(LookupError::TimedOut))
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
    options.attempts = 1;
    options.ndots = 0;
    // Endpoints remember answers, each within a bound of its own.
    options.cache_size = 0;
    options.use_hosts_file = hickory_resolver::config::ResolveHosts::Never;
    let hickory = HickoryConfig::from_parts(None, Vec::new(), servers);
    TokioResolver::builder_with_config(hickory, TokioRuntimeProvider::default())
        .with_options(options)
        .build()
        .map_err(io::Error::other)
}
