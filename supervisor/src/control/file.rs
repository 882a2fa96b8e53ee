//! Endpoints from a file: the source when there is no novalet. The file is looked at again and again; a broken one changes
//! nothing. Its rows become messages of the control protocol, so that one conversion judges both sources.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nova_policy::workloads::{self, Mode, PortTarget, Protocol, State};
use nova_proto::control as proto;
use nova_proto::control::endpoint::Backend as ProtoBackend;

use super::convert;
use super::order::{Row, Update};
use super::service::Control;
use crate::bundles::source::{self as files, ReadError};

/// What could not be read is tried again this late, also when the file has not changed: a lack of descriptors passes.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read, or is being written.
    #[error("{0} ([endpoints] file names it)")]
    Read(#[from] ReadError),
    /// Every mistake in it, with line, column and remedy.
    #[error("{0}")]
    Mistakes(nova_policy::report::Report),
}

/// `endpoints.yaml`, watched.
pub struct FileSource {
    path: PathBuf,
    node: String,
}

impl FileSource {
    /// For the file at `path`; rows of other nodes than `node` are skipped.
    #[must_use]
    pub fn new(path: PathBuf, node: String) -> Self {
        Self { path, node }
    }

    /// Reads the file once, as a snapshot. Rows that this version cannot serve are in it as refusals.
    ///
    /// # Errors
    /// When the file cannot be read, or every mistake in it.
    pub fn load(&self) -> Result<Update, FileError> {
        let (bytes, _) = files::read(&self.path)?;
        self.parse(&bytes)
    }

    fn parse(&self, bytes: &[u8]) -> Result<Update, FileError> {
        let path = self.path.display().to_string();
        let text = nova_policy::report::text(&path, bytes).map_err(FileError::Mistakes)?;
        parse(&path, text, &self.node)
    }

    /// Applies the file now and whenever it has changed, for ever. Whoever writes it in place may be half through, and half
    /// a list is a list too: a change counts when two looks in a row saw the same.
    pub async fn run(self, control: Control, poll: Duration) -> std::convert::Infallible {
        let (mut taken, mut last, mut unread) = (None, None, None::<Unread>);
        loop {
            let now = Some(files::fingerprint(&self.path));
            let is_new = now != taken && (taken.is_none() || now == last);
            let is_due = unread.as_ref().is_some_and(|unread| unread.since.elapsed() >= RETRY_AFTER);
            if is_new || (is_due && now == last) {
                let read = files::read(&self.path);
                // What was read is what counts as taken: the file may have changed since it was looked at.
                taken = read.as_ref().map_or(now, |(_, fingerprint)| Some(Some(*fingerprint)));
                unread = match read {
                    Ok((bytes, _)) => {
                        self.take(&control, &bytes).await;
                        None
                    }
                    Err(error) => Some(self.unread(&control, unread, &error)),
                };
            }
            last = now;
            tokio::time::sleep(poll).await;
        }
    }

    /// Applies the file as it is.
    async fn take(&self, control: &Control, bytes: &[u8]) {
        match self.parse(bytes) {
            Ok(update) => {
                control.apply(update).await;
                control.note_source(None);
            }
            Err(error) => self.refused(control, &error.to_string()),
        }
    }

    /// Says once what keeps the file from being read.
    fn unread(&self, control: &Control, before: Option<Unread>, error: &ReadError) -> Unread {
        let error = error.to_string();
        if before.is_none_or(|before| before.error != error) {
            self.refused(control, &error);
        }
        Unread { since: Instant::now(), error }
    }

    fn refused(&self, control: &Control, error: &str) {
        control.note_source(Some(format!("the endpoints file is refused, what was served before stays: {error}")));
        tracing::error!(
            file = %self.path.display(), "endpoints file refused, what was served before stays:\n{error}"
        );
    }
}

/// A file that could not be read at the last try.
struct Unread {
    since: Instant,
    error: String,
}

fn parse(path: &str, text: &str, node: &str) -> Result<Update, FileError> {
    let table = workloads::parse(path, text).map_err(FileError::Mistakes)?;
    let is_here = |endpoint: &workloads::Endpoint| endpoint.node.as_deref().is_none_or(|other| other == node);
    let rows: Vec<Row> =
        table.endpoints.into_iter().filter(is_here).map(|endpoint| convert::endpoint(message(endpoint))).collect();
    Ok(Update::Snapshot { epoch: 0, rows })
}

