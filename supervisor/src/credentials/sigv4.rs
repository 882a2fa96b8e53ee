//! Signature Version 4 of AWS, in the `Authorization` field.
//!
//! `host`, `content-type` and every `x-amz-*` field are signed; other fields may change on the way. The path of S3 is escaped
//! once, that of all other services twice. Over TLS nobody but AWS needs the hash of a body: S3 takes `UNSIGNED-PAYLOAD`, so that
//! uploads pass as they come; other services want the hash, so their bodies are read first. A hash that the app sent is kept,
//! since it says nothing about who signs.

use std::collections::BTreeSet;
use std::time::SystemTime;

use aws_lc_rs::{digest, hmac};
use http::header::GetAll;
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use zeroize::Zeroizing;

use super::fault::Fault;
use super::fill;
use super::placeholder::unescaped;
use super::value::Keys;

const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
const CONTENT_HASH: HeaderName = HeaderName::from_static("x-amz-content-sha256");
/// Fields of the app's own signature.
pub(super) static REPLACED: [HeaderName; 3] = [header::AUTHORIZATION, DATE, TOKEN];
/// Payloads that are not hashed, and not signed piece by piece either.
const UNSIGNED: [&str; 2] = ["UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"];

/// What a signature says of the body: a hash in hex, or a word of AWS.
pub struct Payload(String);

impl Payload {
    /// The hash of a whole body.
    pub(super) fn of(body: &[u8]) -> Self {
        Self(sha256_hex(body))
    }
}

/// What can be said of the body before any of it has come; `None`: it must be read.
pub(super) fn payload(headers: &HeaderMap, service: &str) -> Result<Option<Payload>, Fault> {
    let said = headers.get(&CONTENT_HASH).map(HeaderValue::as_bytes).map(String::from_utf8_lossy);
    match said.as_deref() {
        Some(word) if UNSIGNED.contains(&word) || is_hash(word) => Ok(Some(Payload(word.to_owned()))),
        // A signature over each chunk, with a key that is not the one that signs the head.
        Some(_) => Err(Fault::ChunkSignatures),
        None if is_s3(service) => Ok(Some(Payload(UNSIGNED[0].to_owned()))),
        None => Ok(None),
    }
}

/// Signs a head that is ready to go otherwise. `None`: it has no form that can be signed.
pub(super) fn sign(
    head: &mut Parts,
    payload: &Payload,
    keys: &Keys,
    region: &str,
    service: &str,
    now: SystemTime,
) -> Option<()> {
    // `2015-08-30T12:36:00Z` without what separates.
    let time: String =
        humantime::format_rfc3339_seconds(now).to_string().chars().filter(|letter| !"-:".contains(*letter)).collect();
    head.headers.insert(DATE, HeaderValue::from_str(&time).ok()?);
    if let Some(session) = &keys.session {
        head.headers.insert(TOKEN, fill::secret_value(b"", session).ok()?);
    }
    if is_s3(service) {
        head.headers.insert(CONTENT_HASH, HeaderValue::from_str(&payload.0).ok()?);
    }
    let scope = format!("{}/{region}/{service}/aws4_request", time.get(..8)?);
    let (request, names) = canonical(head, payload, is_s3(service), is_signed);
    let signature = signature(&request, &time, &scope, keys, region, service)?;
    let text = format!("AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}", keys.id);
    head.headers.insert(header::AUTHORIZATION, fill::secret_value(b"", text.as_bytes()).ok()?);
    Some(())
}

fn signature(request: &str, time: &str, scope: &str, keys: &Keys, region: &str, service: &str) -> Option<String> {
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", sha256_hex(request.as_bytes()));
    let mut first = Zeroizing::new(Vec::with_capacity(4 + keys.secret.len()));
    first.extend_from_slice(b"AWS4");
    first.extend_from_slice(&keys.secret);
    let chain = [time.get(..8)?, region, service, "aws4_request", &text];
    let last = chain.into_iter().fold(first, |key, text| {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), text.as_bytes());
        Zeroizing::new(tag.as_ref().to_vec())
    });
    Some(hex::encode(&*last))
}

