//! Any bytes of a SOCKS5 client: nothing panics, every wish for more is one, and more bytes do not change what is known.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nova_supervisor::egress::socks::wire::{Parsed, greeting, request};

fuzz_target!(|data: &[u8]| {
    stays(greeting, data);
    stays(request, data);
});

fn stays<T: PartialEq + std::fmt::Debug>(parse: impl Fn(&[u8]) -> Parsed<T>, data: &[u8]) {
    let mut len = 0;
    while let Some(bytes) = data.get(..len) {
        match parse(bytes) {
            Parsed::Needs(more) => {
                assert!(more > len);
                len = more;
            }
            known => return assert_eq!(parse(data), known),
        }
    }
}
