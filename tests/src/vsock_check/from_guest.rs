//! What a guest dials: who it is comes from the kernel, whatever it says.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, VsockAddr, bind, socket};
use nova_proto::hello::{Hello, Kind};
use nova_proto::ids::BootToken;
use nova_supervisor::guestlink::{GuestStream, HelloFailure, VsockListener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_vsock::VsockStream;

use super::arrivals::Arrivals;
use super::stand::{CID_SERVICE_A, CID_X, HOST_PORT, Stand};
use super::{Outcome, Report};

/// The relay's proxy port.
const PROXY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 3128);
/// The relay's port for the dependency `db.t.nova:5432`.
const DEPENDENCY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 0, 1, 1), 5432);
/// How long a guest may say nothing; a little more, because this machine is slow.
const SILENCE: std::ops::Range<Duration> = Duration::from_millis(1900)..Duration::from_secs(8);

pub(super) async fn checks(report: &mut Report, stand: &Stand, arrivals: &mut Arrivals) {
    report.check("the supervisor's port can be taken only once", async { taken_once() }).await;
    report.check("the relay's presence arrives as the peer's CID", presence(arrivals)).await;
    report.check("a proxy connection arrives as the peer's CID and keeps half-close", proxy(arrivals)).await;
    report.check("a dependency connection names what it wants, not who wants it", dependency(arrivals)).await;
    report.check("a hello that names another workload is still the peer's", other_name(stand, arrivals)).await;
    report.check("another endpoint's boot token is refused as the peer's", other_token(stand, arrivals)).await;
    report.check("a hello that only the host may send is refused", hosts_hello(stand, arrivals)).await;
    report.check("bytes that are no hello are refused", garbage(arrivals)).await;
    report.check("a guest that says nothing is closed after two seconds", silence(arrivals)).await;
    report.check("dialling the host by its other CID changes nobody's identity", other_way(stand, arrivals)).await;
    report.check("a process cannot choose the CID that it dials from", async { chosen_cid() }).await;
}

fn taken_once() -> Outcome {
    match VsockListener::bind(HOST_PORT) {
        Ok(_) => anyhow::bail!("bound twice"),
        Err(error) => ensure!(error.kind() == std::io::ErrorKind::AddrInUse, "{error}"),
    }
    Ok("address in use".into())
}

/// Closed by us, the relay comes again.
async fn presence(arrivals: &mut Arrivals) -> Outcome {
    drop(arrivals.of_x(Kind::Presence, "").await?);
    let again = arrivals.of_x(Kind::Presence, "").await.context("after the first was closed")?;
    arrivals.keep(again);
    Ok(format!("peer CID {CID_X}, twice"))
}

async fn proxy(arrivals: &mut Arrivals) -> Outcome {
    let app = TcpStream::connect(PROXY).await?;
    let stream = arrivals.of_x(Kind::Proxy, "").await?;
    converse(app, stream).await
}

async fn dependency(arrivals: &mut Arrivals) -> Outcome {
    let app = TcpStream::connect(DEPENDENCY).await?;
    let stream = arrivals.of_x(Kind::Dependency, "db.t.nova:5432").await?;
    converse(app, stream).await
}

/// The supervisor answers only after the app has ended its side: a link without half-close loses the answer.
async fn converse(mut app: TcpStream, mut stream: GuestStream) -> Outcome {
    stream.write_all(b"first").await?;
    let mut first = [0; 5];
    app.read_exact(&mut first).await?;
    app.write_all(b"question").await?;
    app.shutdown().await?;
    let (mut question, mut answer) = (Vec::new(), Vec::new());
    stream.read_to_end(&mut question).await?;
    stream.write_all(b"late answer").await?;
    stream.shutdown().await?;
    app.read_to_end(&mut answer).await?;
    let seen = (&first[..], question.as_slice(), answer.as_slice());
    ensure!(seen == (&b"first"[..], &b"question"[..], &b"late answer"[..]), "{seen:?}");
    Ok(format!("peer CID {CID_X}, answered after the end"))
}

async fn other_name(stand: &Stand, arrivals: &mut Arrivals) -> Outcome {
    let target = "service-a.t.nova:443";
    let _guest = dial(CID_X, &hello(Kind::Dependency, stand.x.boot_token, target)).await?;
    arrivals.of_x(Kind::Dependency, target).await?;
    Ok("decided as x".into())
}

async fn other_token(stand: &Stand, arrivals: &mut Arrivals) -> Outcome {
    let _guest = dial(CID_X, &hello(Kind::Proxy, stand.service_a.boot_token, "")).await?;
    arrivals.next().await?.is_refused(HelloFailure::Token)?;
    Ok("x with a stale token".into())
}

async fn hosts_hello(stand: &Stand, arrivals: &mut Arrivals) -> Outcome {
    let _guest = dial(CID_X, &hello(Kind::Tcp, stand.x.boot_token, "8080")).await?;
    arrivals.next().await?.is_refused(HelloFailure::Bad)?;
    Ok("refused".into())
}

async fn garbage(arrivals: &mut Arrivals) -> Outcome {
    let mut guest = dial(CID_X, b"GET http://service-a.t.nova/ HTTP/1.1\r\n\r\n").await?;
    arrivals.next().await?.is_refused(HelloFailure::Bad)?;
    let mut answer = Vec::new();
    // A close before everything was read is a reset.
    let _ = guest.read_to_end(&mut answer).await;
    ensure!(answer.is_empty(), "answered {answer:?}");
    Ok("closed without an answer".into())
}

async fn silence(arrivals: &mut Arrivals) -> Outcome {
    let mut guest = dial(CID_X, b"NOVR").await?;
    let arrival = arrivals.next().await?;
    arrival.is_refused(HelloFailure::Bad)?;
    ensure!(SILENCE.contains(&arrival.after), "after {:?}", arrival.after);
    ensure!(guest.read(&mut [0]).await.unwrap_or(0) == 0, "answered");
    Ok(format!("after {:?}", arrival.after))
}

/// CID 2 is the host, and without a host transport also this machine: the caller stays who it is.
async fn other_way(stand: &Stand, arrivals: &mut Arrivals) -> Outcome {
    let host = nix::libc::VMADDR_CID_HOST;
    let _guest = dial(host, &hello(Kind::Proxy, stand.x.boot_token, "")).await?;
    arrivals.of_x(Kind::Proxy, "").await?;
    Ok(format!("peer CID {CID_X}"))
}

fn chosen_cid() -> Outcome {
    for cid in [CID_SERVICE_A, nix::libc::VMADDR_CID_HOST] {
        let socket = socket(AddressFamily::Vsock, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        let bound = bind(socket.as_raw_fd(), &VsockAddr::new(cid, 20_000));
        ensure!(bound == Err(Errno::EADDRNOTAVAIL), "binding CID {cid}: {bound:?}");
    }
    Ok("address not available".into())
}

pub(super) fn hello(kind: Kind, token: BootToken, target: &str) -> Vec<u8> {
    let hello = Hello { kind, framed: false, token: token.0, target: target.to_owned() };
    // What does not fit becomes nothing, which no check takes for a hello.
    hello.encode().unwrap_or_default()
}

async fn dial(cid: u32, first: &[u8]) -> anyhow::Result<VsockStream> {
    let mut stream = VsockStream::connect(tokio_vsock::VsockAddr::new(cid, HOST_PORT)).await.context("dialling")?;
    stream.write_all(first).await?;
    Ok(stream)
}
