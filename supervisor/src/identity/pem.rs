//! PEM in and out. Key material stays in buffers that are overwritten when they are dropped.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::{Zeroize, Zeroizing};

use super::IdentityError;

/// All certificates of a PEM text, in order; at least one.
pub(super) fn certificates(what: &str, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let refuse = |problem: String| IdentityError::Pem { what: what.to_owned(), section: "certificate", problem };
    let found: Vec<_> =
        CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>().map_err(|error| refuse(error.to_string()))?;
    if found.is_empty() { Err(refuse("no 'BEGIN CERTIFICATE' section".to_owned())) } else { Ok(found) }
}

/// The one PKCS#8 key of a PEM text.
pub(super) fn private_key(what: &str, text: &[u8]) -> Result<Zeroizing<Vec<u8>>, IdentityError> {
    // The parser's error may quote a line of the text, which is a secret here.
    let refuse = || IdentityError::Pem {
        what: what.to_owned(),
        section: "private key",
        problem: "no well-formed 'BEGIN PRIVATE KEY' section".to_owned(),
    };
    let mut key = PrivatePkcs8KeyDer::from_pem_slice(text).map_err(|_| refuse())?;
    let bytes = Zeroizing::new(key.secret_pkcs8_der().to_vec());
    key.zeroize();
    Ok(bytes)
}

/// A key that is overwritten when it is dropped.
pub(super) struct Secret(pub(super) PrivateKeyDer<'static>);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// The one key of a PEM text, in any of the forms in which CAs hand them out: PKCS#8, PKCS#1 or SEC 1.
pub(super) fn any_private_key(what: &str, text: &[u8]) -> Result<Secret, IdentityError> {
    PrivateKeyDer::from_pem_slice(text).map(Secret).map_err(|_| IdentityError::Pem {
        what: what.to_owned(),
        section: "private key",
        problem: "no well-formed 'BEGIN ... PRIVATE KEY' section".to_owned(),
    })
}

/// One PEM section. The buffer is sized first, so that no growth leaves a copy behind.
pub(super) fn encode(label: &str, der: &[u8]) -> Zeroizing<String> {
    const LINE_BYTES: usize = 48;
    let mut text = Zeroizing::new(String::with_capacity(der.len() * 3 / 2 + 2 * label.len() + 64));
    text.push_str(&format!("-----BEGIN {label}-----\n"));
    for line in der.chunks(LINE_BYTES) {
        let mut encoded = Zeroizing::new([0u8; LINE_BYTES / 3 * 4]);
        // A chunk always fits its line, and base64 is ASCII: neither branch can fail.
        if let Ok(length) = STANDARD.encode_slice(line, encoded.as_mut_slice()) {
            text.push_str(std::str::from_utf8(encoded.get(..length).unwrap_or_default()).unwrap_or_default());
        }
        text.push('\n');
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read_again() {
        for length in [1usize, 47, 48, 49, 200] {
            let der: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let text = encode("CERTIFICATE", &der);
            assert_eq!(certificates("t", text.as_bytes()).expect("own output"), vec![CertificateDer::from(der)]);
        }
    }

    #[test]
    fn a_broken_key_is_not_quoted() {
        let text = b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0!!!\n-----END PRIVATE KEY-----\n";
        let error = private_key("x.key", text).expect_err("not base64");
        assert!(!format!("{error} {error:?}").contains("c2Vj"));
    }
}
