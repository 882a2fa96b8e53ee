//! What a part of the lab saw: one JSON value per event, in memory (guests) and in a file (everybody else).

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

/// Where events go. Cheap to clone.
#[derive(Clone, Default)]
pub struct Records {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    seen: Vec<Value>,
    file: Option<File>,
}

impl Records {
    /// Records that are also appended to `path`, one JSON line each.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn with_file(path: Option<&Path>) -> std::io::Result<Self> {
        let file = path.map(|path| OpenOptions::new().create(true).append(true).open(path)).transpose()?;
        Ok(Self { inner: Arc::new(Mutex::new(Inner { seen: Vec::new(), file })) })
    }

    /// Adds one event. A file that cannot be written is reported on stderr: a test that relies on it then fails.
    pub fn push(&self, event: Value) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &mut inner.file
            && let Err(error) = writeln!(file, "{event}")
        {
            eprintln!("cannot record: {error}");
        }
        inner.seen.push(event);
    }

    /// All events so far.
    #[must_use]
    pub fn all(&self) -> Vec<Value> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).seen.clone()
    }
}
