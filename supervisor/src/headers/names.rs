//! Names of headers, and the spellings in which apps read them as the same.

use http::{HeaderName, header};
use nova_policy::never::Spelling;

/// Headers that belong to one connection, whatever `Connection` says.
pub(super) static CONNECTION_FIELDS: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("http2-settings"),
];

/// The spelling of a header's name in which it is judged.
pub(super) fn spelling(name: &HeaderName) -> Spelling<'_> {
    Spelling::of(name.as_str())
}

/// Headers by which apps learn who calls, from where and for which path: only the supervisor may set them. Proxies in
/// front of us set the path ones in good faith, so those are removed rather than refused.
pub(super) fn is_identity(name: &str) -> bool {
    const PREFIXES: [&str; 8] = [
        "x-nova-",
        "x-spiffe-",
        "x-forwarded-",
        "x-client-cert",
        "client-cert",
        "x-ssl-client",
        "ssl-client",
        "wl-proxy-",
    ];
    const NAMES: [&str; 22] = [
        "client-ip",
        "forwarded",
        "remote-user",
        "spiffe-id",
        "true-client-ip",
        "x-amzn-mtls-clientcert",
        "x-arr-clientcert",
        "x-client-dn",
        "x-client-ip",
        "x-client-verify",
        "x-cluster-client-ip",
        "x-forwarded",
        "x-nova",
        "x-original-host",
        "x-original-uri",
        "x-original-url",
        "x-originating-ip",
        "x-real-ip",
        "x-remote-addr",
        "x-remote-ip",
        "x-remote-user",
        "x-rewrite-url",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name)
}

/// Headers between a client and its proxy, and `Proxy`, of which CGI makes the variable that names the proxy to use.
pub(super) fn is_for_proxies(name: &str) -> bool {
    name == "proxy" || name.starts_with("proxy-")
}
