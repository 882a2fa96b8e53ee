//! One head, line by line: what frames the message, and whether anything in it has two readings.

use super::{
    Asked, Limits, Refusal,
    line::{Field, check_text, is_token, three_parts},
    target::{Form, check_target, is_authority},
};

/// Longest method. The longest registered one has 17 letters.
pub(super) const METHOD_MAX: usize = 32;

/// How the body of a message ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    None,
    Length(u64),
    Chunked,
    ToClose,
    /// Not a body: HTTP is over.
    Raw,
}

/// What a whole head says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Framing {
    pub(super) asked: Asked,
    pub(super) interim: bool,
    pub(super) body: Body,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// The start line is still to come; `blank` after one empty line before it.
    Wanted {
        blank: bool,
    },
    Request {
        form: Form,
        bodiless: bool,
    },
    Answer {
        status: u16,
    },
}

/// The head being read.
#[derive(Debug)]
pub(super) struct Head {
    /// The request whose answer this is; for a request, what it turns out to be.
    asked: Asked,
    is_request: bool,
    start: Start,
    is_11: bool,
    fields: usize,
    has_host: bool,
    host_is_empty: bool,
    length: Option<u64>,
    chunked: bool,
    expects: bool,
    upgrade: bool,
}

impl Head {
    pub(super) fn request() -> Self {
        Self::new(true, Asked::Plain)
    }

    pub(super) fn answer(asked: Asked) -> Self {
        Self::new(false, asked)
    }

    fn new(is_request: bool, asked: Asked) -> Self {
        Self {
            asked,
            is_request,
            start: Start::Wanted { blank: false },
            is_11: true,
            fields: 0,
            has_host: false,
            host_is_empty: false,
            length: None,
            chunked: false,
            expects: false,
            upgrade: false,
        }
    }

    /// Whether the start line is read.
    pub(super) fn begun(&self) -> bool {
        !matches!(self.start, Start::Wanted { .. })
    }

    /// Takes the next line; true when it was the empty one that ends the head.
    pub(super) fn line(&mut self, line: &[u8], limits: &Limits) -> Result<bool, Refusal> {
        match self.start {
            // RFC 9112 section 2.2: some old clients send one CRLF too many after a POST.
            Start::Wanted { blank: false } if self.is_request && line.is_empty() => {
                self.start = Start::Wanted { blank: true };
            }
            Start::Wanted { .. } if self.is_request => self.request_line(line, limits)?,
            Start::Wanted { .. } => self.status_line(line)?,
            _ if line.is_empty() => return Ok(true),
            _ => self.field(line, limits)?,
        }
        Ok(false)
    }

    fn request_line(&mut self, line: &[u8], limits: &Limits) -> Result<(), Refusal> {
        let Some((method, target, version)) = three_parts(line) else {
            check_text(line, true)?;
            return Err(Refusal::BadRequestLine);
        };
        if method.is_empty() || method.len() > METHOD_MAX || !method.iter().all(|&byte| is_token(byte)) {
            check_text(method, true)?;
            return Err(Refusal::BadRequestLine);
        }
        if target.is_empty() {
            return Err(Refusal::BadRequestLine);
        }
        self.is_11 = version_is_11(version)?;
        let form = check_target(method, target, limits.ws_targets)?;
        self.asked = match method {
            b"HEAD" => Asked::Head,
            b"CONNECT" => Asked::Connect,
            _ => Asked::Plain,
        };
        self.start = Start::Request { form, bodiless: matches!(method, b"GET" | b"HEAD" | b"TRACE") };
        Ok(())
    }

    fn status_line(&mut self, line: &[u8]) -> Result<(), Refusal> {
        check_text(line, false)?;
        let (version, rest) = line.split_at_checked(8).ok_or(Refusal::BadStatusLine)?;
        self.is_11 = version_is_11(version)?;
        let (Some(b' '), Some(digits)) = (rest.first(), rest.get(1..4)) else { return Err(Refusal::BadStatusLine) };
        if !digits.iter().all(u8::is_ascii_digit) || !matches!(rest.get(4), None | Some(b' ')) {
            return Err(Refusal::BadStatusLine);
        }
        let status = digits.iter().fold(0, |status, &digit| status * 10 + u16::from(digit - b'0'));
        if !(100..600).contains(&status) {
            return Err(Refusal::BadStatusLine);
        }
        self.start = Start::Answer { status };
        Ok(())
    }

    fn field(&mut self, line: &[u8], limits: &Limits) -> Result<(), Refusal> {
        self.fields += 1;
        if self.fields > limits.fields {
            return Err(Refusal::TooManyHeaders);
        }
        let field = Field::parse(line, self.is_request)?;
        match field.name.len() {
            4 if field.is_like(b"host") => self.host(&field),
            6 if self.is_request && field.is_like(b"expect") => self.expect(&field),
            7 if field.is_like(b"upgrade") => {
                self.upgrade |= asks_upgrade(field.value);
                Ok(())
            }
            14 if field.is_like(b"content-length") => self.content_length(&field),
            17 if field.is_like(b"transfer-encoding") => self.transfer_encoding(&field),
            _ => Ok(()),
        }
    }

