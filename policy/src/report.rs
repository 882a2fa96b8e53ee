//! Mistakes in files that people write: all of them at once, each with its place and what to do.

use std::fmt;

use serde::Serialize;

/// Most problems kept; a file with more is not worth reading on.
const MAX_PROBLEMS: usize = 200;
/// Longest text of a problem, in bytes: names out of a file are in it, and a file may have a name of megabytes.
const MAX_TEXT: usize = 2_000;

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// The file.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// What it is about: `rule x-to-a`, `endpoint service-a`; empty at the top.
    pub subject: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        if !self.subject.is_empty() {
            write!(f, "{}: ", self.subject)?;
        }
        write!(f, "{} (remedy: {})", self.message, self.remedy)
    }
}

/// All mistakes of one run, in the order of the files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct Report {
    /// The mistakes.
    pub problems: Vec<Problem>,
}

impl Report {
    /// `Ok` when there is nothing to report.
    ///
    /// # Errors
    /// The report itself, when it is not empty.
    pub fn into_result(self) -> Result<(), Self> {
        if self.problems.is_empty() { Ok(()) } else { Err(self) }
    }

    /// Adds a mistake.
    pub(crate) fn push(&mut self, mut problem: Problem) {
        if self.problems.len() < MAX_PROBLEMS {
            shorten(&mut problem.message);
            shorten(&mut problem.remedy);
            self.problems.push(problem);
        }
    }

    /// Whether further mistakes would be dropped: looking for them is not worth the time.
    pub(crate) fn is_full(&self) -> bool {
        self.problems.len() >= MAX_PROBLEMS
    }

    /// Adds all mistakes of another report.
    pub fn append(&mut self, other: Self) {
        for problem in other.problems {
            self.push(problem);
        }
    }

    /// Whether there is nothing to report.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// Puts the mistakes into the order of the text.
    pub(crate) fn sort(&mut self) {
        self.problems.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
        self.problems.dedup();
    }
}

fn shorten(text: &mut String) {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
}

/// The bytes of a file that people write, as text.
///
/// # Errors
/// When they are not UTF-8: where the first wrong byte is.
pub fn text<'a>(file: &str, bytes: &'a [u8]) -> Result<&'a str, Report> {
    let wrong = |error: std::str::Utf8Error| {
        let before = &bytes[..error.valid_up_to()];
        let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let problem = Problem {
            file: file.to_owned(),
            line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
            column: 1 + String::from_utf8_lossy(&before[line_start..]).chars().count(),
            subject: String::new(),
            message: "this byte is not UTF-8".to_owned(),
            remedy: "save the file as UTF-8".to_owned(),
        };
        Report { problems: vec![problem] }
    };
    std::str::from_utf8(bytes).map_err(wrong)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: A12
    #[test]
    fn a_byte_that_is_not_utf8_has_a_place_and_a_remedy() {
        let report = text("rules.yaml", b"rules:\n- \xc3\xa4\xff\n").expect_err("refused");
        assert_eq!(report.to_string(), "rules.yaml:2:4: this byte is not UTF-8 (remedy: save the file as UTF-8)");
        assert_eq!(text("rules.yaml", "ä\n".as_bytes()), Ok("ä\n"));
    }
}
