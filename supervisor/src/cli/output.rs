//! Text for people: tables with lines on a terminal, plain columns in a pipe, and nothing that could drive a terminal.

use std::io::{ErrorKind, IsTerminal, Write, stdout};

use comfy_table::{ContentArrangement, Table, presets};

use super::CliError;

/// Writes to standard output. A reader that has seen enough (`| head`) is no failure.
pub(super) fn print(text: &str) -> Result<(), CliError> {
    let mut out = stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(CliError::Failure(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// A table as text, with a newline at the end; a sentence instead when it has no rows.
pub(super) fn table<const N: usize>(header: [&str; N], rows: Vec<[String; N]>, when_empty: &str) -> String {
    if rows.is_empty() {
        return format!("{when_empty}\n");
    }
    let mut table = Table::new();
    let style = if stdout().is_terminal() { presets::UTF8_FULL_CONDENSED } else { presets::NOTHING };
    table.load_style(style).set_content_arrangement(ContentArrangement::Disabled).set_header(header.map(cell));
    for row in rows {
        table.add_row(row.map(|text| cell(&text)));
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned());
    lines.fold(String::new(), |text, line| text + &line + "\n")
}

/// Text that comes from a guest or a caller must not move the cursor or colour the operator's terminal.
pub(super) fn cell(text: impl AsRef<str>) -> String {
    let text = text.as_ref();
    if text.is_empty() {
        return "-".to_owned();
    }
    text.chars().map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        let text = table(["a"], vec![["\x1b[31mred\x07\u{9b}".to_owned()]], "none");
        assert!(!text.chars().any(|char| char.is_control() && char != '\n'), "{text:?}");
    }

    #[test]
    fn an_empty_table_is_a_sentence() {
        assert_eq!(table(["a"], Vec::new(), "nothing here"), "nothing here\n");
    }
}
