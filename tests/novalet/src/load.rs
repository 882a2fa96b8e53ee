//! Reads the placements file. All or nothing: a file with mistakes gives all of them, and changes nothing.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use nix::libc::O_NONBLOCK;

use nova_policy::report::Problem;
use nova_policy::workloads::{self, Backend, Endpoint, Health, Limits, Mode, PortTarget, Protocol, State};
use nova_proto::control;

use crate::placement::{GuestWish, Placement, WantedState};

/// File name of the hybrid socket when a placement names none.
const SOCKET_FILE: &str = "v.sock";
/// The parser refuses a text that is not even this long.
const LONGEST: u64 = 16 * 1024 * 1024;

/// Reads the placements for `node`: those that name it, or no node.
///
/// # Errors
/// Every mistake as `file:line:column: what (remedy: what to do)`.
pub fn load(path: &Path, node: Option<&str>) -> Result<Vec<Placement>, Vec<String>> {
    let file = path.display().to_string();
    let bytes = read(path).map_err(|error| {
        vec![format!("{file}: cannot read it: {error} (remedy: name a readable file with --placements)")]
    })?;
    let text = nova_policy::report::text(&file, &bytes).map_err(|report| vec![report.to_string()])?;
    parse(&file, text, node)
}

/// Tells whoever started us what is wrong with the file.
pub(crate) fn tell_mistakes(mistakes: &[String], consequence: &str) {
    for mistake in mistakes {
        eprintln!("{mistake}");
    }
    eprintln!("{} mistakes, {consequence}", mistakes.len());
}

