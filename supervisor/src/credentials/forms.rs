//! How a credential gets into a request. Everything here works on the head alone and does no I/O; where the body matters too,
//! [`Body`] says what is to be done with it.
//!
//! The order matters: what the app wrote in the credential's place goes first, then the rest is searched for placeholders,
//! then the value is put in. So no value is ever taken for a placeholder, and none is sent beside a placeholder.

mod places;

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Uri, header};
use nova_policy::data::{BodyKind, CredentialForm};
use zeroize::Zeroizing;

use super::fault::Fault;
use super::placeholder;
use super::sigv4::{self, Payload};
use super::{Held, fill};
use crate::headers::remove_spellings;

/// Longest body of an app in which placeholders are replaced, before and after that, or that is hashed for a signature.
pub const BODY_MAX: usize = 1024 * 1024;

/// Longest head in which placeholders were replaced: what may be sent of one that an app may send.
const HEAD_MAX: usize = 72 * 1024;
/// Longest target that `http` can hold.
const TARGET_MAX: usize = 65_534;

/// One credential, its form, and the moment of its use.
#[derive(Clone, Copy)]
pub struct Injection<'a> {
    /// The credential.
    pub held: &'a Held,
    /// How it is injected.
    pub form: &'a CredentialForm,
    /// The time of a signature.
    pub now: SystemTime,
}

/// What is to be done with the body before the request can go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// Nothing.
    Pass,
    /// Pass it, and break off if a placeholder comes.
    Watch,
    /// Read it whole, then [`Injection::fill`] it.
    Fill(BodyKind),
    /// Read it whole, then [`Injection::sign`] it.
    Sign,
}

impl Body {
    /// Whether nothing goes before all of it is there.
    #[must_use]
    pub fn is_read_first(self) -> bool {
        matches!(self, Self::Fill(_) | Self::Sign)
    }
}

impl Injection<'_> {
    /// Whether the value is what the form needs, and the form is one that a policy may declare.
    #[must_use]
    pub fn fits(held: &Held, form: &CredentialForm) -> bool {
        let is_header =
            |name: &String| CredentialForm::may_be_header(name) && HeaderName::from_bytes(name.as_bytes()).is_ok();
        let text = held.value.text();
        // What else a field of a header may hold is read in more than one way.
        let is_plain = text.is_some_and(|text| text.iter().all(|byte| (b' '..=b'~').contains(byte)));
        match form {
            CredentialForm::Header { header } => is_header(header) && is_plain,
            CredentialForm::Bearer => is_plain,
            CredentialForm::Query { .. } => text.is_some(),
            CredentialForm::Basic => text.is_some_and(|text| text.contains(&b':')),
            CredentialForm::Sigv4 { .. } => held.value.keys().is_some(),
            CredentialForm::Placeholder(places) => {
                places.header.iter().all(is_header) && (is_plain || places.header.is_none() && text.is_some())
            }
        }
    }

    /// Puts the credential into the head.
    ///
    /// # Errors
    /// Why the request must not go.
    pub fn into_head(&self, head: &mut Parts) -> Result<Body, Fault> {
        if !Self::fits(self.held, self.form) {
            return Err(Fault::Form);
        }
        let text = self.held.value.text().unwrap_or_default();
        match self.form {
            CredentialForm::Header { header } => {
                let name = HeaderName::from_bytes(header.as_bytes()).map_err(|_| Fault::Form)?;
                replace_field(head, name, || fill::secret_value(b"", text))
            }
            CredentialForm::Bearer => {
                replace_field(head, header::AUTHORIZATION, || fill::secret_value(b"Bearer ", text))
            }
            CredentialForm::Basic => replace_field(head, header::AUTHORIZATION, || {
                fill::secret_value(b"Basic ", Zeroizing::new(STANDARD.encode(text)).as_bytes())
            }),
            CredentialForm::Query { parameter } => replace_parameter(head, parameter, text),
            CredentialForm::Placeholder(places) => places::fill(head, places, self.held.name(), text),
            CredentialForm::Sigv4 { service, .. } => self.prepare_signature(head, service),
        }
    }

    /// The body with its placeholders replaced.
    ///
    /// # Errors
    /// A placeholder of another credential is in it, or it would be longer than [`BODY_MAX`].
    pub fn fill(&self, head: &mut Parts, kind: BodyKind, body: Vec<u8>) -> Result<Bytes, Fault> {
        let value = fill::in_body(kind, self.held.value.text().ok_or(Fault::Form)?);
        let filled = placeholder::replaced(&body, self.held.name(), &value, BODY_MAX);
        let filled = filled.map_err(|unfilled| unfilled.or(Fault::BodySize))?;
        let filled = filled.map_or_else(|| Bytes::from(body), Bytes::from_owner);
        set_length(head, filled.len());
        Ok(filled)
    }

    /// Signs the head with a body that was read whole.
    ///
    /// # Errors
    /// When there is nothing to sign with.
    pub fn sign(&self, head: &mut Parts, body: &[u8]) -> Result<(), Fault> {
        set_length(head, body.len());
        self.signed(head, &Payload::of(body))
    }

    fn signed(&self, head: &mut Parts, payload: &Payload) -> Result<(), Fault> {
        let (Some(keys), CredentialForm::Sigv4 { region, service }) = (self.held.value.keys(), self.form) else {
            return Err(Fault::Form);
        };
        sigv4::sign(head, payload, keys, region, service, self.now).ok_or(Fault::Form)
    }

    fn prepare_signature(&self, head: &mut Parts, service: &str) -> Result<Body, Fault> {
        for name in &sigv4::REPLACED {
            remove_spellings(&mut head.headers, name);
        }
        refuse_placeholders(head)?;
        match sigv4::payload(&head.headers, service)? {
            Some(payload) => self.signed(head, &payload).map(|()| Body::Pass),
            None => Ok(Body::Sign),
        }
    }
}

