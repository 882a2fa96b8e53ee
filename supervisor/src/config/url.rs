//! Where bundles are fetched from: `https://`, `http://` on loopback, or `unix://`.

use std::path::PathBuf;

/// Longest URL; servers stop at about the same.
const MAX_URL: usize = 2048;
/// Longest path that fits `sun_path` with its final zero.
const MAX_SOCKET_PATH: usize = 107;

/// A bundle server, and what is asked of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleUrl {
    /// How it is reached.
    pub reach: Reach,
    /// Value of the Host field.
    pub authority: String,
    /// Path and query.
    pub path: String,
}

/// How a bundle server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// A Unix socket, plaintext.
    Unix(PathBuf),
    /// Plaintext, on loopback only.
    Plain {
        /// Host.
        host: String,
        /// Port.
        port: u16,
    },
    /// TLS.
    Tls {
        /// Host; its certificate must be for this name.
        host: String,
        /// Port.
        port: u16,
    },
}

/// Reads a URL, or says what is wrong with it.
pub(super) fn parse(text: &str) -> Result<BundleUrl, &'static str> {
    let visible = |byte: u8| (0x21..0x7f).contains(&byte);
    if text.len() > MAX_URL || !text.bytes().all(visible) || text.contains('#') {
        return Err("is not a URL of at most 2048 visible ASCII characters without a fragment");
    }
    if let Some(rest) = text.strip_prefix("unix://") {
        return unix(rest);
    }
    let (tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (None, Some(rest)) => (false, rest),
        (None, None) => return Err("is neither https:// nor http:// nor unix://"),
    };
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => return Err("has no path"),
    };
    if authority.contains('@') {
        return Err("holds a user: no password belongs into this file");
    }
    let parsed = nova_policy::Authority::parse(authority).map_err(|_| "has no host")?;
    let host = parsed.host().as_str().to_owned();
    let port = parsed.port_or(if tls { 443 } else { 80 });
    let reach = if tls { Reach::Tls { host, port } } else { Reach::Plain { host, port } };
    match &reach {
        Reach::Plain { host, .. } if !is_loopback(host) => Err("is plaintext to another machine"),
        _ => Ok(BundleUrl { reach, authority: authority.to_owned(), path: path.to_owned() }),
    }
}

fn unix(rest: &str) -> Result<BundleUrl, &'static str> {
    let (socket, path) =
        rest.split_once(":/").ok_or("does not say what to ask for: unix:///run/x.sock:/bundles/node-1")?;
    if !socket.starts_with('/') || socket.len() > MAX_SOCKET_PATH {
        return Err("has no absolute socket path of at most 107 bytes");
    }
    let reach = Reach::Unix(PathBuf::from(socket));
    Ok(BundleUrl { reach, authority: "localhost".to_owned(), path: format!("/{path}") })
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: B7a
    #[test]
    fn plaintext_to_other_machines_and_half_urls_are_refused() {
        for bad in [
            "",
            "bundle.tar.gz",
            "ftp://h/b",
            "http://example.com/b",
            "http://10.0.0.1/b",
            "https://h",
            "https:///b",
            "https://user:secret@h/b",
            "https://h/b#x",
            "https://h/a b",
            "unix:///run/x.sock",
            "unix://run/x.sock:/b",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    // covers: B7a
    #[test]
    fn the_three_kinds_are_told_apart() {
        let https = parse("https://bundles.example:8443/v1/node-1?a=b").expect("a URL");
        assert_eq!(https.reach, Reach::Tls { host: "bundles.example".to_owned(), port: 8443 });
        assert_eq!((https.authority.as_str(), https.path.as_str()), ("bundles.example:8443", "/v1/node-1?a=b"));
        let http = parse("http://127.0.0.1:8181/b").expect("a URL");
        assert_eq!(http.reach, Reach::Plain { host: "127.0.0.1".to_owned(), port: 8181 });
        let unix = parse("unix:///run/nova/bundles.sock:/v1/node-1").expect("a URL");
        assert_eq!(unix.reach, Reach::Unix("/run/nova/bundles.sock".into()));
        assert_eq!(unix.path, "/v1/node-1");
    }
}
