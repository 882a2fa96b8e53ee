//! A tunnel to one destination, however it was asked for: CONNECT, SOCKS5 or a fixed dependency.

use std::time::Duration;

use nova_policy::data::EgressTarget;
use nova_policy::host::Host;
use nova_policy::input::Input;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::first::{self, Verdict};
use super::{Guest, intercept, retry, while_wanted};
use crate::audit::Record;
use crate::conn::Cut;
use crate::conn::reply::refusal_bytes;
use crate::copy::{self, Bounds};
use crate::decide::{Permit, until_revoked};
use crate::net::stream::{Prefixed, Stream};
use crate::reason::Reason;
use crate::state::pace::Pace;
use crate::state::way::Way;

/// How long an app may take to say the first word to a destination whose rules look at requests.
const FIRST_WORD: Duration = Duration::from_secs(10);

/// How long an app may take to read why its tunnel ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// What a tunnel turned out to be.
pub(super) enum Opened {
    /// A rule without an `http` block: bytes are copied.
    Opaque { permit: Permit, upstream: Stream },
    /// Only rules with an `http` block: requests are decided one by one, nothing is dialled yet.
    Inspected { host: Host, port: u16, to_workload: bool, intercept: bool },
}

/// Where the requests inside a tunnel go.
pub(super) struct Inside {
    /// Host of the tunnel.
    pub(super) host: Host,
    /// Port of the tunnel.
    pub(super) port: u16,
    /// The app speaks TLS, which we answered.
    pub(super) intercepted: bool,
}

/// Decides and, for an opaque tunnel, dials.
pub(super) async fn open(guest: &Guest, host: &Host, port: u16, record: &mut Record) -> Result<Opened, Reason> {
    record.dest(host.as_str(), port);
    let decider = &guest.egress.decider;
    let pair = Input::egress_connect(guest.spec.workload.as_str(), host, port);
    let permit = match decider.decide(pair.opaque(), record) {
        Ok(permit) => permit,
        Err(Reason::NeedsOpaqueGrant) => {
            // Opens nothing by itself: each request inside is decided before anything is dialled.
            let may_talk = decider.decide(pair, record)?;
            let targets = may_talk.policy().egress_targets(guest.spec.workload.as_str(), host, port);
            let (mut to_workload, mut intercept) = (false, false);
            for (_, target) in targets {
                to_workload |= matches!(target, EgressTarget::Workload { .. });
                intercept |= intercepts(target);
            }
            return Ok(Opened::Inspected { host: host.clone(), port, to_workload, intercept });
        }
        Err(reason) => return Err(reason),
    };
    guest.serves();
    let upstream = guest.egress.dialer.upstream(&permit, &guest.endpoint, record).await;
    let upstream = upstream.inspect_err(|reason| record.fail(*reason))?;
    Ok(Opened::Opaque { permit, upstream })
}

/// As [`open`], for a name that is not checked yet.
pub(super) async fn open_named(guest: &Guest, name: &str, port: u16, record: &mut Record) -> Result<Opened, Reason> {
    let Ok(host) = Host::parse(name) else {
        record.deny(Reason::BadDestination);
        return Err(Reason::BadDestination);
    };
    open(guest, &host, port, record).await
}

/// Carries an opaque tunnel to its end. Of an inspected one it gives back the app's side, with at least one byte of plaintext;
/// `None`: it is over, and `record` said why.
pub(super) async fn carry(
    guest: &Guest,
    opened: Opened,
    caller: Prefixed,
    mut record: Record,
) -> Option<(Prefixed, Inside)> {
    match opened {
        Opened::Opaque { permit, upstream } => {
            opaque(guest, permit, upstream, caller, record).await;
            None
        }
        Opened::Inspected { host, port, to_workload, intercept } => {
            let caller = first_word(guest, caller, &mut record).await?;
            let is_tls = caller.first().first() == Some(&first::TLS);
            let caller = if is_tls && intercept {
                intercept::terminate(guest, caller, &host, &mut record).await?
            } else {
                plaintext(guest, caller, to_workload, &mut record).await?
            };
            Some((caller, Inside { host, port, intercepted: is_tls }))
        }
    }
}

