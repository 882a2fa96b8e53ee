//! What the tests of the agent share: a running `novalet-ref`, and a supervisor that says what the test tells it to.
#![allow(clippy::panic, reason = "a test says what it saw")]
#![allow(unreachable_pub, reason = "a module of several test programs")]
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nova_novalet::operator::client::{ClientError, ask};
use nova_novalet::operator::{Reply, Request, Status};
use nova_proto::control::endpoint_update::Op;
use nova_proto::control::supervisor_ack::Kind;
use nova_proto::control::supervisor_control_client::SupervisorControlClient;
use nova_proto::control::{Endpoint, EndpointStatus, EndpointUpdate, Hello, Phase, SupervisorAck};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Longest wait for anything.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Looks until `what` gives something.
pub fn until<T>(name: &str, mut what: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(Instant::now() < deadline, "in time: {name}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// One placement of the file.
pub fn placement(pod: &str, ip: &str, more: &str) -> String {
    format!(
        "  - workload_id: {pod}\n    tenant: t\n    pod_uid: {pod}\n    workload_ip: {ip}\n    drain_timeout_ms: 300\n    \
         ports: [{{name: https, port: 443, target_port: 8080, mode: mtls, protocol: http}}]\n    \
         guest: {{command: [/nova/nova-lab, app]}}\n{more}"
    )
}

/// A running agent in a folder of its own. Dropping it kills it.
pub struct Agent {
    pub folder: tempfile::TempDir,
    pub child: Child,
}

impl Agent {
    /// Starts with `placements` (the list's items) and `more` arguments, without guests unless those say otherwise.
    pub fn start(placements: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self::start_with(folder, &[], placements, more)
    }

    /// As [`Self::start`], in `folder` and through `wrapper` (a program that runs its arguments).
    pub fn start_with(folder: tempfile::TempDir, wrapper: &[&str], placements: &str, more: &[&str]) -> Self {
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(folder.path().join("placements.yaml"), format!("endpoints:\n{placements}")).expect("written");
        let mut words: Vec<String> = wrapper.iter().map(|word| (*word).to_owned()).collect();
        words.extend([env!("CARGO_BIN_EXE_novalet-ref").to_owned(), "run".into()]);
        words.extend(["--placements".into(), path("placements.yaml"), "--control-socket".into(), path("control.sock")]);
        words.extend(["--guest-root".into(), path("guests"), "--run-dir".into(), path("run")]);
        words.extend(["--ip-cooldown-ms".into(), "300".into(), "--drain-margin-ms".into(), "200".into()]);
        words.extend(more.iter().map(|word| (*word).to_owned()));
        if !more.contains(&"--guests") {
            words.extend(["--guests".into(), "none".into()]);
        }
        let (program, args) = words.split_first().expect("a program");
        let mut command = Command::new(program);
        command.args(args).env("NOVA_TEST_MARK", folder.path()).stdin(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().expect("starts");
        Self { folder, child }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, placements: &str) {
        // As an editor does it: the new file takes the old one's place.
        let new = self.path("placements.new");
        std::fs::write(&new, format!("endpoints:\n{placements}")).expect("written");
        std::fs::rename(new, self.path("placements.yaml")).expect("renamed");
    }

    pub fn ask(&self, request: &Request) -> Result<Reply, ClientError> {
        until("the agent answers", || match ask(&self.path("run"), request) {
            Err(ClientError::NotRunning { .. }) => None,
            answer => Some(answer),
        })
    }

    pub fn status(&self) -> Status {
        self.ask(&Request::Status).expect("answers").status.expect("a status")
    }

    /// As [`Self::until`], for tests whose supervisor must go on talking meanwhile.
    pub async fn eventually(&self, name: &str, wanted: impl Fn(&Status) -> bool) -> Status {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "{name}; last seen: {status:#?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Looks until the status is as `wanted`.
    pub fn until(&self, name: &str, wanted: impl Fn(&Status) -> bool) -> Status {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "{name}; last seen: {status:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A supervisor whose answers the test decides.
pub struct Supervisor {
    acks: mpsc::Sender<SupervisorAck>,
    updates: tonic::Streaming<EndpointUpdate>,
}

impl Supervisor {
    pub async fn connect(socket: &Path, slot: u32) -> Self {
        let hello = Hello { instance: format!("test-{slot}"), slot, ..Hello::default() };
        Self::connect_with(socket, Kind::Hello(hello)).await.expect("accepted")
    }

    pub async fn connect_with(socket: &Path, first: Kind) -> Result<Self, tonic::Status> {
        let deadline = Instant::now() + DEADLINE;
        let channel = loop {
            let endpoint = tonic::transport::Endpoint::try_from(format!("unix://{}", socket.display())).expect("a uri");
            match endpoint.connect().await {
                Ok(channel) => break channel,
                Err(error) => assert!(Instant::now() < deadline, "connects in time: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let (acks, stream) = mpsc::channel(64);
        acks.send(SupervisorAck { kind: Some(first) }).await.expect("queued");
        let updates = SupervisorControlClient::new(channel).sync_endpoints(ReceiverStream::new(stream)).await?;
        Ok(Self { acks, updates: updates.into_inner() })
    }

    pub async fn try_next(&mut self) -> Result<EndpointUpdate, tonic::Status> {
        let update = tokio::time::timeout(DEADLINE, self.updates.message()).await.expect("an update in time");
        update.map(|update| update.expect("an update, not the end"))
    }

    pub async fn next(&mut self) -> EndpointUpdate {
        self.try_next().await.expect("an update")
    }

    /// The next update, which must be an upsert.
    pub async fn upsert(&mut self) -> Endpoint {
        match self.next().await.op {
            Some(Op::Upsert(endpoint)) => endpoint,
            other => panic!("an upsert, not {other:?}"),
        }
    }

    /// The first endpoint that it hears of, in the snapshot or after it.
    pub async fn first_endpoint(&mut self) -> Endpoint {
        match self.next().await.op {
            Some(Op::Snapshot(mut snapshot)) if !snapshot.endpoints.is_empty() => snapshot.endpoints.remove(0),
            _ => self.upsert().await,
        }
    }

    pub async fn ack(&self, endpoint: &Endpoint, phase: Phase) {
        let status = EndpointStatus {
            pod_uid: endpoint.pod_uid.clone(),
            generation: endpoint.generation,
            phase: phase as i32,
            ..EndpointStatus::default()
        };
        self.send(Kind::Status(status)).await;
    }

    pub async fn send(&self, kind: Kind) {
        self.acks.send(SupervisorAck { kind: Some(kind) }).await.expect("sent");
    }
}
