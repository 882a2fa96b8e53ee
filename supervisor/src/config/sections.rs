//! What each section may hold. A section's function reads all its keys before it gives up, so that all are reported.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use nova_policy::workloads::DEV_TRUST_DOMAIN;

use super::document::{Document, Section};
use super::error::ConfigErrors;
use super::{
    AdminConfig, AuditConfig, BundleSource, Config, CredentialConfig, EndpointSource, GuestConfig, HttpSource,
    IdentityConfig, Mode, NodeConfig, PolicyConfig, Reach, ResolverConfig, RouteConfig, TrustConfig,
};
use super::{egress, interception, tables, value};

const SECTIONS: [&str; 16] = [
    "node",
    "endpoints",
    "policy",
    "identity",
    "guests",
    "routes",
    "resolver",
    "audit",
    "admin",
    "lab",
    "certificates",
    "tokens",
    "credentials",
    "egress",
    "proxies",
    "interception",
];

/// Port that guests dial in slot 0; slot 1 is the next.
const HOST_PORT: u32 = 15_001;
/// Port of the relay in the guest.
const GUEST_PORT: u32 = 15_080;
/// Ports below belong to the guest's own agents (1024 to 1027 drive a whole VM) and are never used.
const FIRST_PORT: u32 = 15_000;
/// How long a bundle server may hold a question back.
const POLL_WAIT: Duration = Duration::from_secs(30);
/// Longer than most proxies on the way let a connection be silent.
const MAX_POLL_WAIT: Duration = Duration::from_mins(5);
/// Denials of one endpoint that are written in a second: with a kilobyte each, a flood fills less than a gigabyte an hour.
const DENIALS: u32 = 200;
/// More than this is no limit.
const MAX_DENIALS: u32 = 1_000_000;
/// More threads than this is a typing error, not a machine.
const MAX_WORKERS: u64 = 1024;

/// `[node]` as far as other sections depend on it.
#[derive(Clone, Copy)]
struct Setting {
    dev: bool,
    slot: u8,
}

pub(super) fn parse(text: &str, file: &Path) -> Result<Config, ConfigErrors> {
    let document = Document::new(text, file);
    let config = config(&document);
    document.finish()?;
    // Cannot happen: a value that could not be had is a mistake that was noted.
    config.ok_or_else(|| ConfigErrors(Vec::new()))
}

fn config(document: &Document<'_>) -> Option<Config> {
    document.only_sections(&SECTIONS);
    let (node, setting) = node(document);
    let endpoints = endpoints(document);
    let policy = policy(document);
    let (identity, trust) = identity(document, setting);
    let guests = guests(document, setting);
    let routes = routes(document);
    let resolver = resolver(document);
    let audit = audit(document);
    let admin = admin(document);
    let lab_destinations = lab(document, setting);
    let certificates = tables::certificates(document);
    let tokens = tables::tokens(document, setting.dev);
    let credentials = credentials(document);
    let egress = egress::egress(document);
    let interception = interception::interception(document, setting.dev);
    Some(Config {
        node: node?,
        endpoints: endpoints?,
        policy: policy?,
        identity: identity?,
        trust,
        guests: guests?,
        routes: routes?,
        resolver,
        audit: audit?,
        admin: admin?,
        lab_destinations,
        certificates,
        tokens,
        credentials,
        egress,
        interception,
    })
}

fn node(document: &Document<'_>) -> (Option<NodeConfig>, Setting) {
    let mut section = document.section("node");
    let id = section.required("id", value::name, "write the name that this node's bundles are signed for");
    let mode = section.optional("mode", value::mode);
    let slot = section.optional("slot", value::number(0..=1)).map_or(0, |slot| u8::from(slot == 1));
    let instance = section.optional("instance", value::name);
    let workers = section.optional("workers", value::number(1..=MAX_WORKERS)).and_then(|n| usize::try_from(n).ok());
    let run_as = run_as(&mut section);
    section.finish();
    // A mode that cannot be read is reported once; what it would have allowed is not reported on top.
    let unreadable = mode.is_none() && document.section_has("node", "mode");
    let setting = Setting { dev: unreadable || mode == Some(Mode::Dev), slot };
    let config = id.map(|id| NodeConfig {
        id,
        mode: mode.unwrap_or(Mode::Production),
        instance: instance.unwrap_or_else(|| if slot == 0 { "a".into() } else { "b".into() }),
        slot,
        workers: workers.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into)),
        run_as,
    });
    (config, setting)
}

fn run_as(section: &mut Section<'_>) -> Option<(u32, u32)> {
    // u32::MAX means "unchanged" to the kernel, and 0 would keep every right.
    let uid = section.optional("uid", value::id(1..=u32::MAX - 1));
    let gid = section.optional("gid", value::id(1..=u32::MAX - 1));
    match (section.has("uid"), section.has("gid")) {
        (true, false) => section.refuse("uid", "stands alone", "add gid, or remove uid to stay who started it"),
        (false, true) => section.refuse("gid", "stands alone", "add uid, or remove gid to stay who started it"),
        _ => {}
    }
    uid.zip(gid)
}

