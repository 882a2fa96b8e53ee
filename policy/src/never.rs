//! Requests that are refused whatever the rules say, before they are asked.

use std::borrow::Cow;
use std::ops::Deref;

use thiserror::Error;

/// Methods that are never carried, also in lower case, which some servers do not mind: CONNECT asks for a tunnel, the others
/// send back what the request held, credentials too.
const METHODS: [&str; 3] = ["CONNECT", "TRACE", "TRACK"];

/// Why no rule is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Never {
    /// A method that is never carried.
    #[error("CONNECT, TRACE and TRACK are refused whatever the rules say, before they are asked")]
    Method,
    /// The query asks an app to act on another method than the one that is decided.
    #[error(
        "a parameter of the query asks for another method than the one that is decided, and is refused whatever the rules say"
    )]
    Override,
}

impl Never {
    /// The code for programs.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Method => "method_never_carried",
            Self::Override => "method_override",
        }
    }
}

/// Checks method and query of a request.
///
/// # Errors
/// Why it is refused.
pub fn check(method: &str, query: Option<&str>) -> Result<(), Never> {
    if METHODS.iter().any(|never| method.eq_ignore_ascii_case(never)) {
        return Err(Never::Method);
    }
    check_query(query.unwrap_or_default())
}

/// Checks the query of a request.
///
/// # Errors
/// [`Never::Override`].
pub fn check_query(query: &str) -> Result<(), Never> {
    let is_override = |parameter: &str| {
        let name = parameter.split('=').next().unwrap_or_default();
        is_override_parameter(&Spelling::of(&decoded(name).to_ascii_lowercase()))
    };
    if query.split(['&', ';']).any(is_override) { Err(Never::Override) } else { Ok(()) }
}

/// A name in lower case with everything but letters and digits as `-`: CGI, WSGI, Rack and PHP make one variable of `-` and
/// `_`, and some servers make one of every such byte.
pub struct Spelling<'a>(Cow<'a, str>);

impl<'a> Spelling<'a> {
    /// `name` is in lower case, as names of headers are here.
    #[must_use]
    pub fn of(name: &'a str) -> Self {
        let is_odd = |letter: char| !letter.is_ascii_alphanumeric() && letter != '-';
        Self(if name.contains(is_odd) { Cow::Owned(name.replace(is_odd, "-")) } else { Cow::Borrowed(name) })
    }
}

impl Deref for Spelling<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// Headers that make frameworks act on another method than the one that was decided, by their [`Spelling`].
#[must_use]
pub fn is_override(name: &str) -> bool {
    matches!(name, "x-http-method-override" | "x-http-method" | "x-method-override")
}

/// Parameters of a query that do the same: `_method`, `_HttpMethod` and `$httpMethod`, and the headers' names.
fn is_override_parameter(name: &str) -> bool {
    matches!(name, "-method" | "-httpmethod") || is_override(name)
}

/// Escapes decoded once; what is no escape stays.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escape = after.get(..2).filter(|_| byte == b'%').and_then(|digits| hex::decode(digits).ok());
        rest = if escape.is_some() { &after[2..] } else { after };
        bytes.push(escape.map_or(byte, |escape| escape[0]));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: B11c
    #[test]
    fn methods_and_overrides_are_refused_in_every_spelling() {
        for (method, query, want) in [
            ("TRACE", None, Err(Never::Method)),
            ("track", None, Err(Never::Method)),
            ("Connect", None, Err(Never::Method)),
            ("GET", Some("_method=DELETE"), Err(Never::Override)),
            ("GET", Some("a=1&%5Fmethod"), Err(Never::Override)),
            ("GET", Some("a;$httpMethod=PUT"), Err(Never::Override)),
            ("GET", Some("X-HTTP-Method-Override=PUT"), Err(Never::Override)),
            ("GET", Some("method=1&a=_method"), Ok(())),
            ("GET", None, Ok(())),
        ] {
            assert_eq!(check(method, query), want, "{method} {query:?}");
        }
    }

    #[test]
    fn a_parameter_asks_for_another_method_in_every_spelling() {
        for query in [
            "_method=PUT",
            "a&_METHOD=PUT",
            "a;_method",
            "%5Fmethod=PUT",
            ".method=PUT",
            "_HttpMethod=PUT",
            "$httpMethod=PUT",
            "X-HTTP-Method-Override=PUT",
        ] {
            assert!(check_query(query).is_err(), "{query}");
        }
        for query in ["", "method=PUT", "my_method=PUT", "a=_method", "_methods=PUT", "%255Fmethod=PUT", "%5", "%zz=%"]
        {
            assert!(check_query(query).is_ok(), "{query}");
        }
    }
}
