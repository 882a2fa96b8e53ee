//! Many callers at once, and what they and the kernel count.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::task::JoinSet;

use super::caller::{Call, Caller};
use super::callers::Callers;
use super::case::Case;
use super::peers::Peer;
use super::usage;

/// Threads of the load generator.
const THREADS: usize = 2;
/// Everybody is connected and warm by then.
const WARM_UP: Duration = Duration::from_millis(700);
/// Connections that are opened at a time when many are only held.
const OPENED_AT_ONCE: usize = 50;

/// One measurement of one peer.
pub(crate) struct Sample {
    pub(super) requests: u64,
    pub(super) errors: u64,
    seconds: f64,
    cpu: Duration,
    relay_cpu: Duration,
    pub(super) memory_kb: u64,
    /// Microseconds, sorted.
    latencies: Vec<u32>,
}

impl Sample {
    pub(super) fn rps(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

    /// CPU of the proxy per request.
    pub(super) fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.requests.max(1) as f64
    }

    /// CPU of muxer and relay per request.
    pub(super) fn relay_us(&self) -> f64 {
        self.relay_cpu.as_secs_f64() * 1e6 / self.requests.max(1) as f64
    }

    pub(super) fn percentile_ms(&self, percent: usize) -> f64 {
        let at = (self.latencies.len() * percent / 100).min(self.latencies.len().saturating_sub(1));
        f64::from(self.latencies.get(at).copied().unwrap_or(0)) / 1000.0
    }
}

/// The time that counts.
#[derive(Clone, Copy)]
struct Window {
    start: Instant,
    end: Instant,
}

#[derive(Default)]
struct Counted {
    latencies: Vec<u32>,
    errors: u64,
    last_error: Option<anyhow::Error>,
}

/// Measures one peer once.
pub(super) fn measure(peer: &Peer, callers: &Callers, case: Case, seconds: Duration) -> anyhow::Result<Sample> {
    let call = Call::new(peer, &callers.x, case)?;
    let start = Instant::now() + WARM_UP;
    let window = Window { start, end: start + seconds };
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let call = call.clone();
            std::thread::spawn(move || drive(&call, case, case.connections() / THREADS, window))
        })
        .collect();
    std::thread::sleep(window.start.saturating_duration_since(Instant::now()));
    let (from, cpu, relay) = (Instant::now(), usage::cpu(&peer.pids)?, usage::cpu(&peer.relay_pids)?);
    std::thread::sleep(window.end.saturating_duration_since(Instant::now()));
    let cpu = usage::cpu(&peer.pids)?.saturating_sub(cpu);
    let relay_cpu = usage::cpu(&peer.relay_pids)?.saturating_sub(relay);
    let seconds = from.elapsed().as_secs_f64();
    let memory_kb = usage::memory_kb(&peer.pids)?;
    let mut all = Counted::default();
    for thread in threads {
        let counted = thread.join().map_err(|_| anyhow::anyhow!("a thread of the load generator broke"))??;
        all.take(counted);
    }
    if all.latencies.is_empty() {
        let error = all.last_error.unwrap_or_else(|| anyhow::anyhow!("no answer in {seconds:.1} s"));
        return Err(error.context("not a single answer"));
    }
    all.latencies.sort_unstable();
    let requests = all.latencies.len() as u64;
    Ok(Sample { requests, errors: all.errors, seconds, cpu, relay_cpu, memory_kb, latencies: all.latencies })
}

fn drive(call: &Call, case: Case, connections: usize, window: Window) -> anyhow::Result<Counted> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for _ in 0..connections {
            tasks.spawn(keep_calling(call.clone(), case == Case::NewConnection, window));
        }
        let mut all = Counted::default();
        while let Some(counted) = tasks.join_next().await {
            all.take(counted?);
        }
        Ok(all)
    })
}

async fn keep_calling(call: Call, once: bool, window: Window) -> Counted {
    let mut counted = Counted::default();
    while Instant::now() < window.end {
        if let Err(error) = connection(&call, once, window, &mut counted).await {
            counted.errors += u64::from(Instant::now() < window.end);
            counted.last_error = Some(error);
            // So that a proxy that is down does not turn into a busy loop.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    counted
}

/// One connection: until the end, or for one request.
async fn connection(call: &Call, once: bool, window: Window, counted: &mut Counted) -> anyhow::Result<()> {
    let mut begun = Instant::now();
    let mut caller = Caller::connect(call).await?;
    while begun < window.end {
        let status = caller.ask(&call.request).await?;
        ensure!(status == 200, "status {status}");
        counted.add(begun, window);
        if once {
            return Ok(());
        }
        begun = Instant::now();
    }
    Ok(())
}

impl Counted {
    /// A call counts where it ends.
    fn add(&mut self, begun: Instant, window: Window) {
        let now = Instant::now();
        if now >= window.start && now < window.end {
            self.latencies.push(u32::try_from((now - begun).as_micros()).unwrap_or(u32::MAX));
        }
    }

    fn take(&mut self, other: Self) {
        self.latencies.extend(other.latencies);
        self.errors += other.errors;
        self.last_error = other.last_error.or(self.last_error.take());
    }
}

/// A proxy that serves everybody is fast for nothing.
pub(super) fn check_refusals(peer: &Peer, callers: &Callers) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let one = async |connector| {
            let call = Call::new(peer, connector, Case::KeepAlive)?;
            Caller::connect(&call).await?.ask(&call.request).await
        };
        let served = one(&callers.x).await.context("the caller of the rule")?;
        ensure!(served == 200, "the caller of the rule got {served}");
        match one(&callers.y).await {
            Ok(403) | Err(_) => {}
            Ok(status) => bail!("a caller without a rule got {status}"),
        }
        ensure!(one(&callers.stranger).await.is_err(), "a certificate of another CA was accepted");
        Ok(())
    })
}

/// Resident memory per connection that was used once and then waits, in kB.
pub(super) fn idle_memory(peer: &Peer, callers: &Callers, count: usize) -> anyhow::Result<f64> {
    let call = Call::new(peer, &callers.x, Case::KeepAlive)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let before = usage::memory_kb(&peer.pids)?;
        let mut open = Vec::with_capacity(count);
        while open.len() < count {
            let mut tasks = JoinSet::new();
            for _ in 0..OPENED_AT_ONCE.min(count - open.len()) {
                let call = call.clone();
                tasks.spawn(async move {
                    let mut caller = Caller::connect(&call).await?;
                    let status = caller.ask(&call.request).await?;
                    ensure!(status == 200, "status {status}");
                    anyhow::Ok(caller)
                });
            }
            while let Some(caller) = tasks.join_next().await {
                open.push(caller??);
            }
        }
        let after = usage::memory_kb(&peer.pids)?;
        Ok(after.saturating_sub(before) as f64 / count as f64)
    })
}
