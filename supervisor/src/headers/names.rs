//! Names of headers, and the spellings in which apps read them as the same.

use std::{borrow::Cow, ops::Deref};

use http::{HeaderName, header};

/// Headers that belong to one connection, whatever `Connection` says.
pub(super) static CONNECTION_FIELDS: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("http2-settings"),
];

/// A name in lower case with `_` as `-`: CGI, WSGI, Rack and PHP make one variable of both.
pub(super) struct Spelling<'a>(Cow<'a, str>);

impl<'a> Spelling<'a> {
    pub(super) fn of(name: &'a HeaderName) -> Self {
        Self::of_str(name.as_str())
    }

    /// `name` is in lower case, as header names of this crate always are.
    pub(super) fn of_str(name: &'a str) -> Self {
        Self(if name.contains('_') { Cow::Owned(name.replace('_', "-")) } else { Cow::Borrowed(name) })
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
    const PREFIXES: [&str; 7] =
        ["x-nova-", "x-spiffe-", "x-forwarded-", "x-client-cert", "client-cert", "x-ssl-client", "ssl-client"];
    const NAMES: [&str; 17] = [
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
        "x-original-host",
        "x-original-uri",
        "x-original-url",
        "x-real-ip",
        "x-remote-user",
        "x-rewrite-url",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name)
}

/// Headers that make frameworks act on another method than the one that was decided.
pub(super) fn is_override(name: &str) -> bool {
    matches!(name, "x-http-method-override" | "x-http-method" | "x-method-override")
}
