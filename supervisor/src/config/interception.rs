//! What `[interception]` may hold.

use std::time::Duration;

use super::document::Document;
use super::{InterceptionConfig, value};

/// Longer than programs run, in most clusters. One that has read its store once and outlives it must be restarted.
const POD_CA_LIFE: Duration = Duration::from_hours(90 * 24);
/// Less would end before the app of a pod has made its first call.
const MIN_POD_CA_LIFE: Duration = Duration::from_hours(1);
/// To see a renewal in a lab.
const MIN_IN_DEV: Duration = Duration::from_secs(1);

pub(super) fn interception(document: &Document<'_>, dev: bool) -> InterceptionConfig {
    let mut section = document.optional_section("interception");
    let mut file = |key| section.optional(key, value::path).map(|path| section.path(path));
    let (chain, key) = (file("chain"), file("key"));
    match (section.has("chain"), section.has("key")) {
        (true, false) => section.refuse("chain", "stands alone", "add key, the intermediate's, PEM, mode 0400 or 0600"),
        (false, true) => {
            section.refuse("key", "stands alone", "add chain, the intermediate first and its root last, PEM")
        }
        _ => {}
    }
    let lifetime = section.optional("lifetime", value::duration).unwrap_or(POD_CA_LIFE);
    if lifetime < if dev { MIN_IN_DEV } else { MIN_POD_CA_LIFE } {
        section.refuse(
            "lifetime",
            "is shorter than an hour",
            "write \"90d\": a program that reads its store once works for half of it at least",
        );
    }
    section.finish();
    InterceptionConfig { intermediate: chain.zip(key), lifetime }
}
