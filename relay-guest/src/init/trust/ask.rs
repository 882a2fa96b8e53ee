//! Asks the supervisor's instances which CA they use. Each has one of its own, unless an intermediate signs them all.

use std::io;
use std::time::Duration;

use nova_proto::framed::Channel;
use nova_proto::hello::Kind;
use nova_proto::trust;
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::init::config::GuestConfig;
use crate::relay::slots::Slots;

/// For the first answer. An instance that is there answers at once, also that there is nothing to trust.
const DEADLINE: Duration = Duration::from_secs(5);
/// For the others after it: most nodes run one instance.
const OTHERS: Duration = Duration::from_millis(300);
/// For one answer.
const ANSWER: Duration = Duration::from_secs(2);
/// Between two tries, doubled each time.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// The certificates as PEM, empty when nothing is intercepted. `None`: nobody answered in time.
pub(super) async fn ask(config: &GuestConfig) -> Option<String> {
    let mut asking = JoinSet::new();
    for port in &config.host_ports {
        let slots = Slots::new(config.link.clone(), config.boot_token, config.framed, &[*port]);
        asking.spawn(ask_until_answered(slots));
    }
    let mut answers = Vec::new();
    let mut deadline = Instant::now() + DEADLINE;
    while let Ok(Some(Ok(answer))) = timeout_at(deadline, asking.join_next()).await {
        deadline = deadline.min(Instant::now() + OTHERS);
        if !answers.contains(&answer) {
            answers.push(answer);
        }
    }
    (!answers.is_empty()).then(|| answers.concat())
}

async fn ask_until_answered(slots: Slots) -> String {
    let mut pause = BACKOFF.0;
    loop {
        if let Ok(Ok(answer)) = timeout(ANSWER, ask_once(&slots)).await {
            return answer;
        }
        sleep(pause).await;
        pause = (pause * 2).min(BACKOFF.1);
    }
}

async fn ask_once(slots: &Slots) -> io::Result<String> {
    let mut stream = Channel::new(slots.open(Kind::Trust, "").await?, slots.framed());
    let mut head = [0; trust::HEAD_LEN];
    stream.read_exact(&mut head).await?;
    let mut pem = vec![0; trust::parse_head(head).map_err(io::Error::other)?];
    stream.read_exact(&mut pem).await?;
    String::from_utf8(pem).map_err(io::Error::other)
}
