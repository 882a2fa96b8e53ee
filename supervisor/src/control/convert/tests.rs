use nova_proto::control as proto;
use nova_proto::control::endpoint::Backend as ProtoBackend;

use super::*;
use crate::state::endpoint::{EndpointLimits, HealthCheck, PortMode, PortTls, Protocol, Target};

fn message() -> proto::Endpoint {
    proto::Endpoint {
        workload_id: "service-a".into(),
        spiffe_id: "spiffe://dev.invalid/t/t/w/service-a".into(),
        pod_uid: "pod-a".into(),
        generation: 1,
        workload_ip: "10.64.3.21".into(),
        backend: Some(ProtoBackend::VsockCid(42)),
        ports: vec![port("https", 443, 8080)],
        isolation: "shared".into(),
        state: proto::State::Pending as i32,
        boot_token: vec![7; 16],
        ..proto::Endpoint::default()
    }
}

fn port(name: &str, number: u32, target: u32) -> proto::Port {
    proto::Port { name: name.into(), port: number, target_port: target, ..proto::Port::default() }
}

/// The reason with which a message is refused after `change`.
fn refused(change: impl FnOnce(&mut proto::Endpoint)) -> Why {
    let mut message = message();
    change(&mut message);
    endpoint(message).expect_err("must be refused").why
}

#[test]
fn reserved_cids_are_no_guests() {
    // covers: A2 (T12)
    for cid in [0, 1, 2, u32::MAX] {
        assert_eq!(refused(|m| m.backend = Some(ProtoBackend::VsockCid(cid))), Why::BadCid);
    }
}

#[test]
fn addresses_that_no_workload_can_own_are_refused() {
    for ip in [
        "",
        "10.64.3",
        "10.64.3.21/32",
        "0.0.0.0",
        "0.1.2.3",
        "255.255.255.255",
        "224.0.0.1",
        "169.254.169.254",
        "::",
        "ff02::1",
        "fe80::1",
        "::ffff:10.0.0.1",
        "service-a",
    ] {
        assert_eq!(refused(|m| m.workload_ip = ip.into()), Why::BadIp, "{ip:?}");
    }
}

#[test]
fn an_identity_of_another_workload_is_refused() {
    for id in [
        "",
        "service-a",
        "spiffe://dev.invalid/t/t/w/x",
        "spiffe://dev.invalid/t/t/w/service-a/w/service-a",
        "spiffe://dev.invalid/w/service-a",
        "spiffe://dev.invalid/t/T/w/service-a",
        "spiffe://dev.invalid/ns/t/sa/service-a",
        "spiffe://dev.invalid/t/t/w/service-a?x",
    ] {
        assert_eq!(refused(|m| m.spiffe_id = id.into()), Why::BadSpiffeId, "{id:?}");
    }
    assert_eq!(refused(|m| m.workload_id = "Service".into()), Why::BadWorkload);
    assert_eq!(refused(|m| m.pod_uid = "../pod".into()), Why::BadPodUid);
}

#[test]
fn a_second_address_is_one_and_of_the_other_family() {
    for bad in [&["10.64.3.22"][..], &["fe80::1"], &["nowhere"], &["fd00::1", "fd00::2"], &["::ffff:10.64.3.22"]] {
        let bad: Vec<String> = bad.iter().map(ToString::to_string).collect();
        assert_eq!(refused(|m| m.additional_ips = bad.clone()), Why::BadIp, "{bad:?}");
    }
    let mut both = message();
    both.additional_ips = vec!["fd00::1".into()];
    let spec = endpoint(both).expect("valid").spec;
    assert_eq!(spec.ips().map(|ip| ip.to_string()).collect::<Vec<_>>(), ["10.64.3.21", "fd00::1"]);
}

