//! The two ways of a connection.

/// Which way the payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the outside to the guest.
    ToGuest,
    /// From the guest to the outside.
    FromGuest,
}

impl Way {
    /// The other one.
    #[must_use]
    pub fn back(self) -> Self {
        match self {
            Self::ToGuest => Self::FromGuest,
            Self::FromGuest => Self::ToGuest,
        }
    }
}
