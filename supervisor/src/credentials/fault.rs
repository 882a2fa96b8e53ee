//! Why a request goes without its credential.

use super::placeholder::Unfilled;

/// Why a request does not get its credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A placeholder of another credential, or in another place than its credential's.
    Placeholder,
    /// The declaration or the value is not what its form needs.
    Form,
    /// The body is longer than [`super::BODY_MAX`], or would be with its placeholders replaced.
    BodySize,
    /// The head would be longer than 72 KiB with its credential in it, or its target than 64 KiB.
    HeadSize,
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
            Self::HeadSize => "credential_head_size",
            Self::BodyEncoding => "credential_body_encoding",
            Self::ChunkSignatures => "credential_chunk_signatures",
        }
    }
}

impl Unfilled {
    /// The fault, of a text whose length has this one.
    pub(super) fn or(self, too_long: Fault) -> Fault {
        match self {
            Self::Foreign => Fault::Placeholder,
            Self::TooLong => too_long,
        }
    }
}
