//! A WebSocket that a rule grants: the request passes as HTTP, and what follows the 101 of the other side is copied both ways,
//! under the same permit and as one `open` and one `close` in the audit log.

use std::rc::Rc;

use http::Response;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::call::{Call, CallerLeft, Switched};
use super::{Ready, Side};
use crate::audit::Record;
use crate::conn::Cut;
use crate::conn::body::ReplyBody;
use crate::conn::reply::refusal;
use crate::copy::{self, Answered, Bounds};
use crate::decide::until_revoked;
use crate::gate::io::GatedIo;
use crate::net::stream::Prefixed;
use crate::reason::Reason;
use crate::state::pace::Pace;
use crate::tokens::Fault;

/// Sends a granted request to the other side and gives its answer; after a 101, `call` keeps what goes on.
pub(super) async fn answer(
    side: &impl Side,
    ready: Ready,
    call: &Call,
    caller: OnUpgrade,
) -> Result<Response<ReplyBody>, CallerLeft> {
    let Ready { permit, forward, record, form, asked, .. } = ready;
    let meter = Rc::clone(&forward.meter);
    let open = async |record: &mut Record| side.open(&permit, record).await;
    let (answer, caller) = match copy::upgrade(forward, record, open).await {
        Ok(Answered::Switched { response, callee, record }) => {
            call.switched.replace(Some(Switched { caller, callee, permit, record }));
            return Ok(response);
        }
        Ok(Answered::Declined(answer)) => (answer, caller),
        Err((mut record, reason)) => {
            let reason = call.blame(&mut record, reason, &meter)?;
            (refusal(&mut record, reason, asked.map(|asked| asked.text()).as_deref(), form), caller)
        }
    };
    call.stays(caller);
    Ok(answer)
}

/// Copies until one side ends, or until nothing allows it any more.
pub(super) async fn carry(side: &impl Side, switched: Switched, cut: &mut Cut) -> Reason {
    let Switched { caller, callee, permit, mut record } = switched;
    let Some(caller) = parts(caller).await else {
        record.close(Reason::Reset);
        callee.abort().await;
        return Reason::Reset;
    };
    record.write_open();
    let bounds = Bounds {
        up: Pace::new(side.endpoint(), side.way()),
        down: Pace::new(side.endpoint(), side.way().back()),
        idle: side.spec().limits.stream_idle,
    };
    let ended = async {
        tokio::select! {
            biased;
            reason = until_revoked(cut, side.decider(), &permit) => reason,
            reason = side.until_outdated(&permit) => reason,
        }
    };
    let outcome = copy::both_ways(caller, callee, bounds, ended).await;
    record.bytes(outcome.from_caller, outcome.to_caller);
    record.close(outcome.close);
    if outcome.close == Reason::TokenInvalid {
        record.detail(Fault::Expired.as_str());
    }
    outcome.close
}

/// The caller's connection as hyper gives it back, with what it has sent behind its request.
async fn parts(caller: OnUpgrade) -> Option<Prefixed> {
    let parts = caller.await.ok()?.downcast::<TokioIo<GatedIo<Prefixed>>>().ok()?;
    let (stream, held) = parts.io.into_inner().into_parts();
    let (unread, stream) = stream.into_parts();
    // In the order in which they came: hyper read first, then the gate held, then the prefix was left.
    Some(Prefixed::new([parts.read_buf, held, unread].concat().into(), stream))
}
