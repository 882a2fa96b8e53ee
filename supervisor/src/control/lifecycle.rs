//! The life of one endpoint, from its first order to DRAINED.
//!
//! ```text
//!  WAITING ---------------> SVID_READY ----------> HEALTHY -------------> LISTENING, SERVING <-> UNHEALTHY
//!  bind ports (no listen)   app may call out       app answers and        on READY only; an unhealthy app
//!  open guest acceptor      (stage EgressOnly)     the bundle knows it    keeps its listeners (K37)
//!  get SVID, route          route is there
//!
//!  drain: DRAINING_NOW (no new connections) -> open ones end or are cut -> acceptor, SVID and route go -> DRAINED
//! ```
//! The route goes last: without it, open connections would hang instead of ending.

mod health;
mod ports;
mod report;
mod svid;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use self::ports::Ports;
pub use self::report::Reporter;
use super::lost::Lost;
use super::order::{Key, Order};
use super::plane::Means;
use super::why::{Phase, Why};
use crate::state::endpoint::{Endpoint, Stage};

/// Between looks at the number of open connections, which nothing announces.
const LOOK: Duration = Duration::from_millis(10);

/// What the service wants of an endpoint now.
#[derive(Debug, Clone)]
pub struct Goal {
    /// As ordered.
    pub order: Order,
    /// Set once, when the endpoint shall end; a cut may follow a drain.
    pub end: Option<End>,
    /// Its guest is lost.
    pub suspended: bool,
    /// Grows when every SVID shall be asked for again.
    pub reissue: u64,
}

/// How an endpoint ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Open connections may finish.
    Drain(Why),
    /// They are cut.
    Cut(Why),
}

/// Everything the life of one endpoint works with.
pub(super) struct Life {
    /// The endpoint.
    pub endpoint: Arc<Endpoint>,
    /// What it needs.
    pub means: Means,
    /// What is wanted of it.
    pub goal: watch::Receiver<Goal>,
    /// Who is told.
    pub reporter: Arc<Reporter>,
    /// Where a lost guest is told.
    pub lost: Arc<Lost>,
}

/// What an endpoint holds and must give back.
#[derive(Default)]
struct Held {
    ports: Ports,
    acceptor: Option<Box<dyn Send>>,
    route: bool,
}

/// What failed, as it is acknowledged.
struct Failure {
    why: Why,
    message: String,
}

impl Life {
    /// Lives until the goal says it shall end, and everything is given back.
    pub(super) async fn run(self) -> Key {
        let mut held = Held::default();
        let end = tokio::select! {
            biased;
            end = self.end() => end,
            never = self.live(&mut held) => match never {},
        };
        self.finish(end, held).await;
        self.key()
    }

    fn key(&self) -> Key {
        let spec = self.endpoint.spec();
        Key { pod: spec.pod_uid.clone(), generation: spec.generation }
    }

    async fn live(&self, held: &mut Held) -> std::convert::Infallible {
        loop {
            let backend = self.endpoint.spec().backend.clone();
            let mut goal = self.goal.clone();
            let changed = async {
                let changed = goal.wait_for(|goal| goal.suspended || goal.order.spec.backend != backend).await;
                changed.is_ok_and(|goal| goal.suspended)
            };
            let is_lost = tokio::select! {
                biased;
                is_lost = changed => is_lost,
                never = self.serve(held) => match never {},
            };
            if is_lost {
                return self.suspend(held).await;
            }
            // Another guest, which is only allowed before anything was served.
            self.endpoint.advance(Stage::Waiting);
            held.acceptor = None;
        }
    }

    async fn serve(&self, held: &mut Held) -> std::convert::Infallible {
        self.open(held).await;
        let first = self.first_svid().await;
        self.own_address(held).await;
        self.endpoint.advance(Stage::EgressOnly);
        self.reporter.report(Phase::SvidReady, Why::Fine, "the app may call out");
        tokio::select! {
            never = self.keep_svid_fresh(first) => match never {},
            never = self.follow_app(&mut held.ports) => match never {},
        }
    }

    /// Binds the ports and opens the guest's acceptor.
    async fn open(&self, held: &mut Held) {
        self.reporter.report(Phase::Waiting, Why::WaitingForSvid, "ports and guest socket are being opened");
        let mut delay = self.means.timing.first_retry;
        while let Err(failure) = self.try_open(held) {
            self.reporter.report(Phase::Waiting, failure.why, &failure.message);
            self.pause(&mut delay).await;
        }
    }

