//! An exposed port from its first caller to its last.

use std::sync::Arc;

use tokio::sync::watch;

use super::endpoint::PortSpec;

/// How far a port may serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PortStage {
    /// Callers are accepted.
    Open,
    /// No new connections; what is asked for on open ones finishes.
    Draining,
    /// Everything that is still open is cut.
    Closed,
}

/// A port, as a connection to it knows it.
#[derive(Debug, Clone)]
pub struct OpenPort {
    /// What it was when the connection came.
    pub spec: Arc<PortSpec>,
    stage: watch::Receiver<PortStage>,
}

impl OpenPort {
    /// A port that `stage` ends.
    #[must_use]
    pub fn new(spec: Arc<PortSpec>, stage: watch::Receiver<PortStage>) -> Self {
        Self { spec, stage }
    }

    /// How far it may serve now.
    #[must_use]
    pub fn stage(&self) -> PortStage {
        *self.stage.borrow()
    }

    /// Its stage, for whoever waits for changes. Who took the port away tells them before it forgets them.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<PortStage> {
        self.stage.clone()
    }

    /// Resolves when it has come to `stage`.
    pub async fn until(&self, stage: PortStage) {
        let mut watched = self.stage.clone();
        if watched.wait_for(|now| *now >= stage).await.is_err() {
            // Nobody is left who could end it; its endpoint does.
            std::future::pending().await
        }
    }
}

/// Whether callers of `old` could not have come to `new` in the same way, though it stands in the same place: they must not go
/// on as they came.
#[must_use]
pub fn takes_place_of(new: &PortSpec, old: &PortSpec) -> bool {
    let is_there = new.port == old.port || new.name == old.name;
    is_there && (new.mode != old.mode || new.protocol != old.protocol)
}
