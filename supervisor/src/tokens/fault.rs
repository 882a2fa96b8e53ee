//! What can be wrong with a token: one closed set for the audit record. The caller learns only that it is invalid.

use jsonwebtoken::errors::{Error, ErrorKind};

/// Why a token is nobody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Two Authorization fields: another reader may take the other one.
    Repeated,
    /// Longer than any token.
    Oversized,
    /// Not three parts of base64url, or not JSON in them.
    Malformed,
    /// It demands an extension.
    Critical,
    /// None of the configured issuers issued it.
    Issuer,
    /// Its algorithm is none that the issuer signs with; `none` and shared keys are never one.
    Algorithm,
    /// The issuer has no such key.
    UnknownKey,
    /// The issuer's keys could not be had, or are too old: nothing can be said of the token.
    KeysUnavailable,
    /// Signature and content do not belong together.
    Signature,
    /// It is for somebody else, or for nobody.
    Audience,
    /// Its time is over.
    Expired,
    /// Its time has not come.
    NotYetValid,
    /// It says too little, or nothing that can be read.
    Claims,
}

impl Fault {
    /// The label for records.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Repeated => "token_repeated",
            Self::Oversized => "token_oversized",
            Self::Malformed => "token_malformed",
            Self::Critical => "token_crit",
            Self::Issuer => "token_issuer",
            Self::Algorithm => "token_algorithm",
            Self::UnknownKey => "token_unknown_key",
            Self::KeysUnavailable => "token_keys_unavailable",
            Self::Signature => "token_signature",
            Self::Audience => "token_audience",
            Self::Expired => "token_expired",
            Self::NotYetValid => "token_not_yet_valid",
            Self::Claims => "token_claims",
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::ExpiredSignature => Self::Expired,
            ErrorKind::ImmatureSignature => Self::NotYetValid,
            ErrorKind::InvalidAudience => Self::Audience,
            ErrorKind::InvalidIssuer => Self::Issuer,
            ErrorKind::InvalidSignature => Self::Signature,
            ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm | ErrorKind::MissingAlgorithm => {
                Self::Algorithm
            }
            ErrorKind::MissingRequiredClaim(claim) if claim == "aud" => Self::Audience,
            ErrorKind::InvalidClaimFormat(claim) if claim == "aud" => Self::Audience,
            ErrorKind::MissingRequiredClaim(_) | ErrorKind::InvalidClaimFormat(_) => Self::Claims,
            ErrorKind::InvalidToken | ErrorKind::Base64(_) | ErrorKind::Json(_) | ErrorKind::Utf8(_) => Self::Malformed,
            _ => Self::Signature,
        }
    }
}
