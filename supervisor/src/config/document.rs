//! Sections and keys of the file, with their places. Reading a value never stops at a mistake: it is noted, and a stand-in
//! is used so that the rest of the file is looked at too. Whoever asked for the values asks [`Document::finish`] at the end.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, ConfigErrors};
use super::spelling::nearest;
use super::value::Mistake;

/// A configuration is a page of text; anything larger is the wrong file.
const MAX_FILE: u64 = 1024 * 1024;

/// The text of a file.
pub(super) fn read(path: &Path) -> Result<String, ConfigErrors> {
    let fail = |problem: String, remedy: &str| {
        let file = path.to_owned();
        ConfigErrors(vec![ConfigError { file, line: 0, column: 0, key: String::new(), problem, remedy: remedy.into() }])
    };
    let remedy = "give the path of a supervisor.toml that this user may read";
    let bytes =
        nova_policy::files::read(path, MAX_FILE).map_err(|error| fail(format!("cannot be read: {error}"), remedy))?;
    nova_policy::report::text(&path.display().to_string(), &bytes).map(str::to_owned).map_err(|report| {
        let mistake = |problem: nova_policy::report::Problem| ConfigError {
            file: path.to_owned(),
            line: problem.line,
            column: problem.column,
            key: String::new(),
            problem: problem.message,
            remedy: problem.remedy,
        };
        ConfigErrors(report.problems.into_iter().map(mistake).collect())
    })
}

/// The whole file, and the mistakes found in it so far.
pub(super) struct Document<'a> {
    file: &'a Path,
    text: &'a str,
    root: Spanned<DeTable<'a>>,
    notes: RefCell<Vec<(usize, ConfigError)>>,
    /// Lines that are not TOML. What the parser made of them is a guess, so no further mistakes are reported there.
    broken: BTreeSet<usize>,
}

