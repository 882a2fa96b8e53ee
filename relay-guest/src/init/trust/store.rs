//! The form in which Java reads trusted certificates: PKCS#12 (RFC 7292) without password, encryption or checksum, since
//! nothing in it is secret and the folder is read-only. Written by hand: it is a nest of lengths, and libraries for it bring
//! ciphers that have no place in a guest.

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const OID: u8 = 0x06;
const BMP_TEXT: u8 = 0x1e;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// `[0] EXPLICIT`
const WRAPPED: u8 = 0xa0;

/// 1.2.840.113549.1.7.1
const DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x01];
/// 1.2.840.113549.1.12.10.1.3
const CERT_BAG: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x0c, 0x0a, 0x01, 0x03];
/// 1.2.840.113549.1.9.22.1
const X509: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x16, 0x01];
/// 1.2.840.113549.1.9.20
const FRIENDLY_NAME: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x14];
/// 2.16.840.1.113894.746875.1.1: Java trusts only certificates that carry it.
const TRUSTED_KEY_USAGE: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x86, 0xf9, 0x66, 0xad, 0xca, 0x7b, 0x01, 0x01];
/// 2.5.29.37.0
const ANY_USAGE: &[u8] = &[0x55, 0x1d, 0x25, 0x00];

/// A trust store with every certificate of a PEM text, up to the first section that is broken.
pub(super) fn pkcs12(pem: &[u8]) -> Vec<u8> {
    let certificates = CertificateDer::pem_slice_iter(pem).map_while(Result::ok);
    let bags: Vec<u8> = certificates.enumerate().flat_map(|(at, certificate)| bag(at, &certificate)).collect();
    let contents = content_info(&tlv(SEQUENCE, &[&bags]));
    let safe = content_info(&tlv(SEQUENCE, &[&contents]));
    tlv(SEQUENCE, &[&tlv(INTEGER, &[&[3]]), &safe])
}

fn content_info(data: &[u8]) -> Vec<u8> {
    tlv(SEQUENCE, &[&tlv(OID, &[DATA]), &tlv(WRAPPED, &[&tlv(OCTETS, &[data])])])
}

fn bag(at: usize, certificate: &[u8]) -> Vec<u8> {
    let value = tlv(SEQUENCE, &[&tlv(OID, &[X509]), &tlv(WRAPPED, &[&tlv(OCTETS, &[certificate])])]);
    let alias: Vec<u8> = format!("nova-{at}").encode_utf16().flat_map(u16::to_be_bytes).collect();
    let attributes =
        [attribute(FRIENDLY_NAME, &tlv(BMP_TEXT, &[&alias])), attribute(TRUSTED_KEY_USAGE, &tlv(OID, &[ANY_USAGE]))];
    tlv(SEQUENCE, &[&tlv(OID, &[CERT_BAG]), &tlv(WRAPPED, &[&value]), &tlv(SET, &[&attributes.concat()])])
}

fn attribute(kind: &[u8], value: &[u8]) -> Vec<u8> {
    tlv(SEQUENCE, &[&tlv(OID, &[kind]), &tlv(SET, &[value])])
}

/// One value of DER: tag, length, contents.
fn tlv(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
    let contents = contents.concat();
    let length = contents.len().to_be_bytes();
    let length = &length[length.iter().take_while(|byte| **byte == 0).count()..];
    let mut out = Vec::with_capacity(contents.len() + 6);
    out.push(tag);
    match (contents.len(), u8::try_from(length.len())) {
        (0, _) => out.push(0),
        (1..=0x7f, _) => out.extend_from_slice(length),
        // A length has at most eight bytes.
        (_, count) => {
            out.push(0x80 | count.unwrap_or_default());
            out.extend_from_slice(length);
        }
    }
    out.extend(contents);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_as_der_wants_them() {
        for (length, head) in [
            (0, &[OCTETS, 0][..]),
            (127, &[OCTETS, 127]),
            (128, &[OCTETS, 0x81, 128]),
            (255, &[OCTETS, 0x81, 255]),
            (256, &[OCTETS, 0x82, 1, 0]),
            (65_536, &[OCTETS, 0x83, 1, 0, 0]),
        ] {
            let value = tlv(OCTETS, &[&vec![7; length]]);
            assert_eq!(&value[..value.len() - length], head);
        }
    }

    #[test]
    fn what_is_no_certificate_is_left_out() {
        assert_eq!(pkcs12(b"no certificates"), pkcs12(b""));
        assert_eq!(pkcs12(b"")[..5], [SEQUENCE, 41, INTEGER, 1, 3]);
    }
}
