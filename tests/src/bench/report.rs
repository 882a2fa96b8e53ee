//! From samples to tables.

use std::process::Command;

use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::Measured;
use super::case::Case;
use super::load::Sample;
use super::peers::Stand;

/// What everything is compared with: the first peer.
const BASE: usize = 0;
const COLUMNS: [&str; 8] =
    ["proxy", "requests/s", "p50 ms", "p99 ms", "CPU us/request", "CPU ratio [rounds]", "RSS MB", "errors"];

/// The whole outcome.
#[derive(Serialize)]
pub(super) struct Report {
    date: String,
    machine: String,
    versions: Vec<String>,
    seconds: u64,
    cases: Vec<CaseRows>,
    idle: Vec<Idle>,
}

#[derive(Serialize)]
struct CaseRows {
    case: Case,
    title: String,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    proxy: &'static str,
    rps: f64,
    p50_ms: f64,
    p99_ms: f64,
    cpu_us: f64,
    /// CPU of muxer and relay per request, in addition.
    relay_us: f64,
    /// CPU per request divided by that of the first peer in the same round: the median, the least and the most.
    ratio: [f64; 3],
    memory_mb: f64,
    errors: u64,
}

#[derive(Serialize)]
struct Idle {
    proxy: &'static str,
    kb_per_connection: f64,
}

impl Report {
    pub(super) fn new(
        stand: &Stand,
        measured: &[Measured],
        idle: Vec<(&'static str, f64)>,
        seconds: u64,
    ) -> anyhow::Result<Self> {
        let names: Vec<_> = stand.peers().iter().map(|peer| peer.name).collect();
        let cases = measured.iter().map(|measured| CaseRows {
            case: measured.case,
            title: measured.case.to_string(),
            rows: names.iter().enumerate().map(|(peer, name)| Row::new(name, &measured.samples, peer)).collect(),
        });
        Ok(Self {
            date: today()?,
            machine: machine()?,
            versions: stand.versions.clone(),
            seconds,
            cases: cases.collect(),
            idle: idle.into_iter().map(|(proxy, kb_per_connection)| Idle { proxy, kb_per_connection }).collect(),
        })
    }

    /// For a terminal.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n", self.machine);
        for case in &self.cases {
            let mut table = table(case);
            table.load_style(presets::UTF8_BORDERS_ONLY);
            text.push_str(&format!("\n{}\n{table}\n", case.title));
        }
        for idle in &self.idle {
            text.push_str(&format!("idle connection: {} {:.1} kB\n", idle.proxy, idle.kb_per_connection));
        }
        text
    }

    /// For `docs/benchmarks.md`.
    pub(super) fn markdown(&self) -> String {
        let mut text = format!(
            "# Benchmarks\n\nWritten by `cargo xtask bench ingress`; run it on your machine rather than believe these.\n\n\
             - date: {}\n- machine: {}\n- {}\n- rounds of {} s per proxy, all proxies in one rotation; medians\n\n{ABOUT}\n",
            self.date,
            self.machine,
            self.versions.join("\n- "),
            self.seconds
        );
        for case in &self.cases {
            let mut table = table(case);
            table.load_style(presets::ASCII_MARKDOWN);
            text.push_str(&format!("## {}\n\n{table}\n\n", case.title));
        }
        if !self.idle.is_empty() {
            text.push_str(
                "## Memory of an idle connection\n\n1000 connections, one request on each, then nothing.\n\n",
            );
            for idle in &self.idle {
                text.push_str(&format!("- {}: {:.1} kB\n", idle.proxy, idle.kb_per_connection));
            }
        }
        text
    }
}

const ABOUT: &str = "\
64 callers (16 for 1 MiB answers) with TLS 1.3 and P-256 client certificates, no resumption; callers, proxy and app share \
the same cores, so requests/s are context and CPU per request is the figure. Every proxy has two threads, was seen to serve \
the caller that its rule names, and to refuse another caller and a certificate of another CA.

- HAProxy: client certificate required, ACL on its CN and on the method, no log, no header added.
- nova: the caller's SPIFFE ID, the request gate, canonical path, one decision per request (signed bundle, Rego), identity \
headers replaced, one audit line per request in a file; the bench fails when a line is missing.
- CPU is user and system time of the proxy's process, all threads. *guest link*: the app itself answers the link's hello, \
so there is one hop as with HAProxy. *through nova-relay*: an emulated muxer and the real relay in between, with framing; \
their CPU comes on top and is given behind the plus.
- ratio: CPU per request divided by that of HAProxy over a Unix socket in the same round; the median, and the range.
- RSS: one process serves both nova rows, one both HAProxy rows.
";

impl Row {
    fn new(proxy: &'static str, samples: &[Vec<Sample>], peer: usize) -> Self {
        let of = |value: &dyn Fn(&Sample) -> f64| median(samples[peer].iter().map(value).collect());
        let mut ratios: Vec<f64> =
            samples[peer].iter().zip(&samples[BASE]).map(|(sample, base)| sample.cpu_us() / base.cpu_us()).collect();
        ratios.sort_by(f64::total_cmp);
        let (least, most) = (ratios.first().copied(), ratios.last().copied());
        Self {
            proxy,
            rps: of(&Sample::rps),
            p50_ms: of(&|sample| sample.percentile_ms(50)),
            p99_ms: of(&|sample| sample.percentile_ms(99)),
            cpu_us: of(&Sample::cpu_us),
            relay_us: of(&Sample::relay_us),
            ratio: [median(ratios), least.unwrap_or(f64::NAN), most.unwrap_or(f64::NAN)],
            memory_mb: of(&|sample| sample.memory_kb as f64 / 1024.0),
            errors: samples[peer].iter().map(|sample| sample.errors).sum(),
        }
    }

    fn cells(&self) -> [String; 8] {
        let relay = if self.relay_us > 0.0 { format!(" + {:.1}", self.relay_us) } else { String::new() };
        let [middle, least, most] = self.ratio;
        [
            self.proxy.to_owned(),
            format!("{:.0}", self.rps),
            format!("{:.2}", self.p50_ms),
            format!("{:.2}", self.p99_ms),
            format!("{:.1}{relay}", self.cpu_us),
            format!("{middle:.2} [{least:.2}-{most:.2}]"),
            format!("{:.0}", self.memory_mb),
            self.errors.to_string(),
        ]
    }
}

fn table(case: &CaseRows) -> Table {
    let mut table = Table::new();
    table.set_header(COLUMNS);
    for row in &case.rows {
        table.add_row(row.cells());
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn today() -> anyhow::Result<String> {
    let output = crate::lab::spawn::run(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn machine() -> anyhow::Result<String> {
    let cpus = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = cpus.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
    let cores = std::thread::available_parallelism()?;
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").context("osrelease")?;
    Ok(format!("{}, {cores} cores, Linux {}", model.map_or("unknown CPU", |(_, name)| name), kernel.trim()))
}