async fn opaque(guest: &Guest, permit: Permit, upstream: Stream, caller: Prefixed, mut record: Record) {
    let mut cut = Cut::watch(&guest.endpoint, &guest.egress.policy);
    record.write_open();
    let to_workload = matches!(permit.target(), Some(EgressTarget::Workload { .. }));
    let host = permit.input().dest_host().unwrap_or_default().to_owned();
    let bounds = Bounds {
        up: Pace::new(&guest.endpoint, Way::FromGuest),
        down: Pace::new(&guest.endpoint, Way::ToGuest),
        idle: guest.spec.limits.stream_idle,
    };
    let opening = retry::exchange(caller, upstream, &host, to_workload, &bounds);
    let opening = tokio::select! {
        biased;
        reason = until_revoked(&mut cut, &guest.egress.decider, &permit) => {
            guest.ended(reason);
            return record.close(reason);
        }
        opening = opening => opening,
    };
    record.bytes(opening.from_caller, opening.to_caller);
    if let Some(reason) = opening.refused {
        record.deny(reason);
        if reason == Reason::SniMismatch {
            let (detail, name) = first::fault(&opening.first);
            record.detail(detail);
            record.sni(name.as_deref().unwrap_or_default());
        }
        guest.ended(reason);
        record.close(reason);
        tokio::join!(farewell(opening.caller, reason, &mut record), opening.callee.abort());
        return;
    }
    if let Some(reason) = opening.ended {
        record.close(reason);
        guest.ended(reason);
        tokio::join!(opening.caller.abort(), opening.callee.abort());
        return;
    }
    let caller = Prefixed::new(opening.first.into(), opening.caller);
    let ended = until_revoked(&mut cut, &guest.egress.decider, &permit);
    let outcome = copy::both_ways(caller, opening.callee.into(), bounds, ended).await;
    record.bytes(outcome.from_caller, outcome.to_caller);
    record.close(outcome.close);
    guest.ended(outcome.close);
}

/// Whether the app may speak TLS that we answer. Rules of one pair agree on it.
fn intercepts(target: &EgressTarget) -> bool {
    match target {
        EgressTarget::Workload { intercept, .. } | EgressTarget::External { intercept, .. } => *intercept,
        EgressTarget::Cidr { .. } => false,
    }
}

/// Ends a tunnel in which an app said what may not pass. TLS to a workload is a mistake that its author can mend, so the app is
/// told: its TLS library fails on bytes that are no TLS, and logs, traces and some libraries show what they are.
async fn farewell(mut caller: Stream, reason: Reason, record: &mut Record) {
    if reason != Reason::AppTlsToWorkload {
        return caller.abort().await;
    }
    let text = refusal_bytes(record, reason, "TLS");
    let telling = async {
        caller.write_all(&text).await?;
        caller.shutdown().await?;
        // What the app still sends would turn the end into a reset, which overtakes the text.
        let mut unread = [0; 4096];
        while caller.read(&mut unread).await? > 0 {}
        Ok::<_, std::io::Error>(())
    };
    // Whether the app reads it is its own affair.
    let _ = tokio::time::timeout(FAREWELL, telling).await;
}

/// Waits for the app's first word.
async fn first_word(guest: &Guest, caller: Prefixed, record: &mut Record) -> Option<Prefixed> {
    let (first, mut stream) = caller.into_parts();
    let mut first = first.to_vec();
    if first.is_empty() {
        let mut buffer = vec![0; 4096];
        let reading = tokio::time::timeout(FIRST_WORD, stream.read(&mut buffer));
        match while_wanted(&guest.endpoint, reading).await {
            Some(Ok(Ok(read @ 1..))) => first.extend_from_slice(&buffer[..read]),
            Some(Ok(_)) => {
                record.close(Reason::Done);
                return None;
            }
            Some(Err(_)) => {
                record.deny(Reason::IdleTimeout);
                stream.abort().await;
                return None;
            }
            None => {
                record.close(Reason::Draining);
                guest.ended(Reason::Draining);
                stream.abort().await;
                return None;
            }
        }
    }
    Some(Prefixed::new(first.into(), stream))
}

/// Refuses what is not plaintext HTTP: rules look at requests, so bytes that nobody can read do not pass.
async fn plaintext(guest: &Guest, caller: Prefixed, to_workload: bool, record: &mut Record) -> Option<Prefixed> {
    let refused = match first::kind(caller.first()) {
        Verdict::Tls { .. } | Verdict::Incomplete if to_workload => Some(Reason::AppTlsToWorkload),
        Verdict::Tls { .. } | Verdict::Incomplete => Some(Reason::NeedsOpaqueGrant),
        Verdict::Other => None,
    };
    if let Some(reason) = refused {
        record.deny(reason);
        guest.throttle().await;
        farewell(caller.into_parts().1, reason, record).await;
        return None;
    }
    Some(caller)
}
