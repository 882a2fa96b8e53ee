//! SOCKS5 (RFC 1928): CONNECT only, no authentication. A user name that an app offers is nobody's identity.

pub mod wire;

use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use self::wire::{COMMAND_NOT_SUPPORTED, GENERAL_FAILURE, Parsed, VERSION};
use super::{Guest, http, tunnel};
use crate::net::stream::Prefixed;
use crate::reason::{Public, Reason};

/// The whole negotiation must be over by then.
const DEADLINE: Duration = Duration::from_secs(10);

/// How long the end of a refused connection may take.
const CLOSE_DEADLINE: Duration = Duration::from_secs(1);

const NO_AUTHENTICATION: u8 = 0;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;

const SUCCEEDED: u8 = 0;
const NOT_ALLOWED: u8 = 2;
const HOST_UNREACHABLE: u8 = 4;
const CONNECTION_REFUSED: u8 = 5;
const TTL_EXPIRED: u8 = 6;

/// Serves one SOCKS5 connection.
pub(super) async fn serve(guest: Rc<Guest>, mut stream: Prefixed) {
    let mut record = guest.record();
    let asked = tokio::time::timeout(DEADLINE, negotiate(&mut stream)).await.unwrap_or(Err(None));
    let (host, port) = match asked {
        Ok(asked) => asked,
        Err(code) => {
            let unsupported = code == Some(COMMAND_NOT_SUPPORTED);
            let reason = if unsupported { Reason::Unsupported } else { Reason::Malformed };
            record.request("SOCKS5", "");
            record.deny(reason);
            guest.ended(reason);
            guest.throttle().await;
            if let Some(code) = code {
                refuse(&mut stream, code).await;
            }
            return;
        }
    };
    record.request("SOCKS5", "");
    match tunnel::open_named(&guest, &host, port, &mut record).await {
        Ok(opened) => {
            if answer(&mut stream, SUCCEEDED).await {
                http::carry(guest, opened, stream, record).await;
            }
        }
        Err(reason) => {
            guest.ended(reason);
            guest.throttle().await;
            refuse(&mut stream, code_of(reason)).await;
        }
    }
}

/// Reads greeting and request. `Err(Some(code))` is answered, `Err(None)` only closed.
async fn negotiate(stream: &mut Prefixed) -> Result<(String, u16), Option<u8>> {
    let acceptable = message(stream, wire::greeting).await?;
    let method = if acceptable { NO_AUTHENTICATION } else { NO_ACCEPTABLE_METHOD };
    stream.write_all(&[VERSION, method]).await.map_err(|_| None)?;
    stream.flush().await.map_err(|_| None)?;
    if !acceptable {
        let _ = tokio::time::timeout(CLOSE_DEADLINE, stream.shutdown()).await;
        return Err(None);
    }
    message(stream, wire::request).await
}

/// Reads one message, and nothing of what follows it.
async fn message<T>(stream: &mut Prefixed, parse: impl Fn(&[u8]) -> Parsed<T>) -> Result<T, Option<u8>> {
    let mut bytes = Vec::new();
    loop {
        match parse(&bytes) {
            Parsed::Whole(message) => return Ok(message),
            Parsed::Refused(code) => return Err(Some(code)),
            Parsed::Needs(len) => {
                let known = bytes.len();
                bytes.resize(len, 0);
                stream.read_exact(&mut bytes[known..]).await.map_err(|_| None)?;
            }
        }
    }
}

/// Writes a reply and ends this side in good order, so that no reset overtakes it.
async fn refuse(stream: &mut Prefixed, code: u8) {
    if answer(stream, code).await {
        // The app is told; whether it also sees the end is its own affair.
        let _ = tokio::time::timeout(CLOSE_DEADLINE, stream.shutdown()).await;
    }
}

/// Writes a reply with an empty bound address; false when the app is gone.
async fn answer(stream: &mut Prefixed, code: u8) -> bool {
    let reply = [VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0];
    stream.write_all(&reply).await.is_ok() && stream.flush().await.is_ok()
}

fn code_of(reason: Reason) -> u8 {
    match (reason, reason.public()) {
        (Reason::UpstreamRefused, _) => CONNECTION_REFUSED,
        (Reason::ResolveFailed, _) => HOST_UNREACHABLE,
        (_, Public::Denied | Public::UseHttp) => NOT_ALLOWED,
        (_, Public::UpstreamTimeout) => TTL_EXPIRED,
        _ => GENERAL_FAILURE,
    }
}
