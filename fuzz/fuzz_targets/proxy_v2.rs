//! Any caller: what the PROXY v2 header says of it is what a reader of the format finds in it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nova_supervisor::headers::proxy_v2::{Tls, header};

fuzz_target!(|input: (u16, u16, &[u8], &str, Option<&[u8]>, &str, Option<&str>)| {
    let (from, to, alpn, server_name, certificate, common_name, spiffe_id) = input;
    let tls = Tls { version: "TLS 1.3", alpn, server_name, certificate, common_name, spiffe_id };
    let Ok(bytes) = header(([10, 0, 0, 1], from).into(), ([10, 0, 0, 2], to).into(), Some(&tls)) else { return };
    assert_eq!(usize::from(u16::from_be_bytes([bytes[14], bytes[15]])), bytes.len() - 16);
    let tlvs = read(&bytes[28..]);
    let find = |tlvs: &[(u8, Vec<u8>)], kind| tlvs.iter().find(|(is, _)| *is == kind).map(|(_, value)| value.clone());
    assert_eq!(find(&tlvs, 0x01).unwrap_or_default(), alpn);
    assert_eq!(find(&tlvs, 0x02).unwrap_or_default(), server_name.as_bytes());
    assert_eq!(find(&tlvs, 0xE7), spiffe_id.map(|id| id.as_bytes().to_vec()));
    let inner = read(&find(&tlvs, 0x20).expect("always there")[5..]);
    assert_eq!(find(&inner, 0x28), certificate.map(<[u8]>::to_vec));
});

fn read(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut all = Vec::new();
    while let [kind, high, low, rest @ ..] = bytes {
        let (value, rest) = rest.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        all.push((*kind, value.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty());
    all
}
