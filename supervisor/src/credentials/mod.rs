//! Credentials: what the policy calls by name and this node injects into requests of guests, so that no app ever holds one.
//!
//! ```text
//! source (a folder) --> value::Value --> Held, in memory of its own --> forms::Injection --> the head of one request
//! ```
//! A value is looked at in `forms`, `sigv4` and `echo` alone. It has no `Debug` and no `Display`, and no error of this module quotes any
//! part of a file. Which call gets which credential is decided in `decide`; nothing here grants anything.

mod echo;
mod fault;
mod fill;
mod folder;
mod forms;
mod placeholder;
pub mod sigv4;
mod value;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::config::CredentialConfig;

pub use self::fault::Fault;
use self::folder::Folder;
pub use self::folder::SourceError;
pub use self::forms::{BODY_MAX, Body, Injection};
pub use self::placeholder::{PREFIX, Watch, first_name, in_headers, is_in_head};
pub use self::value::{Value, ValueError};

/// How often the source is looked at.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// Where values come from. Called from the control runtime only, so it may block briefly.
pub trait SecretSource: Send + Sync {
    /// What there is, by name, each with a mark that changes when its value may have changed.
    ///
    /// # Errors
    /// When the source cannot be looked at.
    fn list(&self) -> Result<BTreeMap<String, Mark>, SourceError>;

    /// One value.
    ///
    /// # Errors
    /// Why it cannot be used; never with a part of the value.
    fn read(&self, name: &str) -> Result<Value, ValueError>;
}

/// Tells two states of a value apart without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(crate::bundles::source::Fingerprint);

/// A credential of this node.
pub struct Held {
    name: String,
    version: u64,
    value: Value,
}

impl Held {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Another number for each value that this process has had under any name.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A credential for tests and fuzzing, from what its file would hold.
    ///
    /// # Errors
    /// As for a file.
    pub fn parse(name: &str, file: &[u8]) -> Result<Self, ValueError> {
        Ok(Self { name: name.to_owned(), version: 0, value: Value::parse(file)? })
    }
}

/// The credentials of this node.
#[derive(Default)]
pub struct Credentials {
    source: Option<Box<dyn SecretSource>>,
    held: ArcSwap<BTreeMap<String, Arc<Held>>>,
    versions: AtomicU64,
    problems: Mutex<Vec<String>>,
}

impl Credentials {
    /// Reads everything once. A value that cannot be used is a warning, and a credential that cannot be had.
    ///
    /// # Errors
    /// When the source cannot be read at all.
    pub fn open(config: Option<&CredentialConfig>) -> Result<Self, SourceError> {
        let Some(config) = config else { return Ok(Self::default()) };
        let source = Box::new(Folder::new(config.dir.clone()));
        let listed = source.list()?;
        let credentials = Self { source: Some(source), ..Self::default() };
        credentials.reread(&BTreeMap::new(), &listed);
        Ok(credentials)
    }

    /// The credential of this name, as it is now.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<Held>> {
        self.held.load().get(name).cloned()
    }

    /// What an operator should know.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes changed values into force, for ever. Whoever writes a value in place may be half through: a change counts when two
    /// looks in a row saw the same.
    pub async fn follow(self: Arc<Self>) {
        let Some(source) = &self.source else { return };
        // What changed between `open` and the first look is another version, and all is read once more.
        let (mut taken, mut last) = (BTreeMap::new(), BTreeMap::new());
        loop {
            tokio::time::sleep(POLL_EVERY).await;
            match source.list() {
                Ok(now) => {
                    if now != taken && now == last {
                        self.reread(&taken, &now);
                        taken.clone_from(&now);
                    }
                    last = now;
                }
                Err(error) => {
                    self.report(vec![format!("{error}; the credentials of before stay in force")]);
                    // All is read again once it is back, which also takes the report away.
                    taken.clear();
                }
            }
        }
    }

    /// Reads what is new or has changed since `before`. What cannot be used leaves the old value in force; what is gone goes.
    fn reread(&self, before: &BTreeMap<String, Mark>, now: &BTreeMap<String, Mark>) {
        let Some(source) = &self.source else { return };
        let (old, mut next, mut problems) = (self.held.load_full(), BTreeMap::new(), Vec::new());
        for (name, mark) in now {
            let known = old.get(name);
            if let Some(known) = known.filter(|_| before.get(name) == Some(mark)) {
                next.insert(name.clone(), Arc::clone(known));
                continue;
            }
            match (source.read(name), known) {
                // A folder that is swapped as a whole changes the marks of values that are what they were.
                (Ok(value), Some(known)) if known.value == value => _ = next.insert(name.clone(), Arc::clone(known)),
                (Ok(value), _) => _ = next.insert(name.clone(), Arc::new(self.numbered(name, value))),
                (Err(error), known) => {
                    let stays = if known.is_some() { "the old value stays in force" } else { "it cannot be used" };
                    problems.push(format!("credential {name}: {stays}: {error}"));
                    next.extend(known.map(|known| (name.clone(), Arc::clone(known))));
                }
            }
        }
        let unlocked = next.values().filter(|held| !held.value.is_locked()).count();
        if unlocked > 0 {
            problems.push(format!(
                "{unlocked} credentials may be swapped to disk: raise the limit of locked memory (LimitMEMLOCK)"
            ));
        }
        tracing::info!(credentials = next.len(), "credentials read");
        self.held.store(Arc::new(next));
        self.report(problems);
    }

    fn numbered(&self, name: &str, value: Value) -> Held {
        Held { name: name.to_owned(), version: self.versions.fetch_add(1, Ordering::Relaxed) + 1, value }
    }

    /// Says what is wrong once in the log, and for as long as it is in `ready`.
    fn report(&self, problems: Vec<String>) {
        let mut known = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        for problem in problems.iter().filter(|problem| !known.contains(problem)) {
            tracing::error!("{problem}");
        }
        *known = problems;
    }
}

#[cfg(test)]
mod tests;
