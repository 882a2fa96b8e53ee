//! Credentials as rules name them: form and places, never the value.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// How a credential is injected, and where it may go at all. Its value is never here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CredentialEntry {
    /// Form and what belongs to it.
    pub form: CredentialForm,
    /// The only hosts that may see it: exact names, sorted.
    pub hosts: Vec<String>,
    /// Who answers for it.
    pub owner: String,
}

/// Whether this is a plain name: of a credential, its owner, an external CA or a proxy.
#[must_use]
pub fn is_plain_name(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(good)
}

/// How a credential appears in a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum CredentialForm {
    /// A header field of its own.
    Header {
        /// Its name, lower case.
        header: String,
    },
    /// `Authorization: Bearer`.
    Bearer,
    /// `Authorization: Basic`.
    Basic,
    /// A parameter of the query.
    Query {
        /// Its name.
        parameter: String,
    },
    /// A signature of the whole request, AWS version 4.
    Sigv4 {
        /// Region.
        region: String,
        /// Service.
        service: String,
    },
    /// A placeholder that the app wrote is replaced, where this says and nowhere else.
    Placeholder(Places),
}

/// Where a placeholder is replaced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Places {
    /// In this header field; its name in lower case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// In this parameter of the query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// In bodies of these kinds.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub body: BTreeSet<BodyKind>,
}

/// A kind of body in which a placeholder is replaced. Each writes a text in its own way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BodyKind {
    /// `application/json`, and types that end in `+json`.
    Json,
    /// `application/x-www-form-urlencoded`.
    Form,
    /// `text/plain`.
    Text,
}

/// Fields that frame or route a message: a credential in one of them would change what the message is.
const REFUSED_HEADERS: [&str; 14] = [
    "connection",
    "content-length",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

impl CredentialForm {
    /// Whether a credential may be in a header field of this name, which is in lower case.
    #[must_use]
    pub fn may_be_header(name: &str) -> bool {
        !REFUSED_HEADERS.contains(&name) && !name.starts_with("x-nova-")
    }
}
