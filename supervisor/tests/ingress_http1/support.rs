//! A caller with a grant, and an app that writes down every byte it gets.

use std::io::{Read, Write};

use nova_supervisor::identity::Issued;

use crate::data::{A, App, HTTPS, Link, Node, Plan, Tls, read_answer_to, read_request, until};

pub(crate) const HOST: &str = "Host: service-a.t.nova\r\n";
pub(crate) const ORDER: &str = "GET /v1/orders/42 HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n";
/// Up to the framing headers.
pub(crate) const POST: &str = "POST /v1/orders/42 HTTP/1.1\r\nHost: service-a.t.nova\r\n";

/// Marks what the app got of a request that never became whole.
const PART: &str = "PART OF ";

/// `GET` of a target, with more header lines.
pub(crate) fn get(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\n{HOST}{fields}\r\n")
}

pub(crate) struct Stand {
    pub(crate) node: Node,
    pub(crate) x: Issued,
}

impl Stand {
    pub(crate) fn start() -> Self {
        Self::with(Plan::default())
    }

    pub(crate) fn with(plan: Plan) -> Self {
        let node = Node::with(plan);
        node.guest(A).serve(write_down);
        let x = node.svid("x");
        Self { node, x }
    }

    pub(crate) fn caller(&self) -> Tls {
        self.node.call(Some(&self.x), HTTPS).expect("the caller has a grant")
    }

    /// Each of these is answered with `status`, the connection ends after it, and the app gets nothing.
    #[track_caller]
    pub(crate) fn refuses(&self, status: u16, cases: &[impl AsRef<[u8]>]) {
        for case in cases {
            let shown = String::from_utf8_lossy(case.as_ref());
            let mut tls = self.caller();
            tls.send(case);
            let answer = tls.answer().unwrap_or_else(|error| panic!("{shown:?}: {error}"));
            assert_eq!(answer.status, status, "{shown:?}: {answer:?}");
            assert_eq!(rest(&mut tls), "", "{shown:?}: something follows the refusal");
        }
        self.app_got(&[]);
        self.still_serves();
    }

    /// Each of these is answered with `status`, the app gets nothing, and the next request of the connection is served.
    #[track_caller]
    pub(crate) fn declines(&self, status: u16, cases: &[impl AsRef<[u8]>]) {
        for case in cases {
            let shown = String::from_utf8_lossy(case.as_ref());
            let mut tls = self.caller();
            let answer = tls.ask(case);
            assert_eq!(answer.status, status, "{shown:?}: {answer:?}");
            self.app_got(&[]);
            assert_eq!(tls.ask(ORDER).status, 200, "after {shown:?}");
            self.app_got(&[Wanted::order()]);
        }
    }

    /// The head is good and what follows is not: the caller is told, and what the app got is never a whole request.
    #[track_caller]
    pub(crate) fn refuses_in_body(&self, head: &str, bodies: &[&str]) {
        for body in bodies {
            let mut tls = self.caller();
            tls.send(format!("{head}{body}"));
            let answer = tls.answer().unwrap_or_else(|error| panic!("{body:?}: {error}"));
            assert_eq!(answer.status, 400, "{body:?}: {answer:?}");
            drop(tls);
            self.settle();
            let seen = self.node.guest(A).app.seen();
            let is_part = |got: &String| got.starts_with(PART) && !got.contains("SMUGGLED");
            assert!(seen.iter().all(is_part), "{body:?}: the app got {seen:?}");
        }
        self.forget();
        self.still_serves();
    }

    /// One connection, one write; the answers in order, and exactly these requests at the app.
    #[track_caller]
    pub(crate) fn serves(&self, bytes: impl AsRef<[u8]>, statuses: &[u16], wanted: &[Wanted]) {
        let mut tls = self.caller();
        tls.send(&bytes);
        let shown = String::from_utf8_lossy(bytes.as_ref());
        for (at, status) in statuses.iter().enumerate() {
            let answer = tls.answer().unwrap_or_else(|error| panic!("{shown:?}, answer {at}: {error}"));
            assert_eq!(answer.status, *status, "{shown:?}, answer {at}: {answer:?}");
        }
        drop(tls);
        self.app_got(wanted);
    }

    /// A caller of the same pool gets its own answer: nothing was left behind for it.
    #[track_caller]
    pub(crate) fn still_serves(&self) {
        let answer = self.caller().ask(ORDER);
        assert_eq!((answer.status, answer.text().as_str()), (200, "GET /v1/orders/42 HTTP/1.1"));
        self.app_got(&[Wanted::order()]);
    }

