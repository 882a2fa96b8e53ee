//! What plays a part in the lab. The first group runs in guests too and is built static, without TLS and without libnss.

pub mod agent;
pub mod app;
pub mod flood;
pub mod http;
pub mod link;
pub mod probe;
pub mod records;
pub mod talk;
pub mod tcp_first;

#[cfg(feature = "host")]
pub mod client;
#[cfg(feature = "host")]
pub mod dns;
#[cfg(feature = "host")]
pub mod upstream;

use std::future::Future;

/// Runs one program on a runtime of its own.
///
/// # Errors
/// What the program returns, or that no runtime can be had.
pub fn block_on<F: Future<Output = anyhow::Result<()>>>(program: F) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(program)
}