    fn host(&mut self, field: &Field<'_>) -> Result<(), Refusal> {
        if !self.is_request {
            return Ok(());
        }
        if self.has_host {
            return Err(Refusal::DuplicateHost);
        }
        let host = field.trimmed();
        if !host.is_empty() && !is_authority(host, false) {
            return Err(Refusal::BadHost);
        }
        self.has_host = true;
        self.host_is_empty = host.is_empty();
        Ok(())
    }

    fn expect(&mut self, field: &Field<'_>) -> Result<(), Refusal> {
        if self.expects || !field.trimmed().eq_ignore_ascii_case(b"100-continue") {
            return Err(Refusal::BadExpect);
        }
        self.expects = true;
        Ok(())
    }

    fn content_length(&mut self, field: &Field<'_>) -> Result<(), Refusal> {
        if field.name.contains(&b'_') {
            return Err(Refusal::BadHeaderName);
        }
        if self.length.is_some() {
            return Err(Refusal::DuplicateContentLength);
        }
        if self.chunked {
            return Err(Refusal::LengthAndChunked);
        }
        self.length = Some(decimal(field.exact()).ok_or(Refusal::BadContentLength)?);
        Ok(())
    }

    fn transfer_encoding(&mut self, field: &Field<'_>) -> Result<(), Refusal> {
        if field.name.contains(&b'_') {
            return Err(Refusal::BadHeaderName);
        }
        if self.length.is_some() {
            return Err(Refusal::LengthAndChunked);
        }
        // Codings are case-insensitive and apps write them so; a client that plays with the case is up to something.
        let value = field.exact();
        let is_chunked = if self.is_request { value == b"chunked" } else { value.eq_ignore_ascii_case(b"chunked") };
        if self.chunked || !is_chunked || !self.is_11 {
            return Err(Refusal::BadTransferEncoding);
        }
        self.chunked = true;
        Ok(())
    }

    /// What the whole head comes to.
    pub(super) fn framing(&self, limits: &Limits) -> Result<Framing, Refusal> {
        match self.start {
            Start::Request { form, bodiless } => self.request_framing(form, bodiless && !limits.body_on_get),
            Start::Answer { status } => self.answer_framing(status),
            Start::Wanted { .. } => Err(Refusal::BadRequestLine),
        }
    }

    fn request_framing(&self, form: Form, bodiless: bool) -> Result<Framing, Refusal> {
        let needs_host = self.is_11 && form != Form::Authority;
        if needs_host && !self.has_host || form == Form::Origin && self.has_host && self.host_is_empty {
            return Err(Refusal::MissingHost);
        }
        let body = self.announced_body().unwrap_or(Body::None);
        if (bodiless || self.asked == Asked::Connect) && body != Body::None {
            return Err(Refusal::UnexpectedBody);
        }
        let upgrades = self.upgrade && self.is_11 && self.asked == Asked::Plain;
        Ok(Framing { asked: if upgrades { Asked::Upgrade } else { self.asked }, interim: false, body })
    }

    fn answer_framing(&self, status: u16) -> Result<Framing, Refusal> {
        let framing = |body| Ok(Framing { asked: self.asked, interim: false, body });
        let announced = self.announced_body();
        match status {
            101 if self.asked != Asked::Upgrade || !self.is_11 => Err(Refusal::UnaskedUpgrade),
            100..200 | 204 if !matches!(announced, None | Some(Body::None)) => Err(Refusal::UnexpectedBody),
            101 => framing(Body::Raw),
            100..200 => Ok(Framing { interim: true, asked: self.asked, body: Body::None }),
            // RFC 9112 section 6.3: length and coding of a 2xx answer to CONNECT mean nothing.
            200..300 if self.asked == Asked::Connect => framing(Body::Raw),
            204 | 304 => framing(Body::None),
            _ if self.asked == Asked::Head => framing(Body::None),
            _ => framing(announced.unwrap_or(Body::ToClose)),
        }
    }

    fn announced_body(&self) -> Option<Body> {
        match (self.chunked, self.length) {
            (true, _) => Some(Body::Chunked),
            (false, Some(0)) => Some(Body::None),
            (false, Some(length)) => Some(Body::Length(length)),
            (false, None) => None,
        }
    }
}

/// `HTTP/1.1` or `HTTP/1.0`.
fn version_is_11(version: &[u8]) -> Result<bool, Refusal> {
    match version {
        b"HTTP/1.1" => Ok(true),
        b"HTTP/1.0" => Ok(false),
        other => check_text(other, true).and(Err(Refusal::BadVersion)),
    }
}

/// Whether an Upgrade names anything but h2c, which Java clients send with every request and which is never accepted.
fn asks_upgrade(value: &[u8]) -> bool {
    value
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .any(|protocol| !protocol.is_empty() && !protocol.eq_ignore_ascii_case(b"h2c"))
}

/// Digits without a leading zero, at most 18 of them: hyper keeps the two highest values for itself.
pub(super) fn decimal(value: &[u8]) -> Option<u64> {
    let plain = matches!(value, [b'0'] | [b'1'..=b'9', ..]) && value.len() <= 18;
    if !plain || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(value.iter().fold(0, |sum, &digit| sum * 10 + u64::from(digit - b'0')))
}
