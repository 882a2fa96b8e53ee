//! What runs inside a guest beside the app, and nothing else does: `nova-init` prepares the guest and supervises, and
//! `nova-relay` carries bytes between the app's sockets and the one link to the host.
//!
//! ```text
//!  app --HTTP_PROXY / SOCKS5--> 127.0.0.1:3128  \                      / host port 15001 (slot A)
//!  app --db.t.nova:5432-------> 127.0.1.1:5432   > nova-relay == link <  host port 15002 (slot B)
//!  app --unix-----------------> egress.sock     |                     |
//!  app --ping-----------------> tun0            |                     |
//!  app <------------------------ 127.0.0.1:8080  /                      \ guest port 15080 <-- supervisor
//! ```
//!
//! The relay has no TLS, no policy, no HTTP parser and no secret but the boot token. It trusts neither the app nor what
//! reaches it over the link: every wait for a peer has a deadline, every number a bound. Who is calling is never decided
//! here; the host knows that from the link itself.
//!
//! Read `relay/mod.rs`, `relay/outbound.rs`, `relay/inbound.rs`, `relay/copy.rs`, then `init/mod.rs`.

pub mod config;
pub mod handover;
pub mod init;
pub mod relay;
mod sys;
