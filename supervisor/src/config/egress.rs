//! `[egress]` and `[[proxies]]`: how calls leave for hosts outside.

use std::collections::BTreeSet;
use std::path::PathBuf;

use ipnet::IpNet;
use nova_policy::Authority;
use nova_policy::host::Host;
use toml::de::DeValue;

use super::document::{Document, Section};
use super::value::{self, Mistake};

/// `[egress]`, with the proxies that it and rules may name.
#[derive(Debug, Clone)]
pub struct EgressConfig {
    /// Whether hosts outside may speak TLS 1.2.
    pub tls12: bool,
    /// The proxy of calls to hosts outside whose rule names none.
    pub proxy: Option<String>,
    /// What goes past that proxy.
    pub direct: Vec<Direct>,
    /// `[[proxies]]`
    pub proxies: Vec<ProxyConfig>,
}

/// Destinations that are reached without the node's proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Direct {
    /// This host.
    Host(Host),
    /// Every name that ends so; it begins with a dot.
    Suffix(String),
    /// Addresses that are called as such.
    Net(IpNet),
}

impl Direct {
    /// Whether `host` is one of them.
    #[must_use]
    pub fn covers(&self, host: &Host) -> bool {
        match self {
            Self::Host(name) => name == host,
            Self::Suffix(suffix) => host.address().is_none() && host.as_str().ends_with(suffix.as_str()),
            Self::Net(net) => host.address().is_some_and(|address| net.contains(&address)),
        }
    }
}

/// One of `[[proxies]]`
#[derive(Debug, Clone)]
pub struct ProxyConfig {
    /// What rules call it in `via`.
    pub name: String,
    /// Where it is.
    pub url: ProxyUrl,
    /// The CA that must vouch for it, PEM; default: the system's.
    pub ca: Option<PathBuf>,
    /// A file with `user:password`.
    pub credential: Option<PathBuf>,
}

/// Where a proxy is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyUrl {
    /// Whether it is spoken to in TLS.
    pub tls: bool,
    /// Name or address.
    pub host: Host,
    /// Port.
    pub port: u16,
}

pub(super) fn egress(document: &Document<'_>) -> EgressConfig {
    let proxies = proxies(document);
    let mut section = document.optional_section("egress");
    let tls12 = section.optional("tls12", value::flag).unwrap_or(true);
    let proxy = section.optional("proxy", value::name);
    if let Some(name) = proxy.as_ref().filter(|name| proxies.iter().all(|proxy| proxy.name != **name)) {
        section.refuse("proxy", format!("no [[proxies]] has the name {name:?}"), "add it, or correct the name");
    }
    let direct = if section.has("proxy") {
        section.list("direct", direct)
    } else {
        section.only_with(&["direct"], "proxy");
        Vec::new()
    };
    section.finish();
    EgressConfig { tls12, proxy, direct, proxies }
}

fn proxies(document: &Document<'_>) -> Vec<ProxyConfig> {
    let mut names = BTreeSet::new();
    let mut all = Vec::new();
    for mut section in document.tables("proxies") {
        let name = section.required("name", value::name, "write the name that rules use in `via`");
        let url = section.required("url", url, "write http://host:port or https://host:port");
        let ca = file(&mut section, "ca");
        let credential = file(&mut section, "credential");
        if ca.is_some() && url.as_ref().is_some_and(|url| !url.tls) {
            section.refuse("ca", "has no meaning without https://", "remove it, or write an https:// address");
        }
        if let Some(name) = name.as_ref().filter(|name| !names.insert((*name).clone())) {
            section.refuse("name", format!("{name:?} is there twice"), "rename one");
        }
        section.finish();
        if let (Some(name), Some(url)) = (name, url) {
            all.push(ProxyConfig { name, url, ca, credential });
        }
    }
    all
}

fn file(section: &mut Section<'_>, key: &'static str) -> Option<PathBuf> {
    section.optional(key, value::path).map(|path| section.path(path))
}

fn url(value: &DeValue<'_>) -> Result<ProxyUrl, Mistake> {
    let remedy = "write http://host:port or https://host:port, and user and password into the file of `credential`";
    let text = value::plain_text(value)?;
    let (tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (None, Some(rest)) => (false, rest),
        // Whatever it is, it may hold a password.
        (None, None) => return Err(Mistake::new("is neither http:// nor https://", remedy)),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains('@') {
        return Err(Mistake::new("holds a user: no password belongs into this file", remedy));
    }
    let authority = Authority::parse(rest).ok();
    let named = authority.and_then(|authority| Some((authority.host().clone(), authority.port()?)));
    let (host, port) =
        named.ok_or_else(|| Mistake::new(format!("{text:?} does not name a host and a port"), remedy))?;
    Ok(ProxyUrl { tls, host, port })
}

fn direct(value: &DeValue<'_>) -> Result<Direct, Mistake> {
    let text = value::plain_text(value)?;
    if text.contains('/') {
        return value::subnet(value).map(Direct::Net);
    }
    let parse = |name: &str| Host::parse(name).ok();
    let parsed = match text.strip_prefix("*.") {
        Some(suffix) => {
            parse(suffix).filter(|host| host.address().is_none()).map(|host| Direct::Suffix(format!(".{host}")))
        }
        None => parse(&text).map(Direct::Host),
    };
    let remedy = "write \"host.example\", \"*.example\" or \"10.0.0.0/8\"";
    parsed.ok_or_else(|| Mistake::new(format!("{text:?} is no host and no network"), remedy))
}
