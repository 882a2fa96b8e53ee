//! What nova-init hands to the relay on its standard input, a Unix socket: descriptors that only root can make, then the
//! configuration.
//!
//! ```text
//! ' ' + descriptors, at most BATCH a message ... | JSON | end
//! ```
//!
//! Each batch rides on a space, which JSON ignores, so without descriptors there is nothing but the JSON.

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::relay::config::RelayConfig;

/// Descriptors in one message; the kernel takes 253.
const BATCH: usize = 128;
/// Longest configuration that is read, in bytes.
const LONGEST: usize = 1 << 20;

/// What root made for the relay.
#[derive(Debug, Default)]
pub struct Handed {
    /// Listening, one for each of the configuration's `egress_sockets`.
    pub sockets: Vec<UnixListener>,
    /// The device that the app's pings go to, if the configuration has `ping_from`.
    pub tun: Option<OwnedFd>,
}

impl Handed {
    /// Sends all of it and the configuration, then ends.
    ///
    /// # Errors
    /// When the relay ended.
    pub fn send(&self, mut to: UnixStream, config: &[u8]) -> io::Result<()> {
        let sockets = self.sockets.iter().map(AsFd::as_fd);
        let all: Vec<BorrowedFd<'_>> = sockets.chain(self.tun.as_ref().map(AsFd::as_fd)).collect();
        for batch in all.chunks(BATCH) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(batch));
            sendmsg(&to, &[IoSlice::new(b" ")], &mut control, SendFlags::NOSIGNAL)?;
        }
        to.write_all(config)
    }

    /// Tells what the descriptors are.
    ///
    /// # Errors
    /// When there are more or fewer than the configuration speaks of.
    pub fn of(config: &RelayConfig, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let wanted = config.egress_sockets.len() + usize::from(config.ping_from.is_some());
        if descriptors.len() != wanted {
            let problem = format!(
                "the configuration speaks of {wanted} sockets and devices, but {} were handed over",
                descriptors.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        let mut descriptors = descriptors.into_iter();
        let sockets = descriptors.by_ref().take(config.egress_sockets.len()).map(UnixListener::from).collect();
        Ok(Self { sockets, tun: descriptors.next() })
    }
}

/// Reads to the end of `from`: the configuration's text, and the descriptors that came with it. What is no socket has none.
///
/// # Errors
/// When it breaks or is too long.
pub fn receive(from: BorrowedFd<'_>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut text, mut descriptors) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = match receive_some(from, &mut buffer, &mut descriptors) {
            Err(error) if error == rustix::io::Errno::NOTSOCK => rustix::io::read(from, &mut buffer)?,
            read => read?,
        };
        if read == 0 {
            return Ok((text, descriptors));
        }
        text.extend_from_slice(&buffer[..read]);
        if text.len() > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the configuration is longer than 1 MiB"));
        }
    }
}

fn receive_some(from: BorrowedFd<'_>, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(from, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            descriptors.extend(more);
        }
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(dir: &tempfile::TempDir, name: &str) -> UnixListener {
        UnixListener::bind(dir.path().join(name)).expect("bound")
    }

    #[test]
    fn descriptors_arrive_in_order_before_the_text() {
        let dir = tempfile::tempdir().expect("dir");
        let names: Vec<String> = (0..300).map(|number| number.to_string()).collect();
        let sockets = names.iter().map(|name| listener(&dir, name)).collect();
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let sent = std::thread::spawn(move || Handed { sockets, tun: None }.send(ours, b"{}"));
        let (text, descriptors) = receive(theirs.as_fd()).expect("received");
        sent.join().expect("no panic").expect("sent");
        assert_eq!(text.trim_ascii(), b"{}");
        let received: Vec<String> = descriptors
            .into_iter()
            .map(|fd| UnixListener::from(fd).local_addr().expect("an address"))
            .map(|address| address.as_pathname().expect("a path").display().to_string())
            .collect();
        assert_eq!(received, names.iter().map(|name| dir.path().join(name).display().to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn a_pipe_carries_the_text_alone() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        writer.write_all(b"{}").expect("written");
        drop(writer);
        let (text, descriptors) = receive(reader.as_fd()).expect("received");
        assert!(text == b"{}" && descriptors.is_empty());
    }
}
