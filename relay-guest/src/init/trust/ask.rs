//! Asks the supervisor's instances which CAs they use, and listens for more. Each has CAs of its own, unless an intermediate signs
//! them all. An instance that ends is asked again as soon as there is one.

use std::io;
use std::time::Duration;

use nova_proto::framed::Channel;
use nova_proto::hello::Kind;
use nova_proto::trust::{self, INSTALLED, NOT_INSTALLED};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::init::config::GuestConfig;
use crate::relay::slots::Slots;

/// For one answer that has begun, and for the first of a connection.
const ANSWER: Duration = Duration::from_secs(2);
/// Between two tries, doubled each time. What was lost just now is likely to be back soon: an app may wait for it.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// After this long without an answer there is no haste any more.
const SOON: Duration = Duration::from_secs(10);
const SELDOM: Duration = Duration::from_secs(5);

/// All that are asked, each by a task of its own.
#[derive(Debug)]
pub(super) struct Asking {
    said: mpsc::Receiver<Said>,
    #[allow(dead_code, reason = "held: the tasks end with it")]
    tasks: JoinSet<()>,
}

/// What one instance said. It waits for an answer before it says more.
#[derive(Debug)]
pub(super) struct Said {
    port: u32,
    pem: String,
    answer: oneshot::Sender<bool>,
}

impl Asking {
    pub(super) fn start(config: &GuestConfig) -> Self {
        let (tell, said) = mpsc::channel(config.host_ports.len().max(1));
        let mut tasks = JoinSet::new();
        for port in &config.host_ports {
            let slots = Slots::new(config.link.clone(), config.boot_token, config.framed, &[*port]);
            tasks.spawn(ask(slots, *port, tell.clone()));
        }
        Self { said, tasks }
    }

    pub(super) async fn next(&mut self) -> Option<Said> {
        self.said.recv().await
    }
}

impl Said {
    pub(super) fn port(&self) -> u32 {
        self.port
    }

    /// The certificates as PEM, empty when nothing is intercepted.
    pub(super) fn take_pem(&mut self) -> String {
        std::mem::take(&mut self.pem)
    }

    /// Whether they are installed.
    pub(super) fn answer(self, installed: bool) {
        // Nobody waits when the instance has ended meanwhile; it is asked again.
        let _ = self.answer.send(installed);
    }
}

async fn ask(slots: Slots, port: u32, tell: mpsc::Sender<Said>) {
    let (mut pause, mut since) = (BACKOFF.0, Instant::now());
    loop {
        let mut has_answered = false;
        // Whatever ends it, the next try may go on.
        let _ = listen(&slots, port, &tell, &mut has_answered).await;
        if has_answered {
            (pause, since) = (BACKOFF.0, Instant::now());
        }
        sleep(pause).await;
        pause = (pause * 2).min(if since.elapsed() < SOON { BACKOFF.1 } else { SELDOM });
    }
}

/// Takes answers for as long as the instance lives.
async fn listen(slots: &Slots, port: u32, tell: &mpsc::Sender<Said>, has_answered: &mut bool) -> io::Result<()> {
    let mut stream = Channel::new(slots.open(Kind::Trust, "").await?, slots.framed());
    let mut head = timeout(ANSWER, stream.read_u32()).await??;
    loop {
        let pem = timeout(ANSWER, read_rest(&mut stream, head)).await??;
        *has_answered = true;
        let (answer, installed) = oneshot::channel();
        tell.send(Said { port, pem, answer }).await.map_err(io::Error::other)?;
        let installed = installed.await.map_err(io::Error::other)?;
        let answering = async {
            stream.write_all(&[if installed { INSTALLED } else { NOT_INSTALLED }]).await?;
            stream.flush().await
        };
        timeout(ANSWER, answering).await??;
        // Nothing comes for weeks, but its end does at once.
        head = stream.read_u32().await?;
    }
}

async fn read_rest(stream: &mut (impl AsyncRead + Unpin), head: u32) -> io::Result<String> {
    let mut pem = vec![0; trust::parse_head(head.to_be_bytes()).map_err(io::Error::other)?];
    stream.read_exact(&mut pem).await?;
    String::from_utf8(pem).map_err(io::Error::other)
}