    /// What the app got since the last look, once no caller is connected any more or has anything under way.
    #[track_caller]
    pub(crate) fn app_got(&self, wanted: &[Wanted]) {
        let seen = std::mem::take(&mut *self.node.guest(A).app.requests.lock().expect("no panic"));
        let got: Vec<_> = seen.iter().map(|raw| Wanted::read(raw)).collect();
        let wanted: Vec<_> = wanted.iter().map(|wanted| wanted.clone().with_caller(&self.xfcc(), &self.node)).collect();
        assert_eq!(got, wanted, "at the app: {seen:#?}");
    }

    pub(crate) fn forget(&self) {
        self.node.guest(A).app.requests.lock().expect("no panic").clear();
    }

    pub(crate) fn settle(&self) {
        until("nothing is left open", || self.node.open("service-a") == 0);
    }

    /// The verified caller, as the app must see it.
    pub(crate) fn xfcc(&self) -> String {
        let hash = hex::encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &self.x.chain[0]));
        format!("By=spiffe://dev.invalid/t/t/w/service-a;Hash={hash};URI=spiffe://dev.invalid/t/t/w/x")
    }
}

/// A request as the app must get it: its line, its headers in no particular order, its body and trailers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    line: String,
    fields: Vec<String>,
    body: String,
}

impl Wanted {
    /// Method and target; the headers that the supervisor sets come by themselves.
    pub(crate) fn line(line: &str) -> Self {
        let fields = vec!["host: service-a.t.nova".to_owned()];
        Self { line: format!("{line} HTTP/1.1"), fields, body: String::new() }
    }

    pub(crate) fn order() -> Self {
        Self::line("GET /v1/orders/42")
    }

    pub(crate) fn with(mut self, field: &str) -> Self {
        self.fields.push(field.to_owned());
        self
    }

    pub(crate) fn host(mut self, host: &str) -> Self {
        self.fields[0] = format!("host: {host}");
        self
    }

    pub(crate) fn body(mut self, body: &str) -> Self {
        self.body = body.to_owned();
        self
    }

    fn with_caller(mut self, xfcc: &str, node: &Node) -> Self {
        self.fields.push(format!("x-forwarded-client-cert: {xfcc}"));
        self.fields.push(format!("x-forwarded-for: {}", node.ip(99)));
        self.fields.sort();
        self
    }

    fn read(raw: &str) -> Self {
        let (head, body) = raw.split_once("\r\n\r\n").unwrap_or((raw, ""));
        let mut lines = head.split("\r\n").map(str::to_owned);
        let line = lines.next().unwrap_or_default();
        let mut fields: Vec<_> = lines.collect();
        fields.sort();
        let is_chunked = fields.iter().any(|field| field == "transfer-encoding: chunked");
        Self { line, fields, body: if is_chunked { joined(body) } else { body.to_owned() } }
    }
}

/// The data of chunks, however it was cut, and the trailers as they stand.
fn joined(chunks: &str) -> String {
    let (mut data, mut rest) = (String::new(), chunks);
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or_else(|_| panic!("broken chunks {chunks:?}"));
        if size == 0 {
            return format!("{data}|{}", after.trim_end_matches("\r\n"));
        }
        data.push_str(&after[..size]);
        rest = after[size..].strip_prefix("\r\n").unwrap_or_else(|| panic!("broken chunks {chunks:?}"));
    }
    panic!("chunks without end {chunks:?}")
}

/// An app that answers each request with its first line and notes the bytes it got, also those of half a request.
pub(crate) fn write_down(mut link: Link, app: &App) {
    loop {
        let mut tee = Tee { from: &mut link, seen: Vec::new() };
        let whole = read_request(&mut tee).is_ok();
        let seen = String::from_utf8_lossy(&tee.seen).into_owned();
        if !whole {
            if !seen.is_empty() {
                app.saw(&format!("{PART}{seen}"));
            }
            return;
        }
        let line = seen.lines().next().unwrap_or_default();
        let body = if line.starts_with("HEAD ") { "" } else { line };
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", line.len());
        app.saw(&seen);
        if link.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

struct Tee<'a> {
    from: &'a mut Link,
    seen: Vec<u8>,
}

impl Read for Tee<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let read = self.from.read(buf)?;
        self.seen.extend_from_slice(&buf[..read]);
        Ok(read)
    }
}

/// What is still to come, to the end of the connection in whichever way that is.
pub(crate) fn rest(from: &mut impl Read) -> String {
    let mut all = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match from.read(&mut piece) {
            Ok(read @ 1..) => all.extend_from_slice(&piece[..read]),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                panic!("the connection does not end, after {:?}", String::from_utf8_lossy(&all))
            }
            Ok(0) | Err(_) => return String::from_utf8_lossy(&all).into_owned(),
        }
    }
}

/// The answer to a HEAD.
pub(crate) fn answer_to_head(from: &mut impl Read) -> crate::data::Answer {
    read_answer_to(from, true).expect("an answer")
}