/// The row as novalet would send it.
fn message(row: workloads::Endpoint) -> proto::Endpoint {
    let state = match row.state {
        State::Pending => proto::State::Pending,
        State::Ready => proto::State::Ready,
        State::Draining => proto::State::Draining,
    };
    let dependency = |dependency: workloads::Dependency| proto::Dependency {
        host: dependency.host.to_string(),
        port: dependency.port.into(),
        guest_ip: dependency.guest_ip.to_string(),
    };
    proto::Endpoint {
        workload_id: row.workload.to_string(),
        spiffe_id: row.spiffe_id.to_string(),
        pod_uid: row.pod_uid.to_string(),
        generation: row.generation,
        workload_ip: row.workload_ip.to_string(),
        additional_ips: row.other_ip.iter().map(ToString::to_string).collect(),
        backend: row.backend.map(backend),
        ports: row.ports.into_iter().map(port).collect(),
        isolation: if row.dedicated { "dedicated" } else { "shared" }.to_owned(),
        state: state as i32,
        limits: Some(proto::Limits {
            max_connections: row.limits.max_connections.unwrap_or(0),
            max_handshakes: row.limits.max_handshakes.unwrap_or(0),
            bytes_per_second: row.limits.bytes_per_second.unwrap_or(0),
            connections_per_second: row.limits.connections_per_second.unwrap_or(0),
            lookups_per_second: row.limits.lookups_per_second.unwrap_or(0),
            max_destination_connections: row.limits.max_destination_connections.unwrap_or(0),
            max_header_bytes: row.limits.max_header_bytes.unwrap_or(0),
            header_timeout_ms: row.limits.header_timeout_ms.unwrap_or(0),
            idle_timeout_ms: row.limits.idle_timeout_ms.unwrap_or(0),
            stream_idle_timeout_ms: row.limits.stream_idle_timeout_ms.unwrap_or(0),
            body_timeout_ms: row.limits.body_timeout_ms.unwrap_or(0),
            answer_timeout_ms: row.limits.answer_timeout_ms.unwrap_or(0),
            max_lifetime_ms: row.limits.max_lifetime_ms.unwrap_or(0),
            close_at_max_lifetime: row.limits.close_at_max_lifetime,
        }),
        dependencies: row.dependencies.into_iter().map(dependency).collect(),
        credentials: row.credentials.into_iter().collect(),
        boot_token: row.boot_token.map(|token| token.0.to_vec()).unwrap_or_default(),
        drain_timeout_ms: row.drain_timeout_ms,
        ..proto::Endpoint::default()
    }
}

fn backend(backend: workloads::Backend) -> ProtoBackend {
    match backend {
        workloads::Backend::VsockCid(cid) => ProtoBackend::VsockCid(cid),
        workloads::Backend::Uds { file } => ProtoBackend::Uds(proto::UdsCarrier { file }),
        workloads::Backend::Hybrid { file, half_close, vmm_uid, vmm_gid } => {
            // Without novalet, guests are most likely started by whoever started us.
            let vmm_uid = vmm_uid.unwrap_or_else(|| nix::unistd::getuid().as_raw());
            ProtoBackend::Hybrid(proto::HybridVsock { file, vmm_uid, vmm_gid: vmm_gid.unwrap_or(0), half_close })
        }
    }
}

fn port(port: workloads::Port) -> proto::Port {
    use proto::port::{Mode as ProtoMode, Proto};
    let (target_port, target_unix) = match port.target {
        PortTarget::Tcp(number) => (number.into(), String::new()),
        PortTarget::Unix(file) => (0, file),
    };
    let mode = match port.mode {
        Mode::Mtls => ProtoMode::Mtls,
        Mode::Tls => ProtoMode::Tls,
        Mode::Tcp => ProtoMode::Tcp,
    };
    let protocol = match port.protocol {
        Protocol::Tcp => Proto::Raw,
        Protocol::Http => Proto::Http,
        Protocol::Grpc => Proto::Grpc,
    };
    proto::Port {
        name: port.name.to_string(),
        port: port.port.into(),
        target_port,
        target_unix,
        mode: mode as i32,
        protocol: protocol as i32,
        tls12: port.tls.tls12,
        certificate: port.tls.certificate.unwrap_or_default(),
        strip_token: port.tls.strip_token,
        proxy_protocol_v2: port.proxy_protocol_v2,
        health: port.health.map(health),
    }
}

