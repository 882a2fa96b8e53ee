//! The token of a bundle, for asking who signed it. Nothing here makes a bundle trusted.

use jsonwebtoken::{Algorithm, DecodingKey, decode_header};

use super::{BundleError, archive, layout};

/// The signed token of a bundle.
pub(crate) struct Token {
    text: String,
    key_id: Option<String>,
}

impl Token {
    /// The key id that it claims.
    pub(crate) fn key_id(&self) -> Option<&str> {
        self.key_id.as_deref()
    }

    /// Whether the holder of this key signed it.
    pub(crate) fn made_by(&self, key: &DecodingKey, algorithm: Algorithm) -> bool {
        let Some((message, signature)) = self.text.rsplit_once('.') else { return false };
        jsonwebtoken::crypto::verify(signature, message.as_bytes(), key, algorithm).unwrap_or(false)
    }
}

/// Takes the token out of a bundle.
///
/// # Errors
/// When it is not a bundle with exactly one token.
pub(crate) fn token_of(bundle: &[u8]) -> Result<Token, BundleError> {
    let mut files = archive::unpack(bundle)?;
    layout::check_names(&files)?;
    let text = layout::take_token(&mut files)?;
    let header = decode_header(&text).map_err(|error| BundleError::Token(error.to_string()))?;
    Ok(Token { text, key_id: header.kid })
}
