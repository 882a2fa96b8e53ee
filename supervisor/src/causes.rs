//! Errors with their causes on one line, for places that have room for a text only.

use std::error::Error;

/// The error and its causes, outermost first; what the text before it says already is not said again.
pub(crate) fn on_one_line(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}
