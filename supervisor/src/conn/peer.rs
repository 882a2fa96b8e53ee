//! How long a caller stays who it was: until its certificate ends, is revoked, or nobody vouches for it any more.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::event::Event;
use crate::identity::PeerIdentity;
use crate::reason::Reason;
use crate::tls::PeerVerifier;

/// A suspended machine's timers stand still while its clock goes on: the clock is looked at this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(600);

/// One caller, while its connection is open.
pub struct PeerWatch {
    identity: PeerIdentity,
    verifier: Arc<PeerVerifier>,
    trust: watch::Receiver<u64>,
    ending: bool,
}

impl PeerWatch {
    /// Trust may have changed since the handshake, so the first look is at once.
    #[must_use]
    pub fn new(identity: PeerIdentity, verifier: Arc<PeerVerifier>) -> Self {
        let mut trust = verifier.trust().watch();
        trust.mark_changed();
        Self { identity, verifier, trust, ending: false }
    }

    /// When something changes about the peer. Cancel-safe.
    pub(super) async fn next(&mut self) -> Event {
        loop {
            let now = SystemTime::now();
            let end = self.identity.not_after;
            if now >= end + self.verifier.grace() {
                return Event::PeerEnded(Reason::PeerExpired);
            }
            if now >= end && !self.ending {
                self.ending = true;
                return Event::PeerEnding(Reason::PeerExpired);
            }
            let wake = if self.ending { end + self.verifier.grace() } else { end };
            let sleep = wake.duration_since(now).unwrap_or_default().min(LONGEST_SLEEP);
            tokio::select! {
                biased;
                changed = self.trust.changed() => {
                    // Gone with the process only.
                    if changed.is_err() {
                        return Event::Closed;
                    }
                    if let Some(reason) = self.doubt() {
                        return Event::PeerEnded(reason);
                    }
                }
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// Why the peer is nobody by the trust of now. Its end is not looked at here: that has a grace.
    fn doubt(&self) -> Option<Reason> {
        let reason = self.verifier.confirm(&self.identity).err()?.reason();
        (reason != Reason::PeerExpired).then_some(reason)
    }
}
