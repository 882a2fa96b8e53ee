//! What `[interception]` may hold.

use std::time::Duration;

use super::document::Document;
use super::{InterceptionConfig, value};

/// Longer than pods live, in most clusters. A pod that outlives it must be restarted.
const POD_CA_LIFE: Duration = Duration::from_hours(90 * 24);
/// Less would end before the app of a pod has made its first call.
const MIN_POD_CA_LIFE: Duration = Duration::from_hours(1);

pub(super) fn interception(document: &Document<'_>) -> InterceptionConfig {
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
    if lifetime < MIN_POD_CA_LIFE {
        section.refuse(
            "lifetime",
            "is shorter than an hour",
            "write \"90d\": a pod that outlives it must be restarted",
        );
    }
    section.finish();
    InterceptionConfig { intermediate: chain.zip(key), lifetime }
}
