//! Source files as the architecture test sees them: without comments, strings' contents aside, and without tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// One file.
pub(crate) struct Source {
    /// Path for messages.
    pub(crate) path: String,
    /// Top-level module of its crate.
    pub(crate) module: String,
    /// Its code.
    pub(crate) code: String,
    /// How many modules deep it is: 1 for `src/dial.rs` and `src/dial/mod.rs`, 2 for `src/dial/http.rs`.
    depth: usize,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let inside = path.split_once("src/").map_or(path, |(_, inside)| inside);
        let parts: Vec<&str> = inside.trim_end_matches(".rs").trim_end_matches("/mod").split('/').collect();
        Self {
            path: path.to_owned(),
            module: parts.first().copied().unwrap_or_default().to_owned(),
            code: code_of(text),
            depth: parts.len(),
        }
    }

    /// Top-level modules of the same crate that this file names.
    pub(crate) fn uses(&self) -> BTreeSet<String> {
        let to_root = "super::".repeat(self.depth);
        let mut found = BTreeSet::new();
        for start in ["crate::", &to_root] {
            for (at, _) in self.code.match_indices(start) {
                if !self.code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == ':')
                {
                    found.extend(first_names(&self.code[at + start.len()..]));
                }
            }
        }
        found
    }
}

/// The name at the start of `rest`, or all first names of a `{a::b, c}` group.
fn first_names(rest: &str) -> Vec<String> {
    let Some(group) = rest.strip_prefix('{') else { return name(rest).into_iter().collect() };
    let (mut names, mut depth, mut fresh) = (Vec::new(), 0, true);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            letter if fresh && letter.is_alphabetic() => {
                names.extend(name(&group[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    names
}

/// A module's name; types and constants of the crate root begin with a capital and are none.
fn name(text: &str) -> Option<String> {
    let name: String = text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
    name.starts_with(|first: char| first.is_ascii_lowercase()).then_some(name).filter(|name| name != "super")
}

/// Whether `token` stands in `code` as itself, not as the end of a longer name.
pub(crate) fn names_after(code: &str, token: &str) -> bool {
    code.match_indices(token)
        .any(|(at, _)| !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_'))
}

fn code_of(text: &str) -> String {
    let without_tests = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    without_tests.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The sources of one crate, without what is compiled for tests only.
pub(crate) fn crate_sources(folder: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    collect(&root().join(folder).join("src"), &mut sources);
    assert!(!sources.is_empty(), "{folder} has no sources");
    sources
}

/// The sources of all crates.
pub(crate) fn workspace_sources() -> Vec<Source> {
    ["proto", "policy", "supervisor", "relay-guest", "tests", "tests/novalet", "xtask"]
        .iter()
        .flat_map(|folder| crate_sources(folder))
        .collect()
}

fn collect(dir: &Path, sources: &mut Vec<Source>) {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(dir).expect("a folder").flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let shown = path.strip_prefix(root()).expect("inside the workspace").display().to_string();
        if path.is_dir() {
            collect(&path, sources);
        } else if shown.ends_with(".rs") && !shown.ends_with("/tests.rs") && !shown.contains("/tests/src/tests/") {
            sources.push(Source::new(&shown, &std::fs::read_to_string(&path).expect("a source file")));
        }
    }
}

/// Names in `[dependencies]` of the crate in `folder`.
pub(crate) fn manifest(folder: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("a manifest");
    let manifest: toml::Table = text.parse().expect("TOML");
    manifest["dependencies"].as_table().expect("a table").keys().cloned().collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
}