/// The request as both sides write it down, and the names of the signed fields. The token of a session is one of them.
fn canonical(
    head: &Parts,
    payload: &Payload,
    once: bool,
    is_signed: fn(&HeaderName) -> bool,
) -> (Zeroizing<String>, String) {
    let mut names: BTreeSet<&str> =
        head.headers.keys().filter(|name| is_signed(name)).map(HeaderName::as_str).collect();
    // HTTP/2 names the host in the target instead.
    let authority = head.uri.authority().filter(|_| !names.contains(header::HOST.as_str()));
    names.extend(authority.map(|_| header::HOST.as_str()));
    let (path, query) = (canonical_path(head.uri.path(), once), canonical_query(head.uri.query().unwrap_or_default()));
    let listed = names.iter().copied().collect::<Vec<_>>().join(";");
    // One allocation: a buffer that grows would leave copies of the token behind. A byte that is no text becomes three.
    let fields: usize = head.headers.iter().map(|(name, value)| name.as_str().len() + 3 * value.len() + 2).sum();
    let others = [head.method.as_str(), &path, &query, &listed, &payload.0, authority.map_or("", Authority::as_str)];
    let room = fields + others.iter().map(|text| text.len() + 1).sum::<usize>() + header::HOST.as_str().len() + 8;
    let mut text = Zeroizing::new(String::with_capacity(room));
    for part in [head.method.as_str(), "\n", &path, "\n", &query, "\n"] {
        text.push_str(part);
    }
    for name in names {
        text.push_str(name);
        text.push(':');
        match authority.filter(|_| name == header::HOST.as_str()) {
            Some(authority) => text.push_str(authority.as_str()),
            None => push_values(head.headers.get_all(name), &mut text),
        }
        text.push('\n');
    }
    for part in ["\n", &listed, "\n", &payload.0] {
        text.push_str(part);
    }
    debug_assert!(text.len() <= room, "it has grown");
    (text, listed)
}

/// All values of a field, each without spaces at its ends and with one for many.
fn push_values(values: GetAll<'_, HeaderValue>, text: &mut String) {
    for (at, value) in values.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        for (at, word) in String::from_utf8_lossy(value.as_bytes()).split_whitespace().enumerate() {
            if at > 0 {
                text.push(' ');
            }
            text.push_str(word);
        }
    }
}

fn canonical_path(path: &str, once: bool) -> String {
    let bytes = if once { unescaped(path.as_bytes()) } else { path.as_bytes().to_vec() };
    bytes.into_iter().fold(String::with_capacity(path.len()), |mut text, byte| {
        if byte == b'/' {
            text.push('/')
        } else {
            fill::escape(byte, &mut text)
        }
        text
    })
}

fn canonical_query(query: &str) -> String {
    let escaped = |text: &str| {
        unescaped(text.replace('+', " ").as_bytes()).into_iter().fold(String::new(), |mut text, byte| {
            fill::escape(byte, &mut text);
            text
        })
    };
    let pieces = query.split('&').filter(|piece| !piece.is_empty());
    let pairs: BTreeSet<(String, String, usize)> = pieces
        .enumerate()
        .map(|(at, piece)| {
            let (name, value) = piece.split_once('=').unwrap_or((piece, ""));
            (escaped(name), escaped(value), at)
        })
        .collect();
    pairs.iter().map(|(name, value, _)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

fn is_signed(name: &HeaderName) -> bool {
    name == header::HOST || name == header::CONTENT_TYPE || name.as_str().starts_with("x-amz-")
}

fn is_s3(service: &str) -> bool {
    service == "s3" || service.starts_with("s3-") || service == "s3express"
}

fn is_hash(word: &str) -> bool {
    word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(digest::digest(&digest::SHA256, bytes))
}

#[cfg(test)]
mod tests;
