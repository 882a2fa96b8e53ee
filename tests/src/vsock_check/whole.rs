//! The whole supervisor, as a process, on AF_VSOCK. Loopback's CID may be no endpoint's (only 3 and more are guests'), so what
//! can be seen here is what becomes of a caller that no endpoint has.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nova_proto::hello::Kind;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio_vsock::VsockStream;

use super::from_guest::{dial, hello};
use super::stand::{CID_SERVICE_A, CID_X, Stand};
use super::{Outcome, Report};

/// Its host port; the other one is taken by the checks.
const PORT: u32 = 15002;
/// Its folder.
const FOLDER: &str = "/tmp/supervisor";
/// Well below the two seconds that a guest has for its hello: who is nobody is not even listened to.
const AT_ONCE: Duration = Duration::from_millis(1500);
/// For the supervisor to listen.
const START: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);

pub(super) async fn checks(report: &mut Report, stand: &Stand) {
    report.check("the whole supervisor closes a CID that no endpoint has", nobody(stand)).await;
}

async fn nobody(stand: &Stand) -> Outcome {
    let mut supervisor = start(stand)?;
    // An endpoint's own presence would stay open.
    let presence = hello(Kind::Presence, stand.service_a.boot_token, "");
    let start = Instant::now();
    let mut guest = loop {
        match dial(CID_X, PORT, &presence).await {
            Ok(guest) => break guest,
            Err(error) if start.elapsed() > START => return Err(error.context("the supervisor does not listen")),
            Err(_) => tokio::time::sleep(POLL).await,
        }
        if let Some(status) = supervisor.try_wait()? {
            bail!("the supervisor ended with {status}: {}", fs::read_to_string(log())?);
        }
    };
    let dialled = Instant::now();
    closed(&mut guest).await?;
    ensure!(supervisor.try_wait()?.is_none(), "because it ended: {}", fs::read_to_string(log())?);
    Ok(format!("closed after {:?}", dialled.elapsed()))
}

async fn closed(guest: &mut VsockStream) -> anyhow::Result<()> {
    match tokio::time::timeout(AT_ONCE, guest.read(&mut [0])).await {
        Err(_) => bail!("still open after {AT_ONCE:?}"),
        // An end, or a reset because the hello was not read.
        Ok(read) => ensure!(read.unwrap_or(0) == 0, "it was answered"),
    }
    Ok(())
}

/// From files alone, rootless, with one endpoint that has another CID, and no bundle yet.
fn start(stand: &Stand) -> anyhow::Result<Child> {
    let token = hex::encode(stand.service_a.boot_token.0);
    let endpoints = format!(
        "endpoints:\n  - {{workload_id: service-a, tenant: t, pod_uid: pod-a, generation: 1, workload_ip: 127.0.0.21, \
         backend: {{vsock_cid: {CID_SERVICE_A}}}, ports: [], state: ready, boot_token: {token}}}\n"
    );
    let config = format!(
        "[node]\nid = \"node-1\"\nmode = \"dev\"\nworkers = 1\n[endpoints]\nfile = \"endpoints.yaml\"\n\
         [policy]\nbundle = \"bundle.tar.gz\"\nkeys = \"keys.json\"\nstore = \"store\"\n[identity]\nsource = \"dev\"\n\
         [guests]\nroot = \"guests\"\nvsock = true\nhost_port = {PORT}\n[routes]\nmode = \"none\"\n\
         [audit]\nfile = \"audit.jsonl\"\n[admin]\nsocket = \"admin.sock\"\n"
    );
    let folder = Path::new(FOLDER);
    fs::DirBuilder::new().mode(0o700).create(folder)?;
    fs::write(folder.join("endpoints.yaml"), endpoints)?;
    fs::write(folder.join("supervisor.toml"), config)?;
    fs::write(folder.join("keys.json"), "{}")?;
    let out = fs::File::create(log())?;
    Command::new("/nova/nova-supervisor")
        .args(["run", "--config", "supervisor.toml"])
        .current_dir(folder)
        .stdout(out.try_clone()?)
        .stderr(out)
        .kill_on_drop(true)
        .spawn()
        .context("the supervisor")
}

fn log() -> std::path::PathBuf {
    Path::new(FOLDER).join("log")
}
