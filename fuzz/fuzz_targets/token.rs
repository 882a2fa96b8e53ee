//! A token's unverified parts and a set of keys: read without a panic, and never more than the bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nova_supervisor::tokens::{KeySet, MAX_TOKEN, Peeked};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(peeked) = Peeked::parse(bytes) {
        assert!(bytes.len() <= MAX_TOKEN && peeked.algorithm.len() <= bytes.len());
    }
    let _ = KeySet::parse("fuzz", bytes);
});
