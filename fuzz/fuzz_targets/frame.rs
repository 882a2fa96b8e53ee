//! Any bytes as record heads: what parses encodes to the same bytes, and a payload is never longer than the limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nova_proto::frame::{HEAD_LEN, MAX_PAYLOAD, Record};

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    while let Some((head, after)) = rest.split_first_chunk::<HEAD_LEN>() {
        let Ok(record) = Record::parse(*head) else { return };
        assert_eq!(record.encode(), *head);
        let payload = if let Record::Data(length) = record { length } else { 0 };
        assert!(payload <= MAX_PAYLOAD);
        rest = after.get(payload..).unwrap_or(&[]);
    }
});
