//! How a credential gets into a request. Everything here works on the head alone and does no I/O; where the body matters too,
//! [`Body`] says what is to be done with it.
//!
//! The order matters: what the app wrote in the credential's place goes first, then the rest is searched for placeholders,
//! then the value is put in. So no value is ever taken for a placeholder, and none is sent beside a placeholder.

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use nova_policy::data::{BodyKind, CredentialForm, Places};
use zeroize::Zeroizing;

use super::placeholder::{self, Foreign};
use super::sigv4::{self, Payload};
use super::{Held, fill};

/// Longest body of an app in which placeholders are replaced, or that is hashed for a signature.
pub const BODY_MAX: usize = 1024 * 1024;

/// Why a request does not get its credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A placeholder of another credential, or in another place than its credential's.
    Placeholder,
    /// The declaration or the value is not what its form needs.
    Form,
    /// The body is longer than [`BODY_MAX`].
    BodySize,
    /// The body is compressed, so nobody can look into it.
    BodyEncoding,
    /// The app signed every chunk of its body, with a key that is not the credential.
    ChunkSignatures,
}

impl Fault {
    /// The finer reason in an audit record.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Placeholder => "placeholder",
            Self::Form => "credential_form",
            Self::BodySize => "credential_body_size",
            Self::BodyEncoding => "credential_body_encoding",
            Self::ChunkSignatures => "credential_chunk_signatures",
        }
    }
}

impl From<Foreign> for Fault {
    fn from(_: Foreign) -> Self {
        Self::Placeholder
    }
}

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

impl Injection<'_> {
    /// Whether the value is what the form needs, and the form is one that a policy may declare.
    #[must_use]
    pub fn fits(held: &Held, form: &CredentialForm) -> bool {
        let is_header =
            |name: &String| CredentialForm::may_be_header(name) && HeaderName::from_bytes(name.as_bytes()).is_ok();
        let text = held.value.text();
        match form {
            CredentialForm::Header { header } => is_header(header) && text.is_some(),
            CredentialForm::Bearer | CredentialForm::Query { .. } => text.is_some(),
            CredentialForm::Basic => text.is_some_and(|text| text.contains(&b':')),
            CredentialForm::Sigv4 { .. } => held.value.keys().is_some(),
            CredentialForm::Placeholder(places) => places.header.iter().all(is_header) && text.is_some(),
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
                replace_field(head, name, || secret_value(b"", text))
            }
            CredentialForm::Bearer => replace_field(head, header::AUTHORIZATION, || secret_value(b"Bearer ", text)),
            CredentialForm::Basic => replace_field(head, header::AUTHORIZATION, || {
                secret_value(b"Basic ", Zeroizing::new(STANDARD.encode(text)).as_bytes())
            }),
            CredentialForm::Query { parameter } => replace_parameter(head, parameter, text),
            CredentialForm::Placeholder(places) => self.fill_head(head, places, text),
            CredentialForm::Sigv4 { service, .. } => self.prepare_signature(head, service),
        }
    }

    /// The body with its placeholders replaced.
    ///
    /// # Errors
    /// A placeholder of another credential is in it.
    pub fn fill(&self, head: &mut Parts, kind: BodyKind, body: Vec<u8>) -> Result<Bytes, Fault> {
        let value = fill::in_body(kind, self.held.value.text().ok_or(Fault::Form)?);
        let filled = placeholder::replaced(&body, self.held.name(), &value)?;
        let filled = filled.map_or_else(|| Bytes::from(body), Bytes::from_owner);
        head.headers.remove(header::TRAILER);
        head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(filled.len()));
        Ok(filled)
    }

    /// Signs the head with a body that was read whole.
    ///
    /// # Errors
    /// When there is nothing to sign with.
    pub fn sign(&self, head: &mut Parts, body: &[u8]) -> Result<(), Fault> {
        head.headers.remove(header::TRAILER);
        head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
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
            head.headers.remove(name);
        }
        refuse_placeholders(head)?;
        match sigv4::payload(&head.headers, service)? {
            Some(payload) => self.signed(head, &payload).map(|()| Body::Pass),
            None => Ok(Body::Sign),
        }
    }

    fn fill_head(&self, head: &mut Parts, places: &Places, text: &[u8]) -> Result<Body, Fault> {
        let name = self.held.name();
        let field = places.header.as_ref().and_then(|field| HeaderName::from_bytes(field.as_bytes()).ok());
        let fields = field.map(|field| (take_field(&mut head.headers, &field), field));
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        let (path, query) = target.split_once('?').map_or((&*target, None), |(path, query)| (path, Some(query)));
        let (mut kept, mut filled) = (Vec::new(), None);
        if let (Some(query), Some(parameter)) = (query, &places.parameter) {
            let pieces = fill_query(query, parameter, name, text)?;
            kept = pieces.kept;
            filled = pieces.filled;
        } else {
            kept.extend(query.map(str::to_owned));
        }
        if placeholder::in_headers(&head.headers).is_some()
            || [path].into_iter().chain(kept.iter().map(String::as_str)).any(holds_placeholder)
        {
            return Err(Fault::Placeholder);
        }
        if let Some(query) = filled {
            set_target(head, &[path, "?", &query])?;
        }
        if let Some((values, field)) = fields {
            for value in values {
                let value = fill_field(&field, value, name, text)?;
                head.headers.append(&field, value);
            }
        }
        body_of(&head.headers, places)
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
    head.headers.remove(&name);
    refuse_placeholders(head)?;
    head.headers.insert(name, value()?);
    Ok(Body::Pass)
}

