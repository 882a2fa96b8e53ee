//! Shows the node to people.

use comfy_table::Table;
use comfy_table::presets::UTF8_BORDERS_ONLY;

use super::{Ack, Status};

/// The node as text.
#[must_use]
pub fn text(status: &Status) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY);
    table.set_header(["pod", "workload", "address", "gen", "phase", "supervisor says", "why"]);
    for pod in &status.pods {
        let phase = format!("{:?}", pod.status.phase).to_lowercase();
        let said: Vec<String> = pod.acks.iter().map(answer).collect();
        table.add_row([
            pod.status.pod_uid.clone(),
            format!("{}.{}", pod.status.workload, pod.status.tenant),
            pod.status.workload_ip.clone(),
            pod.status.generation.to_string(),
            phase,
            said.join("; "),
            pod.status.reason.clone(),
        ]);
    }
    let mut lines = vec![table.to_string()];
    for slot in &status.slots {
        let state = if slot.live { "connected" } else { "away" };
        lines.push(format!(
            "supervisor slot {} ({}): {state}, applied {} of {}",
            slot.slot, slot.instance, slot.applied, status.revision
        ));
    }
    if status.slots.is_empty() {
        lines.push("no supervisor has connected yet".to_owned());
    }
    lines.extend(status.cooldown.iter().map(|(ip, left)| format!("address {ip} rests for {left} ms")));
    lines.extend(status.mistakes.iter().map(|mistake| format!("placements: {mistake}")));
    lines.join("\n")
}

fn answer(ack: &Ack) -> String {
    let phase = if ack.phase.is_empty() { "nothing yet" } else { &ack.phase };
    let why = [ack.reason.as_str(), ack.message.as_str()].into_iter().filter(|text| !text.is_empty());
    let why = why.collect::<Vec<_>>().join(": ");
    if why.is_empty() { format!("{}: {phase}", ack.slot) } else { format!("{}: {phase} ({why})", ack.slot) }
}
