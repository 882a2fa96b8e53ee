//! Reads what a rule says about requests: `http`, `grpc`, `icmp`, `upgrade` and `tls`.

use std::collections::BTreeSet;

use super::{Destination, Http, Icmp};
use crate::data::UpstreamTls;
use crate::path::pattern::PathPattern;
use crate::yaml::{Map, Node, Reader};

/// Keys of `http`, `grpc` and `icmp`.
pub(super) const HTTP_KEYS: [&str; 3] = ["methods", "paths", "encoded_slash"];
pub(super) const GRPC_KEYS: [&str; 2] = ["services", "methods"];
pub(super) const ICMP_KEYS: [&str; 2] = ["types", "rate_per_s"];
/// Refused everywhere: they echo credentials, or are not requests to a path.
const REFUSED_METHODS: [&str; 3] = ["CONNECT", "TRACE", "TRACK"];
/// Most paths of a rule, written or made from services and methods.
const MAX_PATHS: usize = 1024;

/// `None` when the block cannot be read: a rule must never lose it and become wider.
pub(super) fn http(reader: &mut Reader<'_>, node: &Node) -> Option<Http> {
    let map = reader.map(node, "http", &HTTP_KEYS)?;
    let methods = match map.get("methods") {
        Some(list) => methods(reader, list),
        None => Some(BTreeSet::new()),
    };
    let encoded_slash = match map.get("encoded_slash") {
        Some(node) => reader.flag(node, "encoded_slash"),
        None => Some(false),
    };
    let paths = match map.get("paths") {
        // Whether the rule takes an escaped slash is not known when it says nothing that can be read: no mistake of the paths.
        Some(list) => paths(reader, list, encoded_slash.unwrap_or(true)),
        None => Some(vec![PathPattern::Prefix("/".to_owned())]),
    };
    Some(Http { methods: methods?, paths: paths?, encoded_slash: encoded_slash? })
}

fn methods(reader: &mut Reader<'_>, list: &Node) -> Option<BTreeSet<String>> {
    let (mut methods, mut good) = (BTreeSet::new(), true);
    for node in reader.list(list, "methods", 64) {
        match reader.parsed(node, "method", "write upper-case names like GET, or leave methods out", method) {
            Some(method) => {
                methods.insert(method);
            }
            None => good = false,
        }
    }
    if list.value.is_empty_list() {
        reader.fail(list.at, "methods is empty: the rule allows nothing", "list methods, or leave it out for all");
    }
    (good && !methods.is_empty()).then_some(methods)
}

fn paths(reader: &mut Reader<'_>, list: &Node, encoded_slash: bool) -> Option<Vec<PathPattern>> {
    let (mut paths, mut good) = (Vec::new(), true);
    for node in reader.list(list, "paths", MAX_PATHS) {
        let remedy = "write /exact/path, /prefix/** or /a/*/b in canonical spelling";
        match reader.parsed(node, "path", remedy, PathPattern::parse) {
            Some(path) if path.has_escaped_slash() && !encoded_slash => {
                let remedy = "add `encoded_slash: true` beside paths, or write the path without %2F";
                reader.fail(node.at, "path: no request with %2F in its path matches this rule", remedy);
                good = false;
            }
            Some(path) => paths.push(path),
            None => good = false,
        }
    }
    if list.value.is_empty_list() {
        reader.fail(list.at, "paths is empty: the rule allows nothing", "list paths, or leave it out for all");
    }
    (good && !paths.is_empty()).then_some(paths)
}

/// gRPC calls are POST requests to `/service/method`. `None` when the block cannot be read.
pub(super) fn grpc(reader: &mut Reader<'_>, node: &Node) -> Option<Http> {
    let map = reader.map(node, "grpc", &GRPC_KEYS)?;
    let services = reader.need(&map, "services", "[orders.v1.Orders]")?;
    let services = words(reader, services, "services", "write full names like orders.v1.Orders", grpc_service)?;
    let methods = match map.get("methods") {
        Some(list) => words(reader, list, "methods", "write names like GetOrder, or leave methods out", grpc_method)?,
        None => BTreeSet::new(),
    };
    if services.len() * methods.len().max(1) > MAX_PATHS {
        reader.fail(map.at, format!("more than {MAX_PATHS} services and methods together"), "write several rules");
        return None;
    }
    let mut paths = Vec::new();
    for service in &services {
        if methods.is_empty() {
            paths.push(PathPattern::Prefix(format!("/{service}/")));
        }
        paths.extend(methods.iter().map(|method| PathPattern::Exact(format!("/{service}/{method}"))));
    }
    Some(Http { methods: BTreeSet::from(["POST".to_owned()]), paths, encoded_slash: false })
}

/// What may be sent by ICMP.
pub(super) fn icmp(reader: &mut Reader<'_>, node: &Node) -> Option<Icmp> {
    let map = reader.map(node, "icmp", &ICMP_KEYS)?;
    let types = reader.need(&map, "types", "[echo]")?;
    let types = words(reader, types, "types", "only echo is carried: write [echo]", |text| match text {
        "echo" => Ok(text.to_owned()),
        _ => Err("no such type"),
    })?;
    let rate = reader.need(&map, "rate_per_s", "5")?;
    let rate_per_s = reader.number(rate, "rate_per_s", 1..=1000)?;
    Some(Icmp { types, rate_per_s: u32::try_from(rate_per_s).ok()? })
}

