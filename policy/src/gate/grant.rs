//! One rule of the compiled data, as far as this build knows its members; all others are kept as they are.

use std::collections::{BTreeMap, BTreeSet};

use crate::bundle::canonical::Json;
use crate::path::pattern::segments_match;

/// Methods that read. Every other one counts as writing, also those we have never heard of.
const READS: [&str; 3] = ["GET", "HEAD", "OPTIONS"];

/// Members that only ever make a rule grant less: a rule of a new pair may have them.
const CONDITIONS: [&str; 3] = ["needs", "src", "jwt"];

/// What one rule grants to a pair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) id: String,
    pub(super) rank: u64,
    pub(super) l4: bool,
    pub(super) methods: BTreeSet<String>,
    pub(super) paths: Vec<Path>,
    pub(super) audit: bool,
    pub(super) credential: String,
    /// Members this build does not compare one by one.
    pub(super) rest: BTreeMap<String, String>,
}

/// A path pattern of the compiled data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Path {
    Exact(String),
    Prefix(String),
    Segments(Vec<String>),
    SegmentsPrefix(Vec<String>),
}

impl Grant {
    pub(super) fn read(members: &BTreeMap<String, Json>) -> Self {
        let mut grant = Self::default();
        for (name, value) in members {
            if !grant.known(name, value) {
                grant.rest.insert(name.clone(), value.to_canonical());
            }
        }
        grant
    }

    /// Takes a member over; false when its form is not the one we know.
    fn known(&mut self, name: &str, value: &Json) -> bool {
        match (name, value) {
            ("id", Json::String(text)) => self.id.clone_from(text),
            ("rank", Json::Number(text)) => match text.parse() {
                Ok(rank) => self.rank = rank,
                Err(_) => return false,
            },
            ("l4", Json::Bool(value)) => self.l4 = *value,
            ("audit", Json::Bool(value)) => self.audit = *value,
            ("credential", Json::String(text)) => self.credential.clone_from(text),
            ("methods", Json::Object(all)) => match flags(all) {
                Some(names) => self.methods.extend(names),
                None => return false,
            },
            ("exact", Json::Object(all)) => match flags(all) {
                Some(names) => self.paths.extend(names.into_iter().map(Path::Exact)),
                None => return false,
            },
            ("prefix", Json::Array(all)) => match texts(all) {
                Some(texts) => self.paths.extend(texts.into_iter().map(Path::Prefix)),
                None => return false,
            },
            ("segs" | "segs_prefix", Json::Array(all)) => {
                let lists: Option<Vec<_>> = all.iter().map(|item| texts(items(item)?)).collect();
                let Some(lists) = lists else { return false };
                let path = if name == "segs" { Path::Segments } else { Path::SegmentsPrefix };
                self.paths.extend(lists.into_iter().map(path));
            }
            _ => return false,
        }
        true
    }

    /// Methods that write; `*` is one of them.
    pub(super) fn writes(&self) -> BTreeSet<&str> {
        self.methods.iter().map(String::as_str).filter(|name| !READS.contains(name)).collect()
    }

    pub(super) fn has_method(&self, name: &str) -> bool {
        self.l4 || self.methods.contains("*") || self.methods.contains(name)
    }

    pub(super) fn covers_path(&self, path: &Path) -> bool {
        self.l4 || self.paths.iter().any(|own| own.covers(path))
    }

    /// What the rule brings along when it wins, besides methods and paths.
    pub(super) fn carries(&self) -> (&str, &BTreeMap<String, String>) {
        (&self.credential, &self.rest)
    }

    pub(super) fn methods_text(&self) -> String {
        if self.l4 { "any (no http block)".to_owned() } else { join(&self.methods) }
    }

    /// Members that may make the rule grant more.
    pub(super) fn extras(&self) -> bool {
        self.rest.keys().any(|name| !CONDITIONS.contains(&name.as_str()))
    }

    pub(super) fn rest_text(&self) -> String {
        self.rest.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join(", ")
    }
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

/// The segments of a prefix, which begins and ends with `/`.
fn parts(prefix: &str) -> Vec<String> {
    let inner = prefix.trim_start_matches('/');
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    if inner.is_empty() { Vec::new() } else { inner.split('/').map(str::to_owned).collect() }
}

/// Segment by segment; `*` covers another `*` and whatever segment the matcher lets it stand for.
fn each(own: &[String], other: &[String]) -> bool {
    own.iter().zip(other).all(|(own, got)| {
        own == got || (own == "*" && got != "*" && segments_match(std::slice::from_ref(own), got, false))
    })
}

fn flags(all: &BTreeMap<String, Json>) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for (name, value) in all {
        match value {
            Json::Bool(true) => names.push(name.clone()),
            Json::Bool(false) => {}
            _ => return None,
        }
    }
    Some(names)
}

fn items(value: &Json) -> Option<&[Json]> {
    if let Json::Array(items) = value { Some(items) } else { None }
}

fn texts(all: &[Json]) -> Option<Vec<String>> {
    let text = |item: &Json| if let Json::String(text) = item { Some(text.clone()) } else { None };
    all.iter().map(text).collect()
}

pub(super) fn join<I: IntoIterator<Item = S>, S: ToString>(all: I) -> String {
    all.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}
