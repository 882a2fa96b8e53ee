//! HTTP/1.1 read by hand: what the other side of a test wrote, byte for byte.

use std::io::{self, Read};

/// One request: head and body, chunks as they came.
pub fn read_request(from: &mut impl Read) -> io::Result<String> {
    let head = read_head(from)?;
    let body = read_body(from, &head, false)?;
    Ok(format!("{head}{}", String::from_utf8_lossy(&body)))
}

/// What a caller got.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> Option<String> {
        header(&self.head, name)
    }

    pub fn decision_id(&self) -> String {
        self.header("x-nova-decision-id").unwrap_or_else(|| panic!("no decision id in {self:?}"))
    }
}

/// One answer to a request that was not HEAD or CONNECT.
pub fn read_answer(from: &mut impl Read) -> io::Result<Answer> {
    read_answer_to(from, false)
}

/// One answer; interim ones are skipped.
pub fn read_answer_to(from: &mut impl Read, without_body: bool) -> io::Result<Answer> {
    loop {
        let head = read_head(from)?;
        let status = head.get(9..12).and_then(|code| code.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        if (100..200).contains(&status) && status != 101 {
            continue;
        }
        let none = without_body || matches!(status, 101 | 204 | 304);
        let body = if none { Vec::new() } else { read_body(from, &head, true)? };
        return Ok(Answer { status, head, body });
    }
}

pub fn header(head: &str, name: &str) -> Option<String> {
    head.lines().skip(1).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    })
}

pub fn read_head(from: &mut impl Read) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        head.push(byte[0]);
        if head.len() > 128 * 1024 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    String::from_utf8(head).map_err(io::Error::other)
}

fn read_body(from: &mut impl Read, head: &str, is_answer: bool) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    if header(head, "transfer-encoding").is_some() {
        loop {
            let line = read_line(from)?;
            let size = usize::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
            if size == 0 {
                while read_line(from)? != "\r\n" {}
                return Ok(body);
            }
            let start = body.len();
            body.resize(start + size, 0);
            from.read_exact(&mut body[start..])?;
            read_line(from)?;
        }
    }
    match header(head, "content-length").and_then(|length| length.parse().ok()) {
        Some(length) => {
            body.resize(length, 0);
            from.read_exact(&mut body)?;
        }
        None if is_answer => {
            from.read_to_end(&mut body)?;
        }
        None => {}
    }
    Ok(body)
}

fn read_line(from: &mut impl Read) -> io::Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    String::from_utf8(line).map_err(io::Error::other)
}
