//! What the app finds around it: the hosts file and its environment.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::config::GuestConfig;
use super::trust::Trust;

/// Search path of the app, unless the configuration gives another.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Names the egress socket that is the proxy; the others are beside it.
const EGRESS_SOCKET: &str = "NOVA_EGRESS_SOCKET";

/// Text of the hosts file. There is no resolver in the guest, so names that are not here belong to the proxy.
#[must_use]
pub fn hosts(config: &GuestConfig) -> String {
    let mut text = format!("127.0.0.1 localhost\n{} {}\n", config.workload_ip, config.workload);
    for dependency in &config.dependencies {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} {}", dependency.guest_ip, dependency.host);
    }
    text
}

/// Writes the hosts file, readable by everybody.
///
/// # Errors
/// When the file cannot be written.
pub fn write_hosts(path: &Path, config: &GuestConfig) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, hosts(config))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}

/// The app's whole environment: ours, then the configuration's. Nothing is inherited.
#[must_use]
pub fn environment(config: &GuestConfig, trust: Option<&Trust>) -> BTreeMap<String, String> {
    let http = format!("http://127.0.0.1:{}", config.proxy_port);
    // Clients that do not read ranges read the address before it.
    let past_the_proxy = format!("localhost,127.0.0.1,127.0.0.0/8,{}", config.workload_ip);
    let ours = [
        ("PATH", PATH.to_owned()),
        ("HTTP_PROXY", http.clone()),
        ("http_proxy", http.clone()),
        ("HTTPS_PROXY", http.clone()),
        ("https_proxy", http.clone()),
        // Not as SOCKS, which the port speaks too: httpx of Python makes no client at all where it cannot speak that.
        ("ALL_PROXY", http.clone()),
        // aiohttp of Python takes no other for WebSockets.
        ("WS_PROXY", http.clone()),
        ("WSS_PROXY", http),
        ("NO_PROXY", past_the_proxy.clone()),
        ("no_proxy", past_the_proxy),
        ("NOVA_WORKLOAD_IP", config.workload_ip.to_string()),
    ];
    let ours = ours.into_iter().map(|(name, value)| (name.to_owned(), value));
    let socket = config.proxy_socket().map(|path| (EGRESS_SOCKET.to_owned(), path.display().to_string()));
    let mut all: BTreeMap<_, _> = ours.chain(socket).chain(config.env.clone()).collect();
    if let Some(trust) = trust {
        trust.add_to(&mut all, &config.env);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::config::tests::sample;

    // covers: A4 (hosts file, proxy variables)
    // covers: D11g
    #[test]
    fn the_app_finds_its_names_and_its_proxy() {
        assert_eq!(hosts(&sample()), "127.0.0.1 localhost\n10.64.3.11 x\n127.0.1.1 db.t.nova\n");
        let environment = environment(&sample(), None);
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "WS_PROXY", "WSS_PROXY"] {
            assert_eq!(environment[name], "http://127.0.0.1:3128");
        }
        for name in ["NO_PROXY", "no_proxy"] {
            assert_eq!(environment[name], "localhost,127.0.0.1,127.0.0.0/8,10.64.3.11");
        }
        assert_eq!(environment["K"], "V");
        assert!(!environment.contains_key("NOVA_EGRESS_SOCKET"), "there is none");
        assert!(!environment.values().any(|value| value.contains("000102030405")), "the token must not be there");
    }

    // covers: D3c
    #[test]
    fn the_app_is_told_where_its_egress_socket_is() {
        let config = GuestConfig { egress_dir: Some("/run/nova/egress".into()), ..sample() };
        assert_eq!(environment(&config, None)["NOVA_EGRESS_SOCKET"], "/run/nova/egress/egress.sock");
    }
}
