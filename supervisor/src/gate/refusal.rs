//! Why the gate refuses: a closed list, each name is a metric label and an audit reason.

/// What is wrong with the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}", self.as_str())]
#[repr(u8)]
pub enum Refusal {
    /// A line ends with LF alone.
    BareLf = 1,
    /// A CR that is not part of a line end.
    BareCr,
    /// A header continued on the next line.
    ObsFold,
    /// Space between a header's name and its colon.
    SpaceBeforeColon,
    /// NUL or another control byte.
    ControlByte,
    /// A byte above 0x7e where only ASCII may stand.
    NonAscii,
    /// A header line without a name or with a byte in it that names may not have, or a spelling of a framing header that
    /// some servers read as that header.
    BadHeaderName,
    /// The request line is not method, target, version with single spaces.
    BadRequestLine,
    /// The target has none of the four forms, or not the one its method wants.
    BadTarget,
    /// The target holds a fragment.
    FragmentInTarget,
    /// Neither HTTP/1.0 nor HTTP/1.1.
    BadVersion,
    /// The status line is not version, three digits, reason.
    BadStatusLine,
    /// The head is longer than the limit.
    HeadTooLarge,
    /// More header lines than the limit.
    TooManyHeaders,
    /// The head did not end in time.
    HeadTimeout,
    /// More than one Host.
    DuplicateHost,
    /// HTTP/1.1 without a Host.
    MissingHost,
    /// Host is not a host and port.
    BadHost,
    /// More than one Content-Length, equal or not.
    DuplicateContentLength,
    /// Content-Length is not plain decimal digits.
    BadContentLength,
    /// Content-Length beside Transfer-Encoding.
    LengthAndChunked,
    /// Transfer-Encoding is anything but `chunked`, once, in HTTP/1.1.
    BadTransferEncoding,
    /// A body where the method or the status has none.
    UnexpectedBody,
    /// Expect is anything but `100-continue`, once.
    BadExpect,
    /// A chunk's size line, its data's end or an extension.
    BadChunk,
    /// A trailer that may not be one, or too many of them.
    BadTrailer,
    /// More 1xx answers than the limit.
    TooManyInterim,
    /// 101 to a request that asked for no upgrade.
    UnaskedUpgrade,
    /// An answer that no request waits for.
    UnaskedAnswer,
}

impl Refusal {
    /// Every refusal, in the order of their numbers.
    pub const ALL: [Self; 29] = [
        Self::BareLf,
        Self::BareCr,
        Self::ObsFold,
        Self::SpaceBeforeColon,
        Self::ControlByte,
        Self::NonAscii,
        Self::BadHeaderName,
        Self::BadRequestLine,
        Self::BadTarget,
        Self::FragmentInTarget,
        Self::BadVersion,
        Self::BadStatusLine,
        Self::HeadTooLarge,
        Self::TooManyHeaders,
        Self::HeadTimeout,
        Self::DuplicateHost,
        Self::MissingHost,
        Self::BadHost,
        Self::DuplicateContentLength,
        Self::BadContentLength,
        Self::LengthAndChunked,
        Self::BadTransferEncoding,
        Self::UnexpectedBody,
        Self::BadExpect,
        Self::BadChunk,
        Self::BadTrailer,
        Self::TooManyInterim,
        Self::UnaskedUpgrade,
        Self::UnaskedAnswer,
    ];

    /// The name in metrics and audit records.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BareLf => "bare_lf",
            Self::BareCr => "bare_cr",
            Self::ObsFold => "obs_fold",
            Self::SpaceBeforeColon => "space_before_colon",
            Self::ControlByte => "control_byte",
            Self::NonAscii => "non_ascii",
            Self::BadHeaderName => "bad_header_name",
            Self::BadRequestLine => "bad_request_line",
            Self::BadTarget => "bad_target",
            Self::FragmentInTarget => "fragment_in_target",
            Self::BadVersion => "bad_version",
            Self::BadStatusLine => "bad_status_line",
            Self::HeadTooLarge => "head_too_large",
            Self::TooManyHeaders => "too_many_headers",
            Self::HeadTimeout => "head_timeout",
            Self::DuplicateHost => "duplicate_host",
            Self::MissingHost => "missing_host",
            Self::BadHost => "bad_host",
            Self::DuplicateContentLength => "duplicate_content_length",
            Self::BadContentLength => "bad_content_length",
            Self::LengthAndChunked => "length_and_chunked",
            Self::BadTransferEncoding => "bad_transfer_encoding",
            Self::UnexpectedBody => "unexpected_body",
            Self::BadExpect => "bad_expect",
            Self::BadChunk => "bad_chunk",
            Self::BadTrailer => "bad_trailer",
            Self::TooManyInterim => "too_many_interim",
            Self::UnaskedUpgrade => "unasked_upgrade",
            Self::UnaskedAnswer => "unasked_answer",
        }
    }

    /// The status that a client gets.
    #[must_use]
    pub fn status(self) -> http::StatusCode {
        match self {
            Self::HeadTooLarge | Self::TooManyHeaders => http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::HeadTimeout => http::StatusCode::REQUEST_TIMEOUT,
            _ => http::StatusCode::BAD_REQUEST,
        }
    }

    /// The body that a client gets (`application/problem+json`). It says what kind of fault, never which byte: that is
    /// for the audit record.
    #[must_use]
    pub fn body(self) -> &'static str {
        match self.status() {
            http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                r#"{"title":"request head too large","status":431,"detail":"send fewer or shorter headers"}"#
            }
            http::StatusCode::REQUEST_TIMEOUT => {
                r#"{"title":"request head too slow","status":408,"detail":"send the whole head at once"}"#
            }
            _ => {
                r#"{"title":"malformed request","status":400,"detail":"the request does not follow RFC 9112; send it with a plain HTTP/1.1 client"}"#
            }
        }
    }

    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number.checked_sub(1)?)).copied()
    }
}

/// The whole answer to a refused request, as bytes: the connection closes after it.
#[must_use]
pub fn refusal_response(refusal: Refusal) -> Vec<u8> {
    let (status, body) = (refusal.status(), refusal.body());
    format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        status.as_str(),
        status.canonical_reason().unwrap_or(""),
        body.len(),
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_one_to_one() {
        for (at, refusal) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal as usize, at + 1);
            assert_eq!(Refusal::from_number(refusal as u8), Some(refusal));
            assert_eq!(Refusal::ALL.iter().filter(|other| other.as_str() == refusal.as_str()).count(), 1);
        }
        assert_eq!(Refusal::from_number(0), None);
        assert_eq!(Refusal::from_number(Refusal::ALL.len() as u8 + 1), None);
    }
}
