//! The last few chains that each data-plane thread has verified.
//!
//! [`identify`] is pure, so its answer can be kept: the handshake's check is then not repeated when the identity is asked for
//! right after it, nor when the same peer connects again. Per thread, hence without a lock. Only positive answers are kept,
//! so that strangers can push nothing out.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use aws_lc_rs::digest;
use rustls::pki_types::{CertificateDer, UnixTime};

use crate::identity::{IdentifyError, PeerIdentity, TrustBundles, Usage, identify};

/// Peers that are in their handshake or come back, per thread; a linear search of this many hashes is far below 1 us.
const KEPT: usize = 64;
/// How long the end of an intermediate's or a root's validity may go unseen. The leaf's own end is looked at each time.
const KEPT_SECONDS: u64 = 30;

struct Known {
    input: [u8; 32],
    usage: Usage,
    bundles: Arc<TrustBundles>,
    since: u64,
    peer: PeerIdentity,
}

thread_local! {
    static RECENT: RefCell<VecDeque<Known>> = const { RefCell::new(VecDeque::new()) };
}

/// [`identify`], with an answer from memory if the very same question was answered a moment ago.
pub(super) fn identify_recent(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    bundles: &Arc<TrustBundles>,
    usage: Usage,
    now: UnixTime,
) -> Result<PeerIdentity, IdentifyError> {
    let input = hash(leaf, intermediates);
    let known = RECENT.with_borrow(|recent| {
        let fits = |known: &&Known| {
            known.input == input && known.usage == usage && Arc::ptr_eq(&known.bundles, bundles) && is_fresh(known, now)
        };
        recent.iter().rev().find(fits).map(|known| known.peer.clone())
    });
    if let Some(peer) = known {
        return Ok(peer);
    }
    let peer = identify(leaf, intermediates, bundles, usage, now)?;
    remember(Known { input, usage, bundles: Arc::clone(bundles), since: now.as_secs(), peer: peer.clone() }, now);
    Ok(peer)
}

fn remember(new: Known, now: UnixTime) {
    RECENT.with_borrow_mut(|recent| {
        // Stale entries would keep old bundles in memory.
        recent.retain(|known| is_fresh(known, now));
        if recent.len() >= KEPT {
            recent.pop_front();
        }
        recent.push_back(new);
    });
}

/// A clock that went back makes an entry stale, too.
fn is_fresh(known: &Known, now: UnixTime) -> bool {
    let age = now.as_secs().checked_sub(known.since);
    let in_time = UNIX_EPOCH + Duration::from_secs(now.as_secs()) < known.peer.not_after;
    in_time && age.is_some_and(|age| age <= KEPT_SECONDS)
}

/// Of every byte of the question; the lengths keep two chains from sounding alike.
fn hash(leaf: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>]) -> [u8; 32] {
    let mut hash = digest::Context::new(&digest::SHA256);
    for der in std::iter::once(leaf).chain(intermediates) {
        hash.update(&(der.len() as u64).to_be_bytes());
        hash.update(der);
    }
    let mut out = [0; 32];
    out.copy_from_slice(hash.finish().as_ref());
    out
}
