//! The CAs of one endpoint, oldest first, and which of them the guest has installed.
//!
//! ```text
//! asked for the first time -> made, signs at once: the guest asks before it starts the app
//! half of its life is over, or the rules name more -> the next is made -> told -> confirmed -> may sign
//! ```
//! The oldest that may signs: programs that read their store before the next one came know only that. The next one takes over
//! when the old one is about to end, and at once for names that the old one does not cover.
//!
//! Below a root that the guest has already, another CA takes over at once: nobody in the guest can tell the two apart.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;

use super::{PodCa, PodCas};
use crate::identity::IdentityError;

/// CAs that an endpoint has at most. One more takes the place of the newest, which the fewest programs have read.
const MOST: usize = 4;

/// The CAs of one endpoint; none until the guest asks what to trust.
#[derive(Default)]
pub struct PodCaCell {
    held: ArcSwap<Vec<Held>>,
    /// Held by who changes it.
    changing: Mutex<()>,
}

#[derive(Clone)]
struct Held {
    ca: Arc<PodCa>,
    installed: bool,
}

/// What ends of that which signs for an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All that the guest has confirmed is over.
    Over,
    /// The guest has no other.
    Last {
        /// Its end.
        ends: SystemTime,
    },
    /// The guest has the next one: what has started since trusts both.
    Followed {
        /// Its end.
        ends: SystemTime,
        /// When the next one was made.
        by: SystemTime,
    },
}

/// What a guest is told to trust.
pub struct Told {
    pem: String,
    cas: Vec<Arc<PodCa>>,
}

impl Told {
    /// The certificates as PEM; empty when nothing is intercepted. Public material.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }
}

impl PodCaCell {
    /// The CA that signs for `host`: the oldest one that covers it and that the guest has.
    #[must_use]
    pub fn signer(&self, host: &str, now: SystemTime) -> Option<Arc<PodCa>> {
        let held = self.held.load();
        let can = |held: &&Held| held.installed && held.ca.covers(host) && !held.ca.is_over(now);
        let fresh = held.iter().filter(can).find(|held| !held.ca.is_spent(now));
        fresh.or_else(|| held.iter().rfind(can)).map(|held| Arc::clone(&held.ca))
    }

    /// Whether any CA that is not over covers `host`, also one that the guest has not confirmed.
    #[must_use]
    pub fn may_cover(&self, host: &str, now: SystemTime) -> bool {
        self.held.load().iter().any(|held| held.ca.covers(host) && !held.ca.is_over(now))
    }

    /// Whether the newest is of the intermediate that signs now.
    #[must_use]
    pub fn is_of_now(&self, pod_cas: &PodCas) -> bool {
        self.held.load().last().is_some_and(|held| held.ca.version == pod_cas.version())
    }

    /// Makes the next CA of `workload` if it is time: there is none, the newest does not cover `names`, half of its life is
    /// over, or another intermediate signs by now. What is over goes.
    ///
    /// # Errors
    /// As [`PodCas::make`]; nothing changes then.
    pub fn renew(
        &self,
        pod_cas: &PodCas,
        workload: &str,
        names: &BTreeSet<String>,
        now: SystemTime,
    ) -> Result<(), IdentityError> {
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.held.load_full();
        let mut held: Vec<Held> = before.iter().filter(|held| !held.ca.is_over(now)).cloned().collect();
        let is_good = |held: &Held| {
            held.ca.covers_all(names) && now < held.ca.renew_after() && held.ca.version == pod_cas.version()
        };
        let is_due = !names.is_empty() && !held.last().is_some_and(is_good);
        if is_due {
            add(&mut held, pod_cas.make(workload, names, now)?);
        }
        if is_due || held.len() < before.len() {
            self.held.store(Arc::new(held));
        }
        Ok(())
    }

    /// What the guest shall trust now.
    #[must_use]
    pub fn told(&self, now: SystemTime) -> Told {
        let cas: Vec<_> =
            self.held.load().iter().map(|held| Arc::clone(&held.ca)).filter(|ca| !ca.is_over(now)).collect();
        let mut pems: Vec<String> = Vec::new();
        for ca in &cas {
            let pem = ca.trust_pem();
            if !pems.contains(&pem) {
                pems.push(pem);
            }
        }
        Told { pem: pems.concat(), cas }
    }

    /// The guest has installed what it was told.
    pub fn confirm(&self, told: &Told) {
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = Vec::clone(&self.held.load());
        for held in &mut held {
            held.installed |= told.cas.iter().any(|ca| Arc::ptr_eq(ca, &held.ca));
        }
        self.held.store(Arc::new(held));
    }

    /// When something is to be done: the next CA made, or one that is over forgotten.
    #[must_use]
    pub fn next_change(&self) -> Option<SystemTime> {
        let held = self.held.load();
        let renew = held.last().map(|held| held.ca.renew_after());
        held.iter().map(|held| held.ca.not_after()).chain(renew).min()
    }

    /// What ends, if anything does soon or has.
    #[must_use]
    pub fn ending(&self, now: SystemTime) -> Option<Ending> {
        let held = self.held.load();
        let mut installed = held.iter().filter(|held| held.installed && !held.ca.is_over(now)).map(|held| &held.ca);
        let Some(oldest) = installed.next() else { return (!held.is_empty()).then_some(Ending::Over) };
        let ends = oldest.ends_soon(now).then(|| oldest.not_after())?;
        Some(installed.next().map_or(Ending::Last { ends }, |next| Ending::Followed { ends, by: next.made() }))
    }

    /// Takes the CAs away, and their keys with them once no handshake holds them.
    pub fn clear(&self) {
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.held.store(Arc::default());
    }
}

fn add(held: &mut Vec<Held>, ca: PodCa) {
    let is_below = |held: &Held| held.ca.trust == ca.trust;
    let installed = held.is_empty() || held.iter().any(|held| held.installed && is_below(held));
    held.retain(|held| !is_below(held));
    held.truncate(MOST - 1);
    held.push(Held { ca: Arc::new(ca), installed });
}

#[cfg(test)]
mod tests;
