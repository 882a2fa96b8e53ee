//! JSON as OPA hashes it: members sorted by UTF-8 bytes, no white space, number text kept, Go's string escapes.
//!
//! `serde_json` would change `1.0` and `1e3` and print U+2028 as it is, so hashes would differ. The parser is strict:
//! one document, no duplicate members, bounded depth. What is evaluated later is the canonical text that was hashed.

use std::collections::BTreeMap;
use std::fmt::Write;

use thiserror::Error;

/// Deepest nesting accepted.
pub const MAX_DEPTH: usize = 64;

/// A JSON document with its numbers as they were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// The number's text.
    Number(String),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Json>),
    /// An object; the order is the canonical one.
    Object(BTreeMap<String, Json>),
}

/// Why a text is not one strict JSON document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{what} at byte {at}")]
pub struct JsonError {
    /// What is wrong.
    pub what: &'static str,
    /// Where.
    pub at: usize,
}

impl Json {
    /// Parses one document; a byte order mark in front is dropped, as OPA does.
    ///
    /// # Errors
    /// When the text is not exactly one JSON document, repeats a member, or nests too deeply.
    pub fn parse(bytes: &[u8]) -> Result<Self, JsonError> {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let text =
            std::str::from_utf8(bytes).map_err(|error| JsonError { what: "not UTF-8", at: error.valid_up_to() })?;
        let mut parser = Parser { text, at: 0 };
        let value = parser.value(0)?;
        parser.space();
        if parser.at != text.len() {
            return Err(parser.fail("something behind the document"));
        }
        Ok(value)
    }

    /// The canonical text.
    #[must_use]
    pub fn to_canonical(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    /// A text without its quotes; anything else in canonical form.
    #[must_use]
    pub fn to_plain(&self) -> String {
        match self {
            Self::String(text) => text.clone(),
            other => other.to_canonical(),
        }
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Number(text) => out.push_str(text),
            Self::String(text) => write_string(text, out),
            Self::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (index, (name, value)) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    write_string(name, out);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

/// Go's `encoding/json` without HTML escaping.
fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{0}'..='\u{1f}' | '\u{2028}' | '\u{2029}' => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(char));
            }
            _ => out.push(char),
        }
    }
    out.push('"');
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn fail(&self, what: &'static str) -> JsonError {
        JsonError { what, at: self.at }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self, depth: usize) -> Result<Json, JsonError> {
        if depth > MAX_DEPTH {
            return Err(self.fail("too deep"));
        }
        self.space();
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string().map(Json::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => self.word(),
        }
    }

    fn word(&mut self) -> Result<Json, JsonError> {
        let rest = &self.text[self.at..];
        for (word, value) in [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))] {
            if rest.starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.fail("not a JSON value"))
    }

    fn object(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.at += 1;
        let mut members = BTreeMap::new();
        self.space();
        if self.eat(b'}') {
            return Ok(Json::Object(members));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return Err(self.fail("not a member name"));
            }
            let name = self.string()?;
            self.space();
            if !self.eat(b':') {
                return Err(self.fail("no ':'"));
            }
            let value = self.value(depth + 1)?;
            if members.insert(name, value).is_some() {
                return Err(self.fail("a member twice"));
            }
            self.space();
            if self.eat(b'}') {
                return Ok(Json::Object(members));
            }
            if !self.eat(b',') {
                return Err(self.fail("no ',' or '}'"));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.at += 1;
        let mut items = Vec::new();
        self.space();
        if self.eat(b']') {
            return Ok(Json::Array(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.space();
            if self.eat(b']') {
                return Ok(Json::Array(items));
            }
            if !self.eat(b',') {
                return Err(self.fail("no ',' or ']'"));
            }
        }
    }

    fn number(&mut self) -> Result<Json, JsonError> {
        let start = self.at;
        self.eat(b'-');
        if !self.eat(b'0') {
            self.digits()?;
        }
        if self.eat(b'.') {
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(Json::Number(self.text[start..self.at].to_owned()))
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.fail("not a digit")) } else { Ok(()) }
    }

    fn string(&mut self) -> Result<String, JsonError> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let char = rest.chars().next().ok_or_else(|| self.fail("a string without end"))?;
            match char {
                '"' => {
                    self.at += 1;
                    return Ok(out);
                }
                '\\' => {
                    self.at += 1;
                    let escaped = self.escape()?;
                    out.push(escaped);
                }
                '\u{0}'..='\u{1f}' => return Err(self.fail("a bare control character")),
                _ => {
                    out.push(char);
                    self.at += char.len_utf8();
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char, JsonError> {
        let byte = self.peek().ok_or_else(|| self.fail("a string without end"))?;
        self.at += 1;
        Ok(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => self.unicode()?,
            _ => return Err(self.fail("not an escape")),
        })
    }

    /// A lone surrogate becomes U+FFFD, as in Go.
    fn unicode(&mut self) -> Result<char, JsonError> {
        let high = self.hex4()?;
        if !(0xd800..0xdc00).contains(&high) {
            return Ok(char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        let back = self.at;
        if self.eat(b'\\') && self.eat(b'u') {
            let low = self.hex4()?;
            if (0xdc00..0xe000).contains(&low) {
                let joined = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                return Ok(char::from_u32(joined).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
        }
        self.at = back;
        Ok(char::REPLACEMENT_CHARACTER)
    }

    fn hex4(&mut self) -> Result<u32, JsonError> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4).unwrap_or_default();
        if digits.len() != 4 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(self.fail("not four hex digits"));
        }
        let value = digits.iter().fold(0, |value, digit| value << 4 | char::from(*digit).to_digit(16).unwrap_or(0));
        self.at += 4;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_not_one_strict_document_is_refused() {
        let deep = "[".repeat(100_000);
        for bad in [
            "",
            " ",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "{\"a\":1} {\"b\":2}",
            "{\"a\":1,\"a\":2}",
            "{\"a\":1,\"\\u0061\":2}",
            "01",
            "1.",
            ".5",
            "+1",
            "-",
            "1e",
            "NaN",
            "'a'",
            "\"\t\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"",
            "nul",
            "a: 1",
            deep.as_str(),
        ] {
            assert!(Json::parse(bad.as_bytes()).is_err(), "{}", &bad[..bad.len().min(40)]);
        }
        assert!(Json::parse(b"\"\xff\"").is_err());
    }

    proptest! {
        #[test]
        fn canonical_text_is_a_fixed_point_and_means_the_same(text in "[\\[\\]{}:,\"a\\\\u0-9e. -]{0,24}|\\PC{0,12}") {
            if let Ok(json) = Json::parse(text.as_bytes()) {
                let canonical = json.to_canonical();
                prop_assert_eq!(Json::parse(canonical.as_bytes()), Ok(json));
                prop_assert!(serde_json::from_str::<serde_json::Value>(&canonical).is_ok());
            }
        }

        #[test]
        fn any_string_survives(text: String) {
            let json = Json::String(text);
            prop_assert_eq!(Json::parse(json.to_canonical().as_bytes()), Ok(json));
        }
    }
}
