//! Denials of one thread beyond what may be written, and the connections that served nothing else: counted, so that a flood is
//! told exactly and fills no disk.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nova_proto::ids::PodUid;

use super::line::{Kind, Line, Verdict};
use crate::state::endpoint::EndpointSpec;

/// What has no line of its own.
pub(super) struct Counted {
    pub(super) endpoint: Arc<EndpointSpec>,
    pub(super) direction: &'static str,
    pub(super) verdict: Verdict,
    pub(super) reason: &'static str,
    pub(super) count: u64,
}

impl Counted {
    /// Whether both are one sum.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let (own, others) = (&self.endpoint, &other.endpoint);
        (self.direction, self.verdict, self.reason) == (other.direction, other.verdict, other.reason)
            && own.pod_uid == others.pod_uid
            && own.generation == others.generation
    }
}

/// Adds `more` to a list that has each sum once.
pub(super) fn add(sums: &mut Vec<Counted>, more: Counted) {
    match sums.iter_mut().find(|sum| sum.is_like(&more)) {
        Some(sum) => sum.count += more.count,
        None => sums.push(more),
    }
}

/// One thread's denials, by endpoint.
#[derive(Default)]
pub(super) struct Floods {
    by_pod: HashMap<PodUid, Written>,
    counted: Vec<Counted>,
}

/// How many lines of an endpoint that nothing was allowed for were written in one second.
#[derive(Default)]
struct Written {
    second: u64,
    lines: u32,
}

impl Floods {
    /// Whether `line` is one beyond `budget` of those that a guest or a caller can have without being allowed anything; then it
    /// is counted and must not be written.
    pub(super) fn counts(&mut self, line: &Line, budget: u32) -> bool {
        if !is_of_nothing_allowed(line) {
            return false;
        }
        let second = since_1970(line.time).as_secs();
        let pod = &line.endpoint.pod_uid;
        if !self.by_pod.contains_key(pod) {
            self.by_pod.insert(pod.clone(), Written::default());
        }
        let Some(written) = self.by_pod.get_mut(pod) else { return false };
        if written.second != second {
            *written = Written { second, lines: 0 };
        }
        if written.lines < budget {
            written.lines += 1;
            return false;
        }
        let endpoint = Arc::clone(&line.endpoint);
        let (direction, verdict, reason) = (line.direction, line.verdict, line.reason);
        add(&mut self.counted, Counted { endpoint, direction, verdict, reason, count: 1 });
        true
    }

    /// How long until denials of this endpoint may be written again; none: they may now.
    pub(super) fn rest(&self, pod: &PodUid, budget: u32) -> Option<Duration> {
        let written = self.by_pod.get(pod)?;
        let now = since_1970(SystemTime::now());
        let is_over = written.second == now.as_secs() && written.lines >= budget;
        is_over.then(|| Duration::from_secs(1).saturating_sub(Duration::from_nanos(now.subsec_nanos().into())))
    }

    /// What was counted since the last time. Endpoints that are quiet again are forgotten.
    pub(super) fn take(&mut self) -> Vec<Counted> {
        let now = since_1970(SystemTime::now()).as_secs();
        self.by_pod.retain(|_, written| written.second.abs_diff(now) <= 1);
        std::mem::take(&mut self.counted)
    }

    /// Puts back what could not be handed over.
    pub(super) fn put_back(&mut self, counted: Vec<Counted>) {
        for one in counted {
            add(&mut self.counted, one);
        }
    }
}

fn is_of_nothing_allowed(line: &Line) -> bool {
    match line.kind {
        Kind::Connection => line.verdict == Verdict::Deny || (line.verdict != Verdict::Error && !line.served),
        Kind::Request => line.verdict == Verdict::Deny,
        // What has an `open` line must have its `close`.
        Kind::Open | Kind::Close | Kind::Summary => false,
    }
}

fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}
