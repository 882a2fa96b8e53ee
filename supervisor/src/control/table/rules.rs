//! What an update may change, and the words in which it is refused.

use super::{Action, Entry, Fate, Verdict};
use crate::control::order::{Key, Order, Rejection, Wanted};
use crate::control::why::{Phase, Why};

/// What may change while a generation lives: everything but who it is and where it is; the guest only before it serves.
pub(super) fn check_in_place(entry: &Entry, order: &Order) -> Result<(), Rejection> {
    let (now, new) = (&entry.order.spec, &order.spec);
    let changed = [
        ("workload_id", now.workload != new.workload),
        ("spiffe_id", now.spiffe_id != new.spiffe_id),
        ("workload_ip", now.ip != new.ip),
        ("additional_ips", now.other_ip != new.other_ip),
        ("backend", now.backend != new.backend && entry.order.wanted != Wanted::Pending),
        ("boot_token", now.boot_token != new.boot_token && entry.order.wanted != Wanted::Pending),
    ];
    if let Some((field, _)) = changed.into_iter().find(|(_, changed)| *changed) {
        let message = format!("{field} cannot change within generation {}; send a newer generation", new.generation);
        return Err(reject(order, Why::ChangedInPlace, message));
    }
    if entry.fate != Fate::Live && order.wanted != Wanted::Draining {
        let message = format!("generation {} drains already; send a newer generation", new.generation);
        return Err(reject(order, Why::DrainingAlready, message));
    }
    if order.wanted < entry.order.wanted {
        let message = format!("generation {} was ready already and cannot become pending", new.generation);
        return Err(reject(order, Why::StateGoesBack, message));
    }
    Ok(())
}

pub(super) fn older_generation(order: &Order, known: u64) -> Rejection {
    let message = format!(
        "generation {} is older than {known}, which is known; raise it to {} or more (novalet may also send a snapshot with \
         a newer epoch, after a restore from a backup)",
        order.spec.generation,
        known.saturating_add(1),
    );
    reject(order, Why::OlderGeneration, message)
}

pub(super) fn reject(order: &Order, why: Why, message: String) -> Rejection {
    Rejection { pod: order.spec.pod_uid.to_string(), generation: order.spec.generation, why, message }
}

pub(super) fn drained(key: &Key) -> Action {
    Action::Report(Verdict {
        pod: key.pod.to_string(),
        generation: key.generation,
        phase: Phase::Drained,
        why: Why::Ordered,
        message: String::from("nothing is held"),
    })
}
