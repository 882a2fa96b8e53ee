//! The guest link over AF_VSOCK, for real: both ends of it in one virtual machine, over the kernel's loopback transport.
//!
//! ```text
//! virtual machine: nova-init --> nova-relay (host_cid 1: the loopback's name for "the other end")
//!                            \-> this program, which plays the app and, with the supervisor's own code, the supervisor
//!   supervisor part, host port 15001  <== AF_VSOCK ==  nova-relay  <-- TCP --  app part
//!   supervisor part                   == AF_VSOCK ==>  nova-relay, guest port 15080  -- TCP -->  app part
//! ```
//!
//! Each check is one line of JSON on the console, `{"check":..,"ok":..,"detail":..,"ms":..}`, and a last line counts them.
//! `tests/tests/vsock.rs` boots the machine and reads them.

mod app;
mod arrivals;
mod from_guest;
mod stand;
mod to_guest;
mod whole;

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use self::arrivals::Arrivals;
use self::stand::{HOST_PORT, Stand};

/// Word on the kernel's command line without which nothing is tried: AF_VSOCK of a real machine is not ours to open.
const PERMISSION: &str = "nova.vsock_check";
/// Longest time for one check, under an emulator beside a busy compiler.
const LIMIT: Duration = Duration::from_secs(25);

/// Runs every check; whether all of them hold.
///
/// # Errors
/// When this is not the machine for it or the checks cannot start.
pub fn run() -> anyhow::Result<bool> {
    let command_line = std::fs::read_to_string("/proc/cmdline").context("/proc/cmdline")?;
    if !command_line.split_whitespace().any(|word| word == PERMISSION) {
        bail!("this runs only in the virtual machine that `cargo test -p nova-tests --test vsock` boots");
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run_all())
}

async fn run_all() -> anyhow::Result<bool> {
    let stand = Stand::from_environment()?;
    let apps = app::start().await?;
    let mut arrivals = Arrivals::listen(HOST_PORT, stand.table())?;
    let mut report = Report::default();
    from_guest::checks(&mut report, &stand, &mut arrivals).await;
    to_guest::checks(&mut report, &stand, apps).await;
    whole::checks(&mut report, &stand).await;
    println!("{}", serde_json::json!({"done": report.checks, "failed": report.failed}));
    Ok(report.failed == 0)
}

/// What a check found out, for people.
type Outcome = anyhow::Result<String>;

/// Says what each check showed, as soon as it is known.
#[derive(Default)]
struct Report {
    checks: usize,
    failed: usize,
}

impl Report {
    async fn check(&mut self, name: &str, what: impl Future<Output = Outcome>) {
        let start = Instant::now();
        let outcome = tokio::time::timeout(LIMIT, what).await.unwrap_or_else(|_| bail!("not done within {LIMIT:?}"));
        self.checks += 1;
        self.failed += usize::from(outcome.is_err());
        let (ok, detail) = match outcome {
            Ok(detail) => (true, detail),
            Err(error) => (false, format!("{error:#}")),
        };
        let ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        println!("{}", serde_json::json!({"check": name, "ok": ok, "detail": detail, "ms": ms}));
    }
}
