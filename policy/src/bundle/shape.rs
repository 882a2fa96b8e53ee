//! Whether Rego has a shape that its parser gets through.
//!
//! The parser reads the first element of every bracket twice, once as that of a comprehension, so what stands in twenty
//! brackets is read a million times; and whatever walks its tree takes a piece of the stack for every operator of a chain.
//! A signed bundle must not be able to take a node's thread, or the whole process, before anything of it is decided.

/// Most Rego of a bundle, in bytes.
const MAX_BYTES: usize = 1024 * 1024;
/// How often its tokens may be read, counted as if every bracket had its first element read twice.
const MAX_READS: u64 = 1 << 19;
/// Deeper brackets count as this deep: one token there is more than [`MAX_READS`].
const DEEPEST: usize = 40;
/// Most operators and steps of references in one expression, with those of the brackets around it.
const MAX_CHAIN: usize = 64;
/// Most signs in a row.
const MAX_SIGNS: usize = 8;
/// Words that join what stands before and behind them.
const JOINING: [&str; 6] = ["in", "or", "and", "with", "as", "else"];

/// What is left for the modules of one bundle.
pub(super) struct Budget {
    bytes: usize,
    reads: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { bytes: MAX_BYTES, reads: MAX_READS }
    }
}

impl Budget {
    /// Takes what one module needs.
    pub(super) fn take(&mut self, text: &str) -> Result<(), &'static str> {
        self.bytes = self.bytes.checked_sub(text.len()).ok_or("the bundle has more than 1 MiB of Rego")?;
        let mut shape = Shape::default();
        for (token, first) in Tokens(text) {
            shape.add(&token, first)?;
            let reads = 1 << shape.open.len().min(DEEPEST);
            self.reads =
                self.reads.checked_sub(reads).ok_or("its brackets nest too deeply, or there is too much of it")?;
        }
        Ok(())
    }
}

/// The expression at hand.
#[derive(Default)]
struct Shape {
    /// Operators of the expressions around each open bracket.
    open: Vec<usize>,
    /// Operators at this level.
    here: usize,
    /// The sum of all of them.
    chain: usize,
    signs: usize,
    /// The last token wants something behind it.
    joins: bool,
}

impl Shape {
    fn add(&mut self, token: &Token<'_>, first: bool) -> Result<(), &'static str> {
        let joins = token.joins();
        // A new line ends an expression, unless it goes on.
        if first && !joins && !self.joins {
            self.end();
        }
        match token {
            Token::Mark(b'[' | b'(' | b'{') => {
                self.count();
                self.open.push(std::mem::take(&mut self.here));
            }
            Token::Mark(b']' | b')' | b'}') => {
                self.end();
                self.here = self.open.pop().unwrap_or(0);
            }
            Token::Mark(b',' | b';') => self.end(),
            _ if joins => self.count(),
            _ => {}
        }
        self.signs = if matches!(token, Token::Mark(b'-')) { self.signs + 1 } else { 0 };
        self.joins = joins;
        match (self.chain > MAX_CHAIN, self.signs > MAX_SIGNS) {
            (true, _) => Err("it has an expression of too many operators"),
            (_, true) => Err("it has a long row of signs"),
            _ => Ok(()),
        }
    }

    fn count(&mut self) {
        self.here += 1;
        self.chain += 1;
    }

    fn end(&mut self) {
        self.chain -= self.here;
        self.here = 0;
    }
}

/// A word, a mark, or a string.
enum Token<'t> {
    Word(&'t str),
    Mark(u8),
    Text,
}

impl Token<'_> {
    fn joins(&self) -> bool {
        match self {
            Self::Word(word) => JOINING.contains(word),
            Self::Mark(mark) => b"+-*/%|&=<>!.:".contains(mark),
            Self::Text => false,
        }
    }
}

/// Each token, and whether it is the first one of its line.
struct Tokens<'t>(&'t str);