#[test]
fn what_this_version_does_not_serve_is_refused_instead_of_served_otherwise() {
    // covers: A2 (K30)
    use proto::port::Proto;
    assert_eq!(refused(|m| m.ports[0].mode = 9), Why::UnsupportedMode);
    assert_eq!(refused(|m| m.ports[0].protocol = 9), Why::UnsupportedProtocol);
    let http_with_header = |m: &mut proto::Endpoint| {
        m.ports[0].protocol = Proto::Http as i32;
        m.ports[0].proxy_protocol_v2 = true;
    };
    assert_eq!(refused(http_with_header), Why::UnsupportedFeature);
    assert_eq!(refused(|m| m.isolation = String::new()), Why::UnknownIsolation);
    assert_eq!(refused(|m| m.isolation = "Shared".into()), Why::UnknownIsolation);
    assert_eq!(refused(|m| m.isolation = "dedicated".into()), Why::DedicatedNotHere);
    assert_eq!(refused(|m| m.state = 0), Why::BadState);
    assert_eq!(refused(|m| m.state = 77), Why::BadState);
    let uds = ProtoBackend::Uds(proto::UdsCarrier { file: "a.sock".into() });
    assert_eq!(refused(|m| m.backend = Some(uds)), Why::UnsupportedBackend);
}

// covers: C1a
#[test]
fn what_a_port_says_of_a_kind_of_tls_that_it_does_not_speak_is_refused() {
    use proto::port::{Mode, Proto};
    let with = |mode: Mode, protocol: Proto, change: fn(&mut proto::Port)| {
        let mut message = message();
        let port = &mut message.ports[0];
        (port.mode, port.protocol) = (mode as i32, protocol as i32);
        change(port);
        endpoint(message).map_err(|rejection| rejection.why)
    };
    assert_eq!(with(Mode::Tcp, Proto::Raw, |p| p.tls12 = true), Err(Why::BadPort));
    assert_eq!(with(Mode::Mtls, Proto::Http, |p| p.certificate = "edge".into()), Err(Why::BadPort));
    assert_eq!(with(Mode::Mtls, Proto::Http, |p| p.strip_token = true), Err(Why::BadPort));
    assert_eq!(with(Mode::Tls, Proto::Raw, |p| p.strip_token = true), Err(Why::BadPort));
    let all = |p: &mut proto::Port| {
        (p.tls12, p.strip_token) = (true, true);
        p.certificate = "edge".into();
    };
    let order = with(Mode::Tls, Proto::Http, all).expect("a tls port may say all of it");
    let tls = PortTls { tls12: true, certificate: Some("edge".into()), strip_token: true };
    assert_eq!((order.spec.ports[0].mode, &order.spec.ports[0].tls), (PortMode::Tls, &tls));
    assert!(with(Mode::Mtls, Proto::Http, |p| p.tls12 = true).expect("also mtls").spec.ports[0].tls.tls12);
}

#[test]
fn ports_that_lead_nowhere_or_exist_twice_are_refused() {
    assert_eq!(refused(|m| m.ports[0].port = 0), Why::BadPort);
    assert_eq!(refused(|m| m.ports[0].port = 65_536), Why::BadPort);
    assert_eq!(refused(|m| m.ports[0].name = "a_b".into()), Why::BadPort);
    assert_eq!(refused(|m| m.ports[0].target_port = 0), Why::BadTarget);
    assert_eq!(refused(|m| m.ports[0].target_port = 70_000), Why::BadTarget);
    assert_eq!(refused(|m| m.ports[0].target_unix = "app.sock".into()), Why::BadTarget);
    for file in ["../x", "a/b", ".", "..", ".hidden", "a b"] {
        let change = |m: &mut proto::Endpoint| {
            m.ports[0].target_port = 0;
            m.ports[0].target_unix = file.into();
        };
        assert_eq!(refused(change), Why::BadTarget, "{file:?}");
    }
    assert_eq!(refused(|m| m.ports.push(port("other", 443, 1))), Why::DuplicatePort);
    assert_eq!(refused(|m| m.ports.push(port("https", 444, 1))), Why::DuplicatePort);
}

