//! A novalet that says what the test wants, and a data plane that only writes down what it is told.
#![allow(clippy::panic, reason = "a test that waits in vain fails")]
#![allow(dead_code, reason = "each test binary uses its part of it")]
#![allow(unreachable_pub, reason = "a module that several test binaries include")]

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use nova_proto::control as proto;
use nova_proto::control::endpoint::Backend;
use nova_proto::control::endpoint_update::Op;
use nova_proto::control::supervisor_ack::Kind;
use nova_proto::control::supervisor_control_server::{SupervisorControl, SupervisorControlServer};
use nova_supervisor::config::Mode;
use nova_supervisor::control::client::{Client, Introduction};
use nova_supervisor::control::{Control, DataPlane, Means, PolicyView, RouteOwner, Timing};
use nova_supervisor::identity::{DevCa, DevSource};
use nova_supervisor::net::routes::RouteError;
use nova_supervisor::reason::Reason;
use nova_supervisor::state::endpoint::{Endpoint, EndpointSpec, PortSpec, Stage};
use nova_supervisor::state::table::EndpointTable;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Streaming};

/// Far longer than anything takes; a test that waits so long has failed.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// What happened, in order.
#[derive(Clone, Default)]
pub struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    pub fn write(&self, line: String) {
        self.0.lock().expect("no panic while held").push(line);
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.lock().expect("no panic while held").clone()
    }

    pub fn has(&self, line: &str) -> bool {
        self.lines().iter().any(|other| other == line)
    }

    pub fn position(&self, line: &str) -> usize {
        let lines = self.lines();
        lines.iter().position(|other| other == line).unwrap_or_else(|| panic!("{line:?} in {lines:?}"))
    }
}

#[derive(Default)]
pub struct FakePlane {
    pub diary: Diary,
    sick: Mutex<HashMap<String, Reason>>,
    /// Pods behind whose link nobody is.
    gone: Mutex<HashSet<String>>,
}

impl FakePlane {
    pub fn set_gone(&self, pod: &str) {
        self.gone.lock().expect("no panic while held").insert(pod.to_owned());
    }

    pub fn set_health(&self, pod: &str, health: Result<(), Reason>) {
        let mut sick = self.sick.lock().expect("no panic while held");
        match health {
            Ok(()) => sick.remove(pod),
            Err(reason) => sick.insert(pod.to_owned(), reason),
        };
    }
}

struct Acceptor(Diary, String);

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.0.write(format!("acceptor- {}", self.1));
    }
}

fn name(endpoint: &Endpoint) -> String {
    let spec = endpoint.spec();
    format!("{}:{}", spec.pod_uid, spec.generation)
}

impl DataPlane for FakePlane {
    fn bind(&self, endpoint: &Arc<Endpoint>, port: &PortSpec) -> io::Result<Vec<OwnedFd>> {
        self.diary.write(format!("bind {} {}", name(endpoint), port.port));
        Ok(vec![std::fs::File::open("/dev/null")?.into()])
    }

    fn listen(&self, endpoint: &Arc<Endpoint>, port: &PortSpec, sockets: Vec<OwnedFd>) -> io::Result<()> {
        assert_eq!(sockets.len(), 1, "what was bound is what listens");
        self.diary.write(format!("listen {} {}", name(endpoint), port.port));
        let (diary, line) = (self.diary.clone(), format!("closed {} {}", name(endpoint), port.port));
        let mut stage = endpoint.watch_stage();
        tokio::spawn(async move {
            let _gone = stage.wait_for(|stage| *stage >= Stage::Draining).await.map(drop);
            diary.write(line);
        });
        Ok(())
    }

    fn close_port(&self, endpoint: &Arc<Endpoint>, port: &PortSpec) {
        self.diary.write(format!("close {} {}", name(endpoint), port.port));
    }

    fn supersede(&self, _: &Arc<Endpoint>, _: &PortSpec) {}

    fn accept_guest(&self, endpoint: &Arc<Endpoint>) -> io::Result<Box<dyn Send>> {
        let name = name(endpoint);
        self.diary.write(format!("acceptor+ {name}"));
        Ok(Box::new(Acceptor(self.diary.clone(), name)))
    }

    fn health(&self, endpoint: &Arc<Endpoint>, _: &PortSpec) -> BoxFuture<'static, Result<(), Reason>> {
        let pod = endpoint.spec().pod_uid.to_string();
        let sick = self.sick.lock().expect("no panic while held").get(&pod).copied();
        Box::pin(async move { sick.map_or(Ok(()), Err) })
    }

    fn is_gone(&self, endpoint: &Arc<Endpoint>) -> BoxFuture<'static, bool> {
        let is_gone = self.gone.lock().expect("no panic while held").contains(endpoint.spec().pod_uid.as_str());
        Box::pin(async move { is_gone })
    }
}

