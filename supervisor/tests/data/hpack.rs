//! HPACK by hand (RFC 7541): fields written as literals without any index, and read in every form.

use std::collections::VecDeque;

pub type Field = (String, String);

/// Each field as a literal that nobody remembers, so that a block means the same wherever it stands.
pub fn encode(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            integer(&mut block, 7, text.len());
            block.extend(text.bytes());
        }
    }
    block
}

fn integer(block: &mut Vec<u8>, bits: u32, mut value: usize) {
    let most = (1 << bits) - 1;
    if value < most {
        return block.push(u8::try_from(value).expect("small"));
    }
    block.push(u8::try_from(most).expect("small"));
    value -= most;
    while value >= 128 {
        block.push(u8::try_from(value % 128 + 128).expect("small"));
        value /= 128;
    }
    block.push(u8::try_from(value).expect("small"));
}

/// Reads what the peer remembers as well.
#[derive(Default)]
pub struct Decoder {
    dynamic: VecDeque<Field>,
    /// Names of fields that nobody on the way may ever remember.
    pub never: Vec<String>,
}

impl Decoder {
    pub fn decode(&mut self, block: &[u8]) -> Vec<Field> {
        let mut fields = Vec::new();
        let mut rest = block;
        while let Some(&first) = rest.first() {
            match first {
                0x80.. => {
                    let index = read_integer(&mut rest, 7);
                    fields.push(self.at(index));
                }
                0x40.. => {
                    let field = self.literal(&mut rest, 6);
                    self.dynamic.push_front(field.clone());
                    self.shrink(4096);
                    fields.push(field);
                }
                0x20.. => {
                    let size = read_integer(&mut rest, 5);
                    self.shrink(size);
                }
                _ => {
                    let field = self.literal(&mut rest, 4);
                    if first >= 0x10 {
                        self.never.push(field.0.clone());
                    }
                    fields.push(field);
                }
            }
        }
        fields
    }

    /// Whether a text is in what is remembered.
    pub fn remembers(&self, text: &str) -> bool {
        self.dynamic.iter().any(|(_, value)| value.contains(text))
    }

    fn literal(&self, rest: &mut &[u8], bits: u32) -> Field {
        let index = read_integer(rest, bits);
        let name = if index == 0 { read_text(rest) } else { self.at(index).0 };
        (name, read_text(rest))
    }

    fn at(&self, index: usize) -> Field {
        match STATIC.get(index - 1) {
            Some((name, value)) => ((*name).to_owned(), (*value).to_owned()),
            None => self.dynamic[index - 1 - STATIC.len()].clone(),
        }
    }

    fn shrink(&mut self, size: usize) {
        while self.dynamic.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>() > size {
            self.dynamic.pop_back();
        }
    }
}

fn read_integer(rest: &mut &[u8], bits: u32) -> usize {
    let most = (1 << bits) - 1;
    let mut value = usize::from(rest[0]) & most;
    *rest = &rest[1..];
    if value < most {
        return value;
    }
    let mut shift = 0;
    loop {
        let byte = rest[0];
        *rest = &rest[1..];
        value += usize::from(byte & 127) << shift;
        shift += 7;
        if byte < 128 {
            return value;
        }
    }
}

fn read_text(rest: &mut &[u8]) -> String {
    let is_huffman = rest[0] & 0x80 != 0;
    let length = read_integer(rest, 7);
    let (text, after) = rest.split_at(length);
    *rest = after;
    if is_huffman { huffman(text) } else { String::from_utf8_lossy(text).into_owned() }
}

fn huffman(bytes: &[u8]) -> String {
    let mut text = String::new();
    let (mut code, mut length) = (0u32, 0);
    for bit in bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| u32::from(byte >> at & 1))) {
        (code, length) = (code << 1 | bit, length + 1);
        if let Some(at) = HUFFMAN.iter().position(|known| *known == (code, length)) {
            text.push(char::from(b' ' + u8::try_from(at).expect("ASCII")));
            (code, length) = (0, 0);
        }
    }
    text
}

/// The codes of printable ASCII, from the space on, each with its length in bits.
#[rustfmt::skip]
const HUFFMAN: [(u32, u32); 95] = [
    (0x14, 6), (0x3f8, 10), (0x3f9, 10), (0xffa, 12), (0x1ff9, 13), (0x15, 6), (0xf8, 8), (0x7fa, 11), (0x3fa, 10),
    (0x3fb, 10), (0xf9, 8), (0x7fb, 11), (0xfa, 8), (0x16, 6), (0x17, 6), (0x18, 6), (0x0, 5), (0x1, 5), (0x2, 5),
    (0x19, 6), (0x1a, 6), (0x1b, 6), (0x1c, 6), (0x1d, 6), (0x1e, 6), (0x1f, 6), (0x5c, 7), (0xfb, 8), (0x7ffc, 15),
    (0x20, 6), (0xffb, 12), (0x3fc, 10), (0x1ffa, 13), (0x21, 6), (0x5d, 7), (0x5e, 7), (0x5f, 7), (0x60, 7),
    (0x61, 7), (0x62, 7), (0x63, 7), (0x64, 7), (0x65, 7), (0x66, 7), (0x67, 7), (0x68, 7), (0x69, 7), (0x6a, 7),
    (0x6b, 7), (0x6c, 7), (0x6d, 7), (0x6e, 7), (0x6f, 7), (0x70, 7), (0x71, 7), (0x72, 7), (0xfc, 8), (0x73, 7),
    (0xfd, 8), (0x1ffb, 13), (0x7fff0, 19), (0x1ffc, 13), (0x3ffc, 14), (0x22, 6), (0x7ffd, 15), (0x3, 5), (0x23, 6),
    (0x4, 5), (0x24, 6), (0x5, 5), (0x25, 6), (0x26, 6), (0x27, 6), (0x6, 5), (0x74, 7), (0x75, 7), (0x28, 6),
    (0x29, 6), (0x2a, 6), (0x7, 5), (0x2b, 6), (0x76, 7), (0x2c, 6), (0x8, 5), (0x9, 5), (0x2d, 6), (0x77, 7),
    (0x78, 7), (0x79, 7), (0x7a, 7), (0x7b, 7), (0x7ffe, 15), (0x7fc, 11), (0x3ffd, 14), (0x1ffd, 13),
];

#[rustfmt::skip]
const STATIC: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
    (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
    ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""), ("cache-control", ""),
    ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""), ("date", ""), ("etag", ""),
    ("expect", ""), ("expires", ""), ("from", ""), ("host", ""), ("if-match", ""), ("if-modified-since", ""),
    ("if-none-match", ""), ("if-range", ""), ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""),
    ("location", ""), ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""), ("via", ""),
    ("www-authenticate", ""),
];
