//! What processes have used so far, as the kernel counts it.

use std::time::Duration;

use anyhow::Context;
use nix::unistd::{SysconfVar, sysconf};

/// User and system time of all threads of these processes together.
pub(super) fn cpu(pids: &[u32]) -> anyhow::Result<Duration> {
    let ticks_per_second = sysconf(SysconfVar::CLK_TCK)?.context("CLK_TCK")?;
    let mut ticks = 0;
    for pid in pids {
        ticks += ticks_of(*pid)?;
    }
    Ok(Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64))
}

/// Resident memory of these processes together, in kB.
pub(super) fn memory_kb(pids: &[u32]) -> anyhow::Result<u64> {
    let mut sum = 0;
    for pid in pids {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
        sum += line.trim().trim_end_matches("kB").trim().parse::<u64>()?;
    }
    Ok(sum)
}

fn ticks_of(pid: u32) -> anyhow::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold anything; behind it come state and numbers: utime and stime are the 12th and 13th.
    let (_, numbers) = stat.rsplit_once(')').context("the form of /proc/PID/stat")?;
    let mut times = numbers.split_whitespace().skip(11).map(str::parse::<u64>);
    let (user, system) = (times.next().context("utime")??, times.next().context("stime")??);
    Ok(user + system)
}