fn endpoints(document: &Document<'_>) -> Option<EndpointSource> {
    let mut section = document.section("endpoints");
    let control = socket(&mut section, "control", false);
    let file = section.optional("file", value::path).map(|path| section.path(path));
    match (section.has("control"), section.has("file")) {
        (true, true) => section.refuse("file", "stands beside control", "keep exactly one of control and file"),
        (false, false) if section.is_there() => section.refuse(
            "",
            "says nowhere where endpoints come from",
            "add control = \"<novalet's socket>\" or file = \"endpoints.yaml\"",
        ),
        _ => {}
    }
    let novalet_uid = if section.has("control") {
        section.optional("novalet_uid", value::id(0..=u32::MAX - 1))
    } else {
        section.only_with(&["novalet_uid"], "control");
        None
    };
    section.finish();
    let control = control.map(|socket| EndpointSource::Control { socket, novalet_uid: novalet_uid.unwrap_or(0) });
    control.or(file.map(|path| EndpointSource::File { path }))
}

fn policy(document: &Document<'_>) -> Option<PolicyConfig> {
    let mut section = document.section("policy");
    let source = bundle_source(&mut section);
    let keys = path(&mut section, "keys", "write the path of the verifier keys, a JSON object {kid: [alg, PEM]}");
    let key_id = section.optional("key_id", value::key_id);
    let store = path(&mut section, "store", "write the path of a folder for the last good bundles");
    let stale_grace = section.optional("stale_grace", value::duration).unwrap_or(Duration::from_hours(24));
    let min_serial = section.optional("min_serial", value::number(0..=u64::MAX)).unwrap_or(0);
    section.finish();
    Some(PolicyConfig { source: source?, keys: keys?, key_id, store: store?, stale_grace, min_serial })
}

fn bundle_source(section: &mut Section<'_>) -> Option<BundleSource> {
    if !section.has("url") {
        section.only_with(&["ca", "poll_wait"], "url");
        section.ignore(&["url"]);
        let remedy = "write the path of the signed bundle, such as \"bundle.tar.gz\", or add url";
        return path(section, "bundle", remedy).map(BundleSource::File);
    }
    if section.has("bundle") {
        section.refuse("bundle", "stands beside url", "keep exactly one of bundle and url");
        section.ignore(&["bundle"]);
    }
    let url = section.optional("url", value::bundle_url);
    let ca = section.optional("ca", value::path).map(|path| section.path(path));
    let poll_wait = section.optional("poll_wait", value::duration).unwrap_or(POLL_WAIT);
    if poll_wait > MAX_POLL_WAIT {
        section.refuse("poll_wait", "is longer than 5 minutes", "write \"30s\", or at most \"5m\"");
    }
    let tls = url.as_ref().is_none_or(|url| matches!(url.reach, Reach::Tls { .. }));
    if section.has("ca") && !tls {
        section.refuse("ca", "has no meaning without https://", "remove it, or write an https:// address into url");
    }
    url.map(|url| BundleSource::Http(HttpSource { url, ca, poll_wait }))
}

fn identity(document: &Document<'_>, setting: Setting) -> (Option<IdentityConfig>, TrustConfig) {
    let mut section = document.section("identity");
    let sources = value::word(&["dev", "files"]);
    let source = section.required("source", sources, "write \"files\", or \"dev\" in a lab");
    let identity = match source {
        Some("dev") => Some(dev_identity(&mut section, setting)),
        Some(_) => {
            section.only_with(&["ca_fd", "bundle_out"], "source = \"dev\"");
            let dir = path(&mut section, "dir", "write the folder of the certificates");
            let remedy = "write the trust domain of the SVIDs, without spiffe://";
            let trust_domain = section.required("trust_domain", value::trust_domain, remedy);
            dir.zip(trust_domain).map(|(dir, trust_domain)| IdentityConfig::Files { dir, trust_domain })
        }
        None => {
            section.ignore(&["ca_fd", "bundle_out", "dir", "trust_domain"]);
            None
        }
    };
    let own = match &identity {
        Some(IdentityConfig::Files { trust_domain, .. }) => trust_domain.as_str(),
        _ => DEV_TRUST_DOMAIN,
    };
    let trust = tables::trust(&mut section, own);
    section.finish();
    (identity, trust)
}

fn dev_identity(section: &mut Section<'_>, setting: Setting) -> IdentityConfig {
    if !setting.dev {
        section.refuse(
            "source",
            "the dev identity source makes its own certificates and is refused in production",
            "set mode = \"dev\" in [node] for a lab, or source = \"files\"",
        );
    }
    section.only_with(&["dir", "trust_domain"], "source = \"files\"");
    // 0 to 2 are the standard streams.
    let ca_fd = section.optional("ca_fd", value::id(3..=65_535)).and_then(|fd| i32::try_from(fd).ok());
    let bundle_out = section.optional("bundle_out", value::path).map(|path| section.path(path));
    IdentityConfig::Dev { ca_fd, bundle_out }
}