impl<'a> Document<'a> {
    pub(super) fn new(text: &'a str, file: &'a Path) -> Self {
        let (root, errors) = DeTable::parse_recoverable(text);
        let mut document = Self { file, text, root, notes: RefCell::default(), broken: BTreeSet::new() };
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            let problem = format!("this is not valid TOML: {}", error.message().replace('\n', ", "));
            document.note(at, "", Mistake::new(problem, "write key = value under a [section], texts in quotes"));
            let (line, _) = document.place(at);
            document.broken.insert(line);
        }
        document
    }

    /// A section that must be there. Missing: its keys are missing too, so only the section is reported.
    pub(super) fn section<'d>(&'d self, name: &'static str) -> Section<'d> {
        let section = self.optional_section(name);
        if section.table.is_none() && !self.root.get_ref().contains_key(name) {
            self.missing(0, name, &format!("add a section [{name}]"));
        }
        section
    }

    /// A section that may be left out.
    pub(super) fn optional_section<'d>(&'d self, name: &'static str) -> Section<'d> {
        let entry = self.root.get_ref().get_key_value(name);
        let at = entry.map_or(0..0, |(key, _)| key.span());
        let table = entry.and_then(|(_, value)| {
            let table = value.get_ref().as_table();
            if table.is_none() {
                self.note(at.start, name, Mistake::new("must be a section", format!("write [{name}] on its own line")));
            }
            table
        });
        Section { document: self, name, at, table, seen: Vec::new() }
    }

    /// The tables of a list, each like a section.
    pub(super) fn tables<'d>(&'d self, name: &'static str) -> Vec<Section<'d>> {
        let Some((key, value)) = self.root.get_ref().get_key_value(name) else { return Vec::new() };
        let remedy = || format!("write [[{name}]] on a line of its own, and below it the keys of one entry");
        let Some(list) = value.get_ref().as_array() else {
            self.note(key.span().start, name, Mistake::new("must be a list of tables", remedy()));
            return Vec::new();
        };
        let section = |item: &'d Spanned<DeValue<'d>>| {
            let table = item.get_ref().as_table();
            if table.is_none() {
                self.note(item.span().start, name, Mistake::new("must be a list of tables", remedy()));
            }
            Section { document: self, name, at: item.span(), table, seen: Vec::new() }
        };
        list.iter().map(section).collect()
    }

    /// Whether the file has a key, whatever its value.
    pub(super) fn section_has(&self, section: &str, key: &str) -> bool {
        let table = self.root.get_ref().get(section).and_then(|value| value.get_ref().as_table());
        table.is_some_and(|table| table.contains_key(key))
    }

    /// Reports top-level names that are no section.
    pub(super) fn only_sections(&self, known: &[&str]) {
        for (key, _) in self.root.get_ref() {
            if !known.contains(&key.get_ref().as_ref()) {
                self.unknown(key.span().start, key.get_ref(), "section", known, key.get_ref());
            }
        }
    }

    /// The mistakes, in the order of the file.
    pub(super) fn finish(self) -> Result<(), ConfigErrors> {
        let mut notes = self.notes.into_inner();
        notes.sort_by_key(|(at, _)| *at);
        if notes.is_empty() { Ok(()) } else { Err(ConfigErrors(notes.into_iter().map(|(_, error)| error).collect())) }
    }

    fn note(&self, at: usize, key: &str, mistake: Mistake) {
        let (line, column) = self.place(at);
        if self.broken.contains(&line) {
            return;
        }
        let Mistake { problem, remedy } = mistake;
        let error = ConfigError { file: self.file.to_owned(), line, column, key: key.to_owned(), problem, remedy };
        self.notes.borrow_mut().push((at, error));
    }

    /// In a file that is not valid TOML a missing key may only be hidden behind the broken line.
    fn missing(&self, at: usize, key: &str, remedy: &str) {
        if self.broken.is_empty() {
            self.note(at, key, Mistake::new("is missing", remedy));
        }
    }

    fn unknown(&self, at: usize, key: &str, kind: &str, known: &[&str], word: &str) {
        let remedy = match nearest(word, known) {
            Some(best) => format!("did you mean {best}?"),
            None => format!("remove it; known here: {}", known.join(", ")),
        };
        self.note(at, key, Mistake::new(format!("there is no such {kind}"), remedy));
    }

    fn place(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
        (before.matches('\n').count() + 1, column)
    }
}

/// One section. Every key that is asked for counts as known; [`Section::finish`] reports the others.
pub(super) struct Section<'d> {
    document: &'d Document<'d>,
    name: &'static str,
    at: Range<usize>,
    table: Option<&'d DeTable<'d>>,
    seen: Vec<&'static str>,
}

impl<'d> Section<'d> {
    /// Whether the file has it.
    pub(super) fn is_there(&self) -> bool {
        self.table.is_some()
    }

    /// A value that must be there.
    pub(super) fn required<T>(&mut self, key: &'static str, parse: impl Parse<T>, remedy: &str) -> Option<T> {
        if self.table.is_some() && self.find(key).is_none() {
            let name = format!("{}.{key}", self.name);
            self.document.missing(self.at.start, &name, remedy);
        }
        self.optional(key, parse)
    }

    /// A value that may be left out.
    pub(super) fn optional<T>(&mut self, key: &'static str, parse: impl Parse<T>) -> Option<T> {
        self.seen.push(key);
        let (_, value) = self.find(key)?;
        match parse(value.get_ref()) {
            Ok(parsed) => Some(parsed),
            Err(mistake) => {
                self.document.note(value.span().start, &format!("{}.{key}", self.name), mistake);
                None
            }
        }
    }

    /// A list whose items are parsed, and reported, one by one.
    pub(super) fn list<T>(&mut self, key: &'static str, parse: impl Parse<T>) -> Vec<T> {
        self.seen.push(key);
        let Some((_, value)) = self.find(key) else { return Vec::new() };
        let name = format!("{}.{key}", self.name);
        self.items(&name, value, &parse)
    }

