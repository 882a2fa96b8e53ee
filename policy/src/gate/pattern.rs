//! A path pattern of the compiled data: which paths it covers, and paths that two patterns share.

use std::collections::BTreeSet;

use crate::path::pattern::segments_match;

/// Stands for any segment; no rule names it.
const SOME: &str = "nova-sample";
/// The same with an escaped slash in it.
const SOME_SLASHED: &str = "nova%2Fsample";
/// How many lengths of a shared path are tried beyond the shortest; a pattern of segments tells lengths apart.
const MAX_LENGTHS: usize = 8;

/// A path pattern of the compiled data.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Path {
    Exact(String),
    Prefix(String),
    Segments(Vec<String>),
    SegmentsPrefix(Vec<String>),
}

impl Path {
    pub(super) fn is_wildcard(&self) -> bool {
        !matches!(self, Self::Exact(_))
    }

    /// Whether every path of `other` is one of ours. False when in doubt.
    pub(super) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(own), Self::Exact(path)) => own == path,
            (Self::Exact(_), _) => false,
            (Self::Prefix(own), Self::Exact(path) | Self::Prefix(path)) => path.starts_with(own.as_str()),
            (Self::Prefix(own), Self::Segments(path)) => {
                let own = parts(own);
                own.len() < path.len() && own.iter().zip(path).all(|(own, got)| own == got)
            }
            (Self::Prefix(own), Self::SegmentsPrefix(path)) => {
                let own = parts(own);
                own.len() <= path.len() && own.iter().zip(path).all(|(own, got)| own == got)
            }
            (Self::Segments(own), Self::Exact(path)) => segments_match(own, path, false),
            (Self::Segments(own), Self::Segments(path)) => own.len() == path.len() && each(own, path),
            (Self::Segments(_), _) => false,
            (Self::SegmentsPrefix(own), Self::Exact(path)) => segments_match(own, path, true),
            (Self::SegmentsPrefix(own), Self::Segments(path)) => own.len() < path.len() && each(own, path),
            (Self::SegmentsPrefix(own), Self::SegmentsPrefix(path)) => own.len() <= path.len() && each(own, path),
            (Self::SegmentsPrefix(own), Self::Prefix(path)) => {
                let path = parts(path);
                own.len() <= path.len() && each(own, &path)
            }
        }
    }

    /// Paths that both patterns match: one of each length that could matter, and with an escaped slash too where there may
    /// be one; none when they share no path.
    pub(super) fn shared(&self, other: &Self) -> BTreeSet<String> {
        let plain = self.shared_plain(other);
        let slashed: Vec<String> = plain.iter().map(|path| path.replace(SOME, SOME_SLASHED)).collect();
        plain.into_iter().chain(slashed).collect()
    }

    fn shared_plain(&self, other: &Self) -> BTreeSet<String> {
        let (Some(own), Some(others)) = (Shape::of(self), Shape::of(other)) else {
            let same = self == other;
            return self.text().filter(|_| same).into_iter().collect();
        };
        let shortest = own.shortest().max(others.shortest());
        let longest = own.longest().min(others.longest()).min(shortest.saturating_add(MAX_LENGTHS));
        (shortest..=longest).filter_map(|length| own.joined(&others, length)).collect()
    }

    fn text(&self) -> Option<String> {
        if let Self::Exact(path) = self { Some(path.clone()) } else { None }
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(path) => f.write_str(path),
            Self::Prefix(prefix) => write!(f, "{prefix}**"),
            Self::Segments(segments) => write!(f, "/{}", segments.join("/")),
            Self::SegmentsPrefix(segments) => write!(f, "/{}/**", segments.join("/")),
        }
    }
}

/// A pattern as segments.
struct Shape {
    segments: Vec<Segment>,
    /// At least one more segment follows, whatever it is.
    open: bool,
}

#[derive(Clone)]
enum Segment {
    Is(String),
    /// One segment that `*` may stand for.
    Plain,
    /// Any segment, also an empty one.
    Any,
}

