//! Any bytes as the begin of a tunnel: once something is known of them, more bytes do not change it, however they are cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nova_supervisor::egress::first::{Verdict, kind};

fuzz_target!(|data: &[u8]| {
    let whole = kind(data);
    let mut known = None;
    for end in 1..=data.len() {
        let verdict = kind(&data[..end]);
        match &known {
            Some(known) => assert_eq!(&verdict, known, "at {end}"),
            None if verdict != Verdict::Incomplete => known = Some(verdict),
            None => {}
        }
    }
    assert_eq!(known.unwrap_or(Verdict::Incomplete), if data.is_empty() { Verdict::Incomplete } else { whole });
});
