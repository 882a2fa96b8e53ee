//! Any bytes as a bundle: nothing is accepted without a key, and what is read unverified never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nova_policy::bundle::{dangerous_unverified, inspect, verify};
use nova_policy::{VerifyKeys, VerifyOptions};

fuzz_target!(|data: &[u8]| {
    let keys = VerifyKeys::default();
    let options =
        VerifyOptions { keys: &keys, key_id: None, scope: "node-1", now: 0, stale_grace: 0, newer_than: None };
    assert!(verify(data, &options).is_err());
    let _ = inspect(data);
    if let Ok(bundle) = dangerous_unverified(data) {
        let _ = nova_policy::Policy::load(bundle);
    }
});
