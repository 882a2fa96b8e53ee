//! What a request names as its destination. Callers name the same one again and again, so a connection reads it once.

use std::cell::RefCell;
use std::rc::Rc;

use http::HeaderValue;
use nova_policy::host::Authority;

use crate::reason::Reason;

/// An authority as it came, what it means, and how it is passed on.
pub struct Named {
    raw: HeaderValue,
    /// What it means.
    pub authority: Authority,
    /// How it is passed on.
    pub canonical: HeaderValue,
}

impl Named {
    fn parse(raw: &[u8]) -> Result<Self, Reason> {
        let text = std::str::from_utf8(raw).map_err(|_| Reason::BadDestination)?;
        let authority = Authority::parse(text).map_err(|_| Reason::BadDestination)?;
        let canonical = HeaderValue::from_str(&authority.to_string()).map_err(|_| Reason::BadDestination)?;
        // A copy: the value as it came is a piece of a read buffer, which must not live as long as the connection.
        let raw = HeaderValue::from_bytes(raw).map_err(|_| Reason::BadDestination)?;
        Ok(Self { raw, authority, canonical })
    }

    /// Whether it was written exactly so.
    #[must_use]
    pub fn is_spelled(&self, raw: &[u8]) -> bool {
        self.raw.as_bytes() == raw
    }
}

/// The last authority that a connection named.
#[derive(Default)]
pub struct LastNamed(RefCell<Option<Rc<Named>>>);

impl LastNamed {
    /// Reads one.
    ///
    /// # Errors
    /// [`Reason::BadDestination`].
    pub fn read(&self, raw: &[u8]) -> Result<Rc<Named>, Reason> {
        let mut last = self.0.borrow_mut();
        if let Some(known) = last.as_ref().filter(|last| last.is_spelled(raw)) {
            return Ok(Rc::clone(known));
        }
        Ok(Rc::clone(last.insert(Rc::new(Named::parse(raw)?))))
    }
}
