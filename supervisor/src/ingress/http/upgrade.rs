//! A WebSocket that a rule grants: the request passes as HTTP, and what follows the 101 of the app is copied both ways, under
//! the same permit and as one `open` and one `close` in the audit log.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use http::Response;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::prepare::Ready;
use super::{Call, Connection};
use crate::audit::Record;
use crate::conn::Cut;
use crate::conn::body::ReplyBody;
use crate::conn::reply::{end_gently, refusal};
use crate::copy::{self, Answered, Bounds};
use crate::decide::{Permit, until_revoked};
use crate::gate::io::GatedIo;
use crate::net::stream::Prefixed;
use crate::reason::Reason;
use crate::state::pace::{Pace, Way};
use crate::tokens::Fault;

/// A suspended machine's timers stand still while its clock goes on: the clock is looked at this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(600);

/// The app has switched; the caller's side comes when hyper has written the 101.
pub(super) struct Switched {
    caller: OnUpgrade,
    app: Prefixed,
    permit: Permit,
    record: Record,
}

impl Connection<'_> {
    /// Sends a granted request to the app and gives its answer; after a 101, `call` keeps what goes on.
    pub(super) async fn upgrade(&self, ready: Ready, call: &Call, caller: OnUpgrade) -> Response<ReplyBody> {
        let Ready { permit, forward, record, form, .. } = ready;
        let meter = Rc::clone(&forward.meter);
        let (answer, caller) =
            match copy::upgrade(forward, record, async |_: &mut Record| self.open(&permit).await).await {
                Ok(Answered::Switched { response, callee, record }) => {
                    call.switched.replace(Some(Switched { caller, app: callee, permit, record }));
                    return response;
                }
                Ok(Answered::Declined(answer)) => (answer, caller),
                Err((mut record, reason)) => {
                    let reason = call.blame(&mut record, reason, &meter);
                    (refusal(&mut record, reason, None, form), caller)
                }
            };
        end_gently::<Prefixed>(caller);
        answer
    }

    /// Copies until one side ends, or until nothing allows it any more.
    pub(super) async fn carry(&self, switched: Switched, cut: &mut Cut) -> Reason {
        let Switched { caller, app, permit, mut record } = switched;
        let Some(caller) = parts(caller).await else {
            record.close(Reason::Reset);
            app.abort().await;
            return Reason::Reset;
        };
        record.write_open();
        let bounds = Bounds {
            up: Pace::new(&self.endpoint, Way::ToGuest),
            down: Pace::new(&self.endpoint, Way::FromGuest),
            idle: self.spec.limits.stream_idle,
        };
        let token_ends = permit.input().token().and_then(|_| self.bearer.last_until());
        let ended = async {
            tokio::select! {
                biased;
                reason = until_revoked(cut, &self.ingress.decider, &permit) => reason,
                () = until(token_ends) => Reason::TokenInvalid,
            }
        };
        let outcome = copy::both_ways(caller, app, bounds, ended).await;
        record.bytes(outcome.from_caller, outcome.to_caller);
        record.close(outcome.close);
        if outcome.close == Reason::TokenInvalid {
            record.detail(Fault::Expired.as_str());
        }
        outcome.close
    }
}

impl Switched {
    /// Gives it up before its caller could use it.
    pub(super) async fn give_up(mut self, reason: Reason) {
        self.record.close(reason);
        self.app.abort().await;
    }
}

/// The caller's connection as hyper gives it back, with what it has sent behind its request.
async fn parts(caller: OnUpgrade) -> Option<Prefixed> {
    let parts = caller.await.ok()?.downcast::<TokioIo<GatedIo<Prefixed>>>().ok()?;
    let (stream, held) = parts.io.into_inner().into_parts();
    let (unread, stream) = stream.into_parts();
    // In the order in which they came: hyper read first, then the gate held, then the prefix was left.
    Some(Prefixed::new([parts.read_buf, held, unread].concat().into(), stream))
}

async fn until(end: Option<SystemTime>) {
    let Some(end) = end else { return std::future::pending().await };
    while let Ok(left) = end.duration_since(SystemTime::now())
        && !left.is_zero()
    {
        tokio::time::sleep(left.min(LONGEST_SLEEP)).await;
    }
}
