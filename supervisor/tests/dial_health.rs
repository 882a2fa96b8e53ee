//! Health checks of gRPC, answered by a real server of gRPC in a guest, and by apps that are none.

mod data;
mod endpoint_support;

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use data::h2::{END_HEADERS, Event, H2, HEADERS};
use data::{Guest, Link};
use endpoint_support::spec;
use nova_proto::ids::PortName;
use nova_supervisor::dial;
use nova_supervisor::guestlink::LinkPorts;
use nova_supervisor::reason::Reason;
use nova_supervisor::state::endpoint::{
    Backend, EndpointSpec, HealthCheck, PortMode, PortSpec, PortTls, Protocol, Target,
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// A guest with one port, whose app is what a test makes of it.
struct Stand {
    guest: Guest,
    links: LinkPorts,
    spec: EndpointSpec,
    runtime: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
}

impl Stand {
    fn new(half_close: bool) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let port = PortSpec {
            name: PortName::new("rpc").expect("a name"),
            port: 50051,
            target: Target::Tcp(18051),
            mode: PortMode::Mtls,
            protocol: Protocol::Grpc,
            tls: PortTls::default(),
            health: HealthCheck::Grpc,
            proxy_v2: false,
        };
        let spec = EndpointSpec {
            backend: Backend::Hybrid { file: "v.sock".to_owned(), vmm_uid: 0, half_close },
            ports: vec![port],
            ..spec("service-a", "dev.invalid")
        };
        let guest = Guest::start(&dir.path().join(spec.pod_uid.as_str()), !half_close);
        let links = LinkPorts { root: dir.path().to_owned(), guest_port: 15_000 };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        Self { guest, links, spec, runtime: runtime.expect("a runtime"), _dir: dir }
    }

    fn check(&self) -> Result<(), Reason> {
        self.check_within(data::PATIENCE)
    }

    fn check_within(&self, timeout: Duration) -> Result<(), Reason> {
        self.runtime.block_on(dial::health(&self.links, &self.spec, &self.spec.ports[0], timeout))
    }

    /// A server of gRPC in the guest, with the health service that tonic brings along.
    fn real_server(&self) -> HealthReporter {
        let (reporter, service) = tonic_health::server::health_reporter();
        let listener = self.runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("loopback");
        let to = listener.local_addr().expect("bound");
        let incoming = TcpListenerStream::new(listener);
        self.runtime.spawn(async move {
            let _ended = tonic::transport::Server::builder().serve_with_incoming(service, incoming).await;
        });
        self.guest.serve(move |link, _| relay(link, to));
        reporter
    }

    fn say(&self, reporter: &HealthReporter, service: &str, status: ServingStatus) {
        self.runtime.block_on(reporter.set_service_status(service, status));
    }

    /// An app that answers each call with this head, this body and these trailers.
    fn app(
        &self,
        head: &'static [(&'static str, &'static str)],
        body: Vec<u8>,
        trailers: &'static [(&'static str, &'static str)],
    ) {
        let body = Arc::new(body);
        self.guest.serve(move |link, _| {
            let Ok(mut h2) = H2::server(link) else { return };
            while let Ok(event) = h2.event() {
                let (Event::Headers { stream, end: true, .. } | Event::Data { stream, end: true, .. }) = event else {
                    continue;
                };
                h2.headers(stream, head, body.is_empty() && trailers.is_empty());
                if !body.is_empty() {
                    h2.data(stream, &body, trailers.is_empty());
                }
                if !trailers.is_empty() {
                    h2.headers(stream, trailers, true);
                }
            }
        });
    }
}

/// What the relay in a guest does: bytes both ways, each with its own end.
fn relay(link: Link, to: SocketAddr) {
    let mut app = TcpStream::connect(to).expect("the server listens");
    let (mut from_app, mut from_link, mut to_link) = (app.try_clone().expect("a descriptor"), link.another(), link);
    let back = std::thread::spawn(move || {
        let _ = std::io::copy(&mut from_app, &mut to_link);
        to_link.finish();
    });
    let _ = std::io::copy(&mut from_link, &mut app);
    let _ = app.shutdown(std::net::Shutdown::Write);
    let _ = back.join();
}

const OK: &[(&str, &str)] = &[(":status", "200"), ("content-type", "application/grpc")];
const FINE: &[(&str, &str)] = &[("grpc-status", "0")];

/// A message as gRPC frames it.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    [&[0], &length[..], message].concat()
}

