//! What the supervisor presents when it answers the TLS of an app in the place of a host: one leaf for each endpoint and name,
//! made when it is first asked for.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::sign::SingleCertAndKey;

use super::server::{Clients, Versions, port_config};
use crate::identity::{IdentityError, PodCa};

/// Leaves that one endpoint may hold on one thread. More names than this share the places.
const MOST: usize = 128;

/// The leaves of one data-plane thread.
#[derive(Default)]
pub struct Leaves {
    endpoints: RefCell<HashMap<usize, Endpoint>>,
}

struct Endpoint {
    ca: Weak<PodCa>,
    leaves: HashMap<String, Leaf>,
}

struct Leaf {
    config: Arc<ServerConfig>,
    renew_after: SystemTime,
}

impl Leaves {
    /// The configuration of a server that is `host` for whoever trusts `ca`: TLS 1.3 and 1.2, no resumption. `alpn` must be the
    /// same in every call.
    ///
    /// # Errors
    /// When the CA does not cover the name, or the crypto library fails.
    pub fn config(&self, ca: &Arc<PodCa>, host: &str, alpn: &[&[u8]]) -> Result<Arc<ServerConfig>, IdentityError> {
        let now = SystemTime::now();
        let mut endpoints = self.endpoints.borrow_mut();
        if !endpoints.contains_key(&key(ca)) {
            endpoints.retain(|_, endpoint| endpoint.ca.strong_count() > 0);
        }
        // As long as the weak reference is here, no other CA can have this address.
        let new = || Endpoint { ca: Arc::downgrade(ca), leaves: HashMap::new() };
        let leaves = &mut endpoints.entry(key(ca)).or_insert_with(new).leaves;
        if let Some(leaf) = leaves.get(host).filter(|leaf| now < leaf.renew_after) {
            return Ok(Arc::clone(&leaf.config));
        }
        let leaf = ca.issue(host)?;
        let certificate = Arc::new(SingleCertAndKey::from(leaf.certified_key));
        let config = port_config(certificate, Clients::Anonymous, Versions::Tls12Too, alpn)
            .map_err(|_| IdentityError::Crypto { doing: "configure TLS" })?;
        if leaves.len() >= MOST {
            drop_first_to_end(leaves);
        }
        leaves.insert(host.to_owned(), Leaf { config: Arc::clone(&config), renew_after: leaf.renew_after });
        Ok(config)
    }
}

fn key(ca: &Arc<PodCa>) -> usize {
    Arc::as_ptr(ca) as usize
}

/// All leaves live equally long, so the first to end is the oldest.
fn drop_first_to_end(leaves: &mut HashMap<String, Leaf>) {
    let first = leaves.iter().min_by_key(|(_, leaf)| leaf.renew_after).map(|(host, _)| host.clone());
    if let Some(host) = first {
        leaves.remove(&host);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::identity::PodCas;

    fn ca(name: &str) -> Arc<PodCa> {
        let names = BTreeSet::from([name.to_owned()]);
        Arc::new(PodCas::self_signed(Duration::from_secs(3600)).make("x", &names, SystemTime::now()).expect("made"))
    }

    // covers: D6b
    #[test]
    fn a_leaf_is_made_once_for_each_endpoint_and_name() {
        let (leaves, one, other) = (Leaves::default(), ca("*.test"), ca("*.test"));
        let first = leaves.config(&one, "a.test", &[]).expect("a leaf");
        assert!(Arc::ptr_eq(&first, &leaves.config(&one, "a.test", &[]).expect("a leaf")));
        assert!(!Arc::ptr_eq(&first, &leaves.config(&one, "b.test", &[]).expect("a leaf")));
        assert!(!Arc::ptr_eq(&first, &leaves.config(&other, "a.test", &[]).expect("a leaf")));
        assert!(leaves.config(&one, "a.other", &[]).is_err());
    }

    // covers: D6b
    #[test]
    fn names_without_end_take_no_memory_without_end() {
        let (leaves, one, other) = (Leaves::default(), ca("*.test"), ca("*.test"));
        let kept = leaves.config(&other, "a.test", &[]).expect("a leaf");
        for number in 0..2 * MOST {
            leaves.config(&one, &format!("n{number}.test"), &[]).expect("a leaf");
        }
        assert!(leaves.endpoints.borrow().values().all(|endpoint| endpoint.leaves.len() <= MOST));
        assert!(Arc::ptr_eq(&kept, &leaves.config(&other, "a.test", &[]).expect("a leaf")), "another endpoint's stays");
        drop(one);
        leaves.config(&ca("*.test"), "a.test", &[]).expect("a leaf");
        assert!(leaves.endpoints.borrow().len() <= 2, "a CA that is gone takes its leaves along");
    }
}
