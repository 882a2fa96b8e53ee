//! The only way between supervisor and guest: a stream per connection, over AF_VSOCK or over the per-VM Unix sockets of
//! hybrid vsock. Who is calling is the peer CID or the socket path, both set by the host, never anything the guest sends.
//!
//! Both families end in one stream type: a connected AF_VSOCK socket is read, written and shut down with the same calls as
//! an AF_UNIX one, so it is carried in a `UnixStream` and everything behind this module has one type to deal with.

mod dial;
mod hello;
mod listen;

use std::os::unix::net::UnixStream as StdUnixStream;

use nova_proto::framed::Channel;
use tokio::net::UnixStream;

pub use dial::{DialError, LinkPorts, is_gone, open};
pub use hello::{HelloFailure, receive};
pub use listen::{Accepted, Listener, VsockListener};

/// What the kernel may keep of one AF_VSOCK connection that nobody reads: one read of the copy. The kernel's own default is four
/// times that, which ten thousand silent guests could make 2.5 GiB of.
const VSOCK_BUFFER: u64 = 64 * 1024;

/// A guest connection as it is handed to a data-plane thread: connected, not registered with any runtime.
pub type GuestSocket = StdUnixStream;

/// A guest connection after its hello.
pub type GuestStream = Channel<UnixStream>;