// covers: C3e
#[test]
fn grpc_ports_are_served_and_asked_for_health_by_a_connect_alone() {
    let mut grpc = message();
    grpc.ports[0].protocol = proto::port::Proto::Grpc as i32;
    assert_eq!(endpoint(grpc.clone()).expect("served").spec.ports[0].protocol, Protocol::Grpc);
    grpc.ports[0].health = Some(proto::HealthCheck { http_path: "/health".into(), ..Default::default() });
    assert_eq!(endpoint(grpc.clone()).expect_err("asked in HTTP/1.1").why, Why::BadHealthCheck);
    grpc.ports[0].health = Some(proto::HealthCheck { grpc: true, ..Default::default() });
    assert_eq!(endpoint(grpc.clone()).expect("asked in gRPC").spec.ports[0].health, HealthCheck::Grpc);
    grpc.ports[0].protocol = proto::port::Proto::Http as i32;
    assert_eq!(endpoint(grpc.clone()).expect_err("asked in HTTP/2").why, Why::BadHealthCheck);
    grpc.ports[0].protocol = proto::port::Proto::Raw as i32;
    assert_eq!(endpoint(grpc).expect("bytes may be gRPC").spec.ports[0].health, HealthCheck::Grpc);
}

#[test]
fn health_checks_are_bounded() {
    let with = |change: fn(&mut proto::HealthCheck)| {
        let mut health = proto::HealthCheck::default();
        change(&mut health);
        refused(move |m| m.ports[0].health = Some(health))
    };
    let both = |h: &mut proto::HealthCheck| (h.grpc, h.http_path) = (true, "/healthz".into());
    assert_eq!(with(both), Why::BadHealthCheck);
    assert_eq!(with(|h| h.http_path = "healthz".into()), Why::BadHealthCheck);
    assert_eq!(with(|h| h.http_path = "/a b".into()), Why::BadHealthCheck);
    assert_eq!(with(|h| h.http_path = "/a\r\nHost: x".into()), Why::BadHealthCheck);
    assert_eq!(with(|h| h.interval_ms = 1), Why::BadHealthCheck);
    assert_eq!(with(|h| h.timeout_ms = 100_000), Why::BadHealthCheck);
}

#[test]
fn tokens_sockets_and_dependencies_are_checked() {
    assert_eq!(refused(|m| m.boot_token = vec![7; 15]), Why::BadToken);
    assert_eq!(refused(|m| m.credentials = (0..65).map(|n| format!("c{n}")).collect()), Why::BadCredential);
    assert_eq!(refused(|m| m.boot_token = Vec::new()), Why::BadToken);
    for file in ["", "../v.sock", "a/v.sock", ".", &"v".repeat(65)] {
        let hybrid = proto::HybridVsock { file: file.into(), ..proto::HybridVsock::default() };
        assert_eq!(refused(|m| m.backend = Some(ProtoBackend::Hybrid(hybrid))), Why::BadSocket, "{file:?}");
    }
    for (host, port, guest_ip) in [
        ("", 1, ""),
        ("DB.t.nova", 1, ""),
        ("db..nova", 1, ""),
        ("db", 0, ""),
        ("db", 70_000, ""),
        ("db", 1, "10.0.0.1"),
    ] {
        let dependency = proto::Dependency { host: host.into(), port, guest_ip: guest_ip.into() };
        assert_eq!(refused(|m| m.dependencies = vec![dependency]), Why::BadDependency, "{host:?} {port} {guest_ip:?}");
    }
}

#[test]
fn all_mistakes_are_told_at_once_and_a_missing_guest_hides_none() {
    // covers: A2 (K8)
    assert_eq!(refused(|m| m.backend = None), Why::WaitingForBackend);
    let mut bad = message();
    bad.backend = None;
    bad.workload_ip = "nowhere".into();
    bad.boot_token = Vec::new();
    let rejection = endpoint(bad).expect_err("refused");
    assert_eq!(rejection.why, Why::BadIp);
    for part in ["nowhere", "boot token has 0 bytes", "guest is not there yet"] {
        assert!(rejection.message.contains(part), "{part} in {}", rejection.message);
    }
    assert_eq!((rejection.pod.as_str(), rejection.generation), ("pod-a", 1));
}

