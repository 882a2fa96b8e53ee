//! What servers and loops share.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::load::{load, tell_mistakes};
use crate::pods::{Node, Pods};

/// The agent, as its servers and loops see it.
#[derive(Debug)]
pub struct Agent {
    node: Arc<Node>,
    pods: Mutex<Pods>,
    mistakes: Mutex<Vec<String>>,
    gentle_stop: watch::Sender<bool>,
}

impl Agent {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self {
            pods: Mutex::new(Pods::new(Arc::clone(&node))),
            node,
            mistakes: Mutex::default(),
            gentle_stop: watch::Sender::new(false),
        }
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    pub(crate) fn pods(&self) -> MutexGuard<'_, Pods> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn mistakes(&self) -> Vec<String> {
        self.mistakes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Drains everything; the agent ends when that is done.
    pub(crate) fn stop_gently(&self) {
        self.pods().end(true);
        self.gentle_stop.send_replace(true);
    }

    /// Whether everything drains because somebody asked for it.
    pub(crate) fn stops_gently(&self) -> bool {
        *self.gentle_stop.borrow()
    }

    /// Takes what the placements file says now; one with mistakes changes nothing.
    pub(crate) fn reload(&self, path: &Path, node: Option<&str>) {
        let mistakes = match load(path, node) {
            Ok(placements) => {
                tracing::info!(placements = placements.len(), "loaded {}", path.display());
                self.pods().place(placements);
                Vec::new()
            }
            Err(mistakes) => {
                tell_mistakes(&mistakes, "nothing was changed");
                mistakes
            }
        };
        *self.mistakes.lock().unwrap_or_else(PoisonError::into_inner) = mistakes;
    }
}
