//! Finding the line of a decision in the audit log. The log may be large: it is read once, line by line, from its start.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde_json::Value;

/// A line has bounded fields (a path of at most 8 KiB, names of at most 2 KiB); a longer one is not ours.
const MAX_LINE: usize = 256 * 1024;

/// The first line with this decision id that holds a decision input; else the first with this id at all.
pub(super) fn find(path: &Path, decision_id: &str) -> io::Result<Option<Value>> {
    let mut reader = BufReader::with_capacity(1 << 20, nova_policy::files::open(path).map_err(io::Error::from)?);
    // Our own writer leaves no space after the colon; the parse below decides.
    let needle = format!("\"decision_id\":\"{decision_id}\"");
    let mut line = Vec::new();
    let mut without_input = None;
    while next_line(&mut reader, &mut line)? {
        if !contains(&line, needle.as_bytes()) {
            continue;
        }
        let Ok(value) = serde_json::from_slice::<Value>(&line) else { continue };
        if value["decision_id"] != decision_id {
            continue;
        }
        if value["input"].is_object() {
            return Ok(Some(value));
        }
        without_input.get_or_insert(value);
    }
    Ok(without_input)
}

/// Reads a line into `line`; one that is too long is skipped and comes out empty. False at the end.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let got = reader.by_ref().take(MAX_LINE as u64).read_until(b'\n', line)?;
    if got == MAX_LINE && line.last() != Some(&b'\n') {
        line.clear();
        reader.skip_until(b'\n')?;
    }
    Ok(got > 0)
}

fn contains(line: &[u8], needle: &[u8]) -> bool {
    // Ids differ most at their end and quotes are frequent: anchoring on the last bytes would not pay, this is I/O bound.
    line.windows(needle.len()).any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn log(lines: &[&str]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        for line in lines {
            writeln!(file, "{line}").expect("written");
        }
        file
    }

    #[test]
    fn an_id_inside_another_field_is_not_a_decision() {
        let file = log(&[
            r#"{"path":"/\"decision_id\":\"1-1\"","decision_id":"1-2","input":{}}"#,
            r#"{"input":{"decision_id":"1-1"}}"#,
            r#"not json "decision_id":"1-1""#,
        ]);
        assert_eq!(find(file.path(), "1-1").expect("readable"), None);
    }

    #[test]
    fn a_line_without_end_hides_no_other() {
        let long = format!(r#"{{"decision_id":"1-1","input":{{"a":"{}"}}}}"#, "x".repeat(MAX_LINE));
        let file = log(&[&long, r#"{"decision_id":"1-1","input":{"b":1}}"#]);
        let found = find(file.path(), "1-1").expect("readable").expect("found");
        assert_eq!(found["input"]["b"], 1);
    }

    #[test]
    fn the_line_with_the_input_is_preferred() {
        let file = log(&[r#"{"decision_id":"1-1","kind":"close"}"#, r#"{"decision_id":"1-1","input":{"b":1}}"#]);
        assert!(find(file.path(), "1-1").expect("readable").expect("found")["input"].is_object());
        let file = log(&[r#"{"decision_id":"1-1","kind":"close"}"#]);
        assert_eq!(find(file.path(), "1-1").expect("readable").expect("found")["kind"], "close");
    }
}
