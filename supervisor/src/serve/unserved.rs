//! Requests that came and were never looked at, because their connection ended in the same moment: they are decided no more, but
//! each has its line.

use std::rc::Rc;

use http::Method;

use super::{Call, Side};
use crate::conn::body::InFlight;
use crate::reason::Reason;

/// The finer reason of such a request.
const UNSERVED: &str = "unserved";

/// A request that is there. Dropped before it begins, it writes its line.
pub(super) struct Arrived<'a, S: Side> {
    side: &'a S,
    in_flight: Rc<InFlight>,
    method: Method,
    has_begun: bool,
}

impl<'a, S: Side> Arrived<'a, S> {
    pub(super) fn new(side: &'a S, call: &Call, method: &Method) -> Self {
        Self { side, in_flight: call.in_flight(), method: method.clone(), has_begun: false }
    }

    /// Whoever serves it writes its line.
    pub(super) fn begin(mut self) {
        self.has_begun = true;
    }
}

impl<S: Side> Drop for Arrived<'_, S> {
    fn drop(&mut self) {
        if !self.has_begun {
            let close = self.in_flight.cut_by().unwrap_or(Reason::Aborted);
            record(self.side, close, self.method.as_str());
        }
    }
}

/// The line of a request that is known of by its frames alone; `close` is how its connection ended.
pub(super) fn record_dropped(side: &impl Side, close: Reason) {
    record(side, close, "");
}

fn record(side: &impl Side, close: Reason, method: &str) {
    let mut record = side.record();
    record.request(method, "");
    record.deny(match close {
        // The connection's end, or its fault: nothing that was said of this request.
        Reason::Done | Reason::Reset | Reason::IdleTimeout | Reason::Malformed => Reason::Aborted,
        ours => ours,
    });
    record.detail(UNSERVED);
    record.close(close);
}
