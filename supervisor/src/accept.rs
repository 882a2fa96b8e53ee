//! The data-plane threads: one per core, each with its own runtime and its own listeners. A connection lives and dies on
//! the thread that accepted it; nothing on its path is shared with another thread.

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

use crate::guestlink::GuestSocket;
use crate::net::listen::BACKLOG as LISTEN_BACKLOG;
use crate::net::pressure::{Pressure, Trouble};
use crate::state::endpoint::{Accepting, Endpoint, OnTheWay, PortSpec, Slot, Stage};
use crate::state::port::{OpenPort, PortStage};

/// Jobs on the way to one thread, a few of each endpoint. A full queue means the thread is stuck; what does not fit is closed.
const QUEUE: usize = 4096;
/// How long a thread may take to stop.
const STOP_DEADLINE: Duration = Duration::from_secs(2);
/// How often a thread does its housekeeping.
const TICK: Duration = Duration::from_millis(100);

/// What a thread does with connections. Made on the thread, never leaves it.
pub trait Service: 'static {
    /// Somebody connected to a port of a workload.
    fn tcp(
        self: Rc<Self>,
        endpoint: Arc<Endpoint>,
        port: OpenPort,
        stream: TcpStream,
        from: SocketAddr,
    ) -> impl Future<Output = ()> + 'static;
    /// A guest connected; it waits for so long before it is served.
    fn guest(self: Rc<Self>, slot: Slot, turn: Duration, stream: UnixStream) -> impl Future<Output = ()> + 'static;
    /// Called every 100 ms.
    fn tick(&self);
    /// Called once, after everything that ran on the thread was dropped.
    fn stopped(&self);
}

/// A port that connections are accepted for.
struct Port {
    endpoint: Arc<Endpoint>,
    open: OpenPort,
    trouble: Trouble,
    /// The end of a drain waits for it.
    accepting: Accepting,
}

/// A connection of a guest that has its place under the caps.
pub struct GuestArrival {
    /// Its place.
    pub slot: Slot,
    /// How long it waits for its turn under the endpoint's rate.
    pub turn: Duration,
    /// Its place among those that have no task yet.
    pub way: OnTheWay,
    /// What it says.
    pub stream: GuestSocket,
}

enum Job {
    Listen { port: Port, socket: StdTcpListener },
    Guest(GuestArrival),
    Stop(std::sync::mpsc::SyncSender<()>),
}

/// The threads, as the rest of the process sees them.
#[derive(Clone)]
pub struct Workers {
    threads: Arc<[mpsc::Sender<Job>]>,
    next: Arc<AtomicUsize>,
    pressure: Pressure,
}

impl Workers {
    /// Starts `count` threads; each makes its service with `make`.
    ///
    /// # Errors
    /// When a thread cannot be started or its service cannot be made.
    pub fn start<S: Service>(
        count: usize,
        make: impl Fn() -> io::Result<S> + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let mut threads = Vec::with_capacity(count);
        for index in 0..count {
            let (jobs, queue) = mpsc::channel(QUEUE);
            let (started, wait) = std::sync::mpsc::sync_channel(1);
            let make = make.clone();
            std::thread::Builder::new().name(format!("data-{index}")).spawn(move || run(queue, make, &started))?;
            wait.recv().map_err(|_| io::Error::other("a data-plane thread ended while it started"))??;
            threads.push(jobs);
        }
        Ok(Self { threads: threads.into(), next: Arc::default(), pressure: Pressure::default() })
    }

    /// How many threads there are: a port needs as many listening sockets.
    #[must_use]
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Whether all that accepts can accept.
    #[must_use]
    pub fn pressure(&self) -> &Pressure {
        &self.pressure
    }

    /// Accepts on `sockets`, one per thread, until the endpoint or the port drains.
    pub fn listen(
        &self,
        endpoint: &Arc<Endpoint>,
        port: &PortSpec,
        sockets: Vec<StdTcpListener>,
        stage: &watch::Receiver<PortStage>,
    ) {
        let spec = Arc::new(port.clone());
        // One for each thread, and for each address of the endpoint.
        for (thread, socket) in self.threads.iter().cycle().zip(sockets) {
            let port = Port {
                endpoint: Arc::clone(endpoint),
                open: OpenPort::new(Arc::clone(&spec), stage.clone()),
                trouble: self.pressure.accept_loop(),
                accepting: endpoint.accepting(),
            };
            if thread.try_send(Job::Listen { port, socket }).is_err() {
                tracing::error!(workload = %endpoint.spec().workload, port = %spec.name, "a data-plane thread is stuck: the port is not served by it");
            }
        }
    }

