//! Ports of endpoints.

use std::time::Duration;

use nova_policy::workloads::is_plain_path;
use nova_proto::control as proto;
use nova_proto::ids::PortName;

use super::{Mistakes, one_segment};
use crate::control::order::HealthPlan;
use crate::control::why::Why;
use crate::state::endpoint::{HealthCheck, PortMode, PortSpec, PortTls, Protocol, Target};

/// Also the longest time a check may take.
const LONGEST_CHECK: u32 = 60_000;

/// Converts one port; `None` with a mistake noted.
pub(super) fn convert(message: proto::Port, mistakes: &mut Mistakes) -> Option<(PortSpec, Option<HealthPlan>)> {
    let proto::Port {
        name,
        port,
        target_port,
        mode,
        protocol,
        target_unix,
        proxy_protocol_v2,
        health,
        tls12,
        certificate,
        strip_token,
    } = message;
    let mode = self::mode(&name, mode, mistakes);
    let protocol = self::protocol(&name, protocol, mistakes);
    let certificate = (!certificate.is_empty()).then_some(certificate);
    let tls = PortTls { tls12, certificate, strip_token };
    if let Some(problem) = misplaced(&tls, mode, protocol) {
        mistakes.add(Why::BadPort, format!("port {name:?}: {problem}"));
    }
    if proxy_protocol_v2 && matches!(protocol, Some(Protocol::Http | Protocol::Grpc)) {
        let problem = "proxy_protocol_v2 is for ports of protocol tcp; on others the app reads x-forwarded-client-cert";
        mistakes.add(Why::UnsupportedFeature, format!("port {name:?}: {problem}"));
    }
    let target = self::target(&name, target_port, &target_unix, mistakes);
    let health = health.map(|health| self::health(&name, health, mistakes));
    if let Some(problem) = health.as_ref().and_then(Option::as_ref).and_then(|(check, _)| unfit(check, protocol?)) {
        mistakes.add(Why::BadHealthCheck, format!("port {name:?}: {problem}"));
    }
    let number = mistakes.keep(Why::BadPort, port_number(port, &name));
    let name = mistakes.keep(Why::BadPort, PortName::new(name));
    let (health, plan) = match health {
        None => (HealthCheck::Connect, None),
        Some(checked) => {
            let (check, plan) = checked?;
            (check, Some(plan))
        }
    };
    let (mode, protocol) = (mode?, protocol?);
    let port = PortSpec {
        name: name?,
        port: number?,
        target: target?,
        mode,
        protocol,
        tls,
        health,
        proxy_v2: proxy_protocol_v2,
    };
    Some((port, plan))
}

fn port_number(port: u32, name: &str) -> Result<u16, String> {
    let number = u16::try_from(port).ok().filter(|port| *port != 0);
    number.ok_or_else(|| format!("port {name:?}: {port} is not 1 to 65535"))
}

fn mode(name: &str, mode: i32, mistakes: &mut Mistakes) -> Option<PortMode> {
    use proto::port::Mode;
    match Mode::try_from(mode) {
        Ok(Mode::Mtls) => return Some(PortMode::Mtls),
        Ok(Mode::Tcp) => return Some(PortMode::Tcp),
        Ok(Mode::Tls) => return Some(PortMode::Tls),
        Err(_) => mistakes.add(Why::UnsupportedMode, format!("port {name:?}: mode {mode} is unknown to this version")),
    }
    None
}

/// What a port says of TLS although it has none, or none of that kind.
fn misplaced(tls: &PortTls, mode: Option<PortMode>, protocol: Option<Protocol>) -> Option<&'static str> {
    let (mode, protocol) = (mode?, protocol?);
    if tls.tls12 && mode == PortMode::Tcp {
        return Some("tls12 means nothing on a port of mode tcp");
    }
    if (tls.certificate.is_some() || tls.strip_token) && mode != PortMode::Tls {
        return Some("certificate and strip_token mean something on ports of mode tls only");
    }
    (tls.strip_token && protocol == Protocol::Raw).then_some("strip_token needs a protocol whose requests are read")
}

fn protocol(name: &str, protocol: i32, mistakes: &mut Mistakes) -> Option<Protocol> {
    use proto::port::Proto;
    match Proto::try_from(protocol) {
        Ok(Proto::Raw) => return Some(Protocol::Raw),
        Ok(Proto::Http) => return Some(Protocol::Http),
        Ok(Proto::Grpc) => return Some(Protocol::Grpc),
        Err(_) => {
            let message = format!("port {name:?}: protocol {protocol} is unknown to this version");
            mistakes.add(Why::UnsupportedProtocol, message);
        }
    }
    None
}

fn target(name: &str, target_port: u32, target_unix: &str, mistakes: &mut Mistakes) -> Option<Target> {
    let wrong = |problem: &str| format!("port {name:?}: {problem}");
    let target = match (target_port, target_unix) {
        (0, "") => Err(wrong("neither target_port nor target_unix says where the app listens")),
        (0, file) => one_segment(file).map(Target::Socket),
        (port, "") => u16::try_from(port).map(Target::Tcp).map_err(|_| wrong("target_port is not 1 to 65535")),
        _ => Err(wrong("target_port and target_unix exclude each other")),
    };
    mistakes.keep(Why::BadTarget, target)
}

/// `None` with a mistake noted. Zero means the default.
fn health(name: &str, message: proto::HealthCheck, mistakes: &mut Mistakes) -> Option<(HealthCheck, HealthPlan)> {
    let proto::HealthCheck { http_path, grpc, interval_ms, timeout_ms, unhealthy_after } = message;
    let problem = if grpc && !http_path.is_empty() {
        Some("grpc and http_path exclude each other")
    } else if !(http_path.is_empty() || is_plain_path(&http_path)) {
        Some("http_path is not an absolute path of printable ASCII without query")
    } else if interval_ms > LONGEST_CHECK || timeout_ms > LONGEST_CHECK || (1..50).contains(&interval_ms) {
        Some("interval_ms is 50 to 60000 and timeout_ms at most 60000")
    } else {
        None
    };
    if let Some(problem) = problem {
        mistakes.add(Why::BadHealthCheck, format!("port {name:?}: {problem}"));
        return None;
    }
    let default = HealthPlan::default();
    let millis = |value: u32, default: Duration| match value {
        0 => default,
        value => Duration::from_millis(value.into()),
    };
    let plan = HealthPlan {
        interval: millis(interval_ms, default.interval),
        timeout: millis(timeout_ms, default.timeout),
        unhealthy_after: if unhealthy_after == 0 { default.unhealthy_after } else { unhealthy_after },
    };
    let check = match http_path {
        _ if grpc => HealthCheck::Grpc,
        path if path.is_empty() => HealthCheck::Connect,
        path => HealthCheck::Http(path),
    };
    Some((check, plan))
}

/// A check in a language that the app of such a port does not speak.
fn unfit(check: &HealthCheck, protocol: Protocol) -> Option<&'static str> {
    match (check, protocol) {
        (HealthCheck::Http(_), Protocol::Grpc) => {
            Some("http_path asks in HTTP/1.1, which an app of grpc does not speak; ask for grpc instead")
        }
        (HealthCheck::Grpc, Protocol::Http) => {
            Some("grpc asks in HTTP/2, which an app of http is not spoken to in; give an http_path instead")
        }
        _ => None,
    }
}

pub(super) fn strictest(a: HealthPlan, b: HealthPlan) -> HealthPlan {
    HealthPlan {
        interval: a.interval.min(b.interval),
        timeout: a.timeout.min(b.timeout),
        unhealthy_after: a.unhealthy_after.min(b.unhealthy_after),
    }
}