/// Protocols that requests may change to.
pub(super) fn upgrade(reader: &mut Reader<'_>, node: &Node) -> Option<BTreeSet<String>> {
    words(reader, node, "upgrade", "only websocket is known: write [websocket]", |text| match text {
        "websocket" => Ok(text.to_owned()),
        _ => Err("no such protocol"),
    })
}

/// How TLS is handled, and whether the app's own is terminated.
pub(super) fn tls(reader: &mut Reader<'_>, map: &Map<'_>, to: &Destination, http: bool) -> (UpstreamTls, bool) {
    let default = if http { UpstreamTls::Originate } else { UpstreamTls::Passthrough };
    let Some(node) = map.get("tls") else { return (default, false) };
    let words = [
        ("originate", (UpstreamTls::Originate, false)),
        ("passthrough", (UpstreamTls::Passthrough, false)),
        ("none", (UpstreamTls::None, false)),
        ("intercept", (UpstreamTls::Originate, true)),
    ];
    let Some((tls, intercept)) = reader.choice(node, "tls", &words) else { return (default, false) };
    let external = matches!(to, Destination::External { .. });
    let workload = matches!(to, Destination::Workload { .. } | Destination::Labels { .. });
    if intercept && !(external || workload) {
        reader.fail(node.at, "tls: intercept needs a host or a workload as destination", "remove it");
    } else if intercept && !http {
        let remedy = "add http with methods and paths, or use tls: passthrough";
        reader.fail(node.at, "tls: intercept is for reading requests and needs an http block", remedy);
    } else if !intercept && !external {
        reader.fail(node.at, "tls only belongs to rules to an external host", "remove it");
    } else if http && tls == UpstreamTls::Passthrough {
        reader.fail(
            node.at,
            "requests inside the app's own TLS cannot be read, so the http block can never match",
            "use tls: originate and call http://, use tls: intercept, or drop the http block",
        );
    } else if !http && tls == UpstreamTls::None {
        reader.fail(node.at, "tls: none is for plaintext HTTP and needs an http block", "use tls: passthrough");
    }
    (tls, intercept)
}

/// A list of words that is not empty; `None` when one of them is wrong.
fn words(
    reader: &mut Reader<'_>,
    node: &Node,
    what: &str,
    remedy: &str,
    parse: fn(&str) -> Result<String, &'static str>,
) -> Option<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    let mut good = true;
    for node in reader.list(node, what, 256) {
        match reader.parsed(node, what, remedy, parse) {
            Some(word) => {
                all.insert(word);
            }
            None => good = false,
        }
    }
    if node.value.is_empty_list() {
        reader.fail(node.at, format!("{what} is empty: the rule allows nothing"), remedy);
    }
    (good && !all.is_empty()).then_some(all)
}

fn grpc_service(text: &str) -> Result<String, &'static str> {
    let good = text.len() <= 255 && text.split('.').all(is_identifier);
    if good { Ok(text.to_owned()) } else { Err("not a full service name") }
}

fn grpc_method(text: &str) -> Result<String, &'static str> {
    if text.len() <= 255 && is_identifier(text) { Ok(text.to_owned()) } else { Err("not a method name") }
}

/// An identifier of a `.proto` file.
fn is_identifier(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn method(text: &str) -> Result<String, &'static str> {
    if text == "*" {
        return Ok(text.to_owned());
    }
    let good = (1..=32).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_'));
    match good {
        true if REFUSED_METHODS.contains(&text) => Err("this method is refused everywhere"),
        true => Ok(text.to_owned()),
        false => Err("not an upper-case method name"),
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::parse_all;

    // covers: A12
    #[test]
    fn a_list_that_cannot_be_read_is_one_mistake() {
        let methods = format!("[{}]", vec!["GET"; 100].join(", "));
        for (block, want) in [
            (format!("http: {{methods: {methods}}}"), "methods has 100 items"),
            ("http: {methods: GET}".to_owned(), "methods is a value, not a list"),
            ("http: {methods: []}".to_owned(), "methods is empty"),
            ("http: {paths: []}".to_owned(), "paths is empty"),
            ("grpc: {services: []}".to_owned(), "services is empty"),
            ("grpc: {services: s}".to_owned(), "services is a value, not a list"),
        ] {
            let rule = format!(
                "rules:\n- {{id: r, tenant: t, from: {{workload: x}}, to: {{workload: a, port: w}}, {block}}}\n"
            );
            let (_, report) = parse_all("rules.yaml", &rule, false, &|_| Ok(Vec::new()));
            let said: Vec<_> = report.problems.iter().map(|problem| problem.message.as_str()).collect();
            assert!(matches!(said.as_slice(), [only] if only.contains(want)), "{block}: {said:?}");
        }
    }
}