/// A pipe or a device in its place would keep the agent from everything else.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// [`load`] for a text that is already here.
///
/// # Errors
/// As [`load`].
pub fn parse(file: &str, text: &str, node: Option<&str>) -> Result<Vec<Placement>, Vec<String>> {
    let table = workloads::parse(file, text)
        .map_err(|report| report.problems.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    let mut placements = Vec::new();
    let mut mistakes = Vec::new();
    for endpoint in &table.endpoints {
        if endpoint.node.is_some() && node.is_some() && endpoint.node.as_deref() != node {
            continue;
        }
        match placement(file, endpoint) {
            Ok(placement) => placements.push(placement),
            Err(mistake) => mistakes.push(mistake),
        }
    }
    if mistakes.is_empty() { Ok(placements) } else { Err(mistakes) }
}

fn placement(file: &str, endpoint: &Endpoint) -> Result<Placement, String> {
    if endpoint.other_ip.is_some() {
        let message = "novalet-ref gives its guests one address each";
        return Err(cannot(file, endpoint, message, "remove additional_ips"));
    }
    let (socket_file, half_close) = match &endpoint.backend {
        None => (SOCKET_FILE.to_owned(), false),
        Some(Backend::Hybrid { file, half_close, .. }) => (file.clone(), *half_close),
        Some(Backend::VsockCid(_) | Backend::Uds { .. }) => return Err(wrong_backend(file, endpoint)),
    };
    let dependencies = endpoint.dependencies.iter().map(|dependency| control::Dependency {
        host: dependency.host.to_string(),
        port: dependency.port.into(),
        guest_ip: dependency.guest_ip.to_string(),
    });
    let guest = endpoint.guest.as_ref().map_or_else(GuestWish::default, |guest| GuestWish {
        command: guest.command.clone(),
        memory_mib: guest.memory_mib,
        env: guest.env.clone(),
    });
    Ok(Placement {
        workload: endpoint.workload.to_string(),
        tenant: endpoint.tenant.to_string(),
        spiffe_id: endpoint.spiffe_id.to_string(),
        pod_uid: endpoint.pod_uid.to_string(),
        generation: endpoint.generation,
        workload_ip: endpoint.workload_ip,
        ports: endpoint.ports.iter().map(port).collect(),
        isolation: if endpoint.dedicated { "dedicated" } else { "shared" }.to_owned(),
        state: match endpoint.state {
            State::Pending => WantedState::Pending,
            State::Ready => WantedState::Ready,
            State::Draining => WantedState::Draining,
        },
        drain_timeout: Duration::from_millis(endpoint.drain_timeout_ms.into()),
        boot_token: endpoint.boot_token.map(|token| token.0),
        limits: limits(&endpoint.limits),
        dependencies: dependencies.collect(),
        credentials: endpoint.credentials.iter().cloned().collect(),
        socket_file,
        half_close,
        guest,
    })
}

fn wrong_backend(file: &str, endpoint: &Endpoint) -> String {
    let message = "novalet-ref starts its guests behind a hybrid socket and cannot serve another backend";
    cannot(file, endpoint, message, "remove backend, or write hybrid: {file: v.sock}")
}

fn cannot(file: &str, endpoint: &Endpoint, message: &str, remedy: &str) -> String {
    Problem {
        file: file.to_owned(),
        line: endpoint.at.line,
        column: endpoint.at.column,
        subject: format!("endpoint {}", endpoint.workload),
        message: message.to_owned(),
        remedy: remedy.to_owned(),
    }
    .to_string()
}

fn port(port: &workloads::Port) -> control::Port {
    use control::port::{Mode as WireMode, Proto};
    let (target_port, target_unix) = match &port.target {
        PortTarget::Tcp(number) => (u32::from(*number), String::new()),
        PortTarget::Unix(file) => (0, file.clone()),
    };
    let mode = match port.mode {
        Mode::Mtls => WireMode::Mtls,
        Mode::Tls => WireMode::Tls,
        Mode::Tcp => WireMode::Tcp,
    };
    let protocol = match port.protocol {
        Protocol::Tcp => Proto::Raw,
        Protocol::Http => Proto::Http,
        Protocol::Grpc => Proto::Grpc,
    };
    control::Port {
        name: port.name.to_string(),
        port: port.port.into(),
        target_port,
        target_unix,
        mode: mode as i32,
        protocol: protocol as i32,
        tls12: port.tls.tls12,
        certificate: port.tls.certificate.clone().unwrap_or_default(),
        strip_token: port.tls.strip_token,
        proxy_protocol_v2: port.proxy_protocol_v2,
        health: port.health.as_ref().map(health),
    }
}

/// Zero is "the supervisor's default" in the protocol.
fn health(health: &Health) -> control::HealthCheck {
    control::HealthCheck {
        http_path: health.http_path.clone().unwrap_or_default(),
        grpc: health.grpc,
        interval_ms: health.interval_ms.unwrap_or(0),
        timeout_ms: health.timeout_ms.unwrap_or(0),
        unhealthy_after: health.unhealthy_after.unwrap_or(0),
    }
}

/// Zero is "the supervisor's default" in the protocol.
fn limits(limits: &Limits) -> Option<control::Limits> {
    (*limits != Limits::default()).then(|| control::Limits {
        max_connections: limits.max_connections.unwrap_or_default(),
        max_handshakes: limits.max_handshakes.unwrap_or_default(),
        bytes_per_second: limits.bytes_per_second.unwrap_or_default(),
        connections_per_second: limits.connections_per_second.unwrap_or_default(),
        lookups_per_second: limits.lookups_per_second.unwrap_or_default(),
        max_destination_connections: limits.max_destination_connections.unwrap_or_default(),
        max_header_bytes: limits.max_header_bytes.unwrap_or_default(),
        header_timeout_ms: limits.header_timeout_ms.unwrap_or_default(),
        idle_timeout_ms: limits.idle_timeout_ms.unwrap_or_default(),
        stream_idle_timeout_ms: limits.stream_idle_timeout_ms.unwrap_or_default(),
        body_timeout_ms: limits.body_timeout_ms.unwrap_or_default(),
        answer_timeout_ms: limits.answer_timeout_ms.unwrap_or_default(),
        max_lifetime_ms: limits.max_lifetime_ms.unwrap_or_default(),
        close_at_max_lifetime: limits.close_at_max_lifetime,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
endpoints:
  - workload_id: service-a
    tenant: t
    pod_uid: pod-a
    workload_ip: 10.64.3.21
    ports: [{name: https, port: 443, target_port: 8080, mode: mtls, protocol: http}]
    guest: {command: [/nova/nova-lab, app]}
";

    // covers: A12
    #[test]
    fn every_mistake_is_named_with_file_line_column_and_remedy() {
        let bad = GOOD.replace("tenant: t", "tenant: T").replace("port: 443", "port: 70000");
        let mistakes = parse("p.yaml", &bad, None).expect_err("two mistakes");
        assert_eq!(mistakes.len(), 2, "{mistakes:#?}");
        assert!(mistakes[0].starts_with("p.yaml:3:") && mistakes[1].starts_with("p.yaml:6:"), "{mistakes:#?}");
        assert!(mistakes.iter().all(|mistake| mistake.contains("remedy: ")));
    }

    // covers: A2
    #[test]
    fn a_backend_that_this_agent_cannot_serve_is_a_mistake() {
        let bad = GOOD.replace("    guest:", "    backend: {vsock_cid: 42}\n    guest:");
        let mistakes = parse("p.yaml", &bad, None).expect_err("a mistake");
        assert!(
            mistakes[0].starts_with("p.yaml:2:") && mistakes[0].contains("hybrid: {file: v.sock}"),
            "{mistakes:#?}"
        );
    }

    // covers: A2
    #[test]
    fn a_placement_for_another_node_is_not_ours_and_one_without_a_node_is() {
        let placed = GOOD.replace("    tenant: t", "    tenant: t\n    node: node-2");
        assert_eq!(parse("p", &placed, Some("node-1")).expect("good").len(), 0);
        assert_eq!(parse("p", &placed, Some("node-2")).expect("good").len(), 1);
        let ours = parse("p", GOOD, Some("node-1")).expect("good");
        assert_eq!(ours[0].dns_name(), "service-a.t.nova");
        assert_eq!(ours[0].ports[0].target_port, 8080);
    }

    // covers: A2
    #[test]
    fn only_what_a_guest_learns_at_boot_needs_a_restart() {
        let placed = |text: &str| parse("p", text, None).expect("good").remove(0);
        let now = placed(GOOD);
        assert!(!now.needs_restart(&placed(&GOOD.replace("port: 443", "port: 444"))));
        assert!(!now.needs_restart(&placed(&format!("{GOOD}    state: pending\n"))));
        assert!(now.needs_restart(&placed(&GOOD.replace("target_port: 8080", "target_port: 8081"))));
        assert!(now.needs_restart(&placed(&GOOD.replace("10.64.3.21", "10.64.3.22"))));
        assert!(now.needs_restart(&placed(&GOOD.replace("nova-lab, app", "nova-lab, agent"))));
    }
}
