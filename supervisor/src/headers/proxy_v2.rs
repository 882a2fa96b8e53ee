//! The PROXY protocol, version 2: what a port that carries bytes tells its app of the caller, in front of the first byte.
//!
//! ```text
//! signature (12) | 0x21 | family | length u16 | source, destination: addresses, then ports | TLVs
//! TLV: type u8 | length u16 | value
//!   0x01 ALPN, 0x02 SNI                    what the client asked for, if it did
//!   0x20 SSL: flags u8 | verify u32 = 0    0x01 TLS, 0x06 with a certificate of the client, which was verified
//!        0x21 version | 0x22 CN | 0x28 the client's certificate, DER
//!   0xE7 the caller's SPIFFE ID
//! ```
//! The order and the content are those of Ghostunnel's `tls-full`, so that an app behind it reads the same here; 0xE7 is
//! ours and comes last. A port without TLS sends the addresses alone.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const PROXY: u8 = 0x21;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

const ALPN: u8 = 0x01;
const AUTHORITY: u8 = 0x02;
const SSL: u8 = 0x20;
const SSL_VERSION: u8 = 0x21;
const SSL_CN: u8 = 0x22;
const SSL_CLIENT_CERT: u8 = 0x28;
/// Of the range for sites (0xE0 to 0xEF): nobody else's as far as is known.
const SPIFFE_ID: u8 = 0xE7;

const CLIENT_SSL: u8 = 0x01;
/// On this connection and in this session: there is no resumption, so both are true.
const CLIENT_CERT: u8 = 0x02 | 0x04;

/// What is known of a caller's TLS.
#[derive(Debug, Clone, Copy)]
pub struct Tls<'a> {
    /// As people write it: `TLS 1.3`.
    pub version: &'a str,
    /// What both sides agreed on; empty if nothing.
    pub alpn: &'a [u8],
    /// Name that the client asked for; empty if none.
    pub server_name: &'a str,
    /// The client's verified certificate, DER.
    pub certificate: Option<&'a [u8]>,
    /// Common name in it; empty if it has none.
    pub common_name: &'a str,
    /// The identity in it.
    pub spiffe_id: Option<&'a str>,
}

/// More than the format can say: 65,535 bytes behind its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client's certificate is too long for a PROXY header")]
pub struct TooLong;

/// The header for a connection from `source` that arrived at `destination`.
///
/// # Errors
/// [`TooLong`], with a certificate that no real caller has.
pub fn header(source: SocketAddr, destination: SocketAddr, tls: Option<&Tls<'_>>) -> Result<Vec<u8>, TooLong> {
    let (family, mut body) = addresses(source, destination);
    if let Some(tls) = tls {
        if !tls.alpn.is_empty() {
            tlv(&mut body, ALPN, tls.alpn)?;
        }
        if !tls.server_name.is_empty() {
            tlv(&mut body, AUTHORITY, tls.server_name.as_bytes())?;
        }
        tlv(&mut body, SSL, &ssl(tls)?)?;
        if let Some(id) = tls.spiffe_id {
            tlv(&mut body, SPIFFE_ID, id.as_bytes())?;
        }
    }
    let length = u16::try_from(body.len()).map_err(|_| TooLong)?;
    let mut header = SIGNATURE.to_vec();
    header.extend([PROXY, family]);
    header.extend(length.to_be_bytes());
    header.extend(body);
    Ok(header)
}

fn addresses(source: SocketAddr, destination: SocketAddr) -> (u8, Vec<u8>) {
    let ports = [source.port().to_be_bytes(), destination.port().to_be_bytes()].concat();
    match (source.ip().to_canonical(), destination.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => (TCP4, [&from.octets()[..], &to.octets(), &ports].concat()),
        (from, to) => (TCP6, [&v6(from).octets()[..], &v6(to).octets(), &ports].concat()),
    }
}

fn v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn ssl(tls: &Tls<'_>) -> Result<Vec<u8>, TooLong> {
    let certificate = if tls.certificate.is_some() { CLIENT_CERT } else { 0 };
    let mut value = vec![CLIENT_SSL | certificate, 0, 0, 0, 0];
    tlv(&mut value, SSL_VERSION, tls.version.as_bytes())?;
    if let Some(der) = tls.certificate {
        if !tls.common_name.is_empty() {
            tlv(&mut value, SSL_CN, tls.common_name.as_bytes())?;
        }
        tlv(&mut value, SSL_CLIENT_CERT, der)?;
    }
    Ok(value)
}

