//! What an exchange is kept in while it goes on.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::Notify;

use super::Side;
use crate::audit::Record;
use crate::conn::body::{InFlight, Meter};
use crate::credentials::Fault;
use crate::decide::Permit;
use crate::gate::io::GatedIo;
use crate::gate::{GateHandle, Refusal};
use crate::net::stream::Prefixed;
use crate::reason::Reason;

/// The caller has gone in the middle of its request: nobody is there to answer, and its connection ends.
#[derive(Debug, thiserror::Error)]
#[error("the caller left in the middle of its request")]
pub struct CallerLeft;

/// One exchange after the other of an HTTP/1 connection, or the one of an HTTP/2 stream.
#[derive(Default)]
pub struct Call {
    permit: RefCell<Option<Permit>>,
    /// Whether an answer is on its way.
    pub(super) in_flight: Rc<InFlight>,
    /// Tells that the first request is there.
    pub(super) begun: Notify,
    has_begun: Cell<bool>,
    /// Knows why bytes were refused; HTTP/2 has none.
    gate: Option<GateHandle>,
    /// The gate refused the body of a request, and that request's record says so.
    refusal_recorded: Cell<bool>,
    /// Tells a stream of HTTP/2 to end.
    pub(super) cut: Notify,
    /// The other side has left HTTP: what goes on once the caller has its 101.
    pub(super) switched: RefCell<Option<Switched>>,
    /// Of the last request that asked to leave HTTP and may not.
    unwanted: RefCell<Option<OnUpgrade>>,
}

/// The other side has switched; the caller's side comes when hyper has written the 101.
pub(super) struct Switched {
    pub(super) caller: OnUpgrade,
    pub(super) callee: Prefixed,
    pub(super) permit: Permit,
    pub(super) record: Record,
}

impl Switched {
    /// Gives it up before its caller could use it.
    pub(super) async fn give_up(mut self, reason: Reason) {
        self.record.close(reason);
        self.callee.abort().await;
    }
}

impl Call {
    pub(super) fn new(side: &impl Side, gate: Option<GateHandle>) -> Self {
        Self { in_flight: Rc::new(InFlight::with_answers(side.bounds().answers.clone())), gate, ..Self::default() }
    }

    /// A request was decided: while it goes on it needs this.
    pub fn granted(&self, permit: &Permit) {
        self.permit.replace(Some(permit.clone()));
    }

    /// A request is there.
    pub(super) fn begin(&self) {
        if !self.has_begun.replace(true) {
            self.begun.notify_one();
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.get()
    }

    /// A request asked to leave HTTP and may not: hyper hands its connection out instead of closing it.
    pub fn stays(&self, handed_out: OnUpgrade) {
        self.unwanted.replace(Some(handed_out));
    }

    /// Ends a connection that hyper handed out although its caller may not leave HTTP: a plain drop could reset the last answer
    /// away. Part of the connection's own task, which keeps its place until the descriptor is gone.
    pub(super) async fn end_gently(&self) {
        let Some(handed_out) = self.unwanted.take() else { return };
        let Ok(upgraded) = handed_out.await else { return };
        if let Ok(parts) = upgraded.downcast::<TokioIo<GatedIo<Prefixed>>>() {
            // An error is the caller's own doing, and the end all the same.
            let _ = parts.io.into_inner().close().await;
        }
    }

    /// What the connection is busy with.
    #[must_use]
    pub fn in_flight(&self) -> Rc<InFlight> {
        Rc::clone(&self.in_flight)
    }

    /// What goes on rests on this.
    pub(super) fn permit_in_use(&self) -> Option<Ref<'_, Permit>> {
        let permit = self.in_flight.is_active().then(|| self.permit.borrow())?;
        Ref::filter_map(permit, Option::as_ref).ok()
    }

    /// Ends the exchange now, for this reason.
    pub(super) fn cut(&self, reason: Reason) {
        self.in_flight.cut(reason);
        self.cut.notify_one();
    }

    /// Why a request did not go: its body broke off while it was read here, or it was refused.
    pub(super) fn unsent(&self, record: &mut Record, reason: Reason, meter: &Meter) -> Result<Reason, CallerLeft> {
        if meter.broke_off() {
            return self.blame(record, reason, meter);
        }
        record.deny(reason);
        record.close(reason);
        Ok(reason)
    }

    /// Whose fault a failed exchange is: a request whose body was refused or broke off on its way did not fail at the other
    /// side.
    pub(super) fn blame(&self, record: &mut Record, reason: Reason, meter: &Meter) -> Result<Reason, CallerLeft> {
        // The gate reads ahead: what it refused may belong to a request that comes after this one.
        let by_gate = self.gate.as_ref().and_then(GateHandle::refusal).filter(|_| meter.broke_off());
        let Some(refused) = by_gate.or(meter.refusal()) else {
            match reason {
                Reason::BodyTimeout => record.deny(reason),
                Reason::CredentialNotGranted => {
                    record.deny(reason);
                    record.detail(Fault::Placeholder.as_str());
                }
                _ if meter.broke_off() => {
                    record.close(Reason::Aborted);
                    return Err(CallerLeft);
                }
                _ => record.fail(reason),
            }
            return Ok(reason);
        };
        self.refusal_recorded.set(true);
        record.deny(Reason::Malformed);
        record.detail(refused.as_str());
        record.close(Reason::Malformed);
        Ok(Reason::Malformed)
    }

    /// What the gate refused and no request's record says yet.
    pub(super) fn unrecorded_refusal(&self) -> Option<&'static str> {
        let refused = self.gate.as_ref().and_then(GateHandle::refusal);
        refused.filter(|_| !self.refusal_recorded.get()).map(Refusal::as_str)
    }
}
