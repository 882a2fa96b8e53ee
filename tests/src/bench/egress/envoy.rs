//! Envoy as a forward proxy: one listener for each thing that a row asks of it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use super::{Hosts, KEPT, LOCKED, PATH};
use crate::bench::stand::{Proxy, Stand, WORKERS, text};
use crate::bench::upstream::KEY;

/// Sockets in the folder of the stand.
pub(super) const OPEN: &str = "envoy-open.sock";
pub(super) const SECURED: &str = "envoy-tls.sock";
pub(super) const KEYED: &str = "envoy-key.sock";
pub(super) const LOOKING: &str = "envoy-look.sock";

/// More connections than are ever opened: its default of 1,024 would be measured instead of the proxy.
const PLENTY: u32 = 20_000;

pub(super) fn start(
    stand: &mut Stand,
    envoy: &Path,
    hosts: &Hosts,
    dns: SocketAddr,
    over_tcp: SocketAddr,
) -> anyhow::Result<()> {
    let dir = stand.dir().to_owned();
    let file = dir.join("envoy.json");
    fs::write(&file, serde_json::to_vec_pretty(&config(&dir, hosts, dns, over_tcp))?)?;
    let argv = [
        text(envoy),
        "--concurrency".into(),
        WORKERS.to_string(),
        "--disable-hot-restart".into(),
        "--log-level".into(),
        "error".into(),
        "-c".into(),
        text(&file),
    ];
    let pid = stand.start("envoy", &argv)?;
    stand.proxies.push(Proxy { pids: vec![pid], relay_pids: Vec::new() });
    for socket in [OPEN, SECURED, KEYED, LOOKING] {
        stand.wait_for_file(&dir.join(socket))?;
    }
    stand.wait_for_port("envoy", over_tcp)
}

fn config(dir: &Path, hosts: &Hosts, dns: SocketAddr, over_tcp: SocketAddr) -> Value {
    let pipe = |name: &str| json!({"pipe": {"path": dir.join(name)}});
    let plain = [get(&hosts.plain(), PATH), get(&hosts.plain(), KEPT), connect(&hosts.raw())];
    let secured = [get(&hosts.secured(), PATH)];
    let locked = [get(&hosts.keyed(), LOCKED)];
    let looked = [get(&hosts.looked(), PATH)];
    json!({
        "static_resources": {
            "listeners": [
                listener("open", &pipe(OPEN), &hcm(&plain, "plain", None), None, dns),
                listener("tcp", &address(over_tcp), &hcm(&plain, "plain", None), None, dns),
                listener("tls", &pipe(SECURED), &hcm(&secured, "tls", None), None, dns),
                listener("key", &pipe(KEYED), &hcm(&locked, "tls", Some(KEY)), None, dns),
                listener("look", &pipe(LOOKING), &hcm(&looked, "tls", None), Some(server(dir)), dns),
            ],
            "clusters": [cluster("plain", dns, None), cluster("tls", dns, Some(client(dir)))],
        }
    })
}

fn address(addr: SocketAddr) -> Value {
    json!({"socket_address": {"address": addr.ip().to_string(), "port_value": addr.port()}})
}

fn get(authority: &str, path: &str) -> Value {
    json!({"and_rules": {"rules": [
        header(":authority", authority), header(":method", "GET"),
        {"url_path": {"path": {"prefix": path}}},
    ]}})
}

fn connect(authority: &str) -> Value {
    json!({"and_rules": {"rules": [header(":authority", authority), header(":method", "CONNECT")]}})
}

fn header(name: &str, value: &str) -> Value {
    json!({"header": {"name": name, "string_match": {"exact": value}}})
}

/// What is done with requests: where they may go, and what is added to them.
struct Hcm {
    permissions: Vec<Value>,
    virtual_host: Value,
}

fn hcm(permissions: &[Value], cluster: &str, key: Option<&str>) -> Hcm {
    let mut virtual_host = json!({"name": "all", "domains": ["*"], "routes": [
        {"match": {"connect_matcher": {}}, "route": {
            "cluster": cluster, "timeout": "0s",
            "upgrade_configs": [{"upgrade_type": "CONNECT", "connect_config": {}}],
        }},
        {"match": {"prefix": "/"}, "route": {"cluster": cluster}},
    ]});
    if let Some(key) = key {
        virtual_host["request_headers_to_add"] = json!([{
            "header": {"key": "authorization", "value": format!("Bearer {key}")},
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        }]);
    }
    Hcm { permissions: permissions.to_vec(), virtual_host }
}

fn listener(name: &str, address: &Value, hcm: &Hcm, tls: Option<Value>, dns: SocketAddr) -> Value {
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "http_protocol_options": {"allow_absolute_url": true},
        "upgrade_configs": [{"upgrade_type": "CONNECT"}],
        "route_config": {"virtual_hosts": [hcm.virtual_host]},
        "http_filters": [
            {"name": "envoy.filters.http.rbac", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
                "rules": {"action": "ALLOW", "policies": {"out": {
                    "principals": [{"any": true}], "permissions": hcm.permissions,
                }}},
            }},
            {"name": "envoy.filters.http.dynamic_forward_proxy", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.dynamic_forward_proxy.v3.FilterConfig",
                "dns_cache_config": names(dns),
            }},
            {"name": "envoy.filters.http.router", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            }},
        ],
    });
    let mut chain = json!({"filters": [
        {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager},
    ]});
    if let Some(tls) = tls {
        chain["transport_socket"] = tls;
    }
    json!({"name": name, "address": address, "filter_chains": [chain]})
}

fn cluster(name: &str, dns: SocketAddr, tls: Option<Value>) -> Value {
    let thresholds = json!([{"max_connections": PLENTY, "max_pending_requests": PLENTY, "max_requests": PLENTY}]);
    let mut cluster = json!({
        "name": name,
        "lb_policy": "CLUSTER_PROVIDED",
        "circuit_breakers": {"thresholds": thresholds},
        "cluster_type": {"name": "envoy.clusters.dynamic_forward_proxy", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.clusters.dynamic_forward_proxy.v3.ClusterConfig",
            "dns_cache_config": names(dns),
        }},
    });
    if let Some(tls) = tls {
        cluster["transport_socket"] = tls;
        cluster["typed_extension_protocol_options"] = json!({
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "upstream_http_protocol_options": {"auto_sni": true, "auto_san_validation": true},
                "explicit_http_config": {"http_protocol_options": {}},
            },
        });
    }
    cluster
}

/// One cache of names, by the same server that the supervisor asks.
fn names(dns: SocketAddr) -> Value {
    json!({
        "name": "names",
        "dns_lookup_family": "V4_ONLY",
        "typed_dns_resolver_config": {"name": "envoy.network.dns_resolver.cares", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig",
            "resolvers": [address(dns)],
            "dns_resolver_options": {"no_default_search_domain": true},
        }},
    })
}

fn server(dir: &Path) -> Value {
    json!({"name": "envoy.transport_sockets.tls", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": {
            "tls_params": only_tls13(),
            "alpn_protocols": ["http/1.1"],
            "tls_certificates": [{
                "certificate_chain": {"filename": dir.join("web.pem")},
                "private_key": {"filename": dir.join("web.pem")},
            }],
        },
    }})
}

fn client(dir: &Path) -> Value {
    json!({"name": "envoy.transport_sockets.tls", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": {
            "tls_params": only_tls13(),
            "alpn_protocols": ["http/1.1"],
            "validation_context": {"trusted_ca": {"filename": dir.join("web-ca.pem")}},
        },
    }})
}

fn only_tls13() -> Value {
    json!({"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"})
}
