//! A small HTTP/1.1 server that keeps what it received exactly as it came: the opposite of a library that tidies up.

use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use super::records::Records;

const LINE_MAX: u64 = 64 * 1024;
const HEADERS_MAX: usize = 1000;

/// One request as it came.
pub struct Request {
    /// The request line.
    pub line: String,
    /// Name and value of each header, in order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// Serves requests of one connection until it ends. `about` is added to each record (who listens, who called).
///
/// # Errors
/// When the connection breaks or a message cannot be read.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S, about: Value, records: Records) -> anyhow::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read_request(&mut stream).await? {
        records.push(record(&request, &about));
        let closes = request.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        answer(&mut stream, &request, &about).await?;
        if closes {
            break;
        }
    }
    stream.shutdown().await.context("closing")
}

impl Request {
    /// The value of the first header of that name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    fn target(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }
}

fn record(request: &Request, about: &Value) -> Value {
    let mut event = json!({
        "line": request.line,
        "method": request.line.split(' ').next(),
        "target": request.target(),
        "headers": request.headers,
        "body_length": request.body.len(),
    });
    if let (Some(event), Some(about)) = (event.as_object_mut(), about.as_object()) {
        event.extend(about.clone());
    }
    event
}

async fn answer<S: AsyncWrite + Unpin>(stream: &mut S, request: &Request, about: &Value) -> anyhow::Result<()> {
    let target = request.target();
    if let Some(seconds) = target.split_once("/slow?s=").and_then(|(_, value)| value.parse::<f64>().ok()) {
        return slow(stream, seconds).await;
    }
    let body = if target.ends_with("/echo") {
        request.body.clone()
    } else {
        json!({"served_by": about["app"], "line": request.line}).to_string().into_bytes()
    };
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    Ok(stream.flush().await?)
}

/// Ten pieces, the last one `seconds` after the first.
async fn slow<S: AsyncWrite + Unpin>(stream: &mut S, seconds: f64) -> anyhow::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n").await?;
    let pause = Duration::try_from_secs_f64(seconds / 9.0).context("a number of seconds")?;
    for piece in 0..10 {
        if piece > 0 {
            tokio::time::sleep(pause).await;
        }
        stream.write_all(format!("8\r\npiece {piece}\n\r\n").as_bytes()).await?;
        stream.flush().await?;
    }
    stream.write_all(b"0\r\n\r\n").await?;
    Ok(stream.flush().await?)
}

/// Reads one request, or `None` when the connection ended between two.
///
/// # Errors
/// When the connection breaks or the message cannot be framed.
pub async fn read_request<S: AsyncRead + Unpin>(stream: &mut BufReader<S>) -> anyhow::Result<Option<Request>> {
    let line = read_line(stream).await?;
    if line.is_empty() {
        return Ok(None);
    }
    let mut headers = Vec::new();
    loop {
        let line = read_line(stream).await?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').with_context(|| format!("header line {line:?}"))?;
        headers.push((name.to_owned(), value.trim().to_owned()));
        if headers.len() > HEADERS_MAX {
            bail!("too many headers");
        }
    }
    let mut request = Request { line, headers, body: Vec::new() };
    request.body = read_body(stream, &request).await?;
    Ok(Some(request))
}

async fn read_body<S: AsyncRead + Unpin>(stream: &mut BufReader<S>, request: &Request) -> anyhow::Result<Vec<u8>> {
    let mut body = Vec::new();
    if request.header("transfer-encoding").is_some() {
        loop {
            let line = read_line(stream).await?;
            let size = u64::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16)?;
            stream.take(size).read_to_end(&mut body).await?;
            // The empty line after a piece, or the end of the trailers.
            while !read_line(stream).await?.is_empty() {}
            if size == 0 {
                return Ok(body);
            }
        }
    }
    if let Some(length) = request.header("content-length") {
        stream.take(length.parse()?).read_to_end(&mut body).await?;
    }
    Ok(body)
}

async fn read_line<S: AsyncRead + Unpin>(stream: &mut BufReader<S>) -> anyhow::Result<String> {
    let mut line = Vec::new();
    stream.take(LINE_MAX).read_until(b'\n', &mut line).await?;
    while matches!(line.last(), Some(b'\n' | b'\r')) {
        line.pop();
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}
