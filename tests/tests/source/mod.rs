//! Source files as the architecture test sees them: without comments, strings' contents aside, and without tests.

pub(crate) mod files;

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
    /// Its module: `dial` for `src/dial.rs` and `src/dial/mod.rs`, `dial`, `http` for `src/dial/http.rs`, nothing for the root.
    parts: Vec<String>,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let inside = path.split_once("src/").map_or(path, |(_, inside)| inside);
        let mut parts: Vec<String> =
            inside.trim_end_matches(".rs").trim_end_matches("/mod").split('/').map(str::to_owned).collect();
        let module = parts[0].clone();
        parts.retain(|part| !["lib", "main"].contains(&part.as_str()));
        Self { path: path.to_owned(), module, code: code_of(text), parts }
    }

    /// The names of its module.
    pub(crate) fn parts(&self) -> &[String] {
        &self.parts
    }

    /// Whether this path begins with the file's module, or a part of it, and the rest stands in the file.
    pub(crate) fn defines(&self, path: &[&str]) -> bool {
        let same = self.parts.iter().zip(path).take_while(|(own, asked)| own == *asked).count();
        let is_own = same > 0 && same == self.parts.len();
        let is_type = path[0].starts_with(|first: char| first.is_uppercase());
        (is_own || is_type) && path[same..].iter().all(|name| names_after(&self.code, name))
    }

    /// Top-level modules of the same crate that this file names.
    pub(crate) fn uses(&self) -> BTreeSet<String> {
        let to_root = "super::".repeat(self.parts.len());
        let mut found = BTreeSet::new();
        for start in ["crate::", &to_root].into_iter().filter(|start| !start.is_empty()) {
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
    // Modules of tests in files of their own may be declared among others; those with a body end their file.
    let (mut rest, mut code) = (text, String::new());
    while let Some((before, tests)) = rest.split_once("#[cfg(test)]\nmod ") {
        code.push_str(before);
        rest = tests.split_once('\n').filter(|(name, _)| name.ends_with(';')).map_or("", |(_, after)| after);
    }
    code.push_str(rest);
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
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

/// The text of a document of the workspace.
pub(crate) fn document(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect("a document")
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
