//! Gets the endpoint's SVID and a new one at half its life.

use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};

use super::Life;
use crate::causes;
use crate::control::why::{Phase, Why};
use crate::identity::{IdentityError, IdentityRequest, Svid};

/// Never asks more often, whatever a source says of its SVIDs.
const SHORTEST_LIFE: Duration = Duration::from_secs(1);

impl Life {
    /// Asks until there is one; returns when to ask for the next.
    pub(super) async fn first_svid(&self) -> SystemTime {
        let deadline = Instant::now() + self.means.timing.svid_deadline;
        let mut delay = self.means.timing.first_retry;
        loop {
            match self.ask() {
                Ok(rotate_after) => return rotate_after,
                Err(error) => {
                    let why = if Instant::now() < deadline { Why::WaitingForSvid } else { Why::SvidTimeout };
                    self.reporter.report(Phase::Waiting, why, &causes::on_one_line(&error));
                }
            }
            self.pause(&mut delay).await;
        }
    }

    /// Replaces the SVID at half its life, or when all shall be asked for again. The old one serves until its end; then
    /// handshakes fail until the source recovers.
    pub(super) async fn keep_svid_fresh(&self, first: SystemTime) -> std::convert::Infallible {
        let mut goal = self.goal.clone();
        let mut rotate_after = first;
        loop {
            let seen = goal.borrow_and_update().reissue;
            let left = rotate_after.duration_since(SystemTime::now()).unwrap_or_default().max(SHORTEST_LIFE);
            let wanted = async { goal.wait_for(|goal| goal.reissue != seen).await.is_ok() };
            tokio::select! {
                () = sleep(left) => {}
                is_wanted = wanted => if !is_wanted { std::future::pending::<()>().await },
            }
            let mut delay = self.means.timing.first_retry;
            rotate_after = loop {
                match self.ask() {
                    Ok(rotate_after) => break rotate_after,
                    Err(error) => tracing::warn!(
                        endpoint = %self.reporter.key(), error = causes::on_one_line(&error), "the SVID cannot be renewed; trying again"
                    ),
                }
                self.pause(&mut delay).await;
            };
        }
    }

    fn ask(&self) -> Result<SystemTime, IdentityError> {
        let spec = self.endpoint.spec();
        let svid: Svid = self.means.identity.svid(&IdentityRequest {
            spiffe_id: spec.spiffe_id.clone(),
            workload: spec.workload.clone(),
            tenant: spec.tenant.clone(),
            pod_uid: spec.pod_uid.clone(),
        })?;
        let rotate_after = svid.rotate_after;
        self.endpoint.svid.replace(svid);
        Ok(rotate_after)
    }
}
