//! Names of headers, and the spellings in which apps read them as the same.

use std::{borrow::Cow, ops::Deref};

use http::{HeaderName, header};

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

/// A name in lower case with everything but letters and digits as `-`: CGI, WSGI, Rack and PHP make one variable of `-` and
/// `_`, and some servers make one of every such byte.
pub(super) struct Spelling<'a>(Cow<'a, str>);

impl<'a> Spelling<'a> {
    pub(super) fn of(name: &'a HeaderName) -> Self {
        Self::of_str(name.as_str())
    }

    /// `name` is in lower case, as header names of this crate always are.
    pub(super) fn of_str(name: &'a str) -> Self {
        let is_odd = |letter: char| !letter.is_ascii_alphanumeric() && letter != '-';
        Self(if name.contains(is_odd) { Cow::Owned(name.replace(is_odd, "-")) } else { Cow::Borrowed(name) })
    }
}

impl Deref for Spelling<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
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

/// Headers that make frameworks act on another method than the one that was decided.
pub(super) fn is_override(name: &str) -> bool {
    matches!(name, "x-http-method-override" | "x-http-method" | "x-method-override")
}

/// Parameters of a query that do the same: `_method`, `_HttpMethod` and `$httpMethod`, and the headers' names.
pub(super) fn is_override_parameter(name: &str) -> bool {
    matches!(name, "-method" | "-httpmethod") || is_override(name)
}
