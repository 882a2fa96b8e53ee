//! Path patterns of rules. Three forms only, so that every engine gives the same answer: an exact path, `/**` at the
//! end, and `*` for one whole segment.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{CanonicalPath, PathError, has_escaped_slash};

/// A compiled path pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathPattern {
    /// This path and no other.
    Exact(String),
    /// Everything below; the text ends in `/`.
    Prefix(String),
    /// As many segments as listed; `*` stands for one segment that is not empty and has no `;`. An escaped slash is a part
    /// of its segment.
    Segments(Vec<String>),
    /// At least one segment more than listed.
    SegmentsPrefix(Vec<String>),
}

/// Why a text is not a path pattern.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PatternError {
    /// `?`, braces, brackets, `a*` or a `**` that is not at the end.
    #[error("{0:?} is not a pattern we know: '*' may only be a whole segment and '**' only the last one")]
    Glob(String),
    /// The text can never equal a request's path.
    #[error("{0:?} can match no request: {1}")]
    NotAPath(String, #[source] PathError),
    /// The text is not in canonical spelling.
    #[error("{0:?} can match no request: its canonical form is {1:?}")]
    NotCanonical(String, String),
}

impl PathPattern {
    /// Parses one entry of a rule's `paths`.
    ///
    /// # Errors
    /// When the text uses other globs or could never match a canonical path.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if text == "*" {
            return Ok(Self::Exact(text.to_owned()));
        }
        let (base, open) = match text.strip_suffix("/**") {
            Some(base) => (base, true),
            None => (text, false),
        };
        let bad_glob = |segment: &str| segment != "*" && segment.contains(['*', '?', '[', ']', '{', '}']);
        if base.split('/').any(bad_glob) {
            return Err(PatternError::Glob(text.to_owned()));
        }
        check_canonical(text, base, open)?;
        let segments = || base.trim_start_matches('/').split('/').map(str::to_owned).collect();
        Ok(match (base.split('/').any(|segment| segment == "*"), open) {
            (false, false) => Self::Exact(base.to_owned()),
            (false, true) => Self::Prefix(format!("{base}/")),
            (true, false) => Self::Segments(segments()),
            (true, true) => Self::SegmentsPrefix(segments()),
        })
    }

    /// Bytes of its text, roughly.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Exact(text) | Self::Prefix(text) => text.len(),
            Self::Segments(all) | Self::SegmentsPrefix(all) => all.iter().map(|one| one.len() + 24).sum(),
        }
    }

    /// Whether it names an escaped slash, so that only a rule that accepts one can ever match by it.
    pub(crate) fn has_escaped_slash(&self) -> bool {
        match self {
            Self::Exact(text) | Self::Prefix(text) => has_escaped_slash(text),
            Self::Segments(all) | Self::SegmentsPrefix(all) => all.iter().any(|one| has_escaped_slash(one)),
        }
    }

    /// Whether `path` (canonical) matches.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        match self {
            Self::Exact(exact) => path == exact,
            Self::Prefix(prefix) => path.starts_with(prefix.as_str()),
            Self::Segments(pattern) => segments_match(pattern, path, false),
            Self::SegmentsPrefix(pattern) => segments_match(pattern, path, true),
        }
    }
}

/// Compares segment by segment; `open` wants at least one segment behind the pattern. The target `*` has no segments.
pub(crate) fn segments_match(pattern: &[String], path: &str, open: bool) -> bool {
    let Some(inner) = path.strip_prefix('/') else { return false };
    let parts: Vec<&str> = inner.split('/').collect();
    let length = if open { parts.len() > pattern.len() } else { parts.len() == pattern.len() };
    length && pattern.iter().zip(&parts).all(|(want, got)| want == got || (want == "*" && is_plain_segment(got)))
}

/// A segment that `*` may stand for: parameters are text that some servers strip, so `*` never covers them.
fn is_plain_segment(segment: &str) -> bool {
    !segment.is_empty() && !segment.contains(';') && !segment.contains("%3B")
}

fn check_canonical(text: &str, base: &str, open: bool) -> Result<(), PatternError> {
    if open && base.is_empty() {
        return Ok(());
    }
    let sample =
        base.split('/').map(|segment| if segment == "*" { "x" } else { segment }).collect::<Vec<_>>().join("/");
    let sample = if open { format!("{sample}/") } else { sample };
    let canonical =
        CanonicalPath::parse(sample.as_bytes()).map_err(|error| PatternError::NotAPath(text.to_owned(), error))?;
    if canonical.path_and_query() != sample {
        return Err(PatternError::NotCanonical(text.to_owned(), canonical.path().to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_globs_and_paths_that_never_match_are_refused() {
        for bad in [
            "",
            "v1",
            "/v1/a*",
            "/v1/**/items",
            "/**/x",
            "/v1**",
            "/v1/[ab]",
            "/v1/{a,b}",
            "/v1/?",
            "/v1?x=1",
            "/v1/***",
            "/v1/../admin",
            "/v1//x",
            "/v1/%6f",
            "/v1/%2f",
            "/v1/a%2fb",
            "/v1/a%2F/**",
            "/v1/%2Fb/**",
            "/v1/a%2F*",
            "/v1/a%2F..",
            "/v1 x",
            "/v1/%c3",
            "**",
            "*/x",
            "//**",
            "/v1//**",
            "/v1/./**",
        ] {
            assert!(PathPattern::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn patterns_match_what_the_design_says() {
        for (pattern, path, want) in [
            ("/v1/orders/**", "/v1/orders/42", true),
            ("/v1/orders/**", "/v1/orders/", true),
            ("/v1/orders/**", "/v1/orders", false),
            ("/v1/orders/**", "/v1/ordersX", false),
            ("/**", "/", true),
            ("/**", "*", false),
            ("/*", "*", false),
            ("/*/**", "*", false),
            ("*", "*", true),
            ("*", "/a", false),
            ("/v1/*/detail", "/v1/9/detail", true),
            ("/v1/*/detail", "/v1/9;x/detail", false),
            ("/v1/*/detail", "/v1/9%3Bx/detail", false),
            ("/v1/*/detail", "/v1/9/8/detail", false),
            ("/v1/*", "/v1/", false),
            ("/*", "/@scope%2Fpkg", true),
            ("/*/pkg", "/@scope%2Fpkg", false),
            ("/@scope%2Fpkg", "/@scope%2Fpkg", true),
            ("/@scope/pkg", "/@scope%2Fpkg", false),
            ("/@scope/**", "/@scope%2Fpkg", false),
            ("/@scope%2Fpkg/**", "/@scope%2Fpkg/-/a.tgz", true),
            ("/*", "/@scope%2Fpkg;v", false),
            ("/v1/*/x/**", "/v1/1/x/", true),
            ("/v1/*/x/**", "/v1/1/x", false),
            ("/v1/*/x/**", "/v1/1/x/y/z;p", true),
            ("/v1/charges", "/v1/charges/", false),
            ("/V1", "/v1", false),
        ] {
            let parsed = PathPattern::parse(pattern).expect(pattern);
            assert_eq!(parsed.matches(path), want, "{pattern} {path}");
        }
    }
}
