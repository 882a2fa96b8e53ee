//! What the supervisor dials: the relay's answers, whole streams, and nobody being there.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::errno::Errno;
use nova_proto::hello::Status;
use nova_proto::ids::BootToken;
use nova_supervisor::guestlink::{DialError, GuestStream, open};
use nova_supervisor::state::endpoint::{EndpointSpec, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use super::app::{Apps, CLOSED, ECHO, ENDS_FIRST, GREETING, UNDECLARED};
use super::stand::{CID_NOBODY, CID_X, GUEST_PORT, Stand, UNUSED_PORT, relay_on};
use super::{Outcome, Report};

/// Bytes each way.
const VOLUME: usize = 8 << 20;
/// Connections at once.
const BURST: usize = 200;
/// "At once", in a slow machine; the kernel's own time-out is 2 s.
const AT_ONCE: Duration = Duration::from_millis(1500);
/// Guest port of the relay that waits for CID 2.
const STRICT_PORT: u32 = 15090;

pub(super) async fn checks(report: &mut Report, stand: &Stand, mut apps: Apps) {
    report
        .check("a port that the guest does not declare is absent", answer(&stand.x, UNDECLARED, Status::Absent))
        .await;
    report.check("a port on which the app does not listen is refused", answer(&stand.x, CLOSED, Status::Refused)).await;
    let stale = EndpointSpec { boot_token: BootToken([0x33; 16]), ..stand.x.clone() };
    report.check("a wrong boot token is denied", answer(&stale, ECHO, Status::Denied)).await;
    report.check("a relay closes a peer that is not its host", strict_relay(stand)).await;
    let unused = refused_at_once(UNUSED_PORT, CID_X, stand, Errno::ECONNRESET);
    report.check("a port on which no relay listens fails at once", unused).await;
    let nobody = refused_at_once(GUEST_PORT, CID_NOBODY, stand, Errno::ENODEV);
    report.check("a CID that no guest has fails at once", nobody).await;
    report.check("the server speaks first and 8 MiB go each way, then the end", echo(stand)).await;
    report.check("the app ends its side first and still gets everything", app_ends_first(stand, &mut apps)).await;
    report.check("200 connections at once are all served", burst(stand)).await;
}

async fn answer(spec: &EndpointSpec, port: u16, wanted: Status) -> Outcome {
    match open(&relay_on(GUEST_PORT), spec, &Target::Tcp(port)).await {
        Err(DialError::Status(status)) if status == wanted => Ok(format!("{status:?}")),
        Err(error) => Err(error.into()),
        Ok(_) => bail!("opened"),
    }
}

async fn dial(stand: &Stand, port: u16) -> anyhow::Result<GuestStream> {
    let mut stream = open(&relay_on(GUEST_PORT), &stand.x, &Target::Tcp(port)).await?;
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting).await.context("the app's first bytes")?;
    ensure!(greeting == GREETING, "greeted with {greeting:?}");
    Ok(stream)
}

async fn echo(stand: &Stand) -> Outcome {
    let stream = dial(stand, ECHO).await?;
    let (mut read, mut write) = tokio::io::split(stream);
    let sent: Vec<u8> = (0..=250).cycle().take(VOLUME).collect();
    let mut received = Vec::with_capacity(VOLUME + 8);
    let start = Instant::now();
    tokio::try_join!(
        async {
            write.write_all(&sent).await?;
            write.shutdown().await
        },
        read.read_to_end(&mut received)
    )?;
    let count = received.split_off(VOLUME.min(received.len()));
    ensure!(received == sent, "{} bytes came back, or other ones", received.len());
    ensure!(count == (VOLUME as u64).to_be_bytes(), "after our end came {count:?}");
    Ok(format!("{VOLUME} bytes each way in {:?}", start.elapsed()))
}

async fn app_ends_first(stand: &Stand, apps: &mut Apps) -> Outcome {
    let mut stream = dial(stand, ENDS_FIRST).await?;
    ensure!(stream.read(&mut [0]).await? == 0, "no end came");
    stream.write_all(&vec![7; VOLUME]).await?;
    stream.shutdown().await?;
    let counted = apps.counted.recv().await.context("the app is gone")?;
    ensure!(counted == VOLUME, "the app got {counted} bytes");
    Ok(format!("{counted} bytes after the app's end"))
}

async fn burst(stand: &Stand) -> Outcome {
    let mut dials = JoinSet::new();
    for _ in 0..BURST {
        let spec = stand.x.clone();
        dials.spawn(async move { open(&relay_on(GUEST_PORT), &spec, &Target::Tcp(ECHO)).await });
    }
    let mut streams = Vec::new();
    while let Some(opened) = dials.join_next().await {
        streams.push(opened?.with_context(|| format!("after {} others", streams.len()))?);
    }
    for stream in &mut streams {
        let mut greeting = [0; GREETING.len()];
        stream.read_exact(&mut greeting).await?;
        ensure!(greeting == GREETING, "greeted with {greeting:?}");
    }
    Ok(format!("{} connections", streams.len()))
}

async fn refused_at_once(port: u32, cid: u32, stand: &Stand, wanted: Errno) -> Outcome {
    let start = Instant::now();
    let opened = open(&relay_on(port), &stand.x_at(cid), &Target::Tcp(ECHO)).await;
    let took = start.elapsed();
    match opened {
        Err(DialError::Transport(error)) => {
            ensure!(error.raw_os_error() == Some(wanted as i32), "{error}");
            ensure!(took < AT_ONCE, "only after {took:?}");
            Ok(format!("{wanted} after {took:?}"))
        }
        Err(error) => Err(error.into()),
        Ok(_) => bail!("opened"),
    }
}

/// Everything fits but the caller: the loopback is CID 1, and this relay waits for CID 2.
async fn strict_relay(stand: &Stand) -> Outcome {
    let _relay = start_strict_relay(&stand.x).await?;
    match open(&relay_on(STRICT_PORT), &stand.x, &Target::Tcp(ECHO)).await {
        Err(DialError::Transport(error)) => {
            use std::io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected, UnexpectedEof};
            let closed = [UnexpectedEof, ConnectionReset, BrokenPipe, NotConnected].contains(&error.kind());
            ensure!(closed, "it failed, but with {error}");
            Ok(format!("closed without a status byte ({error})"))
        }
        Err(error) => Err(error.into()),
        Ok(_) => bail!("opened"),
    }
}

async fn start_strict_relay(spec: &EndpointSpec) -> anyhow::Result<Child> {
    let config = serde_json::json!({
        "boot_token": hex::encode(spec.boot_token.0), "link": {"vsock": {"host_cid": 2}}, "host_ports": [UNUSED_PORT],
        "guest_port": STRICT_PORT, "framed": false, "proxy_port": 3129, "ingress": [{"tcp": ECHO}],
    });
    let mut relay = Command::new("/nova/nova-relay")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("the second relay")?;
    relay.stdin.take().context("a pipe")?.write_all(config.to_string().as_bytes()).await?;
    let mut ready = [0; 6];
    relay.stdout.as_mut().context("a pipe")?.read_exact(&mut ready).await.context("the second relay is not ready")?;
    Ok(relay)
}
