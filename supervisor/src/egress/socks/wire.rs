//! What a SOCKS5 client says (RFC 1928 sections 3 to 5), sans-io. Who reads takes exactly as many bytes as are asked for, so
//! nothing of what follows a message is taken with it.

use std::net::{Ipv4Addr, Ipv6Addr};

/// First byte of every message.
pub const VERSION: u8 = 5;

pub(super) const GENERAL_FAILURE: u8 = 1;
pub(super) const COMMAND_NOT_SUPPORTED: u8 = 7;
const ADDRESS_TYPE_NOT_SUPPORTED: u8 = 8;

const NO_AUTHENTICATION: u8 = 0;
const CONNECT: u8 = 1;

/// What is known of the bytes of a message so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed<T> {
    /// Nothing before there are this many.
    Needs(usize),
    /// It is whole.
    Whole(T),
    /// It will not be served; the code of the reply.
    Refused(u8),
}

/// The greeting: whether the client would do without authentication, which is all that is spoken here.
#[must_use]
pub fn greeting(bytes: &[u8]) -> Parsed<bool> {
    let [version, count, methods @ ..] = bytes else { return Parsed::Needs(2) };
    if methods.len() < usize::from(*count) {
        return Parsed::Needs(2 + usize::from(*count));
    }
    Parsed::Whole(*version == VERSION && methods[..usize::from(*count)].contains(&NO_AUTHENTICATION))
}

/// The request: host and port to connect to. The host is not checked yet.
#[must_use]
pub fn request(bytes: &[u8]) -> Parsed<(String, u16)> {
    let [version, command, reserved, kind, address @ ..] = bytes else { return Parsed::Needs(4) };
    if *version != VERSION || *reserved != 0 {
        return Parsed::Refused(GENERAL_FAILURE);
    }
    let (at, len) = match (kind, address.first()) {
        (1, _) => (4, 4),
        (4, _) => (4, 16),
        (3, None) => return Parsed::Needs(5),
        (3, Some(len)) => (5, usize::from(*len)),
        _ => return Parsed::Refused(ADDRESS_TYPE_NOT_SUPPORTED),
    };
    let Some(&[high, low]) = bytes.get(at + len..at + len + 2) else { return Parsed::Needs(at + len + 2) };
    // Only now: what is refused in the middle of a message leaves the rest unread, and that resets the connection.
    if *command != CONNECT {
        return Parsed::Refused(COMMAND_NOT_SUPPORTED);
    }
    match (host(*kind, &bytes[at..at + len]), u16::from_be_bytes([high, low])) {
        (Some(host), port @ 1..) => Parsed::Whole((host, port)),
        _ => Parsed::Refused(GENERAL_FAILURE),
    }
}

fn host(kind: u8, bytes: &[u8]) -> Option<String> {
    Some(match kind {
        1 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).to_string(),
        4 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_string(),
        _ => std::str::from_utf8(bytes).ok()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What is known once nothing more is needed, and of how many bytes.
    fn read<T>(parse: impl Fn(&[u8]) -> Parsed<T>, bytes: &[u8]) -> Option<(usize, Parsed<T>)> {
        let mut len = 0;
        loop {
            match parse(bytes.get(..len)?) {
                Parsed::Needs(more) => {
                    assert!(more > len, "asks for {more} with {len}");
                    len = more;
                }
                known => return Some((len, known)),
            }
        }
    }

    // covers: D15b
    #[test]
    fn each_kind_of_address_is_read_to_its_end_and_no_further() {
        let v4 = [5, 1, 0, 1, 203, 0, 113, 9, 1, 187, 9, 9];
        assert_eq!(read(request, &v4), Some((10, Parsed::Whole(("203.0.113.9".to_owned(), 443)))));
        let name = [&[5, 1, 0, 3, 6][..], b"a.test", &[0, 80], b"GET"].concat();
        assert_eq!(read(request, &name), Some((13, Parsed::Whole(("a.test".to_owned(), 80)))));
        let v6 = [&[5, 1, 0, 4][..], &Ipv6Addr::LOCALHOST.octets(), &[0, 80]].concat();
        assert_eq!(read(request, &v6), Some((22, Parsed::Whole(("::1".to_owned(), 80)))));
        assert_eq!(read(request, &v6[..21]), None);
        assert_eq!(read(greeting, &[5, 2, 1, 0, 5]), Some((4, Parsed::Whole(true))));
        assert_eq!(read(greeting, &[5, 0, 5]), Some((2, Parsed::Whole(false))));
    }

    // covers: D15b
    #[test]
    fn what_is_not_served_is_refused_by_its_code() {
        for (bytes, code) in [
            (&[4, 1, 0, 1][..], GENERAL_FAILURE),
            (&[5, 1, 1, 1], GENERAL_FAILURE),
            (&[5, 1, 0, 2], ADDRESS_TYPE_NOT_SUPPORTED),
            (&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0], COMMAND_NOT_SUPPORTED),
            (&[5, 1, 0, 1, 1, 1, 1, 1, 0, 0], GENERAL_FAILURE),
            (&[5, 1, 0, 3, 1, 0xff, 0, 80], GENERAL_FAILURE),
        ] {
            assert_eq!(read(request, bytes), Some((bytes.len(), Parsed::Refused(code))), "{bytes:?}");
        }
    }

    proptest! {
        // covers: D15b
        #[test]
        fn fuzz_smoke_more_bytes_never_change_what_a_request_is(mut bytes in prop::collection::vec(any::<u8>(), 0..300), starts in any::<bool>()) {
            if starts && bytes.len() > 4 {
                bytes[..3].copy_from_slice(&[VERSION, CONNECT, 0]);
                bytes[3] = [1, 3, 4][usize::from(bytes[3]) % 3];
            }
            if let Some((len, known)) = read(request, &bytes) {
                prop_assert_eq!(request(&bytes), known.clone());
                if let Parsed::Whole((_, port)) = known {
                    prop_assert_eq!(&bytes[len - 2..len], &port.to_be_bytes()[..]);
                }
            }
        }
    }
}
