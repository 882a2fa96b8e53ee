//! The canonical path of a request: the only form that is decided and forwarded, together with the method as it stands.

use http::{Method, Uri};
use nova_policy::path::CanonicalPath;

use crate::headers::asks_for_another_method;
use crate::reason::Reason;

/// Methods that are refused whatever the rules say, also in lower case, which some servers do not mind: CONNECT asks for a
/// tunnel, the others send back what the request held, credentials too.
const NEVER: [&str; 3] = ["CONNECT", "TRACE", "TRACK"];

/// The canonical path of a target; `*` is for OPTIONS alone.
///
/// # Errors
/// [`Reason::BadPath`]; [`Reason::Unsupported`] for methods that are never carried; [`Reason::Malformed`] when the query asks
/// for another method.
pub fn canonical_path(method: &Method, uri: &Uri) -> Result<CanonicalPath, Reason> {
    if NEVER.iter().any(|never| method.as_str().eq_ignore_ascii_case(never)) {
        return Err(Reason::Unsupported);
    }
    if uri.query().is_some_and(asks_for_another_method) {
        return Err(Reason::Malformed);
    }
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    if target == "*" {
        return if method == Method::OPTIONS { Ok(CanonicalPath::asterisk()) } else { Err(Reason::BadPath) };
    }
    CanonicalPath::parse(target.as_bytes()).map_err(|_| Reason::BadPath)
}
