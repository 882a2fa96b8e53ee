//! The owner of the endpoint table: takes updates and events one by one, and does what the table says.

use std::collections::HashMap;
use std::sync::Arc;

use nova_proto::ids::PodUid;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{Id, JoinError, JoinSet};

use super::board::{Board, Status};
use super::lifecycle::{End, Goal, Life, Reporter};
use super::lost::Lost;
use super::order::{Key, Order, Update};
use super::plane::Means;
use super::table::{Action, Table, Verdict, pod_of};
use super::why::{Phase, Why};
use crate::state::endpoint::{Endpoint, Stage};
use crate::state::refusals::Refusal;
use crate::state::table::EndpointTable;

/// What is done of an update before others have their turn.
const AT_ONCE: usize = 64;
/// Commands that may wait; senders wait beyond it.
const QUEUE: usize = 64;

/// The control service, as the rest of the program sees it. Cheap to clone.
#[derive(Clone)]
pub struct Control {
    commands: mpsc::Sender<Command>,
    lost: Arc<Lost>,
    board: Arc<Board>,
    endpoints: Arc<EndpointTable>,
}

enum Command {
    Apply(Update, oneshot::Sender<()>),
    Reissue,
    Shutdown(oneshot::Sender<()>),
}

impl Control {
    /// Makes the service. The second value must be spawned on the control runtime; it runs until every [`Control`] is gone
    /// or [`Control::shutdown`] has ended.
    pub fn new(means: Means) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (commands, queue) = mpsc::channel(QUEUE);
        let board = Arc::new(Board::new(means.timing.status_gap));
        let endpoints = Arc::clone(&means.table);
        let control = Self { commands, lost: Arc::default(), board: Arc::clone(&board), endpoints };
        let service = Service {
            means,
            board,
            lost: Arc::clone(&control.lost),
            table: Table::default(),
            running: HashMap::new(),
            lives: JoinSet::new(),
            keys: HashMap::new(),
            reissue: 0,
        };
        (control, service.run(queue))
    }

    /// So many instances serve the endpoints now, this one included: each has its part of their caps and rates.
    pub fn share_with(&self, live_slots: u32) {
        self.endpoints.budget().share_with(live_slots);
    }

    /// Tells operators what keeps the source from being followed, or that nothing does.
    pub fn note_source(&self, problem: Option<String>) {
        self.endpoints.refusals().note_source(problem);
    }

    /// Applies an update; returns when the table holds it, not when the endpoints have followed.
    pub async fn apply(&self, update: Update) {
        let (done, applied) = oneshot::channel();
        if self.commands.send(Command::Apply(update, done)).await.is_ok() {
            let _service_ended = applied.await;
        }
    }

    /// The presence connection of a guest ended. Any thread may call it; it never waits.
    pub fn presence_lost(&self, pod: &PodUid, generation: u64) {
        self.lost.tell(Key { pod: pod.clone(), generation });
    }

    /// Asks for every SVID again, because the source has read its files anew.
    pub async fn reissue_svids(&self) {
        let _service_ended = self.commands.send(Command::Reissue).await;
    }

    /// Drains every endpoint; returns when nothing is held any more.
    pub async fn shutdown(&self) {
        let (done, drained) = oneshot::channel();
        if self.commands.send(Command::Shutdown(done)).await.is_ok() {
            let _service_ended = drained.await;
        }
    }

    /// What waits to be told to novalet.
    #[must_use]
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }
}

struct Service {
    means: Means,
    board: Arc<Board>,
    lost: Arc<Lost>,
    table: Table,
    running: HashMap<PodUid, Running>,
    lives: JoinSet<Key>,
    /// Whose life each task is, for one that panics.
    keys: HashMap<Id, Key>,
    reissue: u64,
}

/// One endpoint, from its start until it is forgotten.
struct Running {
    endpoint: Arc<Endpoint>,
    goal: watch::Sender<Goal>,
    reporter: Arc<Reporter>,
}

