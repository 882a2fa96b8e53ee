//! The app of the guest: HTTP/1.1 by hand on a TCP port of the guest. It notes what arrived.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use crate::data::{PATIENCE, header, read_head};

/// How many calls of `/v1/orders/together` wait for each other.
pub(crate) const TOGETHER: usize = 8;
/// Length of the body that clients post.
pub(crate) const BODY: usize = 1 << 20;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) head: String,
    pub(crate) body: usize,
    /// Every byte of the body is the one that clients send.
    pub(crate) whole: bool,
}

impl Seen {
    pub(crate) fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }
}

#[derive(Default)]
struct State {
    seen: Mutex<Vec<Seen>>,
    waiting: Mutex<usize>,
    all_here: Condvar,
}

pub(crate) struct App {
    pub(crate) port: u16,
    state: Arc<State>,
}

impl App {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // An error is the end of a connection, which is the supervisor's to give; what it means shows in `seen`.
                std::thread::spawn(move || state.serve(stream));
            }
        });
        Self { port, state }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().expect("no panic").clone()
    }
}

impl State {
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut writer = stream;
        loop {
            let head = read_head(&mut reader)?;
            let body = read_body(&mut reader, &head)?;
            let whole = body.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at % 251);
            let line = head.lines().next().unwrap_or_default().to_owned();
            self.seen.lock().expect("no panic").push(Seen { head, body: body.len(), whole });
            writer.write_all(&self.answer(&line, &body))?;
        }
    }

    fn answer(&self, line: &str, body: &[u8]) -> Vec<u8> {
        let mut words = line.split(' ');
        match (words.next().unwrap_or_default(), words.next().unwrap_or_default()) {
            ("POST", _) => echo(body),
            ("HEAD", _) => b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n".to_vec(),
            (_, "/v1/orders/none") => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
            (_, "/v1/orders/together") if !self.meet() => text("500 Alone", "the others did not come"),
            _ => text("200 OK", line),
        }
    }

    /// Waits until all are there; false when they do not come.
    fn meet(&self) -> bool {
        let mut waiting = self.waiting.lock().expect("no panic");
        *waiting += 1;
        self.all_here.notify_all();
        let alone = |waiting: &mut usize| *waiting < TOGETHER;
        let (waiting, _) = self.all_here.wait_timeout_while(waiting, PATIENCE, alone).expect("no panic");
        *waiting >= TOGETHER
    }
}

fn text(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into()
}

/// The same bytes in chunks, and their number in a trailer.
fn echo(body: &[u8]) -> Vec<u8> {
    let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Length\r\n\r\n".to_vec();
    for chunk in body.chunks(50_000) {
        answer.extend(format!("{:x}\r\n", chunk.len()).bytes());
        answer.extend(chunk);
        answer.extend(b"\r\n");
    }
    answer.extend(format!("0\r\nX-Length: {}\r\n\r\n", body.len()).bytes());
    answer
}

fn read_body(from: &mut impl BufRead, head: &str) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    if header(head, "transfer-encoding").is_none() {
        let length = header(head, "content-length").map_or(Ok(0), |length| length.parse()).map_err(io::Error::other)?;
        body.resize(length, 0);
        from.read_exact(&mut body)?;
        return Ok(body);
    }
    loop {
        let size = usize::from_str_radix(line(from)?.trim(), 16).map_err(io::Error::other)?;
        if size == 0 {
            while !line(from)?.trim().is_empty() {}
            return Ok(body);
        }
        let start = body.len();
        body.resize(start + size, 0);
        from.read_exact(&mut body[start..])?;
        line(from)?;
    }
}

fn line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    match from.read_line(&mut line)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line),
    }
}
