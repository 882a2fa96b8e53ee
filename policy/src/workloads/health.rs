//! Reads how a port asks its app whether it is well.

use super::{Health, Protocol};
use crate::yaml::{Map, Reader};

/// Keys of a health check.
const KEYS: [&str; 5] = ["http_path", "grpc", "interval_ms", "timeout_ms", "unhealthy_after"];

/// Whether `path` can be asked for: absolute, printable ASCII, at most 1,024 bytes, without query and fragment.
#[must_use]
pub fn is_plain_path(path: &str) -> bool {
    path.starts_with('/') && path.len() <= 1024 && path.bytes().all(|b| b.is_ascii_graphic() && b != b'#' && b != b'?')
}

/// Reads `health` of a port.
pub(super) fn read(reader: &mut Reader<'_>, port: &Map<'_>, protocol: Option<Protocol>) -> Option<Health> {
    let node = port.get("health")?;
    let map = reader.map(node, "health", &KEYS)?;
    let http_path = map.get("http_path").and_then(|node| {
        reader.parsed(node, "http_path", "write an absolute path of printable ASCII, without a query", plain_path)
    });
    let grpc = map.get("grpc").and_then(|node| reader.flag(node, "grpc")).unwrap_or(false);
    let unfit = match (map.get("http_path"), grpc, protocol) {
        (Some(_), true, _) => Some(("health has both http_path and grpc", "keep one")),
        (Some(_), _, Some(Protocol::Grpc)) => {
            Some(("http_path asks in HTTP/1.1, which an app of grpc does not speak", "write grpc: true"))
        }
        (_, true, Some(Protocol::Http)) => {
            Some(("grpc asks in HTTP/2, which an app of http is not spoken to in", "write http_path: /health"))
        }
        _ => None,
    };
    if let Some((problem, remedy)) = unfit {
        reader.fail(map.at, problem, remedy);
    }
    let mut number = |name: &str, range| {
        let value = map.get(name).and_then(|node| reader.number(node, name, range))?;
        u32::try_from(value).ok()
    };
    Some(Health {
        http_path,
        grpc,
        interval_ms: number("interval_ms", 50..=60_000),
        timeout_ms: number("timeout_ms", 1..=60_000),
        unhealthy_after: number("unhealthy_after", 1..=1_000),
    })
}

fn plain_path(text: &str) -> Result<String, &'static str> {
    if is_plain_path(text) { Ok(text.to_owned()) } else { Err("not a plain absolute path") }
}

#[cfg(test)]
mod tests {
    use crate::workloads::{Health, parse};

    fn file(protocol: &str, health: &str) -> String {
        format!(
            "endpoints:\n  - workload_id: a\n    tenant: t\n    pod_uid: pod-a\n    workload_ip: 10.0.0.1\n    ports:\n      \
             - {{name: p, port: 443, mode: mtls, protocol: {protocol}, health: {health}}}\n"
        )
    }

    fn health(protocol: &str, health: &str) -> Option<Health> {
        let mut table = parse("endpoints.yaml", &file(protocol, health)).expect("in good order");
        table.endpoints.remove(0).ports.remove(0).health
    }

    // covers: A13
    #[test]
    fn a_port_says_how_its_app_is_asked() {
        let all = "{http_path: /live, interval_ms: 500, timeout_ms: 100, unhealthy_after: 5}";
        let wanted = Health {
            http_path: Some("/live".to_owned()),
            grpc: false,
            interval_ms: Some(500),
            timeout_ms: Some(100),
            unhealthy_after: Some(5),
        };
        assert_eq!(health("http", all), Some(wanted));
        assert_eq!(health("grpc", "{grpc: true}"), Some(Health { grpc: true, ..Health::default() }));
        assert_eq!(health("tcp", "{interval_ms: 50}"), Some(Health { interval_ms: Some(50), ..Health::default() }));
    }

    // covers: A13
    #[test]
    fn checks_that_no_app_could_pass_are_refused_with_a_remedy() {
        for (protocol, health, problem) in [
            ("http", "{http_path: live}", "http_path"),
            ("http", "{http_path: '/a?b'}", "http_path"),
            ("http", "{http_path: '/a b'}", "http_path"),
            ("tcp", "{http_path: /live, grpc: true}", "both http_path and grpc"),
            ("grpc", "{http_path: /live}", "HTTP/1.1"),
            ("http", "{grpc: true}", "HTTP/2"),
            ("http", "{interval_ms: 49}", "interval_ms"),
            ("http", "{timeout_ms: 60001}", "timeout_ms"),
            ("http", "{unhealthy_after: 0}", "unhealthy_after"),
            ("http", "{path: /live}", "path"),
            ("http", "/live", "health"),
        ] {
            let report = parse("endpoints.yaml", &file(protocol, health)).expect_err(health).to_string();
            assert!(report.contains(problem) && report.contains("remedy"), "{health}: {report}");
        }
    }
}