impl Service {
    async fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        let lost = Arc::clone(&self.lost);
        loop {
            tokio::select! {
                command = queue.recv() => match command {
                    Some(Command::Apply(update, done)) => {
                        self.apply(update).await;
                        let _caller_gone = done.send(());
                    }
                    Some(Command::Reissue) => self.reissue_all(),
                    Some(Command::Shutdown(done)) => {
                        self.drain_all().await;
                        let _caller_gone = done.send(());
                        return;
                    }
                    None => return,
                },
                () = lost.news() => self.take_lost(),
                Some(ended) = self.lives.join_next_with_id() => self.ended(ended),
            }
        }
    }

    async fn apply(&mut self, update: Update) {
        let is_snapshot = matches!(update, Update::Snapshot { .. });
        let refusals = self.means.table.refusals();
        // What is refused now is told anew.
        match &update {
            Update::Snapshot { .. } => refusals.clear(),
            Update::Upsert(row) => refusals.remove(pod_of(row)),
            Update::Remove(key) => refusals.remove(key.pod.as_str()),
        }
        let mut actions = self.table.apply(update).into_iter();
        self.act(actions.by_ref().take(AT_ONCE).collect());
        // Guests and operators are waited on by the same thread: a snapshot of thousands must not keep it from them.
        while actions.len() > 0 {
            tokio::task::yield_now().await;
            self.act(actions.by_ref().take(AT_ONCE).collect());
        }
        if is_snapshot {
            // Whoever sends a snapshot may know nothing of what was told before.
            self.running.values().for_each(|running| running.reporter.repeat());
        }
    }

    fn take_lost(&mut self) {
        for key in self.lost.take() {
            let actions = self.table.presence_lost(&key);
            self.act(actions);
        }
    }

    fn reissue_all(&mut self) {
        self.reissue += 1;
        for running in self.running.values() {
            running.goal.send_modify(|goal| goal.reissue = self.reissue);
        }
    }

    async fn drain_all(&mut self) {
        let actions = self.table.drain_all();
        self.act(actions);
        while let Some(ended) = self.lives.join_next_with_id().await {
            self.ended(ended);
        }
    }

    fn ended(&mut self, ended: Result<(Id, Key), JoinError>) {
        let key = match ended {
            Ok((id, key)) => {
                self.keys.remove(&id);
                key
            }
            Err(error) => {
                let Some(key) = self.keys.remove(&error.id()) else { return };
                tracing::error!(endpoint = %key, %error, "the life of an endpoint ended by a fault; its connections are cut");
                if let Some(running) = self.running.get(&key.pod) {
                    running.endpoint.advance(Stage::Closed);
                    running.endpoint.svid.clear();
                    running.reporter.report(
                        Phase::Drained,
                        Why::Internal,
                        "a fault of the supervisor ended this endpoint",
                    );
                }
                key
            }
        };
        let actions = self.table.ended(&key);
        self.act(actions);
    }

    fn act(&mut self, actions: Vec<Action>) {
        let mut starts = Vec::new();
        for action in actions {
            if let Action::Start(order) = action {
                starts.push(order);
                continue;
            }
            self.start(std::mem::take(&mut starts));
            match action {
                Action::Start(_) => {}
                Action::Update(order) => self.update(order),
                Action::Drain(key, why) => self.end(&key, End::Drain(why)),
                Action::Close(key, why) => self.end(&key, End::Cut(why)),
                Action::Suspend(key) => self.change(&key, |goal| goal.suspended = true),
                Action::Repeat(key) => {
                    if let Some(running) = self.running.get(&key.pod) {
                        running.reporter.repeat();
                    }
                }
                Action::Forget(pod) => {
                    self.means.table.remove(&pod);
                    self.running.remove(&pod);
                }
                Action::Report(verdict) => self.report(verdict),
            }
        }
        self.start(starts);
    }

    fn start(&mut self, orders: Vec<Order>) {
        let budget = self.means.table.budget();
        let endpoints: Vec<_> = orders.iter().map(|order| Endpoint::within(budget, order.spec.clone())).collect();
        if !endpoints.is_empty() {
            self.means.table.insert_all(&endpoints);
        }
        orders.into_iter().zip(endpoints).for_each(|(order, endpoint)| self.begin(order, endpoint));
    }

    fn begin(&mut self, order: Order, endpoint: Arc<Endpoint>) {
        let key = order.key();
        let reporter = Arc::new(Reporter::new(Arc::clone(&endpoint), Arc::clone(&self.board)));
        let goal = Goal { order, end: None, suspended: false, reissue: self.reissue };
        let (goal, receiver) = watch::channel(goal);
        let life = Life {
            endpoint: Arc::clone(&endpoint),
            means: self.means.clone(),
            goal: receiver,
            reporter: Arc::clone(&reporter),
            lost: Arc::clone(&self.lost),
        };
        self.means.table.refusals().remove(key.pod.as_str());
        let task = self.lives.spawn(life.run());
        self.keys.insert(task.id(), key.clone());
        self.running.insert(key.pod, Running { endpoint, goal, reporter });
    }

    fn update(&mut self, order: Order) {
        let key = order.key();
        if let Some(running) = self.running.get(&key.pod) {
            running.endpoint.update(order.spec.clone());
        }
        self.change(&key, |goal| goal.order = order);
    }

    fn end(&mut self, key: &Key, end: End) {
        self.change(key, |goal| {
            // A cut is not taken back.
            if !matches!(goal.end, Some(End::Cut(_))) {
                goal.end = Some(end);
            }
        });
    }

    fn change(&mut self, key: &Key, change: impl FnOnce(&mut Goal)) {
        if let Some(running) = self.running.get(&key.pod).filter(|running| running.reporter.key() == key) {
            running.goal.send_modify(change);
        }
    }

    fn report(&self, verdict: Verdict) {
        let Verdict { pod, generation, phase, why, message } = verdict;
        if phase != Phase::Drained {
            tracing::warn!(pod, generation, phase = phase.as_str(), reason = why.as_str(), message, "endpoint refused");
            let (told, reason) = (phase.as_str(), why.as_str());
            let refusal = Refusal { pod: pod.clone(), generation, phase: told, reason, message: message.clone() };
            self.means.table.refusals().insert(refusal);
        }
        self.board.push(Status { pod, generation, phase, why, message, open_connections: 0 });
    }
}
