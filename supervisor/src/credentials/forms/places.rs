//! Placeholders in a head: filled in the places of the declaration, refused in all others.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use nova_policy::data::{BodyKind, Places};
use zeroize::Zeroizing;

use super::{Body, HEAD_MAX, holds_placeholder, is_parameter, set_target};
use crate::credentials::fault::Fault;
use crate::credentials::{fill as write, placeholder};

/// Replaces the placeholders of `name` by `text`, and says what is to be done with the body.
pub(super) fn fill(head: &mut Parts, places: &Places, name: &str, text: &[u8]) -> Result<Body, Fault> {
    let mut room = Room::of(head);
    let field = places.header.as_ref().and_then(|field| HeaderName::from_bytes(field.as_bytes()).ok());
    let fields = field.map(|field| (take_field(&mut head.headers, &field), field));
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let (path, query) = target.split_once('?').map_or((&*target, None), |(path, query)| (path, Some(query)));
    let (mut kept, mut filled) = (Vec::new(), None);
    if let (Some(query), Some(parameter)) = (query, &places.parameter) {
        let pieces = fill_query(query, parameter, (name, text), &mut room)?;
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
            let value = fill_field(&field, value, (name, text), &mut room)?;
            head.headers.append(&field, value);
        }
    }
    body_of(&head.headers, places)
}

fn take_field(headers: &mut HeaderMap, name: &HeaderName) -> Vec<HeaderValue> {
    let values = headers.get_all(name).iter().cloned().collect();
    headers.remove(name);
    values
}

fn fill_field(
    field: &HeaderName,
    value: HeaderValue,
    secret: (&str, &[u8]),
    room: &mut Room,
) -> Result<HeaderValue, Fault> {
    if let Some(decoded) = placeholder::basic(field, &value)
        && let Some(filled) = room.fill(&decoded, secret)?
    {
        // A third more than what it encodes.
        room.take(filled.len().saturating_sub(decoded.len()).div_ceil(3))?;
        return write::secret_value(b"Basic ", Zeroizing::new(STANDARD.encode(&*filled)).as_bytes());
    }
    let filled = room.fill(value.as_bytes(), secret)?;
    filled.map_or(Ok(value), |filled| write::secret_value(b"", &filled))
}

/// How much longer a head may become.
struct Room(usize);

impl Room {
    fn of(head: &Parts) -> Self {
        let fields: usize =
            head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len()).sum();
        let target = head.uri.path_and_query().map_or(0, |target| target.as_str().len());
        Self(HEAD_MAX.saturating_sub(fields + target))
    }

    fn take(&mut self, growth: usize) -> Result<(), Fault> {
        self.0 = self.0.checked_sub(growth).ok_or(Fault::HeadSize)?;
        Ok(())
    }

    /// As [`placeholder::replaced`], within the room that is left.
    fn fill(&mut self, text: &[u8], (name, value): (&str, &[u8])) -> Result<Option<Zeroizing<Vec<u8>>>, Fault> {
        let filled = placeholder::replaced(text, name, value, text.len() + self.0);
        let filled = filled.map_err(|unfilled| unfilled.or(Fault::HeadSize))?;
        self.take(filled.as_ref().map_or(0, |filled| filled.len().saturating_sub(text.len())))?;
        Ok(filled)
    }
}

/// What of a query keeps its text, and the whole with the value in it, if it has a place there.
struct Query {
    kept: Vec<String>,
    filled: Option<Zeroizing<String>>,
}

fn fill_query(query: &str, parameter: &str, (name, text): (&str, &[u8]), room: &mut Room) -> Result<Query, Fault> {
    let escaped = write::in_query(text);
    let (mut kept, mut has_any) = (Vec::new(), false);
    // Room for all that it can become, so that it never grows.
    let growth = query.matches(placeholder::PREFIX).count() * escaped.len();
    let mut whole = Zeroizing::new(String::with_capacity(query.len() + growth.min(room.0)));
    for (at, piece) in query.split('&').enumerate() {
        if at > 0 {
            whole.push('&');
        }
        let filled = match is_parameter(piece, parameter) {
            true => room.fill(piece.as_bytes(), (name, &escaped))?,
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
