//! One rule of the compiled data, as far as this build knows its members; all others are kept as they are.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::pattern::Path;
use super::risk::Kind;
use crate::bundle::canonical::Json;

/// Methods that read. Every other one counts as writing, also those we have never heard of.
const READS: [&str; 3] = ["GET", "HEAD", "OPTIONS"];

/// Members that only ever make a rule grant less, and the risk that it is when one goes.
const CONDITIONS: [(&str, Kind); 3] =
    [("needs", Kind::RouteChanged), ("src", Kind::WiderRange), ("jwt", Kind::WiderPeer)];
/// Members that make a rule grant more than methods and paths, and the risk that it is when one comes.
const MORE: [(&str, Kind); 2] = [("upgrade", Kind::UpgradeAdded), (ENCODED_SLASH, Kind::EncodedSlashAdded)];
const ENCODED_SLASH: &str = "encoded_slash";

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
    /// Conditions, what it grants beside requests, and members that this build does not know.
    pub(super) rest: BTreeMap<String, String>,
    /// What an egress rule leads to.
    pub(super) leads: Leads,
}

/// What a granted rule leads to, without what names the destination.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Leads {
    pub(super) members: BTreeMap<String, String>,
    /// Ranges that the name may resolve to.
    pub(super) addresses: Vec<IpNet>,
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
            (ENCODED_SLASH, Json::Bool(false)) => {}
            ("methods", Json::Object(all)) => match flags(all) {
                Some(names) => self.methods.extend(names),
                None => return false,
            },
            ("exact", Json::Object(all)) => match flags(all) {
                Some(names) => self.paths.extend(names.into_iter().map(Path::Exact)),
                None => return false,
            },
            ("prefix", Json::Array(all)) => match texts(all) {
                // No compiler writes a prefix that ends within a segment, and nothing here compares one rightly.
                Some(texts) if texts.iter().all(|text| text.starts_with('/') && text.ends_with('/')) => {
                    self.paths.extend(texts.into_iter().map(Path::Prefix));
                }
                _ => return false,
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

    /// Whether requests with an escaped slash in the path match too.
    pub(super) fn accepts_slash(&self) -> bool {
        self.rest.contains_key(ENCODED_SLASH)
    }

    pub(super) fn covers_path(&self, path: &Path) -> bool {
        self.l4 || self.paths.iter().any(|own| own.covers(path))
    }

    /// Whether this rule asks for nothing that `other` does not ask for, and grants beside requests all that it grants.
    pub(super) fn is_as_open_as(&self, other: &Self) -> bool {
        let names: BTreeSet<&String> = self.rest.keys().chain(other.rest.keys()).collect();
        names.into_iter().all(|name| self.is_as_open_in(name, other))
    }

    fn is_as_open_in(&self, name: &str, other: &Self) -> bool {
        let condition = kind_in(&CONDITIONS, name).is_some();
        match (self.rest.get(name), other.rest.get(name)) {
            (own, others) if own == others => true,
            (None, Some(_)) => condition,
            (Some(_), None) => kind_in(&MORE, name).is_some(),
            (Some(own), Some(others)) => name == "src" && range_covers(own, others),
            (None, None) => true,
        }
    }

    /// The members in which `other` is more open, as risks.
    pub(super) fn opened_by<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (Kind, String, String)> + 'a {
        let names: BTreeSet<&String> = self.rest.keys().chain(other.rest.keys()).collect();
        names.into_iter().filter(move |name| !self.is_as_open_in(name, other)).map(move |name| {
            let text = |value: &String| format!("{name}: {value}");
            let text = |side: &Self| side.rest.get(name).map_or_else(|| "(none)".to_owned(), text);
            (kind_of(name), text(self), text(other))
        })
    }

    /// Members that make a rule of a new pair grant more than requests, as risks.
    pub(super) fn extras(&self) -> impl Iterator<Item = (Kind, String)> + '_ {
        let more = self.rest.iter().filter(|(name, _)| kind_in(&CONDITIONS, name).is_none());
        more.map(|(name, value)| (kind_of(name), format!("{name}: {value}")))
    }

    /// Whether the rule lets would-be denials of its pair pass, if all others of the pair do.
    pub(super) fn is_harmless(&self) -> bool {
        self.audit && self.credential.is_empty() && !self.rest.contains_key("needs")
    }

    /// Whether it is a rule of the pair for some of its callers only.
    pub(super) fn is_conditional(&self) -> bool {
        self.rest.contains_key("src") || self.rest.contains_key("jwt")
    }

    pub(super) fn methods_text(&self) -> String {
        if self.l4 { "any (no http block)".to_owned() } else { join(&self.methods) }
    }
}

fn kind_of(member: &str) -> Kind {
    kind_in(&CONDITIONS, member).or_else(|| kind_in(&MORE, member)).unwrap_or(Kind::UnknownDifference)
}

fn kind_in(known: &[(&str, Kind)], member: &str) -> Option<Kind> {
    known.iter().find(|(name, _)| *name == member).map(|(_, kind)| *kind)
}

/// Both are JSON texts of networks.
fn range_covers(own: &str, other: &str) -> bool {
    let parse = |text: &str| text.trim_matches('"').parse::<IpNet>().ok();
    parse(own).zip(parse(other)).is_some_and(|(own, other)| own.contains(&other))
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