fn guests(document: &Document<'_>, setting: Setting) -> Option<GuestConfig> {
    let mut section = document.section("guests");
    let root = path(&mut section, "root", "write the folder that holds one folder of sockets per pod");
    let vsock = section.optional("vsock", value::flag).unwrap_or(false);
    let ports = || value::id(FIRST_PORT..=u32::MAX - 1);
    let host_port = section.optional("host_port", ports()).unwrap_or(HOST_PORT + u32::from(setting.slot));
    let guest_port = section.optional("guest_port", ports()).unwrap_or(GUEST_PORT);
    section.finish();
    Some(GuestConfig { root: root?, vsock, host_port, guest_port })
}

fn routes(document: &Document<'_>) -> Option<RouteConfig> {
    let mut section = document.optional_section("routes");
    let modes = value::word(&["external", "managed", "none"]);
    let mode = section.optional("mode", modes);
    let routes = if mode == Some("managed") {
        let subnets = section.required("subnet", value::subnets, "write the node's delegated subnet");
        if subnets.as_ref().is_some_and(|subnets| subnets.iter().any(|subnet| subnet.network().is_loopback())) {
            let remedy = "write the node's delegated subnet, or mode = \"none\" for addresses that are local already";
            section.refuse("subnet", "is the machine's own loopback network", remedy);
        }
        subnets.map(|subnets| RouteConfig::Managed { subnets })
    } else if mode.is_none() && section.has("mode") {
        section.ignore(&["subnet"]);
        None
    } else {
        section.only_with(&["subnet"], "mode = \"managed\"");
        Some(if mode == Some("none") { RouteConfig::None } else { RouteConfig::External })
    };
    section.finish();
    routes
}

fn resolver(document: &Document<'_>) -> ResolverConfig {
    let mut section = document.optional_section("resolver");
    let servers = section.list("servers", value::server);
    let bind = section.optional("bind", value::ip);
    let mut hosts = section.table_of_lists("hosts", value::ip);
    for (name, addresses) in &mut hosts {
        let name_is_host = !name.is_empty()
            && name.len() <= 253
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'));
        if !name_is_host {
            section.refuse("hosts", format!("{name:?} is not a host name"), "write names such as \"api.example.com\"");
        } else if addresses.is_empty() {
            section.refuse("hosts", format!("{name} has no address"), "give it an IP address or a list of them");
        }
        *name = name.trim_end_matches('.').to_ascii_lowercase();
    }
    let timeout = section.optional("timeout", value::duration).unwrap_or(Duration::from_secs(5));
    let nat64 = section.list("nat64", value::nat64);
    section.finish();
    ResolverConfig { servers, bind, hosts, timeout, nat64 }
}

fn audit(document: &Document<'_>) -> Option<AuditConfig> {
    let mut section = document.section("audit");
    let file = path(&mut section, "file", "write the path of the audit log, such as \"audit.jsonl\"");
    let required = section.optional("required", value::flag).unwrap_or(true);
    let opa_file = section.optional("opa_file", value::path).map(|path| section.path(path));
    if opa_file.is_some() && opa_file == file {
        section.refuse("opa_file", "is the audit log itself", "give it a file of its own, such as \"opa.jsonl\"");
    }
    let denials = section.optional("denials_per_second", value::id(1..=MAX_DENIALS)).unwrap_or(DENIALS);
    section.finish();
    Some(AuditConfig { file: file?, required, opa_file, denials_per_second: denials })
}

fn admin(document: &Document<'_>) -> Option<AdminConfig> {
    let mut section = document.section("admin");
    let socket = socket(&mut section, "socket", true);
    section.finish();
    Some(AdminConfig { socket: socket? })
}

fn lab(document: &Document<'_>, setting: Setting) -> Vec<IpNet> {
    let mut section = document.optional_section("lab");
    if section.is_there() && !setting.dev {
        section.refuse(
            "",
            "lab exceptions open guarded addresses and are refused in production",
            "remove the section, or set mode = \"dev\" in [node]",
        );
    }
    let destinations = section.list("allow_destinations", value::subnet);
    section.finish();
    destinations
}

fn credentials(document: &Document<'_>) -> Option<CredentialConfig> {
    let mut section = document.optional_section("credentials");
    let dir = path(&mut section, "dir", "write the path of a folder with one file per credential, each of mode 0400");
    section.finish();
    dir.map(|dir| CredentialConfig { dir })
}

fn path(section: &mut Section<'_>, key: &'static str, remedy: &str) -> Option<PathBuf> {
    section.required(key, value::path, remedy).map(|path| section.path(path))
}

fn socket(section: &mut Section<'_>, key: &'static str, required: bool) -> Option<PathBuf> {
    let path = if required {
        path(section, key, "write the path of the socket, such as \"/run/nova/admin.sock\"")?
    } else {
        section.optional(key, value::path).map(|path| section.path(path))?
    };
    match value::fits_socket(&path) {
        Ok(()) => Some(path),
        Err(mistake) => {
            section.refuse(key, mistake.problem, mistake.remedy);
            None
        }
    }
}
