//! Several addresses of one name, tried as RFC 8305 says: families in turn, IPv6 first, a new attempt every 250 ms or as soon
//! as one has failed, and the first connection wins.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::DialFailure;

/// The delay that RFC 8305 recommends.
const NEXT_ATTEMPT: Duration = Duration::from_millis(250);

/// Families in turn, IPv6 first; within a family the server's order stays.
pub(super) fn in_turn(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let (mut v6, mut v4): (Vec<_>, Vec<_>) = addresses.iter().copied().partition(IpAddr::is_ipv6);
    v6.reverse();
    v4.reverse();
    let mut ordered = Vec::with_capacity(addresses.len());
    while !(v6.is_empty() && v4.is_empty()) {
        ordered.extend(v6.pop());
        ordered.extend(v4.pop());
    }
    ordered
}

/// The first connection, and the address that it goes to. `addresses` keeps those that have neither failed nor won.
///
/// # Errors
/// The failure of the attempt that ended last.
pub(super) async fn race<T>(
    addresses: &mut Vec<SocketAddr>,
    connect: impl AsyncFn(SocketAddr) -> Result<T, DialFailure>,
) -> Result<(T, SocketAddr), DialFailure> {
    let waiting = std::mem::take(addresses);
    let mut waiting = waiting.into_iter();
    let mut running = FuturesUnordered::new();
    let mut last = DialFailure::new(crate::reason::Reason::ResolveFailed);
    loop {
        if let Some(addr) = waiting.next() {
            addresses.push(addr);
            let connect = &connect;
            running.push(async move { (addr, connect(addr).await) });
        }
        tokio::select! {
            ended = running.next() => match ended {
                None => return Err(last),
                Some((addr, result)) => {
                    addresses.retain(|other| *other != addr);
                    match result {
                        Ok(connection) => {
                            addresses.extend(waiting);
                            return Ok((connection, addr));
                        }
                        Err(failure) => last = failure,
                    }
                }
            },
            () = tokio::time::sleep(NEXT_ATTEMPT), if waiting.len() > 0 => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Instant;

    use super::*;
    use crate::reason::Reason;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| SocketAddr::new(text.parse().expect("an address"), 80)).collect()
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(future)
    }

    // covers: D7f
    #[test]
    fn families_take_turns_and_ipv6_is_first() {
        let all = ["1.1.1.1", "1.1.1.2", "1.1.1.3", "2606::1", "2606::2"].map(|text| text.parse().expect("an address"));
        let ordered: Vec<_> = in_turn(&all).iter().map(ToString::to_string).collect();
        assert_eq!(ordered, ["2606::1", "1.1.1.1", "2606::2", "1.1.1.2", "1.1.1.3"]);
    }

    // covers: D7f
    #[test]
    fn an_address_that_says_nothing_costs_a_quarter_of_a_second_and_not_its_deadline() {
        let started = Instant::now();
        let mut left = addresses(&["2606::1", "1.1.1.1", "1.1.1.2"]);
        let won = run(race(&mut left, async |addr| match addr.is_ipv6() {
            true => std::future::pending().await,
            false => Ok(addr.ip()),
        }));
        assert_eq!(won.map(|(_, addr)| addr.to_string()), Ok("1.1.1.1:80".to_owned()));
        assert!(started.elapsed() >= NEXT_ATTEMPT && started.elapsed() < NEXT_ATTEMPT * 20, "{:?}", started.elapsed());
        // For a next try: the one that was still at it, and the one that had no turn.
        assert_eq!(left, addresses(&["2606::1", "1.1.1.2"]));
    }

    // covers: D7g
    #[test]
    fn a_refusal_makes_the_next_replica_start_at_once() {
        let tried = RefCell::new(Vec::new());
        let started = Instant::now();
        let all = addresses(&["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]);
        let won = run(race(&mut all.clone(), async |addr| {
            tried.borrow_mut().push(addr);
            if addr == all[2] { Ok(()) } else { Err(DialFailure::at(Reason::UpstreamRefused, addr)) }
        }));
        assert_eq!(won.map(|((), addr)| addr), Ok(all[2]));
        assert_eq!(*tried.borrow(), all[..3]);
        assert!(started.elapsed() < NEXT_ATTEMPT, "{:?}", started.elapsed());
    }

    // covers: D7g
    #[test]
    fn when_all_fail_the_last_failure_is_told() {
        let mut all = addresses(&["1.1.1.1", "1.1.1.2"]);
        let failed = run(race(&mut all, async |addr| Err::<(), _>(DialFailure::at(Reason::UpstreamTimeout, addr))));
        assert_eq!(failed, Err(DialFailure::at(Reason::UpstreamTimeout, addresses(&["1.1.1.2"])[0])));
        assert!(all.is_empty());
    }
}
