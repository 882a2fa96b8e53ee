//! How a run is shown to people.

use comfy_table::{Cell, ContentArrangement, Table};

use super::Report;
use crate::lab::files::{A, X};
use crate::lab::isolate::how_to_enter;
use crate::lab::node::{Node, step};

const WIDTH: u16 = 150;

/// The table.
pub(super) fn table(report: &Report) -> String {
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    table.set_header(["#", "call", "expected", "got", "ok", "s"]);
    for row in &report.rows {
        let cells = [row.id.to_string(), row.what.clone(), row.expected.clone(), row.got.clone()];
        let verdict = if row.ok { "yes" } else { "NO" };
        table.add_row(cells.into_iter().chain([verdict.into(), format!("{:.1}", row.seconds)]).map(Cell::new));
    }
    let good = report.rows.iter().filter(|row| row.ok).count();
    format!("{table}\n{good} of {} rows as expected, {} guests", report.rows.len(), report.guest)
}

/// What to type on a node that was left up.
pub(super) fn how_to_try(node: &mut Node) -> anyhow::Result<()> {
    if node.phase(A.pod).is_ok_and(|phase| phase != "SERVING") {
        // Row 12 took it away.
        node.novalet(&["restart", A.pod])?;
        step("starting service-a again", || node.wait_until_serving())?;
    }
    let enter = how_to_enter(node.kind);
    let (run, lab) = (node.run.display(), std::env::current_exe()?.display().to_string());
    let supervisor = node.stage.host("nova-supervisor").display().to_string();
    let guest = |workload: &str| format!("{enter} {lab} in-guest --run {run} {workload} --");
    eprintln!("\nThe node is up until Ctrl-C. In another terminal:");
    for command in [
        format!("{} curl -isS http://{}/v1/orders/42", guest(X.id), A.host()),
        format!("{} curl -isS -X DELETE http://{}/v1/orders/42", guest(X.id), A.host()),
        format!("{enter} {supervisor} connections --socket {run}/node/admin.sock"),
        format!("{enter} tail -n 3 {run}/node/audit.jsonl"),
    ] {
        eprintln!("  {command}");
    }
    Ok(())
}
