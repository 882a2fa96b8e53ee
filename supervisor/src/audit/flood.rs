//! Denials of one thread beyond what may be written: counted, so that a flood is told exactly and fills no disk.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nova_proto::ids::PodUid;

use super::line::{Kind, Line, Verdict};
use crate::state::endpoint::EndpointSpec;

/// Denials that have no line of their own.
pub(super) struct Counted {
    pub(super) endpoint: Arc<EndpointSpec>,
    pub(super) direction: &'static str,
    pub(super) reason: &'static str,
    pub(super) count: u64,
}

impl Counted {
    /// Whether both are one sum.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let (own, others) = (&self.endpoint, &other.endpoint);
        (self.direction, self.reason) == (other.direction, other.reason)
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

/// How many denials of an endpoint were written in one second.
#[derive(Default)]
struct Written {
    second: u64,
    lines: u32,
}

impl Floods {
    /// Whether `line` is a denial beyond `budget`; then it is counted and must not be written.
    pub(super) fn counts(&mut self, line: &Line, budget: u32) -> bool {
        // What has an `open` line must have its `close`.
        if line.verdict != Verdict::Deny || !matches!(line.kind, Kind::Connection | Kind::Request) {
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
        add(&mut self.counted, Counted { endpoint, direction: line.direction, reason: line.reason, count: 1 });
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

fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}
