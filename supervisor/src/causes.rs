//! Errors with their causes on one line, for places that have room for a text only.

use std::error::Error;

/// The error and its causes, outermost first.
pub(crate) fn on_one_line(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
