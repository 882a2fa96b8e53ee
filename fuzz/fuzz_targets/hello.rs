//! Any bytes as a hello: what parses encodes to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nova_proto::hello::{HEAD_LEN, parse_head};

fuzz_target!(|data: &[u8]| {
    let Some((head, target)) = data.split_first_chunk::<HEAD_LEN>() else { return };
    let Ok(head) = parse_head(head) else { return };
    let Some(target) = target.get(..head.target_len) else { return };
    if let Ok(hello) = head.with_target(target) {
        assert_eq!(hello.encode().as_deref(), Ok(&data[..HEAD_LEN + target.len()]));
    }
});