    fn try_open(&self, held: &mut Held) -> Result<(), Failure> {
        let spec = self.endpoint.spec();
        held.ports.bind(self.means.plane.as_ref(), &self.endpoint, &spec.ports)?;
        if held.acceptor.is_none() {
            let acceptor = self.means.plane.accept_guest(&self.endpoint).map_err(|error| Failure {
                why: Why::GuestSocketFailed,
                message: format!(
                    "the guest's socket cannot be opened: {error} (its folder is made by whoever starts the VM; the supervisor's \
                     user must be able to write it)"
                ),
            })?;
            held.acceptor = Some(acceptor);
        }
        Ok(())
    }

    /// Adds the route, or waits until somebody did.
    async fn own_address(&self, held: &mut Held) {
        let mut delay = self.means.timing.first_retry;
        loop {
            let (routes, spec) = (Arc::clone(&self.means.routes), self.endpoint.spec());
            // Before the answer: if this is cut short, the route may be there already.
            held.route = true;
            let ensured = tokio::task::spawn_blocking(move || spec.ips().try_for_each(|ip| routes.ensure(ip)));
            let message = match ensured.await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => String::from("adding the route failed inside the supervisor"),
            };
            held.route = false;
            self.reporter.report(Phase::Waiting, Why::RouteMissing, &message);
            self.pause(&mut delay).await;
        }
    }

    /// A lost guest: its CID or socket may belong to another one soon (T2).
    async fn suspend(&self, held: &mut Held) -> std::convert::Infallible {
        self.endpoint.advance(Stage::Waiting);
        held.acceptor = None;
        let message = "the guest is lost; a newer generation is needed";
        self.reporter.report(Phase::Waiting, Why::PresenceLost, message);
        std::future::pending().await
    }

    async fn finish(&self, end: End, held: Held) {
        let mut why = match end {
            End::Drain(why) | End::Cut(why) => why,
        };
        self.endpoint.advance(Stage::Draining);
        if let End::Drain(_) = end {
            self.reporter.report(Phase::Draining, why, "open connections may finish");
            let ended = tokio::select! {
                ended = self.connections_end(self.endpoint.spec().drain_timeout) => ended,
                () = self.cut() => self.endpoint.is_quiet(),
            };
            if !ended {
                why = Why::DrainTimeout;
            }
        }
        let cut = self.endpoint.open_connections();
        self.endpoint.advance(Stage::Closed);
        self.connections_end(self.means.timing.cut_deadline).await;
        self.endpoint.svid.clear();
        self.endpoint.pod_ca.clear();
        self.give_back(held).await;
        self.reporter.report_drained(why, cut);
    }

    async fn give_back(&self, mut held: Held) {
        held.ports.close(self.means.plane.as_ref(), &self.endpoint);
        drop(held.acceptor);
        if !held.route {
            return;
        }
        for ip in self.endpoint.spec().ips() {
            let routes = Arc::clone(&self.means.routes);
            match tokio::task::spawn_blocking(move || routes.release(ip)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%ip, %error, "the route of a drained endpoint stays"),
                Err(error) => tracing::warn!(%ip, %error, "the route of a drained endpoint stays"),
            }
        }
    }

    /// Waits until nothing is open; false when the time is over before.
    async fn connections_end(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        while !self.endpoint.is_quiet() {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(LOOK).await;
        }
        true
    }

    async fn end(&self) -> End {
        let mut goal = self.goal.clone();
        match goal.wait_for(|goal| goal.end.is_some()).await {
            Ok(goal) => goal.end.unwrap_or(End::Cut(Why::Internal)),
            // The service is gone: so is everybody who could want it to live.
            Err(_) => End::Cut(Why::Shutdown),
        }
    }

    async fn cut(&self) {
        let mut goal = self.goal.clone();
        let _gone = goal.wait_for(|goal| matches!(goal.end, Some(End::Cut(_)))).await;
    }

    /// Waits before a retry, longer each time.
    async fn pause(&self, delay: &mut Duration) {
        sleep(*delay).await;
        *delay = (*delay * 2).min(self.means.timing.last_retry);
    }
}
