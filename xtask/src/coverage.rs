//! `cargo xtask coverage`: which test covers which requirement.
//!
//! Requirements stand in docs/requirements.toml. A test says `// covers: A5, A7a` above it or first thing in it. The result is
//! docs/coverage.md; `--check` fails when it is stale or a test names a requirement that does not exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::places;

const SOURCE: &str = "docs/requirements.toml";
const RESULT: &str = "docs/coverage.md";

/// Arguments of `cargo xtask coverage`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Change nothing; fail when the file is stale
    #[arg(long)]
    check: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirements {
    requirement: Vec<Requirement>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirement {
    id: String,
    text: String,
    /// Shorter ids that tests may use for it, such as the whole requirement that this is the first part of.
    #[serde(default)]
    also: Vec<String>,
    /// Why there is no test; only for what no test can show or what is still to come.
    open: Option<String>,
}

/// Requirement id to the places of its tests.
type Covered = BTreeMap<String, Vec<String>>;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let root = places::root();
    let text = std::fs::read_to_string(root.join(SOURCE)).context(SOURCE)?;
    let requirements: Requirements = toml::from_str(&text).context(SOURCE)?;
    let mut ids = BTreeSet::new();
    if let Some(twice) = requirements.requirement.iter().find(|requirement| !ids.insert(&requirement.id)) {
        bail!("{SOURCE} has {} twice; rename one and the marks of its tests", twice.id);
    }
    let mut covered = Covered::new();
    scan(&root, &root, &mut covered)?;
    for requirement in &requirements.requirement {
        for alias in &requirement.also {
            let tests = covered.remove(alias).unwrap_or_default();
            if !tests.is_empty() {
                covered.entry(requirement.id.clone()).or_default().extend(tests);
            }
        }
    }
    let unknown: Vec<String> = covered
        .iter()
        .filter(|(id, _)| !requirements.requirement.iter().any(|requirement| requirement.id == **id))
        .map(|(id, places)| format!("{id} ({})", places.join(", ")))
        .collect();
    if !unknown.is_empty() {
        bail!("tests name requirements that {SOURCE} does not have: {}", unknown.join("; "));
    }
    let page = page(&requirements, &covered)?;
    let path = root.join(RESULT);
    if !args.check {
        std::fs::write(&path, page)?;
        eprintln!("wrote {RESULT}");
    } else if std::fs::read_to_string(&path).unwrap_or_default() != page {
        bail!("{RESULT} is stale; run: cargo xtask coverage");
    }
    Ok(ExitCode::SUCCESS)
}

fn scan(root: &Path, dir: &Path, covered: &mut Covered) -> anyhow::Result<()> {
    let mut paths: Vec<_> = std::fs::read_dir(dir)?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            scan(root, &path, covered)?;
        } else if name.ends_with(".rs") {
            let shown = path.strip_prefix(root)?.display().to_string();
            for (id, test) in marks(&std::fs::read_to_string(&path)?) {
                covered.entry(id).or_default().push(format!("{shown}: {test}"));
            }
        }
    }
    Ok(())
}

/// Pairs of requirement id and the name of the test that the mark belongs to.
fn marks(text: &str) -> Vec<(String, String)> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(ids) = line.strip_prefix("// covers: ") else { continue };
        let test = test_of(&lines, at);
        found.extend(ids_of(ids).map(|id| (id, test.clone())));
    }
    found
}

/// The function that the mark opens, or else the one below it; a mark with an empty line below is about the whole file.
fn test_of(lines: &[&str], at: usize) -> String {
    let is_comment = |line: &&&str| line.starts_with("//");
    let above = lines[..at].iter().rev().find(|line| !is_comment(line));
    let opened = above.filter(|line| line.ends_with('{')).and_then(|line| name_below(line));
    let below = || lines[at..].iter().find(|line| !is_comment(line)).filter(|line| !line.is_empty());
    let named = || below().and_then(|_| lines[at..].iter().find_map(|line| name_below(line)));
    opened.or_else(named).unwrap_or_else(|| "all".into())
}

/// The ids of a mark. What stands in parentheses (attacks, settled points) is for the reader.
fn ids_of(text: &str) -> impl Iterator<Item = String> {
    let mut depth = 0;
    let outside: String = text
        .chars()
        .filter(|letter| {
            depth += i32::from(*letter == '(') - i32::from(*letter == ')');
            depth == 0 && *letter != ')'
        })
        .collect();
    let words = outside.split([',', ' ']).filter(|word| !word.is_empty()).map(ToOwned::to_owned);
    words.collect::<Vec<_>>().into_iter()
}

/// `fn name(` or the text of a suite's case: `case("name", ...`.
fn name_below(line: &str) -> Option<String> {
    let rest = line.split_once("fn ").map(|(_, rest)| rest).filter(|_| !line.starts_with("//"));
    let function = rest.and_then(|rest| rest.split('(').next()).map(ToOwned::to_owned);
    function.or_else(|| line.split_once("case(\"").and_then(|(_, rest)| rest.split('"').next()).map(ToOwned::to_owned))
}

fn page(requirements: &Requirements, covered: &Covered) -> anyhow::Result<String> {
    let mut out = String::from(
        "# Coverage\n\nWritten by `cargo xtask coverage` from docs/requirements.toml and the `// covers:` marks of the tests.\n\n\
         | id | what | tests |\n|---|---|---|\n",
    );
    let mut silent = Vec::new();
    for requirement in &requirements.requirement {
        let cell = match (covered.get(&requirement.id), &requirement.open) {
            (Some(tests), None) => tests.iter().map(|test| format!("`{test}`")).collect::<Vec<_>>().join("<br>"),
            (None, Some(reason)) => format!("open: {reason}"),
            (None, None) => {
                silent.push(requirement.id.as_str());
                continue;
            }
            (Some(_), Some(_)) => bail!("{} has tests and is marked open in {SOURCE}; remove `open`", requirement.id),
        };
        out.push_str(&format!("| {} | {} | {cell} |\n", requirement.id, requirement.text));
    }
    if !silent.is_empty() {
        bail!("no test covers {}, and {SOURCE} gives no `open` reason", silent.join(", "));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_name_the_test_below_them() {
        let text = "mod t {\n// covers: A1, A2b (T1, K2)\n#[test]\nfn it_works() {}\n    // covers: A3\n    suite.case(\"guests lie\", |lab| ())\n}";
        let found = marks(text);
        assert_eq!(found[0], ("A1".into(), "it_works".into()));
        assert_eq!(found[1], ("A2b".into(), "it_works".into()));
        assert_eq!(found[2], ("A3".into(), "guests lie".into()));
    }

    #[test]
    fn a_mark_inside_a_test_is_not_the_next_ones_and_one_above_all_is_nobodys() {
        let text = "//! x\n// covers: A1\n\nfn help() {}\n#[test]\nfn one() {\n    // covers: A2\n    x();\n}\n#[test]\nfn two() {}";
        assert_eq!(marks(text), [("A1".into(), "all".into()), ("A2".into(), "one".into())]);
    }

    #[test]
    fn a_requirement_without_test_needs_a_reason() {
        let one = |open: Option<&str>| Requirements {
            requirement: vec![Requirement {
                id: "A1".into(),
                text: "x".into(),
                also: Vec::new(),
                open: open.map(Into::into),
            }],
        };
        assert!(page(&one(None), &Covered::new()).is_err());
        assert!(page(&one(Some("later")), &Covered::new()).is_ok_and(|page| page.contains("| A1 | x | open: later |")));
    }
}