#[test]
fn an_update_without_operation_ends_the_stream() {
    let empty = proto::EndpointUpdate { revision: 7, ..Default::default() };
    assert_eq!(update(empty).expect_err("refused"), StreamError::NoOperation(7));
}

#[test]
fn defaults_are_those_of_the_design() {
    // covers: A2 (K40)
    let order = endpoint(message()).expect("valid");
    assert_eq!(order.spec.drain_timeout, Duration::from_secs(10));
    assert_eq!(
        order.spec.limits,
        EndpointLimits { max_connections: 4096, destination_connections: 4096, ..EndpointLimits::default() }
    );
    assert_eq!(order.health, HealthPlan::default());
    assert_eq!(order.spec.tenant.as_str(), "t");
    assert_eq!(order.spec.ports[0].mode, PortMode::Mtls);
    assert_eq!(order.spec.ports[0].protocol, Protocol::Raw, "an absent protocol is opaque");
    let mut hybrid = message();
    hybrid.backend = Some(ProtoBackend::Hybrid(proto::HybridVsock { file: "v.sock".into(), ..Default::default() }));
    assert_eq!(endpoint(hybrid).expect("valid").spec.limits.max_connections, 900);
}

#[test]
fn everything_that_is_asked_for_arrives() {
    let mut full = message();
    full.state = proto::State::Ready as i32;
    full.workload_ip = "fd00::5".into();
    full.drain_timeout_ms = 1500;
    full.limits = Some(proto::Limits { max_connections: 5, max_handshakes: 6, ..Default::default() });
    full.dependencies = vec![proto::Dependency { host: "db.t.nova".into(), port: 5432, guest_ip: "127.0.1.1".into() }];
    full.ports[0].protocol = proto::port::Proto::Http as i32;
    full.ports[0].target_port = 0;
    full.ports[0].target_unix = "app.sock".into();
    full.ports[0].health = Some(proto::HealthCheck {
        http_path: "/healthz".into(),
        interval_ms: 500,
        timeout_ms: 100,
        unhealthy_after: 2,
        ..Default::default()
    });
    let order = endpoint(full).expect("valid");
    assert_eq!(order.wanted, Wanted::Ready);
    assert_eq!(
        order.spec.limits,
        EndpointLimits {
            max_connections: 5,
            destination_connections: 5,
            max_handshakes: 6,
            ..EndpointLimits::default()
        }
    );
    assert_eq!(order.spec.drain_timeout, Duration::from_millis(1500));
    assert_eq!(order.spec.dependencies, [DependencySpec { host: "db.t.nova".into(), port: 5432 }]);
    assert_eq!(order.spec.ports[0].target, Target::Socket("app.sock".into()));
    assert_eq!(order.spec.ports[0].health, HealthCheck::Http("/healthz".into()));
    let plan =
        HealthPlan { interval: Duration::from_millis(500), timeout: Duration::from_millis(100), unhealthy_after: 2 };
    assert_eq!(order.health, plan);
}

#[test]
fn limits_out_of_their_range_are_refused_and_zero_is_the_default() {
    // covers: C9c
    let with = |change: fn(&mut proto::Limits)| {
        let mut limits = proto::Limits::default();
        change(&mut limits);
        refused(move |m| m.limits = Some(limits))
    };
    assert_eq!(with(|l| l.max_header_bytes = 1023), Why::BadLimit);
    assert_eq!(with(|l| l.max_header_bytes = 65_537), Why::BadLimit);
    assert_eq!(with(|l| l.idle_timeout_ms = 86_400_001), Why::BadLimit);
    assert_eq!(with(|l| l.close_at_max_lifetime = true), Why::BadLimit);
    let mut good = message();
    good.limits =
        Some(proto::Limits { bytes_per_second: 1, body_timeout_ms: 5, max_lifetime_ms: 7, ..Default::default() });
    let limits = endpoint(good).expect("valid").spec.limits;
    assert_eq!((limits.bytes_per_second, limits.body_time), (1, Duration::from_millis(5)));
    assert_eq!(limits.max_lifetime, Some(Duration::from_millis(7)));
    assert_eq!(limits.idle_time, EndpointLimits::default().idle_time);
}
