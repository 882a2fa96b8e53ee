//! The supervisor's configuration, as validated values. Each part of the program gets only its own section.
//!
//! [`Config::load`] reads `supervisor.toml` and reports every mistake at once: `error` is what a mistake looks like,
//! `document` finds sections and keys and knows where they stand, `value` turns one value into a typed one, `sections`
//! says what each section may hold. Relative paths are relative to the file.

mod document;
mod egress;
mod error;
mod interception;
mod sections;
mod spelling;
mod tables;
mod url;
mod value;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::{IpNet, Ipv6Net};

pub use egress::{Direct, EgressConfig, ProxyConfig, ProxyUrl};
pub use error::{ConfigError, ConfigErrors};
pub use url::{BundleUrl, Reach};

/// Whether the node may use what is only for development.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Everything that is unsafe outside a lab is refused.
    Production,
    /// The dev identity source and lab exceptions are allowed, each with a warning.
    Dev,
}

/// `supervisor.toml`, validated.
#[derive(Debug, Clone)]
pub struct Config {
    /// Who this node and instance are.
    pub node: NodeConfig,
    /// Where endpoints come from.
    pub endpoints: EndpointSource,
    /// Where the policy comes from.
    pub policy: PolicyConfig,
    /// Where SVIDs come from.
    pub identity: IdentityConfig,
    /// Whom else we believe, and for how long.
    pub trust: TrustConfig,
    /// How guests are reached.
    pub guests: GuestConfig,
    /// Who adds the routes of workload addresses.
    pub routes: RouteConfig,
    /// How names are resolved.
    pub resolver: ResolverConfig,
    /// Where decisions are recorded.
    pub audit: AuditConfig,
    /// The operator's socket.
    pub admin: AdminConfig,
    /// Address ranges that the guard lets pass in a lab. Empty in production.
    pub lab_destinations: Vec<IpNet>,
    /// Certificates that ports of mode `tls` may name.
    pub certificates: Vec<CertificateConfig>,
    /// Issuers of tokens.
    pub tokens: Vec<TokenConfig>,
    /// Where the values of credentials are; none: this node injects none.
    pub credentials: Option<CredentialConfig>,
    /// How calls leave for hosts outside.
    pub egress: EgressConfig,
    /// What signs the CAs of pods whose TLS is intercepted.
    pub interception: InterceptionConfig,
}

impl Config {
    /// Reads and validates a file.
    ///
    /// # Errors
    /// All mistakes of the file, each with its place and a remedy; or why it cannot be read.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        let text = document::read(path)?;
        Self::parse(&text, path)
    }

    /// Validates the text of `file`. The file itself is not touched, but relative paths are relative to its folder.
    ///
    /// # Errors
    /// All mistakes of the text, each with its place and a remedy.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigErrors> {
        sections::parse(text, file)
    }
}

/// `[node]`
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Scope of the bundles this node accepts.
    pub id: String,
    /// Dev or production.
    pub mode: Mode,
    /// Name of this instance.
    pub instance: String,
    /// Slot of this instance: 0 (A) or 1 (B).
    pub slot: u8,
    /// Data-plane threads; default: one per core.
    pub workers: usize,
    /// User and group to run as after start; needs root at start.
    pub run_as: Option<(u32, u32)>,
}

/// `[endpoints]`: exactly one of `control` and `file`.
#[derive(Debug, Clone)]
pub enum EndpointSource {
    /// novalet's Unix socket.
    Control {
        /// Path of the socket.
        socket: PathBuf,
        /// uid that novalet must have (SO_PEERCRED).
        novalet_uid: u32,
    },
    /// A file, watched.
    File {
        /// Path of `endpoints.yaml`.
        path: PathBuf,
    },
}

/// `[policy]`
#[derive(Debug, Clone)]
pub struct PolicyConfig {
    /// Where bundles come from.
    pub source: BundleSource,
    /// Verifier keys: `{kid: [alg, PEM]}`.
    pub keys: PathBuf,
    /// Key that must have signed; default: any of `keys`.
    pub key_id: Option<String>,
    /// Folder for the last good bundles.
    pub store: PathBuf,
    /// How long an expired bundle is still served, with an alarm.
    pub stale_grace: Duration,
    /// Least serial of a bundle, also for a store that has none.
    pub min_serial: u64,
}

/// Where bundles come from: exactly one of `bundle` and `url`.
#[derive(Debug, Clone)]
pub enum BundleSource {
    /// A file, watched.
    File(PathBuf),
    /// A server, asked.
    Http(HttpSource),
}

/// A bundle server.
#[derive(Debug, Clone)]
pub struct HttpSource {
    /// Where.
    pub url: BundleUrl,
    /// The CA that must vouch for it, PEM; default: the system's.
    pub ca: Option<PathBuf>,
    /// How long the server may hold a question back.
    pub poll_wait: Duration,
}