fn health(health: workloads::Health) -> proto::HealthCheck {
    proto::HealthCheck {
        http_path: health.http_path.unwrap_or_default(),
        grpc: health.grpc,
        interval_ms: health.interval_ms.unwrap_or(0),
        timeout_ms: health.timeout_ms.unwrap_or(0),
        unhealthy_after: health.unhealthy_after.unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "a test that finds another value fails")]

    use super::*;
    use crate::control::order::{HealthPlan, Wanted};
    use crate::control::why::Why;
    use crate::state::endpoint::{Backend, HealthCheck};

    const GOOD: &str = "
endpoints:
  - workload_id: service-a
    tenant: t
    pod_uid: pod-a
    generation: 3
    workload_ip: 127.0.0.21
    backend: {hybrid: {file: v.sock, half_close: false}}
    ports: [{name: https, port: 8443, target_port: 8080, mode: mtls, protocol: http}]
    state: ready
    boot_token: 000102030405060708090a0b0c0d0e0f
    dependencies: [{host: db.t.nova, port: 5432, guest_ip: 127.0.1.1}]
";

    fn rows(text: &str) -> Vec<Row> {
        match parse("endpoints.yaml", text, "node-1") {
            Ok(Update::Snapshot { rows, .. }) => rows,
            other => panic!("a snapshot, not {other:?}"),
        }
    }

    #[test]
    fn a_broken_file_tells_all_mistakes_with_their_place() {
        // covers: A12
        let broken = GOOD.replace("127.0.0.21", "nowhere").replace("8443", "0").replace("state: ready", "state: on");
        let error = parse("endpoints.yaml", &broken, "node-1").expect_err("refused").to_string();
        assert!(error.matches("endpoints.yaml:").count() >= 3, "{error}");
    }

    #[test]
    fn rows_that_this_version_does_not_serve_are_refused_alone() {
        let two = format!("{GOOD}{}", GOOD.replace("endpoints:", "").replace("-a\n", "-b\n").replace(".21", ".22"));
        let two = two.replacen("    state: ready", "    isolation: dedicated\n    state: ready", 1);
        let rows = rows(&two);
        assert_eq!(rows[0].as_ref().expect_err("no dedicated instance").why, Why::DedicatedNotHere);
        assert!(rows[1].is_ok());
    }

    #[test]
    fn rows_of_other_nodes_are_not_ours() {
        assert!(rows(&GOOD.replace("    state", "    node: node-2\n    state")).is_empty());
        assert_eq!(rows(&GOOD.replace("    state", "    node: node-1\n    state")).len(), 1);
    }

    // covers: A13
    #[test]
    fn a_check_of_the_app_is_ordered_as_it_is_written() {
        let check =
            "protocol: http, health: {http_path: /live, interval_ms: 300, timeout_ms: 200, unhealthy_after: 2}}";
        let order = rows(&GOOD.replace("protocol: http}", check)).remove(0).expect("valid");
        assert_eq!(order.spec.ports[0].health, HealthCheck::Http("/live".to_owned()));
        let (interval, timeout) = (Duration::from_millis(300), Duration::from_millis(200));
        assert_eq!(order.health, HealthPlan { interval, timeout, unhealthy_after: 2 });
        let order = rows(GOOD).remove(0).expect("valid");
        assert_eq!((&order.spec.ports[0].health, order.health), (&HealthCheck::Connect, HealthPlan::default()));
    }

    #[test]
    fn a_row_becomes_an_order() {
        // covers: A13
        let order = rows(GOOD).remove(0).expect("valid");
        assert_eq!(order.wanted, Wanted::Ready);
        assert_eq!(order.spec.spiffe_id.as_str(), "spiffe://dev.invalid/t/t/w/service-a");
        assert_eq!((order.spec.generation, order.spec.ports[0].port), (3, 8443));
        let own = nix::unistd::getuid().as_raw();
        let hybrid = Backend::Hybrid { file: "v.sock".into(), vmm_uid: own, half_close: false };
        assert_eq!(order.spec.backend, hybrid);
        assert_eq!(order.spec.dependencies[0].host, "db.t.nova");
        assert!(order.spec.boot_token.matches(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]));
    }
}
