//! Why bodies break off.

use crate::gate::Refusal;

/// Why a body broke off. Its sources hold the code of HTTP/2, if that leg spoke it, for the reset of the other leg.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The app or upstream that it came from broke off.
    #[error("the answer broke off")]
    Broken(#[source] hyper::Error),
    /// The caller that it came from broke off, or was cut off.
    #[error("the request broke off")]
    Gone(#[source] h2::Error),
    /// Nothing, or next to nothing, came for too long.
    #[error("the body stood still for too long")]
    Late,
    /// A placeholder is in it, where none is replaced.
    #[error("the body holds the placeholder of a credential")]
    Placeholder,
    /// Its trailers say the secret that was in the request.
    #[error("the trailers say the credential of the request")]
    Echo,
    /// Trailers that may not pass.
    #[error("the trailers are not fit to be passed on: {}", .refusal.as_str())]
    Refused {
        /// The rule that they break.
        refusal: Refusal,
        /// How the stream ends.
        source: h2::Error,
    },
}

impl BodyError {
    /// For a caller that is gone: with its own code if it gave one.
    pub(super) fn gone(code: Option<h2::Reason>) -> Self {
        Self::Gone(code.unwrap_or(h2::Reason::CANCEL).into())
    }

    pub(super) fn refused(refusal: Refusal) -> Self {
        Self::Refused { refusal, source: h2::Reason::PROTOCOL_ERROR.into() }
    }

    /// The code of HTTP/2 that says the same.
    #[must_use]
    pub fn code(&self) -> h2::Reason {
        let mut cause: Option<&dyn std::error::Error> = Some(self);
        while let Some(error) = cause {
            if let Some(code) = error.downcast_ref::<h2::Error>().and_then(h2::Error::reason) {
                return code;
            }
            cause = error.source();
        }
        h2::Reason::INTERNAL_ERROR
    }
}