/// A header value that is never indexed by HPACK, hidden from `Debug`, and wiped when the last of its copies goes.
fn secret_value(scheme: &[u8], text: &[u8]) -> Result<HeaderValue, Fault> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(scheme.len() + text.len()));
    bytes.extend_from_slice(scheme);
    bytes.extend_from_slice(text);
    let mut value = HeaderValue::from_maybe_shared(Bytes::from_owner(bytes)).map_err(|_| Fault::Form)?;
    value.set_sensitive(true);
    Ok(value)
}

fn take_field(headers: &mut HeaderMap, name: &HeaderName) -> Vec<HeaderValue> {
    let values = headers.get_all(name).iter().cloned().collect();
    headers.remove(name);
    values
}

fn fill_field(field: &HeaderName, value: HeaderValue, name: &str, text: &[u8]) -> Result<HeaderValue, Fault> {
    if let Some(decoded) = placeholder::basic(field, &value)
        && let Some(filled) = placeholder::replaced(&decoded, name, text)?
    {
        return secret_value(b"Basic ", Zeroizing::new(STANDARD.encode(&*filled)).as_bytes());
    }
    let filled = placeholder::replaced(value.as_bytes(), name, text)?;
    filled.map_or(Ok(value), |filled| secret_value(b"", &filled))
}

/// What of a query keeps its text, and the whole with the value in it, if it has a place there.
struct Query {
    kept: Vec<String>,
    filled: Option<Zeroizing<String>>,
}

fn fill_query(query: &str, parameter: &str, name: &str, text: &[u8]) -> Result<Query, Fault> {
    let escaped = fill::in_query(text);
    let (mut kept, mut has_any) = (Vec::new(), false);
    // Room for all that it can become, so that it never grows.
    let most = query.len() + query.matches(placeholder::PREFIX).count() * escaped.len();
    let mut whole = Zeroizing::new(String::with_capacity(most));
    for (at, piece) in query.split('&').enumerate() {
        if at > 0 {
            whole.push('&');
        }
        let filled = match is_parameter(piece, parameter) {
            true => placeholder::replaced(piece.as_bytes(), name, &escaped)?,
            false => None,
        };
        match filled.as_deref().map(|filled| std::str::from_utf8(filled)) {
            Some(Ok(filled)) => {
                has_any = true;
                whole.push_str(filled);
            }
            Some(Err(_)) => return Err(Fault::Form),
            None => {
                kept.push(piece.to_owned());
                whole.push_str(piece);
            }
        }
    }
    Ok(Query { kept, filled: has_any.then_some(whole) })
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
    let mut target = Zeroizing::new(Vec::with_capacity(parts.iter().map(|part| part.len()).sum()));
    for part in parts {
        target.extend_from_slice(part.as_bytes());
    }
    let mut uri = std::mem::take(&mut head.uri).into_parts();
    uri.path_and_query = Some(PathAndQuery::from_maybe_shared(Bytes::from_owner(target)).map_err(|_| Fault::Form)?);
    head.uri = Uri::from_parts(uri).map_err(|_| Fault::Form)?;
    Ok(())
}

/// What happens to the body: filled where the credential says so; elsewhere a placeholder in it is one too many.
fn body_of(headers: &HeaderMap, places: &Places) -> Result<Body, Fault> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| kind_of(value.to_str().ok()?));
    match kind.filter(|kind| places.body.contains(kind)) {
        None => Ok(Body::Watch),
        Some(_) if headers.contains_key(header::CONTENT_ENCODING) => Err(Fault::BodyEncoding),
        Some(kind) => Ok(Body::Fill(kind)),
    }
}

fn kind_of(content_type: &str) -> Option<BodyKind> {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "application/json" => Some(BodyKind::Json),
        "application/x-www-form-urlencoded" => Some(BodyKind::Form),
        "text/plain" => Some(BodyKind::Text),
        other if other.starts_with("application/") && other.ends_with("+json") => Some(BodyKind::Json),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
