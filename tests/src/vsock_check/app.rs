//! The app of the guest: three ports with different manners, on loopback TCP.

use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Speaks first, echoes to the end, then says in eight bytes how much that was.
pub(super) const ECHO: u16 = 8080;
/// Speaks first and ends its side at once, then counts what still comes.
pub(super) const ENDS_FIRST: u16 = 8081;
/// Declared to the relay, but nobody listens.
pub(super) const CLOSED: u16 = 8082;
/// Not declared to the relay, though somebody listens.
pub(super) const UNDECLARED: u16 = 8083;
/// What the app says first.
pub(super) const GREETING: &[u8] = b"the app speaks first\n";

/// The running app.
pub(super) struct Apps {
    /// How much each connection of [`ENDS_FIRST`] still sent.
    pub(super) counted: mpsc::UnboundedReceiver<usize>,
}

/// Starts every part of it.
pub(super) async fn start() -> std::io::Result<Apps> {
    let (count, counted) = mpsc::unbounded_channel();
    serve(ECHO, |stream| async move { echo(stream).await }).await?;
    serve(UNDECLARED, |stream| async move { echo(stream).await }).await?;
    serve(ENDS_FIRST, move |stream| {
        let count = count.clone();
        async move { end_first(stream, &count).await }
    })
    .await?;
    Ok(Apps { counted })
}

async fn serve<F, W>(port: u16, each: F) -> std::io::Result<()>
where
    F: Fn(TcpStream) -> W + Send + 'static,
    W: Future<Output = std::io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(each(stream));
        }
    });
    Ok(())
}

async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    stream.write_all(GREETING).await?;
    let (mut read, mut write) = stream.split();
    let echoed = tokio::io::copy(&mut read, &mut write).await?;
    write.write_all(&echoed.to_be_bytes()).await?;
    write.shutdown().await
}

async fn end_first(mut stream: TcpStream, count: &mpsc::UnboundedSender<usize>) -> std::io::Result<()> {
    stream.write_all(GREETING).await?;
    stream.shutdown().await?;
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await?;
    // Fails only when the checks have ended.
    let _ = count.send(rest.len());
    Ok(())
}
