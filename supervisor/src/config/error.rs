//! What a mistake in the configuration looks like: where it stands, what is wrong, and what to write instead.

use std::fmt;
use std::path::PathBuf;

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1; 0 when the file could not be read at all.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// `section.key`; empty when no key is concerned.
    pub key: String,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if self.line > 0 {
            write!(f, "{}:{}:", self.line, self.column)?;
        }
        if !self.key.is_empty() {
            write!(f, " {}:", self.key)?;
        }
        write!(f, " {} (remedy: {})", self.problem, self.remedy)
    }
}

/// All mistakes of a file, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for error in &self.0 {
            writeln!(f, "{error}")?;
        }
        let plural = if self.0.len() == 1 { "" } else { "s" };
        write!(f, "{} mistake{plural}; nothing was started or changed", self.0.len())
    }
}

impl std::error::Error for ConfigErrors {}
