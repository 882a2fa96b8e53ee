//! Why a request goes without its credential.

use super::placeholder::Foreign;

/// Why a request does not get its credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A placeholder of another credential, or in another place than its credential's.
    Placeholder,
    /// The declaration or the value is not what its form needs.
    Form,
    /// The body is longer than [`super::BODY_MAX`].
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