fn tlv(to: &mut Vec<u8>, kind: u8, value: &[u8]) -> Result<(), TooLong> {
    let length = u16::try_from(value.len()).map_err(|_| TooLong)?;
    to.push(kind);
    to.extend(length.to_be_bytes());
    to.extend(value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GHOSTUNNEL: &str = include_str!("proxy_v2/ghostunnel.txt");

    fn theirs(name: &str) -> Vec<u8> {
        let line = GHOSTUNNEL.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        hex::decode(line.expect("a line of that name")).expect("hex")
    }

    fn ours(v6: bool, tls: Option<&Tls<'_>>) -> Vec<u8> {
        let (from, to) =
            if v6 { ("[fd00::21]:40000", "[fd00::70]:443") } else { ("10.64.3.21:40000", "10.64.3.70:443") };
        header(from.parse().expect("an address"), to.parse().expect("an address"), tls).expect("short enough")
    }

    fn plain() -> Tls<'static> {
        Tls { version: "TLS 1.3", alpn: b"", server_name: "", certificate: None, common_name: "", spiffe_id: None }
    }

    // covers: C7a
    #[test]
    fn every_byte_is_the_one_that_ghostunnel_sends() {
        let (with_cn, without_cn) = (theirs("cert_cn"), theirs("cert_no_cn"));
        let named = Tls { server_name: "service-a.t.nova", ..plain() };
        let mtls = Tls { certificate: Some(&with_cn), common_name: "x", ..named };
        assert_eq!(ours(false, None), theirs("conn_v4"));
        assert_eq!(ours(true, None), theirs("conn_v6"));
        assert_eq!(ours(false, Some(&mtls)), theirs("mtls_cn_v4"));
        assert_eq!(ours(true, Some(&Tls { certificate: Some(&without_cn), ..plain() })), theirs("mtls_v6"));
        assert_eq!(ours(false, Some(&Tls { alpn: b"h2", ..mtls })), theirs("mtls_alpn_v4"));
        assert_eq!(ours(false, Some(&Tls { version: "TLS 1.2", ..named })), theirs("tls12_v4"));
    }

    // covers: C7a
    #[test]
    fn the_identity_is_the_last_tlv_and_changes_nothing_before_it() {
        let certificate = theirs("cert_cn");
        let mtls = Tls { certificate: Some(&certificate), common_name: "x", ..plain() };
        let without = ours(false, Some(&mtls));
        let with = ours(false, Some(&Tls { spiffe_id: Some("spiffe://nova.test/t/t/w/x"), ..mtls }));
        let tail = [&[0xE7, 0, 26][..], b"spiffe://nova.test/t/t/w/x"].concat();
        assert_eq!(with[16..], [&without[16..], &tail].concat());
        assert_eq!(with[14..16], u16::try_from(with.len() - 16).expect("short").to_be_bytes());
    }

    #[test]
    fn a_mapped_caller_is_an_ipv4_one_and_a_mixed_pair_is_told_as_ipv6() {
        let to = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let mapped = header(to("[::ffff:10.64.3.21]:40000"), to("10.64.3.70:443"), None);
        assert_eq!(mapped.expect("short"), theirs("conn_v4"));
        let mixed = header(to("10.64.3.21:1"), to("[fd00::70]:2"), None).expect("short");
        assert_eq!((mixed[13], mixed.len()), (TCP6, 52));
    }

    // covers: C7a
    #[test]
    fn a_certificate_that_does_not_fit_is_refused_instead_of_cut() {
        let with = |length: usize| {
            let certificate = vec![0; length];
            let tls = Tls { certificate: Some(&certificate), ..plain() };
            header(([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into(), Some(&tls))
        };
        // 12 bytes of addresses, 3 of the SSL TLV's head, 5 of its own, 10 of its version, 3 of the certificate's head.
        assert_eq!(with(65_502).map(|header| header.len()), Ok(16 + 65_535));
        for length in [65_503, 65_536, 70_000] {
            assert_eq!(with(length), Err(TooLong), "{length}");
        }
    }

    /// Type and value of each TLV in `bytes`; what is left over is an error.
    fn read_tlvs(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let mut all = Vec::new();
        while let [kind, high, low, rest @ ..] = bytes {
            let (value, rest) = rest.split_at(usize::from(u16::from_be_bytes([*high, *low])));
            all.push((*kind, value.to_vec()));
            bytes = rest;
        }
        assert!(bytes.is_empty(), "{bytes:?}");
        all
    }

    proptest! {
        // covers: C13a
        #[test]
        fn fuzz_smoke_what_is_written_is_read_again(
            ports in any::<(u16, u16)>(),
            alpn in prop::collection::vec(any::<u8>(), 0..40),
            server_name in ".{0,40}",
            certificate in prop::option::of(prop::collection::vec(any::<u8>(), 0..2000)),
            common_name in ".{0,40}",
            spiffe_id in prop::option::of(".{0,60}"),
        ) {
            let tls = Tls {
                version: "TLS 1.3", alpn: &alpn, server_name: &server_name, certificate: certificate.as_deref(),
                common_name: &common_name, spiffe_id: spiffe_id.as_deref(),
            };
            let bytes = header(([10, 0, 0, 1], ports.0).into(), ([10, 0, 0, 2], ports.1).into(), Some(&tls))
                .expect("short");
            prop_assert_eq!(usize::from(u16::from_be_bytes([bytes[14], bytes[15]])), bytes.len() - 16);
            let tlvs = read_tlvs(&bytes[28..]);
            let value = |kind: u8| tlvs.iter().find(|(is, _)| *is == kind).map(|(_, value)| value.clone());
            prop_assert_eq!(value(0x01).unwrap_or_default(), alpn.clone());
            prop_assert_eq!(value(0x02).unwrap_or_default(), server_name.as_bytes());
            prop_assert_eq!(value(0xE7), spiffe_id.as_ref().map(|id| id.as_bytes().to_vec()));
            let ssl = value(0x20).expect("always there");
            prop_assert_eq!(ssl[0], if certificate.is_some() { 7 } else { 1 });
            let inner = read_tlvs(&ssl[5..]);
            let sub = |kind: u8| inner.iter().find(|(is, _)| *is == kind).map(|(_, value)| value.clone());
            prop_assert_eq!(sub(0x28), certificate.clone());
        }
    }
}
