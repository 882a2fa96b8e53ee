//! Many callers at once, and what they and the kernel count.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::task::JoinSet;

use super::call::Call;
use super::caller::{Caller, in_time};
use super::case::{Case, Pattern, Refused, Row};
use super::stand::Proxy;
use super::upstream::LARGE;
use super::usage;

/// Threads of the load generator.
const THREADS: usize = 2;
/// Everybody is connected and warm by then.
const WARM_UP: Duration = Duration::from_millis(700);
/// Connections that are opened at a time when many are only held.
const OPENED_AT_ONCE: usize = 50;

/// One measurement of one way.
pub(super) struct Sample {
    pub(super) count: u64,
    pub(super) errors: u64,
    seconds: f64,
    cpu: Duration,
    relay_cpu: Duration,
    pub(super) memory_kb: u64,
    /// Microseconds, sorted.
    latencies: Vec<u32>,
}

impl Sample {
    pub(super) fn rate(&self) -> f64 {
        self.count as f64 / self.seconds
    }

    /// CPU of the proxy for each.
    pub(super) fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.count.max(1) as f64
    }

    /// CPU of muxer and relay for each.
    pub(super) fn relay_us(&self) -> f64 {
        self.relay_cpu.as_secs_f64() * 1e6 / self.count.max(1) as f64
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

/// Measures one way once.
pub(super) fn measure(proxy: &Proxy, row: &Row, case: &Case, seconds: Duration) -> anyhow::Result<Sample> {
    let (call, pattern) = (Arc::new(row.call.clone()), case.pattern);
    let start = Instant::now() + WARM_UP;
    let window = Window { start, end: start + seconds };
    let relay_pids = if row.relayed { proxy.relay_pids.as_slice() } else { &[] };
    let threads: Vec<_> = (0..THREADS.min(case.callers))
        .map(|thread| {
            let call = Arc::clone(&call);
            let callers = (case.callers + thread) / THREADS.min(case.callers);
            std::thread::spawn(move || drive(&call, pattern, callers, window))
        })
        .collect();
    std::thread::sleep(window.start.saturating_duration_since(Instant::now()));
    let (from, cpu, relay) = (Instant::now(), usage::cpu(&proxy.pids)?, usage::cpu(relay_pids)?);
    std::thread::sleep(window.end.saturating_duration_since(Instant::now()));
    let cpu = usage::cpu(&proxy.pids)?.saturating_sub(cpu);
    let relay_cpu = usage::cpu(relay_pids)?.saturating_sub(relay);
    let seconds = from.elapsed().as_secs_f64();
    let memory_kb = usage::memory_kb(&proxy.pids)?;
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
    let count = all.latencies.len() as u64;
    Ok(Sample { count, errors: all.errors, seconds, cpu, relay_cpu, memory_kb, latencies: all.latencies })
}

fn drive(call: &Arc<Call>, pattern: Pattern, callers: usize, window: Window) -> anyhow::Result<Counted> {
    block_on(async {
        let mut tasks = JoinSet::new();
        for _ in 0..callers {
            tasks.spawn(keep_calling(Arc::clone(call), pattern, window));
        }
        let mut all = Counted::default();
        while let Some(counted) = tasks.join_next().await {
            all.take(counted?);
        }
        Ok(all)
    })
}

async fn keep_calling(call: Arc<Call>, pattern: Pattern, window: Window) -> Counted {
    let mut counted = Counted::default();
    while Instant::now() < window.end {
        if let Err(error) = connection(&call, pattern, window, &mut counted).await {
            counted.errors += u64::from(Instant::now() < window.end);
            counted.last_error = Some(error);
            // So that a proxy that is down does not turn into a busy loop.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    counted
}

/// One connection: until the end, or for one request.
async fn connection(call: &Call, pattern: Pattern, window: Window, counted: &mut Counted) -> anyhow::Result<()> {
    let mut begun = Instant::now();
    let mut caller = Caller::connect(call).await?;
    while begun < window.end {
        match pattern {
            Pattern::Keep | Pattern::Once => {
                let status = caller.ask(&call.request).await?;
                ensure!(status == 200, "status {status}");
                counted.add(begun, window);
            }
            Pattern::Download => {
                let (status, mut left) = in_time(caller.begin(&call.request)).await?;
                ensure!(status == 200, "status {status}");
                while left > 0 && Instant::now() < window.end {
                    begun = Instant::now();
                    in_time(caller.read_body(left.min(LARGE))).await?;
                    left = left.saturating_sub(LARGE);
                    counted.add(begun, window);
                }
            }
            Pattern::Upload => {
                caller.announce(&call.request).await?;
                while Instant::now() < window.end {
                    begun = Instant::now();
                    in_time(caller.send_body(LARGE)).await?;
                    counted.add(begun, window);
                }
            }
        }
        if pattern == Pattern::Once {
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

/// A proxy that serves everybody everything is fast for nothing.
pub(super) fn check(row: &Row, pattern: Pattern) -> anyhow::Result<()> {
    let one = async |call: &Call| Caller::connect(call).await?.ask(&call.request).await;
    block_on(async {
        if matches!(pattern, Pattern::Keep | Pattern::Once) {
            let served = one(&row.call).await.context("what the rule allows")?;
            ensure!(served == 200, "what the rule allows got {served}");
        }
        for (call, how) in &row.refused {
            match (one(call).await, how) {
                (Ok(403), Refused::Somehow) | (Err(_), _) => {}
                (Ok(status), _) => bail!("what no rule allows got {status}: {}", call.request.trim_end()),
            }
        }
        Ok(())
    })
}

/// Resident memory per connection that was used once and then waits, in kB, and the connections: a proxy keeps what it had of
/// those that are gone, so that the next ones would seem to cost nothing.
pub(super) fn idle_memory(proxy: &Proxy, call: &Call, count: usize) -> anyhow::Result<(f64, Vec<Caller>)> {
    block_on(async {
        let before = usage::memory_kb(&proxy.pids)?;
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
        let after = usage::memory_kb(&proxy.pids)?;
        Ok((after.saturating_sub(before) as f64 / count as f64, open))
    })
}

pub(super) fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}
