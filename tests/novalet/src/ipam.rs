//! Addresses of the node: one pod at a time has one, and after it goes nobody gets it for a while, so that retries meant
//! for the old workload cannot land on the next one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// The pool.
#[derive(Debug)]
pub struct Ipam {
    cooldown: Duration,
    leases: Mutex<BTreeMap<IpAddr, Lease>>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Lease {
    Held(String),
    Cooling { last: String, until: Instant },
}

impl Ipam {
    /// A pool whose addresses rest for `cooldown` after each use.
    #[must_use]
    pub fn new(cooldown: Duration) -> Self {
        Self { cooldown, leases: Mutex::default(), changed: watch::Sender::new(()) }
    }

    /// Waits until `ip` is free and gives it to `pod`. The pod that had it last need not wait for the cooldown.
    pub async fn acquire(&self, ip: IpAddr, pod: &str) {
        let mut changed = self.changed.subscribe();
        loop {
            let wait = match self.try_acquire(ip, pod) {
                Ok(()) => return,
                Err(wait) => wait,
            };
            tokio::select! {
                _ = changed.changed() => {}
                () = sleep_until(wait) => {}
            }
        }
    }

    /// Takes `ip` back from `pod`, if it has it.
    /// Says whether it had it.
    pub fn release(&self, ip: IpAddr, pod: &str) -> bool {
        let mut leases = self.lock();
        let held = leases.get(&ip) == Some(&Lease::Held(pod.to_owned()));
        if held {
            leases.insert(ip, Lease::Cooling { last: pod.to_owned(), until: Instant::now() + self.cooldown });
        }
        drop(leases);
        self.changed.send_replace(());
        held
    }

    /// The addresses that rest, with the time left.
    #[must_use]
    pub fn cooling(&self) -> Vec<(IpAddr, Duration)> {
        let now = Instant::now();
        let leases = self.lock();
        let cooling = leases.iter().filter_map(|(ip, lease)| match lease {
            Lease::Cooling { until, .. } if *until > now => Some((*ip, *until - now)),
            _ => None,
        });
        cooling.collect()
    }

    /// Gives `ip` to `pod` if it is free.
    ///
    /// # Errors
    /// The time at which it will be free, if that is known.
    pub fn try_acquire(&self, ip: IpAddr, pod: &str) -> Result<(), Option<Instant>> {
        let mut leases = self.lock();
        match leases.get(&ip) {
            Some(Lease::Held(holder)) if holder != pod => return Err(None),
            Some(Lease::Cooling { last, until }) if last != pod && *until > Instant::now() => return Err(Some(*until)),
            _ => {}
        }
        leases.insert(ip, Lease::Held(pod.to_owned()));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Lease>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn sleep_until(wait: Option<Instant>) {
    match wait {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COOLDOWN: Duration = Duration::from_millis(80);

    fn ip() -> IpAddr {
        IpAddr::from([10, 64, 3, 11])
    }

    // covers: A2
    #[tokio::test]
    async fn another_pod_gets_an_address_only_after_its_cooldown() {
        let ipam = Ipam::new(COOLDOWN);
        ipam.acquire(ip(), "old").await;
        assert_eq!(ipam.try_acquire(ip(), "new"), Err(None), "still held");
        assert!(ipam.release(ip(), "old"));
        let start = Instant::now();
        ipam.acquire(ip(), "new").await;
        assert!(start.elapsed() >= COOLDOWN);
    }

    // covers: A2
    #[tokio::test]
    async fn the_same_pod_comes_back_at_once_and_a_stranger_cannot_release() {
        let ipam = Ipam::new(COOLDOWN);
        ipam.acquire(ip(), "pod").await;
        assert!(!ipam.release(ip(), "stranger"));
        assert!(ipam.cooling().is_empty());
        assert!(ipam.release(ip(), "pod"));
        assert_eq!(ipam.cooling().len(), 1);
        assert_eq!(ipam.try_acquire(ip(), "pod"), Ok(()));
    }
}