/// Refuses a head with a placeholder that nothing will replace.
pub(super) fn refuse_placeholders(head: &Parts) -> Result<(), Fault> {
    if placeholder::is_in_head(head).is_some() { Err(Fault::Placeholder) } else { Ok(()) }
}

fn replace_field(
    head: &mut Parts,
    name: HeaderName,
    value: impl FnOnce() -> Result<HeaderValue, Fault>,
) -> Result<Body, Fault> {
    remove_spellings(&mut head.headers, &name);
    refuse_placeholders(head)?;
    head.headers.insert(name, value()?);
    Ok(Body::Pass)
}

/// A body that was read whole has a length, and no trailers. A request without one, such as a GET, needs none.
fn set_length(head: &mut Parts, length: usize) {
    head.headers.remove(header::TRAILER);
    if length > 0 || head.headers.contains_key(header::CONTENT_LENGTH) {
        head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
}

fn replace_parameter(head: &mut Parts, parameter: &str, text: &[u8]) -> Result<Body, Fault> {
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let kept: Vec<&str> =
        query.split('&').filter(|piece| !piece.is_empty() && !is_parameter(piece, parameter)).collect();
    let rest = kept.join("&");
    if placeholder::in_headers(&head.headers).is_some() || holds_placeholder(path) || holds_placeholder(&rest) {
        return Err(Fault::Placeholder);
    }
    let escaped = fill::in_query(text);
    let escaped = std::str::from_utf8(&escaped).map_err(|_| Fault::Form)?;
    let and = if rest.is_empty() { "" } else { "&" };
    set_target(head, &[path, "?", &rest, and, parameter, "=", escaped])?;
    Ok(Body::Pass)
}

fn is_parameter(piece: &str, parameter: &str) -> bool {
    let name = piece.split('=').next().unwrap_or_default();
    placeholder::unescaped(name.as_bytes()) == parameter.as_bytes()
}

fn holds_placeholder(text: &str) -> bool {
    placeholder::first_name(text.as_bytes()).is_some()
        || (text.contains('%') && placeholder::first_name(&placeholder::unescaped(text.as_bytes())).is_some())
}

/// The target is wiped when the request goes, as secret header values are.
fn set_target(head: &mut Parts, parts: &[&str]) -> Result<(), Fault> {
    let length = parts.iter().map(|part| part.len()).sum();
    if length > TARGET_MAX {
        return Err(Fault::HeadSize);
    }
    let mut target = Zeroizing::new(Vec::with_capacity(length));
    for part in parts {
        target.extend_from_slice(part.as_bytes());
    }
    let mut uri = std::mem::take(&mut head.uri).into_parts();
    uri.path_and_query = Some(PathAndQuery::from_maybe_shared(Bytes::from_owner(target)).map_err(|_| Fault::Form)?);
    head.uri = Uri::from_parts(uri).map_err(|_| Fault::Form)?;
    Ok(())
}

#[cfg(test)]
mod tests;