/// `[identity]`
#[derive(Debug, Clone)]
pub enum IdentityConfig {
    /// Embedded CA; only in dev mode.
    Dev {
        /// Inherited descriptor with certificate and key (PEM) of the CA; none: a fresh CA in memory.
        ca_fd: Option<i32>,
        /// Where to write the CA's certificate for callers.
        bundle_out: Option<PathBuf>,
    },
    /// Certificates on disk.
    Files {
        /// Folder with `<workload>.<tenant>.crt`, `.key` and `bundle.pem`.
        dir: PathBuf,
        /// Whose SVIDs they are.
        trust_domain: String,
    },
}

/// The part of `[identity]` about peers.
#[derive(Debug, Clone)]
pub struct TrustConfig {
    /// Other trust domains.
    pub federated: Vec<FederatedConfig>,
    /// Revocation lists: files, or folders of them.
    pub crls: Vec<PathBuf>,
    /// How long a list is used past its end.
    pub crl_grace: Duration,
    /// How long a connection may go on past the end of its peer's certificate.
    pub peer_grace: Duration,
}

/// Another trust domain.
#[derive(Debug, Clone)]
pub struct FederatedConfig {
    /// Its name, without `spiffe://`.
    pub trust_domain: String,
    /// Its CA certificates, PEM.
    pub bundle: PathBuf,
    /// What rules call it in `external_ca`.
    pub name: String,
}

/// `[interception]`
#[derive(Debug, Clone)]
pub struct InterceptionConfig {
    /// Chain and key of the intermediate that signs the CA of each pod; none: each signs itself.
    pub intermediate: Option<(PathBuf, PathBuf)>,
    /// How long the CA of a pod is good for.
    pub lifetime: Duration,
}

/// One of `[[certificates]]`
#[derive(Debug, Clone)]
pub struct CertificateConfig {
    /// What ports call it.
    pub name: String,
    /// The chain, the server's own certificate first.
    pub chain: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// One of `[[tokens]]`
#[derive(Debug, Clone)]
pub struct TokenConfig {
    /// `iss` of its tokens, and what rules call it.
    pub issuer: String,
    /// A token must be for one of them.
    pub audiences: Vec<String>,
    /// Where its keys are.
    pub keys: KeySource,
    /// What its tokens may be signed with.
    pub algorithms: Vec<jsonwebtoken::Algorithm>,
    /// How far clocks may be apart.
    pub leeway: Duration,
    /// How often a URL is asked for keys.
    pub refresh: Duration,
    /// How long keys are used while the URL cannot be asked.
    pub max_age: Duration,
}

/// Where keys are.
#[derive(Debug, Clone)]
pub enum KeySource {
    /// A file, watched.
    File(PathBuf),
    /// A server, asked.
    Url {
        /// Where.
        url: BundleUrl,
        /// The CA that must vouch for it, PEM; default: the system's.
        ca: Option<PathBuf>,
    },
}

/// `[credentials]`
#[derive(Debug, Clone)]
pub struct CredentialConfig {
    /// A folder with one file per credential.
    pub dir: PathBuf,
}

/// `[guests]`
#[derive(Debug, Clone)]
pub struct GuestConfig {
    /// Folder of the per-pod folders with hybrid sockets.
    pub root: PathBuf,
    /// Whether to listen on AF_VSOCK.
    pub vsock: bool,
    /// Port that guests dial; default 15001 for slot 0, 15002 for slot 1.
    pub host_port: u32,
    /// Port of the relay in the guest.
    pub guest_port: u32,
}

/// `[routes]`
#[derive(Debug, Clone)]
pub enum RouteConfig {
    /// novalet adds the routes; the supervisor checks that they are there.
    External,
    /// A forked helper adds them, inside `subnets` only.
    Managed {
        /// The node's delegated subnets: one, or one of each family.
        subnets: Vec<IpNet>,
    },
    /// No routes at all: the addresses are local already (loopback).
    None,
}

/// `[resolver]`
#[derive(Debug, Clone)]
pub struct ResolverConfig {
    /// DNS servers; empty: only `hosts`.
    pub servers: Vec<SocketAddr>,
    /// Local address that queries leave from.
    pub bind: Option<IpAddr>,
    /// Fixed names.
    pub hosts: Vec<(String, Vec<IpAddr>)>,
    /// Deadline of one lookup.
    pub timeout: Duration,
    /// Prefixes of 96 bits behind which the network puts IPv4 addresses, beside the well-known one.
    pub nat64: Vec<Ipv6Net>,
}

/// `[audit]`
#[derive(Debug, Clone)]
pub struct AuditConfig {
    /// The log, one JSON object a line.
    pub file: PathBuf,
    /// What happens when it cannot be written: refuse new requests (default) or go on.
    pub required: bool,
    /// The same decisions in the form of OPA's decision log. Best effort: it never refuses a request.
    pub opa_file: Option<PathBuf>,
    /// Denials of one endpoint that are written in a second; more are counted.
    pub denials_per_second: u32,
}

/// `[admin]`
#[derive(Debug, Clone)]
pub struct AdminConfig {
    /// The operator's Unix socket.
    pub socket: PathBuf,
}