    /// Gives a guest's connection to the next thread in turn; false when that thread is so far behind that the connection
    /// was closed instead.
    #[must_use]
    pub fn guest(&self, arrival: GuestArrival) -> bool {
        let thread = self.next.fetch_add(1, Ordering::Relaxed) % self.threads.len();
        self.threads[thread].try_send(Job::Guest(arrival)).is_ok()
    }

    /// Ends the threads: what still runs on them is dropped, so that its records are written before the process ends.
    pub async fn stop(&self) {
        for thread in &*self.threads {
            let (done, wait) = std::sync::mpsc::sync_channel(1);
            let sent = tokio::time::timeout(STOP_DEADLINE, thread.send(Job::Stop(done))).await;
            if matches!(sent, Ok(Ok(()))) {
                // A thread that does not answer in time is stuck; the process ends without it.
                let _ = tokio::task::spawn_blocking(move || wait.recv_timeout(STOP_DEADLINE)).await;
            }
        }
    }
}

fn run<S: Service>(
    mut queue: mpsc::Receiver<Job>,
    make: impl Fn() -> io::Result<S>,
    started: &std::sync::mpsc::SyncSender<io::Result<()>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(started.send(Err(error))),
    };
    let local = LocalSet::new();
    let stopped = local.block_on(&runtime, async {
        let service = match make() {
            Ok(service) => Rc::new(service),
            Err(error) => {
                let _ = started.send(Err(error));
                return None;
            }
        };
        let _ = started.send(Ok(()));
        let mut tick = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                job = queue.recv() => match job {
                    Some(Job::Stop(done)) => return Some((service, done)),
                    Some(job) => start(&service, job),
                    None => return None,
                },
                _ = tick.tick() => service.tick(),
            }
        }
    });
    // Every task with it, and every task's records go to this thread's buffer.
    drop(local);
    if let Some((service, done)) = stopped {
        service.stopped();
        let _ = done.send(());
    }
}

fn start<S: Service>(service: &Rc<S>, job: Job) {
    match job {
        Job::Listen { port, socket } => match TcpListener::from_std(socket) {
            Ok(listener) => drop(tokio::task::spawn_local(accept(Rc::clone(service), port, listener))),
            Err(error) => tracing::error!(%error, port = %port.open.spec.name, "a listener cannot be registered"),
        },
        Job::Guest(GuestArrival { slot, turn, way, stream }) => {
            if let Ok(stream) = UnixStream::from_std(stream) {
                tokio::task::spawn_local(way.arrive(Rc::clone(service).guest(slot, turn, stream)));
            }
        }
        // Ends the thread instead of starting something on it: see `run`.
        Job::Stop(_) => {}
    }
}

async fn accept<S: Service>(service: Rc<S>, port: Port, listener: TcpListener) {
    let Port { endpoint, open, mut trouble, accepting } = port;
    let serve = |way: OnTheWay, (stream, from)| {
        let task = Rc::clone(&service).tcp(Arc::clone(&endpoint), open.clone(), stream, from);
        tokio::task::spawn_local(way.arrive(task));
    };
    let mut stage = endpoint.watch_stage();
    let mut waiting = None;
    loop {
        let draining = stage.wait_for(|stage| *stage >= Stage::Draining);
        let way = tokio::select! {
            biased;
            // Before the next connection: somebody who connects without a pause must not keep the port open.
            _ = draining => break,
            () = open.until(PortStage::Draining) => break,
            way = next(&listener, &endpoint, &mut trouble, &mut waiting) => way,
        };
        if let Some(accepted) = waiting.take() {
            serve(way, accepted);
        }
    }
    // What the kernel had accepted before we close would be reset: serve it, up to what its queue can hold. Outside of the
    // task's budget, which would call the queue empty too early.
    for _ in 0..=LISTEN_BACKLOG {
        let queued = || tokio::task::coop::unconstrained(listener.accept()).now_or_never().and_then(Result::ok);
        let Some(accepted) = waiting.take().or_else(queued) else { break };
        serve(endpoint.on_the_way().await, accepted);
    }
    // Their tasks have begun, and so are counted, before this one has its turn again.
    tokio::task::yield_now().await;
    drop(accepting);
}

/// Puts the next connection into `waiting`, and returns when it is its turn. Connections that come faster than the endpoint's
/// rate, or than they are served, stay in the kernel's queue meanwhile: they are late, not lost, and cost no descriptor.
async fn next(
    listener: &TcpListener,
    endpoint: &Endpoint,
    trouble: &mut Trouble,
    waiting: &mut Option<(TcpStream, SocketAddr)>,
) -> OnTheWay {
    *waiting = Some(trouble.next("callers", || listener.accept()).await);
    let turn = endpoint.arrive();
    if !turn.is_zero() {
        tokio::time::sleep(turn).await;
    }
    endpoint.on_the_way().await
}
