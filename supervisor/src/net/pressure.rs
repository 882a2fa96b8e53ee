//! What an accept loop does when the process has no descriptors or no memory left: it rests, longer each time, and the
//! node is not ready until it could accept again. Nothing spins: the error would stay for as long as the lack does.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::coop::unconstrained;

/// First rest of a loop that cannot accept.
const FIRST_REST: Duration = Duration::from_millis(5);
/// Longest rest: also how long the end of the lack may go unseen.
const LAST_REST: Duration = Duration::from_secs(1);

/// How many accept loops of the process cannot accept.
#[derive(Debug, Clone, Default)]
pub struct Pressure(Arc<AtomicUsize>);

impl Pressure {
    /// Whether all can accept.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// The state of one loop.
    #[must_use]
    pub fn accept_loop(&self) -> Trouble {
        Trouble { all: self.clone(), rest: None }
    }
}

/// One accept loop that may be in trouble. Dropping it ends its trouble.
#[derive(Debug)]
pub struct Trouble {
    all: Pressure,
    rest: Option<Duration>,
}

impl Trouble {
    /// The next of what `accept` gives; rests while it can give nothing.
    pub async fn next<T, A: Future<Output = io::Result<T>>>(&mut self, what: &str, accept: impl Fn() -> A) -> T {
        loop {
            let accepted = if self.rest.is_some() {
                // It works again when it would wait for somebody, also if nobody comes.
                let Some(accepted) = unconstrained(accept()).now_or_never() else {
                    self.end();
                    continue;
                };
                accepted
            } else {
                accept().await
            };
            match accepted {
                Ok(accepted) => {
                    self.end();
                    return accepted;
                }
                Err(error) if is_about_one_connection(&error) => {}
                Err(error) => {
                    let rest = self.begin(&error, what);
                    tokio::time::sleep(rest).await;
                }
            }
        }
    }

    /// Notes a failed accept and says how long to rest. Logged when it begins, not each time.
    fn begin(&mut self, error: &io::Error, what: &str) -> Duration {
        let rest = match self.rest {
            Some(rest) => (rest * 2).min(LAST_REST),
            None => {
                tracing::warn!(%error, what, "connections cannot be accepted; resting");
                self.all.0.fetch_add(1, Ordering::Relaxed);
                FIRST_REST
            }
        };
        self.rest = Some(rest);
        rest
    }

    /// Notes that accepting works.
    fn end(&mut self) {
        if self.rest.take().is_some() {
            self.all.0.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("connections are accepted again");
        }
    }
}

impl Drop for Trouble {
    fn drop(&mut self) {
        if self.rest.take().is_some() {
            self.all.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Whether a failed accept says nothing of the next one.
fn is_about_one_connection(error: &io::Error) -> bool {
    use nix::libc;
    // accept(2) also passes on what the network had for the new connection already.
    let of_the_network = [
        libc::ENETDOWN,
        libc::EPROTO,
        libc::ENOPROTOOPT,
        libc::EHOSTDOWN,
        libc::ENONET,
        libc::EHOSTUNREACH,
        libc::EOPNOTSUPP,
        libc::ENETUNREACH,
    ];
    let kinds = [io::ErrorKind::ConnectionAborted, io::ErrorKind::ConnectionReset, io::ErrorKind::Interrupted];
    kinds.contains(&error.kind()) || error.raw_os_error().is_some_and(|code| of_the_network.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> io::Error {
        io::Error::from_raw_os_error(nix::libc::EMFILE)
    }

    // covers: C10a
    #[test]
    fn rests_grow_from_5_ms_to_1_s_and_start_anew_after_a_success() {
        let pressure = Pressure::default();
        let mut trouble = pressure.accept_loop();
        let rests: Vec<_> = (0..10).map(|_| trouble.begin(&full(), "a port").as_millis()).collect();
        assert_eq!(rests, [5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        trouble.end();
        assert_eq!(trouble.begin(&full(), "a port"), FIRST_REST);
    }

    // covers: C10a
    #[test]
    fn the_process_is_under_pressure_while_any_loop_is() {
        let pressure = Pressure::default();
        let (mut one, mut two) = (pressure.accept_loop(), pressure.accept_loop());
        let _ = (one.begin(&full(), "a port"), one.begin(&full(), "a port"), two.begin(&full(), "a guest"));
        one.end();
        assert!(!pressure.is_none());
        drop(two);
        assert!(pressure.is_none(), "a loop that ends has no trouble any more");
    }

    #[test]
    fn a_lack_is_no_matter_of_one_connection() {
        for code in [nix::libc::EMFILE, nix::libc::ENFILE, nix::libc::ENOMEM, nix::libc::ENOBUFS] {
            assert!(!is_about_one_connection(&io::Error::from_raw_os_error(code)));
        }
        assert!(is_about_one_connection(&io::ErrorKind::ConnectionAborted.into()));
        assert!(is_about_one_connection(&io::Error::from_raw_os_error(nix::libc::EPROTO)));
    }
}
