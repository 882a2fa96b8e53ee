//! Arrows between the files of one crate: which file takes names out of which other one.
//!
//! Handing a name on (`pub use`) is no arrow: whoever takes the name takes it from the file that defines it. A submodule may use
//! what its parents define, since they are one room: the parent says what it is about, its submodules are the parts. So that
//! is no arrow either, and a file's own tests and `main` are not read.

use std::collections::{BTreeMap, BTreeSet};

use super::Source;

/// File to the files that it uses, each with the names that it takes.
pub(crate) type Arrows = BTreeMap<String, BTreeMap<String, String>>;

/// The arrows between the files of a crate.
pub(crate) fn arrows(sources: &[Source]) -> Arrows {
    // Programs beside a library are crates of their own.
    let is_lib = sources.iter().any(|source| source.module == "lib");
    let of_crate = |source: &&Source| source.module != "bin" && !(is_lib && source.module == "main");
    let files: Files<'_> = sources.iter().filter(of_crate).map(|source| (source.parts(), File::read(source))).collect();
    let mut arrows = Arrows::new();
    for (module, file) in &files {
        for path in file.named(module) {
            let to = home(&files, &path, &mut BTreeSet::new());
            if !module.starts_with(to) {
                let taken = path.get(to.len()).map_or("its items", String::as_str);
                let uses = arrows.entry(file.shown.to_owned()).or_default();
                uses.entry(files[to].shown.to_owned()).or_insert_with(|| taken.to_owned());
            }
        }
    }
    arrows
}

/// By module: `net`, `stream`.
type Files<'a> = BTreeMap<&'a [String], File<'a>>;

struct File<'a> {
    shown: &'a str,
    tokens: Vec<&'a str>,
    paths: Vec<Path<'a>>,
    /// Names of its submodules in files of their own.
    submodules: BTreeSet<&'a str>,
}

/// A path in the code: `crate::net::stream::Stream`.
struct Path<'a> {
    names: Vec<&'a str>,
    /// What a `use` calls it.
    called: &'a str,
    how: How,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum How {
    Named,
    Imported,
    HandedOn,
}

impl<'a> File<'a> {
    fn read(source: &'a Source) -> Self {
        let tokens = tokens(&source.code);
        let submodules = tokens.windows(3).filter(|three| three[0] == "mod" && three[2] == ";").map(|three| three[1]);
        Self { shown: &source.path, submodules: submodules.collect(), paths: paths(&tokens), tokens }
    }

    /// Everything of its own crate that it takes, as paths from the crate's root.
    fn named(&self, module: &[String]) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        for path in &self.paths {
            let Some(from_root) = self.absolute(module, path) else { continue };
            match path.how {
                How::Named => found.push(from_root),
                How::HandedOn if !self.uses_itself(path.called) => {}
                How::HandedOn | How::Imported => {
                    // Of an imported module it takes what it names of it.
                    let of_it =
                        self.paths.iter().filter(|other| other.names.len() > 1 && other.names[0] == path.called);
                    let before = found.len();
                    found.extend(of_it.map(|other| {
                        from_root.iter().cloned().chain(other.names[1..].iter().map(ToString::to_string)).collect()
                    }));
                    if found.len() == before {
                        found.push(from_root);
                    }
                }
            }
        }
        found
    }

    fn uses_itself(&self, name: &str) -> bool {
        self.tokens.iter().filter(|token| **token == name).count() > 1
    }

    fn defines(&self, name: &str) -> bool {
        let kinds = ["fn", "struct", "enum", "trait", "type", "const", "static", "mod"];
        self.tokens.windows(2).any(|two| kinds.contains(&two[0]) && two[1] == name)
    }

    /// `None`: another crate's, or a name of this file.
    fn absolute(&self, module: &[String], path: &Path<'_>) -> Option<Vec<String>> {
        let own = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (first, rest) = path.names.split_first()?;
        let up = path.names.iter().take_while(|name| **name == "super").count();
        match *first {
            _ if path.names.len() == 1 => None,
            "crate" => Some(own(rest)),
            "self" => Some([module, &own(rest)].concat()),
            "super" => Some([&module[..module.len().checked_sub(up)?], &own(&path.names[up..])].concat()),
            name if self.submodules.contains(name) => Some([module, &own(&path.names)].concat()),
            _ => None,
        }
    }
}

/// The file that defines what a path names. What another file hands on is looked for where that takes it from.
fn home<'a>(files: &Files<'a>, path: &[String], seen: &mut BTreeSet<Vec<String>>) -> &'a [String] {
    let (module, file) = (0..=path.len())
        .rev()
        .find_map(|length| files.get_key_value(&path[..length]))
        .expect("a crate has a root, which every path begins with");
    let Some(name) = path.get(module.len()).filter(|_| seen.insert(path.to_vec())) else { return module };
    for handed in file.paths.iter().filter(|other| other.how != How::Named) {
        let Some(mut from) = file.absolute(module, handed) else { continue };
        if handed.called == "*" {
            from.pop();
            from.push(name.clone());
        } else if handed.called != name {
            continue;
        }
        from.extend_from_slice(&path[module.len() + 1..]);
        let found = home(files, &from, seen);
        if handed.called != "*" || files[found].defines(name) {
            return found;
        }
    }
    module
}

fn tokens(code: &str) -> Vec<&str> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match rest.find(|letter| !is_word(letter)) {
            _ if rest.starts_with("::") => 2,
            Some(0) => first.len_utf8(),
            Some(length) => length,
            None => rest.len(),
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

fn paths<'a>(tokens: &[&'a str]) -> Vec<Path<'a>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let before = at.checked_sub(1).map_or("", |before| tokens[before]);
        if tokens[at] == "use" {
            // `pub use`, `pub(crate) use`.
            let how = if ["pub", ")"].contains(&before) { How::HandedOn } else { How::Imported };
            at = tree(tokens, at + 1, &[], how, &mut found);
        } else if is_name(tokens[at]) && ![".", "::"].contains(&before) {
            at = tree(tokens, at, &[], How::Named, &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// Reads one path, or the group at its end, and says where it is over.
fn tree<'a>(tokens: &[&'a str], mut at: usize, before: &[&'a str], how: How, found: &mut Vec<Path<'a>>) -> usize {
    let token = |at: usize| tokens.get(at).copied().unwrap_or_default();
    let mut names = before.to_vec();
    while is_name(token(at)) || token(at) == "*" {
        names.push(token(at));
        at += 1;
        if token(at) == "::" && (is_name(token(at + 1)) || ["*", "{"].contains(&token(at + 1))) {
            at += 1;
            continue;
        }
        let renamed = token(at) == "as" && how != How::Named;
        if names.last() == Some(&"self") && names.len() > 1 {
            names.pop();
        }
        let called = if renamed { token(at + 1) } else { names.last().copied().unwrap_or_default() };
        found.push(Path { names, called, how });
        return if renamed { at + 2 } else { at };
    }
    if token(at) != "{" {
        return at;
    }
    at += 1;
    while at < tokens.len() && token(at) != "}" {
        at = if token(at) == "," { at + 1 } else { tree(tokens, at, &names, how, found).max(at + 1) };
    }
    at + 1
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}
