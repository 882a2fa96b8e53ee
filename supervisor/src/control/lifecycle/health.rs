//! Follows the app's health, and opens the ports when novalet, app and policy all say so.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::ports::Ports;
use super::{Failure, Life};
use crate::control::order::{HealthPlan, Order, Wanted};
use crate::control::why::{Phase, Why};
use crate::reason::Reason;
use crate::state::endpoint::Stage;

impl Life {
    pub(super) async fn follow_app(&self, ports: &mut Ports) -> std::convert::Infallible {
        let mut goal = self.goal.clone();
        let mut policy = self.means.policy.watch();
        let mut app = App::new(self.means.timing.first_retry);
        let (mut serves, mut was_there) = (false, false);
        loop {
            let order = goal.borrow_and_update().order.clone();
            policy.mark_unchanged();
            let result = self.check(&order).await;
            self.look_for_guest(&order, result, &mut was_there).await;
            app.note(result, &order.health);
            if let Err(failure) = self.advance(&order, &app, ports, &mut serves) {
                let phase = if serves { Phase::Unhealthy } else { Phase::Waiting };
                self.reporter.report(phase, failure.why, &failure.message);
            }
            tokio::select! {
                () = sleep(app.delay) => {}
                changed = goal.changed() => if changed.is_err() { std::future::pending::<()>().await },
                changed = policy.changed() => if changed.is_err() { sleep(app.delay).await },
            }
        }
    }

    /// One check of all ports; an endpoint without ports has nothing to check.
    async fn check(&self, order: &Order) -> Result<(), Reason> {
        for port in &order.spec.ports {
            let check = self.means.plane.health(&self.endpoint, port);
            timeout(order.health.timeout, check).await.unwrap_or(Err(Reason::GuestUnreachable))?;
        }
        Ok(())
    }

    /// A guest whose end came before its presence connection was there, as after a restart of the supervisor, is known to be gone
    /// by nobody being behind its link any more. One that was never seen may still come.
    async fn look_for_guest(&self, order: &Order, checked: Result<(), Reason>, was_there: &mut bool) {
        let is_heard = !order.spec.ports.is_empty() && checked != Err(Reason::GuestUnreachable);
        let looking = timeout(order.health.timeout, self.means.plane.is_gone(&self.endpoint));
        let is_gone = !is_heard && looking.await.unwrap_or(false);
        if is_gone && *was_there {
            tracing::warn!(endpoint = %self.key(), "nobody is behind the guest's link any more");
            self.lost.tell(self.key());
        }
        *was_there |= !is_gone;
    }

    fn advance(&self, order: &Order, app: &App, ports: &mut Ports, serves: &mut bool) -> Result<(), Failure> {
        ports.bind(self.means.plane.as_ref(), &self.endpoint, &order.spec.ports)?;
        if *serves {
            ports.listen(self.means.plane.as_ref(), &self.endpoint)?;
        }
        let expired = !order.spec.ports.is_empty() && self.endpoint.svid.current().is_none();
        let (phase, why, message) = match app.state {
            _ if expired && *serves => (Phase::Unhealthy, Why::SvidExpired, "the SVID is over and no new one came"),
            _ if expired => (Phase::Waiting, Why::SvidExpired, "the SVID is over and no new one came"),
            State::New(reason) => (Phase::SvidReady, Why::App(reason), "the app does not answer yet"),
            State::Bad(reason) => (Phase::Unhealthy, Why::App(reason), "the app does not answer"),
            State::Good if *serves => (Phase::Serving, Why::Fine, ""),
            State::Good if !self.means.policy.knows(&order.spec) => {
                (Phase::SvidReady, Why::WaitingForPolicy, "the active bundle does not know this workload")
            }
            State::Good if order.wanted == Wanted::Pending => {
                (Phase::Healthy, Why::WaitingForOrder, "waiting for READY")
            }
            State::Good => {
                self.reporter.report(Phase::Healthy, Why::Fine, "");
                ports.listen(self.means.plane.as_ref(), &self.endpoint)?;
                self.reporter.report(Phase::Listening, Why::Fine, "");
                self.endpoint.advance(Stage::Serving);
                *serves = true;
                (Phase::Serving, Why::Fine, "")
            }
        };
        self.reporter.report(phase, why, message);
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It never answered yet.
    New(Reason),
    Good,
    /// It answered once, and failed as often as the plan allows.
    Bad(Reason),
}

/// What the checks say of an app.
struct App {
    state: State,
    failures: u32,
    /// Until the next check.
    delay: Duration,
}

impl App {
    fn new(first: Duration) -> Self {
        Self { state: State::New(Reason::GuestUnreachable), failures: 0, delay: first }
    }

    fn note(&mut self, result: Result<(), Reason>, plan: &HealthPlan) {
        match result {
            Ok(()) => {
                self.state = State::Good;
                self.failures = 0;
                self.delay = plan.interval;
            }
            Err(reason) => {
                self.failures = self.failures.saturating_add(1);
                match self.state {
                    State::New(_) => {
                        self.state = State::New(reason);
                        // A starting app is asked often at first.
                        self.delay = (self.delay * 5 / 4).min(plan.interval);
                    }
                    State::Good if self.failures < plan.unhealthy_after => {}
                    State::Good | State::Bad(_) => self.state = State::Bad(reason),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_app_is_unhealthy_after_so_many_failures_in_a_row_and_healthy_after_one_answer() {
        let plan = HealthPlan { unhealthy_after: 3, ..HealthPlan::default() };
        let mut app = App::new(Duration::from_millis(250));
        app.note(Err(Reason::GuestRefused), &plan);
        assert_eq!(app.state, State::New(Reason::GuestRefused), "it never answered");
        app.note(Ok(()), &plan);
        for failed in 1..=3 {
            app.note(Err(Reason::GuestRefused), &plan);
            assert_eq!(app.state == State::Bad(Reason::GuestRefused), failed == 3, "{failed}");
        }
        app.note(Ok(()), &plan);
        app.note(Err(Reason::GuestRefused), &plan);
        assert_eq!(app.state, State::Good, "a row begins anew");
    }

    #[test]
    fn a_starting_app_is_asked_often_at_first_and_never_more_rarely_than_planned() {
        let plan = HealthPlan::default();
        let mut app = App::new(Duration::from_millis(250));
        for _ in 0..100 {
            app.note(Err(Reason::GuestRefused), &plan);
            assert!(app.delay <= plan.interval);
        }
        assert_eq!(app.delay, plan.interval);
    }
}