impl<'t> Iterator for Tokens<'t> {
    type Item = (Token<'t>, bool);

    fn next(&mut self) -> Option<Self::Item> {
        let mut first = false;
        loop {
            let text = self.0.trim_start_matches(|char: char| char.is_ascii_whitespace());
            first |= self.0[..self.0.len() - text.len()].contains('\n');
            match text.strip_prefix('#') {
                Some(comment) => {
                    first = true;
                    self.0 = comment.split_once('\n').map_or("", |(_, rest)| rest);
                }
                None => {
                    self.0 = text;
                    break;
                }
            }
        }
        let mark = self.0.chars().next()?;
        let is_word = |char: char| char.is_ascii_alphanumeric() || char == '_' || !char.is_ascii();
        let (token, rest) = match mark {
            '"' => (Token::Text, behind_string(&self.0[1..])),
            '`' => (Token::Text, self.0[1..].split_once('`').map_or("", |(_, rest)| rest)),
            _ if is_word(mark) => {
                let end = self.0.find(|char| !is_word(char)).unwrap_or(self.0.len());
                let (word, rest) = self.0.split_at(end);
                (Token::Word(word), rest)
            }
            // Every other character is ASCII.
            _ => (Token::Mark(self.0.as_bytes()[0]), &self.0[1..]),
        };
        self.0 = rest;
        Some((token, first))
    }
}

/// What follows a string whose first quote is gone.
fn behind_string(text: &str) -> &str {
    let mut escaped = false;
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return &text[index + 1..],
            _ => {}
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), &'static str> {
        Budget::default().take(text)
    }

    fn many(text: &str, count: usize) -> String {
        text.repeat(count)
    }

    // covers: B4d
    #[test]
    fn brackets_chains_signs_and_sizes_are_bounded() {
        for bad in [
            many("[", 20),
            format!("x := {}", many("{", 60)),
            format!("x := {}", many("([{", 10)),
            many("[[[[[[[[[[[[1]]]]]]]]]]]]\n", 1_000),
            format!("x := {}1", many("-", 9)),
            format!("x := {}1", many("- # a sign\n", 9)),
            format!("x := 1{}", many("+1", 70)),
            format!("x := 1{}", many("+\n1", 70)),
            format!("x := 1{}", many("\n+ 1", 70)),
            format!("x := 1{}", many("+ # and\n1", 70)),
            format!("x := {{1}}{}", many("|{1}", 70)),
            format!("x if 1{}", many(" in\na", 70)),
            format!("x := a{}", many("[\n0]", 70)),
            format!("x := data{}", many(".a", 70)),
            format!("x := {}", many("(1+1+1+1+1+", 12)),
            many("a", MAX_BYTES + 1),
        ] {
            assert!(check(&bad).is_err(), "{}", &bad[..bad.len().min(60)]);
        }
    }

    // covers: B4d
    #[test]
    fn ordinary_rego_passes_and_texts_are_not_looked_into() {
        let rule = "x if {\n\tsome y in input.z[_].a\n\ty == {\"a\": [1, 2, {\"b\": f(y)}]}\n}\n\n";
        for good in [
            crate::publish::REGO.to_owned(),
            format!("x := \"{}\"\ny := `{}`\n# {}\n", many("[", 100), many("[", 100), many("-", 100)),
            format!("x := \"\\\"{}\"", many("[", 100)),
            many(rule, 300),
            many("x := a.b.c + 1\n", 1_000),
            format!("x := [{}]", many("a.b + 1, ", 1_000)),
            format!("x if {{\n{}}}\n", many("\ta.b == 1\n", 1_000)),
        ] {
            assert_eq!(check(&good), Ok(()), "{}", &good[..good.len().min(60)]);
        }
        let mut budget = Budget::default();
        assert!((0..100).any(|_| budget.take(&many(rule, 300)).is_err()), "all modules share it");
    }
}