    /// A table of names, each with one value or a list of them.
    pub(super) fn table_of_lists<T>(&mut self, key: &'static str, parse: impl Parse<T>) -> Vec<(String, Vec<T>)> {
        self.seen.push(key);
        let Some((_, value)) = self.find(key) else { return Vec::new() };
        let name = format!("{}.{key}", self.name);
        let Some(table) = value.get_ref().as_table() else {
            let remedy = format!("write [{name}] and a line for each name");
            self.document.note(value.span().start, &name, Mistake::new("must be a table", remedy));
            return Vec::new();
        };
        let entry = |(key, value): (&Spanned<_>, &'d Spanned<DeValue<'d>>)| {
            let key: &toml::de::DeString<'_> = key.get_ref();
            (key.to_string(), self.items(&format!("{name}.{key}"), value, &parse))
        };
        table.iter().map(entry).collect()
    }

    /// Reports a mistake about a key of this section, or about the section when the key is not there.
    pub(super) fn refuse(&self, key: &str, problem: impl Into<String>, remedy: impl Into<String>) {
        let at = self.find(key).map_or(self.at.start, |(key, _)| key.span().start);
        let name = if key.is_empty() { self.name.to_owned() } else { format!("{}.{key}", self.name) };
        self.document.note(at, &name, Mistake::new(problem, remedy));
    }

    /// Whether the section has a key, whatever its value.
    pub(super) fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Lets keys pass that only make sense once another mistake is corrected.
    pub(super) fn ignore(&mut self, keys: &[&'static str]) {
        self.seen.extend(keys);
    }

    /// Refuses keys that mean nothing with the choice that was made.
    pub(super) fn only_with(&mut self, keys: &[&'static str], choice: &str) {
        for key in keys {
            self.seen.push(key);
            if self.find(key).is_some() {
                self.refuse(key, format!("has no meaning without {choice}"), format!("remove it, or set {choice}"));
            }
        }
    }

    /// A path, relative to the file's folder.
    pub(super) fn path(&self, path: PathBuf) -> PathBuf {
        self.document.file.parent().map_or(path.clone(), |folder| folder.join(path))
    }

    /// Reports the keys that nobody asked for.
    pub(super) fn finish(self) {
        for (key, _) in self.table.into_iter().flatten() {
            let word = key.get_ref().as_ref();
            if !self.seen.contains(&word) {
                let name = format!("{}.{word}", self.name);
                self.document.unknown(key.span().start, &name, "key", &self.seen, word);
            }
        }
    }

    fn find(&self, key: &str) -> Option<(&'d Spanned<toml::de::DeString<'d>>, &'d Spanned<DeValue<'d>>)> {
        self.table?.get_key_value(key)
    }

    fn items<T>(&self, name: &str, value: &'d Spanned<DeValue<'d>>, parse: &impl Parse<T>) -> Vec<T> {
        let single = std::slice::from_ref(value);
        let items: Vec<_> = match value.get_ref() {
            DeValue::Array(array) => array.iter().collect(),
            _ => single.iter().collect(),
        };
        let parse_one = |item: &Spanned<DeValue<'d>>| {
            parse(item.get_ref()).map_err(|mistake| self.document.note(item.span().start, name, mistake)).ok()
        };
        items.into_iter().filter_map(parse_one).collect()
    }
}

/// How one value becomes a typed one.
pub(super) trait Parse<T>: Fn(&DeValue<'_>) -> Result<T, Mistake> {}

impl<T, F: Fn(&DeValue<'_>) -> Result<T, Mistake>> Parse<T> for F {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_missing_names_itself_and_a_remedy() {
        let text = read(Path::new("/nonexistent/supervisor.toml")).expect_err("no such file").to_string();
        assert!(text.starts_with("/nonexistent/supervisor.toml: cannot be read"), "{text}");
    }
}
