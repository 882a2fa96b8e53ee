//! Typed access to YAML nodes. Every mistake is noted and reading goes on, so that one run reports all of them.

use crate::report::{Problem, Report};

use super::{Node, Position, Value};

/// Reads one file and collects what is wrong with it.
pub(crate) struct Reader<'a> {
    pub(crate) file: &'a str,
    pub(crate) subject: String,
    pub(crate) report: &'a mut Report,
}

/// A map whose keys are known.
pub(crate) struct Map<'n> {
    pub(crate) at: Position,
    members: &'n [(String, Position, Node)],
}

impl<'n> Map<'n> {
    /// The value of a key, if it has one.
    pub(crate) fn get(&self, name: &str) -> Option<&'n Node> {
        let (_, _, node) = self.members.iter().find(|(key, ..)| key == name)?;
        (!node.is_null()).then_some(node)
    }

    /// Every key with its value.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'n str, Position, &'n Node)> {
        self.members.iter().map(|(name, at, node)| (name.as_str(), *at, node))
    }
}

impl Reader<'_> {
    pub(crate) fn fail(&mut self, at: Position, message: impl Into<String>, remedy: impl Into<String>) {
        self.report.push(Problem {
            file: self.file.to_owned(),
            line: at.line,
            column: at.column,
            subject: self.subject.clone(),
            message: message.into(),
            remedy: remedy.into(),
        });
    }

    /// A map with only these keys. A key without a value is a mistake: what it was to say must not be lost, since a
    /// rule without its `http` or `cidr` allows more.
    pub(crate) fn map<'n>(&mut self, node: &'n Node, what: &str, keys: &[&str]) -> Option<Map<'n>> {
        let map = self.any_map(node, what)?;
        for (name, at, value) in map.iter() {
            if !keys.contains(&name) {
                self.fail(at, format!("unknown key {name:?} in {what}"), format!("known keys: {}", keys.join(", ")));
            } else if value.is_null() {
                self.fail(at, format!("key {name:?} in {what} has no value"), "write its value, or remove the key");
            }
        }
        Some(map)
    }

    /// A map with any keys.
    pub(crate) fn any_map<'n>(&mut self, node: &'n Node, what: &str) -> Option<Map<'n>> {
        match &node.value {
            Value::Map(members) => Some(Map { at: node.at, members }),
            other => {
                self.fail(node.at, format!("{what} is {}, not a map", other.kind()), "write `key: value` lines");
                None
            }
        }
    }

    /// A list with at most `max` items.
    pub(crate) fn list<'n>(&mut self, node: &'n Node, what: &str, max: usize) -> &'n [Node] {
        match &node.value {
            Value::List(items) if items.len() <= max => items,
            Value::List(items) => {
                self.fail(node.at, format!("{what} has {} items", items.len()), format!("at most {max} are read"));
                &[]
            }
            other => {
                self.fail(node.at, format!("{what} is {}, not a list", other.kind()), "write a list: [a, b]");
                &[]
            }
        }
    }

    /// A text of at most `max` bytes.
    pub(crate) fn text<'n>(&mut self, node: &'n Node, what: &str, max: usize) -> Option<&'n str> {
        match &node.value {
            Value::Scalar { text, .. } if text.len() <= max => Some(text),
            Value::Scalar { text, .. } => {
                self.fail(node.at, format!("{what} is {} bytes long", text.len()), format!("at most {max} bytes"));
                None
            }
            other => {
                self.fail(node.at, format!("{what} is {}, not a text", other.kind()), "write one value");
                None
            }
        }
    }

    /// A text that `parse` turns into a value; its error is the message.
    pub(crate) fn parsed<T, E: std::fmt::Display>(
        &mut self,
        node: &Node,
        what: &str,
        remedy: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(node, what, 4096)?;
        match parse(text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.fail(node.at, format!("{what}: {error}"), remedy);
                None
            }
        }
    }

    /// A whole number in a range.
    pub(crate) fn number(&mut self, node: &Node, what: &str, range: std::ops::RangeInclusive<u64>) -> Option<u64> {
        let text = self.text(node, what, 64)?;
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let value = if digits { text.parse().ok() } else { None };
        if let Some(value) = value.filter(|value| range.contains(value)) {
            return Some(value);
        }
        let shown = text.chars().take(40).collect::<String>();
        self.fail(
            node.at,
            format!("{what} {shown:?} is not in range"),
            format!("write a whole number from {} to {}", range.start(), range.end()),
        );
        None
    }

    /// A port number.
    pub(crate) fn port(&mut self, node: &Node, what: &str) -> Option<u16> {
        self.number(node, what, 1..=65535).and_then(|value| u16::try_from(value).ok())
    }

    /// `true` or `false`.
    pub(crate) fn flag(&mut self, node: &Node, what: &str) -> Option<bool> {
        match &node.value {
            Value::Scalar { text, plain: true } if text == "true" => Some(true),
            Value::Scalar { text, plain: true } if text == "false" => Some(false),
            _ => {
                self.fail(node.at, format!("{what} is neither true nor false"), "write true or false");
                None
            }
        }
    }

    /// One of a few words.
    pub(crate) fn choice<T: Copy>(&mut self, node: &Node, what: &str, words: &[(&str, T)]) -> Option<T> {
        let text = self.text(node, what, 64)?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        self.fail(node.at, format!("{what} {text:?} is not known"), format!("write one of: {}", known.join(", ")));
        None
    }

    /// The value of a key that must be there.
    pub(crate) fn need<'n>(&mut self, map: &Map<'n>, name: &str, example: &str) -> Option<&'n Node> {
        let found = map.get(name);
        if found.is_none() {
            self.fail(map.at, format!("key {name:?} is missing"), format!("add `{name}: {example}`"));
        }
        found
    }
}