impl Shape {
    /// None for `*`, which is no path.
    fn of(path: &Path) -> Option<Self> {
        let literal = |text: &str| text.split('/').map(|part| Segment::Is(part.to_owned())).collect();
        let starred = |all: &[String]| {
            let one = |part: &String| if part == "*" { Segment::Plain } else { Segment::Is(part.clone()) };
            all.iter().map(one).collect()
        };
        let (segments, open) = match path {
            Path::Exact(path) => (literal(path.strip_prefix('/')?), false),
            Path::Prefix(prefix) => (parts(prefix).into_iter().map(Segment::Is).collect(), true),
            Path::Segments(all) => (starred(all), false),
            Path::SegmentsPrefix(all) => (starred(all), true),
        };
        Some(Self { segments, open })
    }

    fn shortest(&self) -> usize {
        self.segments.len() + usize::from(self.open)
    }

    fn longest(&self) -> usize {
        if self.open { usize::MAX } else { self.segments.len() }
    }

    fn at(&self, index: usize) -> Segment {
        self.segments.get(index).cloned().unwrap_or(Segment::Any)
    }

    /// A path of so many segments that both match.
    fn joined(&self, other: &Self, length: usize) -> Option<String> {
        let mut path = String::new();
        for index in 0..length {
            path.push('/');
            path += &match (self.at(index), other.at(index)) {
                (Segment::Is(own), Segment::Is(got)) => Some(own).filter(|own| *own == got)?,
                (Segment::Is(text), Segment::Plain) | (Segment::Plain, Segment::Is(text)) => {
                    let star = ["*".to_owned()];
                    Some(text).filter(|text| segments_match(&star, &format!("/{text}"), false))?
                }
                (Segment::Is(text), Segment::Any) | (Segment::Any, Segment::Is(text)) => text,
                (Segment::Plain | Segment::Any, Segment::Plain | Segment::Any) => SOME.to_owned(),
            };
        }
        Some(path)
    }
}

/// The segments of a prefix, which begins and ends with `/`.
fn parts(prefix: &str) -> Vec<String> {
    let inner = prefix.trim_start_matches('/');
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    if inner.is_empty() { Vec::new() } else { inner.split('/').map(str::to_owned).collect() }
}

/// Segment by segment; `*` covers another `*` and whatever segment the matcher lets it stand for.
fn each(own: &[String], other: &[String]) -> bool {
    own.iter().zip(other).all(|(own, got)| {
        own == got || (own == "*" && got != "*" && segments_match(std::slice::from_ref(own), &format!("/{got}"), false))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::pattern::PathPattern;

    fn path(text: &str) -> Path {
        match PathPattern::parse(text).expect(text) {
            PathPattern::Exact(path) => Path::Exact(path),
            PathPattern::Prefix(prefix) => Path::Prefix(prefix),
            PathPattern::Segments(all) => Path::Segments(all),
            PathPattern::SegmentsPrefix(all) => Path::SegmentsPrefix(all),
        }
    }

    #[test]
    fn shared_paths_are_matched_by_both_patterns_and_missing_only_where_there_are_none() {
        let all = [
            "*",
            "/",
            "/a",
            "/a/",
            "/a/b",
            "/a;v/b",
            "/**",
            "/a/**",
            "/a/b/**",
            "/*",
            "/*/*",
            "/a/*",
            "/*/b",
            "/*/**",
            "/a/*/c",
            "/*/b/**",
            "/a/*/c/**",
        ];
        let asked =
            ["*", "/", "/a", "/a/", "/a/b", "/a;v/b", "/a/b/", "/a/b/c", "/a/x/c", "/x/b/c/d", "/a/b/c/d", "/z/z/z"];
        for one in all {
            for two in all {
                let shared = path(one).shared(&path(two));
                let both = |text: &str| [one, two].iter().all(|own| PathPattern::parse(own).expect(own).matches(text));
                assert!(shared.iter().all(|text| both(text)), "{one} {two}: {shared:?}");
                assert_eq!(shared.is_empty(), !asked.iter().any(|text| both(text)), "{one} {two}: {shared:?}");
            }
        }
    }
}
