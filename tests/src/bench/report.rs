//! From samples to tables.

use std::process::Command;

use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::case::Case;
use super::load::Sample;
use super::{Args, What};

/// What everything is compared with: the first row.
const BASE: usize = 0;

/// The whole outcome.
#[derive(Serialize)]
pub(super) struct Report {
    what: What,
    date: String,
    machine: String,
    versions: Vec<String>,
    seconds: u64,
    rounds: usize,
    cases: Vec<CaseRows>,
    idle: Vec<Idle>,
}

#[derive(Serialize)]
struct CaseRows {
    case: &'static str,
    title: &'static str,
    unit: &'static str,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    proxy: &'static str,
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    cpu_us: f64,
    /// CPU of muxer and relay for each, in addition.
    relay_us: f64,
    /// CPU for each divided by that of the first row in the same round: the median, the least and the most.
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
        versions: Vec<String>,
        cases: &[Case],
        measured: &[Vec<Vec<Sample>>],
        idle: Vec<(&'static str, f64)>,
        args: &Args,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            what: args.what,
            date: today()?,
            machine: machine()?,
            versions,
            seconds: args.seconds,
            rounds: args.rounds,
            cases: cases.iter().zip(measured).map(|(case, samples)| CaseRows::new(case, samples)).collect(),
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
            text.push_str(&format!("idle: {} {:.1} kB\n", idle.proxy, idle.kb_per_connection));
        }
        text
    }

    /// For its section of `docs/benchmarks.md`, of which `about` says how to read it.
    pub(super) fn markdown(&self, about: &str) -> String {
        let mut text = format!(
            "- date: {}\n- machine: {}\n- {}\n- {} rounds of {} s per row, all rows of a table in one rotation; medians\n\n{about}\n",
            self.date,
            self.machine,
            self.versions.join("\n- "),
            self.rounds,
            self.seconds
        );
        for case in &self.cases {
            let mut table = table(case);
            table.load_style(presets::ASCII_MARKDOWN);
            text.push_str(&format!("### {}\n\n{table}\n\n", case.title));
        }
        if !self.idle.is_empty() {
            text.push_str(
                "### Memory of an idle connection\n\n1000 connections, one request on each, then nothing.\n\n",
            );
            for idle in &self.idle {
                text.push_str(&format!("- {}: {:.1} kB\n", idle.proxy, idle.kb_per_connection));
            }
        }
        text
    }
}

impl CaseRows {
    fn new(case: &Case, samples: &[Vec<Sample>]) -> Self {
        let rows = case.rows.iter().zip(samples).map(|(row, own)| Row::new(row.name, own, &samples[BASE]));
        Self { case: case.id, title: case.title, unit: case.pattern.unit(), rows: rows.collect() }
    }
}

impl Row {
    fn new(proxy: &'static str, samples: &[Sample], base: &[Sample]) -> Self {
        let of = |value: &dyn Fn(&Sample) -> f64| median(samples.iter().map(value).collect());
        let mut ratios: Vec<f64> =
            samples.iter().zip(base).map(|(sample, base)| sample.cpu_us() / base.cpu_us()).collect();
        ratios.sort_by(f64::total_cmp);
        let (least, most) = (ratios.first().copied(), ratios.last().copied());
        Self {
            proxy,
            per_second: of(&Sample::rate),
            p50_ms: of(&|sample| sample.percentile_ms(50)),
            p99_ms: of(&|sample| sample.percentile_ms(99)),
            cpu_us: of(&Sample::cpu_us),
            relay_us: of(&Sample::relay_us),
            ratio: [median(ratios), least.unwrap_or(f64::NAN), most.unwrap_or(f64::NAN)],
            memory_mb: of(&|sample| sample.memory_kb as f64 / 1024.0),
            errors: samples.iter().map(|sample| sample.errors).sum(),
        }
    }

    fn cells(&self) -> [String; 8] {
        let relay = if self.relay_us > 0.0 { format!(" + {:.1}", self.relay_us) } else { String::new() };
        let [middle, least, most] = self.ratio;
        [
            self.proxy.to_owned(),
            format!("{:.0}", self.per_second),
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
    let unit = case.unit;
    table.set_header([
        "proxy".to_owned(),
        format!("{unit}{}/s", if unit == "MiB" { "" } else { "s" }),
        "p50 ms".to_owned(),
        "p99 ms".to_owned(),
        format!("CPU us/{unit}"),
        "CPU ratio [rounds]".to_owned(),
        "RSS MB".to_owned(),
        "errors".to_owned(),
    ]);
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
