//! The rules of one SyncEndpoints stream: a snapshot comes first, and revisions grow.

/// What breaks a stream. The supervisor ends it and calls again, keeping what it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The first update is not a snapshot.
    #[error("the stream does not start with a snapshot")]
    NoSnapshot,
    /// The revision does not grow.
    #[error("revision {got} follows {last}; revisions must grow within a stream")]
    Revision {
        /// The revision before.
        last: u64,
        /// The revision that came.
        got: u64,
    },
    /// No operation, or one that this build does not know: going on would lose it silently.
    #[error("revision {0} holds no operation that this version knows; update the supervisor")]
    NoOperation(u64),
}

/// How far a stream is.
#[derive(Debug, Default)]
pub struct StreamRules {
    last: Option<u64>,
}

impl StreamRules {
    /// Checks the next update of the stream.
    ///
    /// # Errors
    /// When the stream must end.
    pub fn check(&mut self, revision: u64, is_snapshot: bool) -> Result<(), StreamError> {
        match self.last {
            None if !is_snapshot => return Err(StreamError::NoSnapshot),
            Some(last) if revision <= last => return Err(StreamError::Revision { last, got: revision }),
            _ => {}
        }
        self.last = Some(revision);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delta_before_the_snapshot_ends_the_stream() {
        assert_eq!(StreamRules::default().check(1, false), Err(StreamError::NoSnapshot));
    }

    #[test]
    fn a_revision_that_does_not_grow_ends_the_stream() {
        let mut rules = StreamRules::default();
        rules.check(5, true).expect("the snapshot");
        rules.check(6, false).expect("grows");
        assert_eq!(rules.check(6, false), Err(StreamError::Revision { last: 6, got: 6 }));
        assert_eq!(rules.check(4, true), Err(StreamError::Revision { last: 6, got: 4 }));
        rules.check(9, true).expect("a second snapshot is a snapshot");
    }
}