// covers: C15a
#[test]
fn a_real_server_is_healthy_while_it_says_serving_and_only_then() {
    for half_close in [true, false] {
        let stand = Stand::new(half_close);
        let mut reporter = stand.real_server();
        assert_eq!(stand.check(), Ok(()));
        // What one of its services says is not what the server says.
        stand.say(&reporter, "orders.v1.Orders", ServingStatus::NotServing);
        assert_eq!(stand.check(), Ok(()));
        stand.say(&reporter, "", ServingStatus::NotServing);
        assert_eq!(stand.check(), Err(Reason::GuestRefused));
        stand.say(&reporter, "", ServingStatus::Unknown);
        assert_eq!(stand.check(), Err(Reason::GuestRefused));
        stand.say(&reporter, "", ServingStatus::Serving);
        assert_eq!(stand.check(), Ok(()));
        // UNIMPLEMENTED or NOT_FOUND: nobody says that it is well.
        stand.runtime.block_on(reporter.clear_service_status(""));
        assert_eq!(stand.check(), Err(Reason::GuestRefused));
    }
}

// covers: C15a
#[test]
fn what_is_no_answer_of_the_health_service_is_no_health() {
    let stand = Stand::new(true);
    let serving = || framed(&[8, 1]);
    stand.app(OK, serving(), FINE);
    assert_eq!(stand.check(), Ok(()), "the app of this test can answer rightly");
    let mut compressed = serving();
    compressed[0] = 1;
    let wrong: [(&'static [_], Vec<u8>, &'static [_]); 11] = [
        (&[(":status", "200"), ("content-type", "text/html")], serving(), FINE),
        (&[(":status", "503"), ("content-type", "application/grpc")], serving(), FINE),
        (&[(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "12")], Vec::new(), &[]),
        (OK, serving(), &[("grpc-status", "14")]),
        (OK, serving(), &[("grpc-message", "no status")]),
        (OK, serving(), &[]),
        (OK, Vec::new(), FINE),
        (OK, framed(&[8, 2]), FINE),
        (OK, [serving(), serving()].concat(), FINE),
        (OK, compressed, FINE),
        (OK, framed(&[b'x'; 8000]), FINE),
    ];
    for (head, body, trailers) in wrong {
        let shown = format!("{head:?} {:?} {trailers:?}", &body[..body.len().min(16)]);
        stand.app(head, body, trailers);
        assert_eq!(stand.check(), Err(Reason::GuestRefused), "{shown}");
    }
    // Apps that speak something else, say nothing true, or are not there.
    stand.guest.serve(data::polite);
    assert_eq!(stand.check(), Err(Reason::GuestRefused));
    stand.guest.serve(|mut link, _| link.send([0xff; 4096]));
    assert_eq!(stand.check(), Err(Reason::GuestRefused));
    stand.guest.serve(|link, _| drop(link));
    assert_eq!(stand.check(), Err(Reason::GuestRefused));
}

// covers: C15a
#[test]
fn an_app_that_takes_its_time_is_not_waited_for() {
    let stand = Stand::new(true);
    let deadline = Duration::from_millis(300);
    let is_late = || {
        let began = Instant::now();
        let outcome = stand.check_within(deadline);
        assert!(began.elapsed() < data::PATIENCE, "{:?}", began.elapsed());
        outcome == Err(Reason::UpstreamTimeout)
    };
    // Silent from the first byte, after its settings, and in the middle of an answer that never ends.
    stand.guest.serve(|mut link, _| drop(link.rest()));
    assert!(is_late());
    stand.guest.serve(|link, _| {
        let Ok(mut h2) = H2::server(link) else { return };
        while h2.event().is_ok() {}
    });
    assert!(is_late());
    stand.guest.serve(|link, _| {
        let Ok(mut h2) = H2::server(link) else { return };
        while let Ok(event) = h2.event() {
            if let Event::Data { stream, end: true, .. } = event {
                h2.send(HEADERS, END_HEADERS, stream, &data::hpack_of(OK));
            }
        }
    });
    assert!(is_late());
    // Frames without end are no answer either.
    stand.guest.serve(|link, _| {
        let Ok(mut h2) = H2::server(link) else { return };
        while h2.try_bytes(&data::h2::frame(data::h2::PING, 0, 0, &[7; 8])).is_ok() {}
    });
    assert_ne!(stand.check_within(deadline), Ok(()));
}
