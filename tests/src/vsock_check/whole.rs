//! The whole supervisor, as a process, on AF_VSOCK. Loopback's CID may be no endpoint's (only 3 and more are guests'), so what
//! can be seen here is what becomes of a caller that no endpoint has.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use nova_policy::SigningKey;
use nova_policy::bundle::KeyPair;
use nova_policy::compile::{Options, SourceText};
use nova_policy::publish::{self, Publish};
use nova_proto::hello::Kind;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio_vsock::{VsockAddr, VsockStream};

use super::from_guest::hello;
use super::stand::{CID_SERVICE_A, CID_X, Stand};
use super::{Outcome, Report};

/// Its host port; the other one is taken by the checks.
const PORT: u32 = 15002;
/// Its folder.
const FOLDER: &str = "/tmp/supervisor";
/// Well below the two seconds that a guest has for its hello: who is nobody is not even listened to.
const AT_ONCE: Duration = Duration::from_millis(1500);
/// For the supervisor to serve.
const START: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);

pub(super) async fn checks(report: &mut Report, stand: &Stand) {
    report.check("the whole supervisor closes a CID that no endpoint has", nobody(stand)).await;
}

async fn nobody(stand: &Stand) -> Outcome {
    let mut supervisor = start(stand)?;
    until_it_serves(&mut supervisor).await?;
    // The endpoint's own presence would stay open.
    let presence = hello(Kind::Presence, stand.service_a.boot_token, "");
    let dialled = Instant::now();
    let mut guest = VsockStream::connect(VsockAddr::new(CID_X, PORT)).await.context("dialling")?;
    // Fails when the close was faster.
    let _ = guest.write_all(&presence).await;
    closed(&mut guest).await?;
    ensure!(supervisor.try_wait()?.is_none(), "because it ended: {}", fs::read_to_string(log())?);
    Ok(format!("closed after {:?}", dialled.elapsed()))
}

/// Until its one endpoint would be served, if it called.
async fn until_it_serves(supervisor: &mut Child) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let stage = stage().await.unwrap_or_else(|error| format!("{error:#}"));
        if ["egress only", "serving"].contains(&stage.as_str()) {
            return Ok(());
        }
        let ended = supervisor.try_wait()?.is_some();
        if ended || start.elapsed() > START {
            bail!("the supervisor does not serve ({stage}): {}", fs::read_to_string(log())?);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// What the operator's socket says of the endpoint.
async fn stage() -> anyhow::Result<String> {
    let mut admin = UnixStream::connect(Path::new(FOLDER).join("admin.sock")).await?;
    admin.write_all(b"{\"op\":\"endpoints\"}\n").await?;
    let mut answer = String::new();
    BufReader::new(admin).read_line(&mut answer).await?;
    let answer: serde_json::Value = serde_json::from_str(&answer)?;
    Ok(answer["result"][0]["stage"].as_str().with_context(|| answer.to_string())?.to_owned())
}

async fn closed(guest: &mut VsockStream) -> anyhow::Result<()> {
    match tokio::time::timeout(AT_ONCE, guest.read(&mut [0])).await {
        Err(_) => bail!("still open after {AT_ONCE:?}"),
        // An end, or a reset because the hello was not read.
        Ok(read) => ensure!(read.unwrap_or(0) == 0, "it was answered"),
    }
    Ok(())
}

/// From files alone, rootless, with one endpoint, whose CID is another.
fn start(stand: &Stand) -> anyhow::Result<Child> {
    let folder = Path::new(FOLDER);
    fs::DirBuilder::new().mode(0o700).create(folder)?;
    let token = hex::encode(stand.service_a.boot_token.0);
    let endpoints = format!(
        "endpoints:\n  - {{workload_id: service-a, tenant: t, pod_uid: pod-a, generation: 1, workload_ip: 127.0.0.21, \
         backend: {{vsock_cid: {CID_SERVICE_A}}}, ports: [], state: ready, boot_token: {token}}}\n"
    );
    publish(folder, &endpoints)?;
    fs::write(folder.join("endpoints.yaml"), endpoints)?;
    let config = format!(
        "[node]\nid = \"node-1\"\nmode = \"dev\"\nworkers = 1\n[endpoints]\nfile = \"endpoints.yaml\"\n\
         [policy]\nbundle = \"bundle.tar.gz\"\nkeys = \"keys.json\"\nstore = \"store\"\n[identity]\nsource = \"dev\"\n\
         [guests]\nroot = \"guests\"\nvsock = true\nhost_port = {PORT}\n[routes]\nmode = \"none\"\n\
         [audit]\nfile = \"audit.jsonl\"\n[admin]\nsocket = \"admin.sock\"\n"
    );
    fs::write(folder.join("supervisor.toml"), config)?;
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

/// A bundle that knows the endpoint and allows nothing.
fn publish(folder: &Path, endpoints: &str) -> anyhow::Result<()> {
    let pair = KeyPair::es256()?;
    let how = Publish {
        key: &SigningKey::from_pem(pair.private_pem.as_bytes())?,
        key_id: "k1",
        serial: 1,
        now: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
        expires_in: 3600,
    };
    let rules = SourceText { file: "rules.yaml", text: "rules: []\n" };
    let workloads = SourceText { file: "endpoints.yaml", text: endpoints };
    let options = Options { node: "node-1".into(), lab: true };
    let no_files = |file: &str| Err(std::io::Error::other(file.to_owned()));
    fs::write(folder.join("bundle.tar.gz"), publish::publish(rules, workloads, &options, &no_files, &how)?)?;
    let keys = serde_json::json!({"k1": [pair.algorithm, pair.public_pem]});
    Ok(fs::write(folder.join("keys.json"), keys.to_string())?)
}

fn log() -> std::path::PathBuf {
    Path::new(FOLDER).join("log")
}
