//! YAML as data only: maps, lists and scalars with their positions. No anchors, aliases, tags, duplicate or complex
//! keys, one document, and limits on size, depth and count, so that a hostile file costs no more than its length.

mod reader;

pub(crate) use reader::{Map, Reader};
use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use crate::report::{Problem, Report};

/// Largest file read, in bytes.
pub(crate) const MAX_FILE: usize = 32 * 1024 * 1024;
/// Deepest nesting.
const MAX_DEPTH: usize = 16;
/// Most nodes of a file.
const MAX_NODES: usize = 4_000_000;
/// Most values of one list: no list anybody reads has more, and whoever sends more need not be read to the end.
const MAX_ITEMS: usize = 100_000;
/// Most keys of one map; looking for one that is there twice takes time for each.
const MAX_KEYS: usize = 1_024;

/// Where something stands, both from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

impl From<Span> for Position {
    fn from(span: Span) -> Self {
        Self { line: span.start.line(), column: span.start.col() + 1 }
    }
}

/// A node with its position.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) at: Position,
    pub(crate) value: Value,
}

impl Node {
    /// Whether a key has it without having a value.
    pub(crate) fn is_null(&self) -> bool {
        let Value::Scalar { text, plain: true } = &self.value else { return false };
        matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }
}

/// What a node is.
#[derive(Debug)]
pub(crate) enum Value {
    /// Text; `plain` when it was not quoted.
    Scalar { text: String, plain: bool },
    /// A list.
    List(Vec<Node>),
    /// Members in the order of the file.
    Map(Vec<(String, Position, Node)>),
}

impl Value {
    /// A list that is there and has nothing in it: what is no list, or too long a one, has been refused for that.
    pub(crate) fn is_empty_list(&self) -> bool {
        matches!(self, Self::List(items) if items.is_empty())
    }

    /// What to call it in a message.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Scalar { .. } => "a value",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }
}

/// A collection that is being read.
enum Open {
    List { at: Position, items: Vec<Node> },
    Map { at: Position, members: Vec<(String, Position, Node)>, key: Option<(String, Position)> },
}

/// Reads one document. Mistakes go into `report`; `None` when the text cannot be read on.
pub(crate) fn parse(file: &str, text: &str, report: &mut Report) -> Option<Node> {
    let mut builder = Builder { file, report, stack: Vec::new(), root: None, count: 0 };
    if text.len() > MAX_FILE {
        builder.fail(Position::default(), "the file is larger than 32 MiB", "split it");
        return None;
    }
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        match event {
            Ok((event, span)) => builder.event(event, span.into())?,
            Err(error) => {
                let marker = error.marker();
                let at = Position { line: marker.line(), column: marker.col() + 1 };
                builder.fail(at, &format!("not YAML: {}", error.info()), "correct the syntax there");
                return None;
            }
        }
    }
    if builder.root.is_none() {
        builder.fail(Position { line: 1, column: 1 }, "the file is empty", "write at least an empty list: []");
    }
    builder.root
}

struct Builder<'a> {
    file: &'a str,
    report: &'a mut Report,
    stack: Vec<Open>,
    root: Option<Node>,
    count: usize,
}

impl Builder<'_> {
    fn fail(&mut self, at: Position, message: &str, remedy: &str) {
        self.report.push(Problem {
            file: self.file.to_owned(),
            line: at.line,
            column: at.column,
            subject: String::new(),
            message: message.to_owned(),
            remedy: remedy.to_owned(),
        });
    }

    /// Takes one event; `None` stops reading.
    fn event(&mut self, event: Event<'_>, at: Position) -> Option<()> {
        self.count += 1;
        if self.count > MAX_NODES || self.stack.len() > MAX_DEPTH {
            self.fail(at, "the file has too many or too deeply nested values", "split it or flatten it");
            return None;
        }
        match event {
            Event::Alias(_) => {
                self.fail(at, "aliases are not allowed", "write the value out");
                return None;
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.plain(at, anchor, tag.is_some())?;
                let plain = style == ScalarStyle::Plain;
                self.add(Node { at, value: Value::Scalar { text: text.into_owned(), plain } })?;
            }
            Event::SequenceStart(anchor, tag) => {
                self.plain(at, anchor, tag.is_some())?;
                self.stack.push(Open::List { at, items: Vec::new() });
            }
            Event::MappingStart(anchor, tag) => {
                self.plain(at, anchor, tag.is_some())?;
                self.stack.push(Open::Map { at, members: Vec::new(), key: None });
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let node = match self.stack.pop()? {
                    Open::List { at, items } => Node { at, value: Value::List(items) },
                    Open::Map { at, members, .. } => Node { at, value: Value::Map(members) },
                };
                self.add(node)?;
            }
            Event::DocumentStart(_) if self.root.is_some() => {
                self.fail(at, "a second document", "keep one document per file");
                return None;
            }
            _ => {}
        }
        Some(())
    }

    fn plain(&mut self, at: Position, anchor: usize, tagged: bool) -> Option<()> {
        if anchor == 0 && !tagged {
            return Some(());
        }
        self.fail(at, "anchors and tags are not allowed", "write the plain value");
        None
    }

    fn add(&mut self, node: Node) -> Option<()> {
        match self.stack.last_mut() {
            None => self.root = Some(node),
            Some(Open::List { at, items }) if items.len() >= MAX_ITEMS => {
                let at = *at;
                self.fail(at, &format!("a list has more than {MAX_ITEMS} items"), "split the file");
                return None;
            }
            Some(Open::Map { at, members, .. }) if members.len() >= MAX_KEYS => {
                let at = *at;
                self.fail(at, &format!("a map has more than {MAX_KEYS} keys"), "split it");
                return None;
            }
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { members, key, .. }) => match key.take() {
                Some((name, at)) => {
                    if members.iter().any(|(other, ..)| *other == name) {
                        self.fail(at, &format!("key {name:?} is there twice"), "keep one of them");
                    } else {
                        members.push((name, at, node));
                    }
                }
                None => match node.value {
                    Value::Scalar { text, .. } => *key = Some((text, node.at)),
                    _ => {
                        self.fail(node.at, "a key must be a plain word", "write `key: value`");
                        return None;
                    }
                },
            },
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let mut report = Report::default();
        let _ = parse("f.yaml", text, &mut report);
        report.problems.iter().map(ToString::to_string).collect()
    }

    // covers: A12
    #[test]
    fn yaml_tricks_are_refused_with_their_place() {
        let bomb = format!("a: {}1{}", "[".repeat(40), "]".repeat(40));
        for (text, want) in [
            ("a: &x 1\nb: *x\n", "f.yaml:1:4: anchors"),
            ("a: !!int 1\n", "f.yaml:1:"),
            ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: key \"a\" is there twice"),
            ("? [a]\n: 1\n", "f.yaml:1:3: a key must be a plain word"),
            ("a: 1\n---\nb: 1\n", "f.yaml:2:1: a second document"),
            ("a: [1\n", "f.yaml:"),
            ("", "f.yaml:1:1: the file is empty"),
            (bomb.as_str(), "f.yaml:1:20: the file has too many"),
        ] {
            let got = problems(text);
            assert!(got.first().is_some_and(|first| first.starts_with(want)), "{text:?}: {got:?}");
        }
        assert!(problems("a: [1, {b: c}]\n").is_empty());
    }
}
