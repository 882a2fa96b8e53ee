//! `docs/benchmarks.md`: one section per bench, of which each run writes its own and leaves the others alone.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::What;

const SECTIONS: [What; 2] = [What::Ingress, What::Egress];

/// Puts `section` in the place of what the file says about `what`.
pub(super) fn put(file: &Path, what: What, section: &str) -> anyhow::Result<()> {
    let old = match fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        read => read?,
    };
    Ok(fs::write(file, with(&old, what, section))?)
}

fn with(old: &str, what: What, section: &str) -> String {
    let mut text =
        "# Benchmarks\n\nEach section is written by its command; run it on your machine rather than believe these.\n"
            .to_owned();
    for one in SECTIONS {
        let body = if one == what { Some(section) } else { body(old, one) };
        if let Some(body) = body {
            text.push_str(&format!("\n{}\n\n{}\n", heading(one), body.trim()));
        }
    }
    text
}

fn heading(what: What) -> &'static str {
    match what {
        What::Ingress => "## `cargo xtask bench ingress`",
        What::Egress => "## `cargo xtask bench egress`",
    }
}

/// What stands under the heading, up to the next one of its kind.
fn body(text: &str, what: What) -> Option<&str> {
    let (_, rest) = text.split_once(&format!("{}\n", heading(what)))?;
    Some(rest.split_once("\n## ").map_or(rest, |(body, _)| body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bench_writes_its_own_section_and_leaves_the_other_alone() {
        let first = with("", What::Egress, "- egress 1\n\n### table\n");
        let both = with(&first, What::Ingress, "- ingress 1\n");
        assert!(both.find("- ingress 1") < both.find("- egress 1\n\n### table"), "{both}");
        let again = with(&both, What::Egress, "- egress 2\n");
        assert!(
            again.contains("- ingress 1\n") && again.contains("- egress 2\n") && !again.contains("egress 1"),
            "{again}"
        );
        assert_eq!(with(&again, What::Egress, "- egress 2\n"), again);
    }
}
