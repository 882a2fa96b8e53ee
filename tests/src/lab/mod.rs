//! The stage: private namespaces, a network with an outside, certificates, and a node that is built from the real binaries.
//!
//! ```text
//! outside 10.64.98.10 ---- world 10.64.98.1 | 10.64.99.1 ---- 10.64.99.2 node (supervisor, novalet-ref)
//! (knows nothing of us)    .53 DNS  .80 stripe  .90 tcp-first  10.64.3.0/26: the workloads' addresses
//! ```
//!
//! Everything lives in one process-id and one mount namespace whose first process is the lab itself: when it ends, however
//! it ends, the kernel ends the rest, and namespaces, routes and mounts go with their last process.

pub mod files;
pub mod guest;
pub mod isolate;
pub mod net;
pub mod node;
pub mod pki;
pub mod spawn;
pub mod stage;
pub mod world;

use std::time::{Duration, Instant};

/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(30);

/// Waits until `look` gives something, at most `limit`.
///
/// # Errors
/// When the time is over, with `what` and the last reason why not; at once when a process of the lab has ended.
pub fn wait_for<T>(what: &str, limit: Duration, mut look: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        match look() {
            Ok(value) => return Ok(value),
            Err(error) if error.is::<spawn::Ended>() => return Err(error),
            Err(error) if start.elapsed() > limit => {
                return Err(error.context(format!("{what}: not within {} s", limit.as_secs())));
            }
            Err(_) => std::thread::sleep(POLL),
        }
    }
}