pub struct FakeRoutes(Diary);

impl RouteOwner for FakeRoutes {
    fn ensure(&self, ip: IpAddr) -> Result<(), RouteError> {
        self.0.write(format!("route+ {ip}"));
        Ok(())
    }

    fn release(&self, ip: IpAddr) -> Result<(), RouteError> {
        self.0.write(format!("route- {ip}"));
        Ok(())
    }
}

/// A bundle that knows everybody or nobody.
pub struct FakePolicy(watch::Sender<u64>, std::sync::atomic::AtomicBool);

impl FakePolicy {
    pub fn set_knows(&self, knows: bool) {
        self.1.store(knows, std::sync::atomic::Ordering::SeqCst);
        self.0.send_modify(|count| *count += 1);
    }
}

impl PolicyView for FakePolicy {
    fn knows(&self, _: &EndpointSpec) -> bool {
        self.1.load(std::sync::atomic::Ordering::SeqCst)
    }

    fn revision(&self) -> String {
        String::from("rev-7")
    }

    fn watch(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// A supervisor's control side with fakes around it.
pub struct Node {
    pub control: Control,
    pub table: Arc<EndpointTable>,
    pub plane: Arc<FakePlane>,
    pub policy: Arc<FakePolicy>,
    pub diary: Diary,
}

pub fn fast() -> Timing {
    let short = Duration::from_millis(5);
    Timing {
        first_retry: short,
        last_retry: Duration::from_millis(20),
        status_gap: Duration::from_millis(1),
        first_reconnect: short,
        last_reconnect: Duration::from_millis(50),
        file_poll: short,
        ..Timing::default()
    }
}

impl Node {
    pub fn start() -> Self {
        let ca = DevCa::generate().expect("a CA");
        let diary = Diary::default();
        let plane = Arc::new(FakePlane { diary: diary.clone(), ..FakePlane::default() });
        let policy = Arc::new(FakePolicy(watch::Sender::new(0), true.into()));
        let table = Arc::new(EndpointTable::default());
        let means = Means {
            plane: plane.clone(),
            identity: Arc::new(DevSource::new(Mode::Dev, ca).expect("dev mode")),
            routes: Arc::new(FakeRoutes(diary.clone())),
            policy: policy.clone(),
            table: Arc::clone(&table),
            timing: fast(),
        };
        let (control, service) = Control::new(means);
        tokio::spawn(service);
        Self { control, table, plane, policy, diary }
    }

    /// Calls novalet at `socket`, which must be served by `novalet_uid`.
    pub fn call(&self, socket: &Path, novalet_uid: u32) -> tokio::task::JoinHandle<std::convert::Infallible> {
        let client = Client {
            socket: socket.to_owned(),
            novalet_uid,
            introduction: Introduction { instance: "a".into(), slot: 0 },
            control: self.control.clone(),
            policy: self.policy.clone(),
            timing: fast(),
        };
        tokio::spawn(client.run())
    }

    pub fn endpoint(&self, pod: &str) -> Arc<Endpoint> {
        let now = self.table.load();
        now.iter().find(|endpoint| endpoint.spec().pod_uid.as_str() == pod).cloned().expect("the endpoint is known")
    }
}

/// Waits until `condition` holds.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// One stream, seen from novalet.
pub struct Session {
    acks: Streaming<proto::SupervisorAck>,
    updates: mpsc::Sender<Result<proto::EndpointUpdate, tonic::Status>>,
    revision: u64,
}

impl Session {
    pub async fn next(&mut self) -> Kind {
        let next = tokio::time::timeout(DEADLINE, self.acks.message()).await.expect("an acknowledgement in time");
        next.expect("the stream lives").expect("the stream goes on").kind.expect("a kind")
    }

    /// Sends the next revision.
    pub async fn send(&mut self, op: Op) {
        self.revision += 1;
        self.send_as(self.revision, 1, op).await;
    }

    pub async fn send_as(&mut self, revision: u64, epoch: u64, op: Op) {
        self.revision = revision;
        self.update(proto::EndpointUpdate { op: Some(op), revision, epoch, live_slots: 0 }).await;
    }

    /// Sends the next revision, with how many instances serve.
    pub async fn send_among(&mut self, live_slots: u32, op: Op) {
        self.revision += 1;
        self.update(proto::EndpointUpdate { op: Some(op), revision: self.revision, epoch: 1, live_slots }).await;
    }

    async fn update(&self, update: proto::EndpointUpdate) {
        self.updates.send(Ok(update)).await.expect("the stream lives");
    }

    /// Waits for a phase of a generation and returns its status.
    pub async fn phase(&mut self, pod: &str, generation: u64, phase: proto::Phase) -> proto::EndpointStatus {
        let mut seen = Vec::new();
        loop {
            let next = tokio::time::timeout(DEADLINE, self.next());
            let Ok(kind) = next.await else { panic!("no {phase:?} of {pod} {generation}, only {seen:?}") };
            if let Kind::Status(status) = kind {
                if status.pod_uid == pod && status.generation == generation && status.phase() == phase {
                    return status;
                }
                seen.push((status.pod_uid, status.generation, status.phase, status.reason));
            }
        }
    }

    pub async fn applied(&mut self) -> u64 {
        loop {
            if let Kind::Applied(applied) = self.next().await {
                return applied.revision;
            }
        }
    }

    /// Whether the supervisor ended the stream.
    pub async fn ends(mut self) -> bool {
        let end = async { while let Ok(Some(_)) = self.acks.message().await {} };
        tokio::time::timeout(DEADLINE, end).await.is_ok()
    }
}

struct Novalet(mpsc::Sender<Session>);

#[tonic::async_trait]
impl SupervisorControl for Novalet {
    type SyncEndpointsStream = ReceiverStream<Result<proto::EndpointUpdate, tonic::Status>>;

    async fn sync_endpoints(
        &self,
        request: Request<Streaming<proto::SupervisorAck>>,
    ) -> Result<Response<Self::SyncEndpointsStream>, tonic::Status> {
        let (updates, outgoing) = mpsc::channel(16);
        let session = Session { acks: request.into_inner(), updates, revision: 0 };
        self.0.send(session).await.map_err(|_| tonic::Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }
}

/// A listening novalet; streams that arrive are taken with `session`.
pub struct FakeNovalet {
    pub socket: PathBuf,
    sessions: mpsc::Receiver<Session>,
    server: tokio::task::JoinHandle<()>,
    _dir: Option<tempfile::TempDir>,
}

impl FakeNovalet {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let mut novalet = Self::start_at(dir.path().join("novalet.sock"));
        novalet._dir = Some(dir);
        novalet
    }

    pub fn start_at(socket: PathBuf) -> Self {
        let _old = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).expect("the socket is free");
        let (sender, sessions) = mpsc::channel(4);
        let service = SupervisorControlServer::new(Novalet(sender));
        let server = tokio::spawn(async move {
            let incoming = UnixListenerStream::new(listener);
            let _ended = tonic::transport::Server::builder().serve_with_incoming(service, incoming).await;
        });
        Self { socket, sessions, server, _dir: None }
    }

    /// The next stream, and the hello it began with.
    pub async fn session(&mut self) -> (Session, proto::Hello) {
        let session = tokio::time::timeout(DEADLINE, self.sessions.recv()).await.expect("a call in time");
        let mut session = session.expect("the server lives");
        match session.next().await {
            Kind::Hello(hello) => (session, hello),
            other => panic!("the first acknowledgement is a hello, not {other:?}"),
        }
    }

    pub fn stop(&self) {
        self.server.abort();
    }
}

impl Drop for FakeNovalet {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// An endpoint as novalet describes it; `cid` also makes the address.
pub fn endpoint(pod: &str, generation: u64, cid: u32, state: proto::State) -> proto::Endpoint {
    proto::Endpoint {
        workload_id: "x".into(),
        spiffe_id: "spiffe://dev.invalid/t/t/w/x".into(),
        pod_uid: pod.into(),
        generation,
        workload_ip: format!("10.64.3.{cid}"),
        backend: Some(Backend::VsockCid(cid)),
        ports: vec![port("https", 443)],
        isolation: "shared".into(),
        state: state as i32,
        boot_token: vec![7; 16],
        drain_timeout_ms: 5_000,
        ..proto::Endpoint::default()
    }
}

pub fn port(name: &str, number: u32) -> proto::Port {
    let health = proto::HealthCheck { interval_ms: 50, ..proto::HealthCheck::default() };
    proto::Port { name: name.into(), port: number, target_port: 8080, health: Some(health), ..proto::Port::default() }
}

pub fn snapshot(endpoints: Vec<proto::Endpoint>) -> Op {
    Op::Snapshot(proto::Snapshot { endpoints })
}

pub fn remove(pod: &str, generation: u64) -> Op {
    Op::Remove(proto::EndpointKey { pod_uid: pod.into(), generation })
}
