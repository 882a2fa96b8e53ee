//! The canonical path of a request: the only form that is decided and forwarded, together with the method as it stands.

use http::{Method, Uri};
use nova_policy::never::{self, Never};
use nova_policy::path::CanonicalPath;

use crate::reason::Reason;

/// The canonical path of a target; `*` is for OPTIONS alone.
///
/// # Errors
/// [`Reason::BadPath`]; [`Reason::Unsupported`] for methods that are never carried; [`Reason::Malformed`] when the query asks
/// for another method.
pub fn canonical_path(method: &Method, uri: &Uri) -> Result<CanonicalPath, Reason> {
    never::check(method.as_str(), uri.query()).map_err(|never| match never {
        Never::Method => Reason::Unsupported,
        Never::Override => Reason::Malformed,
    })?;
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    if target == "*" {
        return if method == Method::OPTIONS { Ok(CanonicalPath::asterisk()) } else { Err(Reason::BadPath) };
    }
    CanonicalPath::parse(target.as_bytes()).map_err(|_| Reason::BadPath)
}
