//! Rows of an operator: explaining a denial, changing a rule, draining an endpoint.

use std::time::Duration;

use anyhow::{Context, bail};

use super::calls::{PROXY, denied, received};
use super::{Findings, Notes, Row};
use crate::lab::files::{A, B, RULE_X_TO_B, RULES, X};
use crate::lab::guest::Guest;
use crate::lab::node::Node;
use crate::lab::wait_for;
use crate::programs::talk::{Outcome, Step};

const RELOAD: Duration = Duration::from_secs(20);

pub(super) const REPLAY: Row = Row {
    id: 10,
    what: "nova-supervisor replay <decision id of row 3>",
    expected: "the candidate rules, and which test of each failed",
    play: replay,
};

// covers: R10, A9b
fn replay(node: &mut Node, found: &mut Findings, notes: &mut Notes) -> anyhow::Result<()> {
    let id = notes.denial.as_deref().context("row 3 left no decision id")?;
    let text = node.supervisor(&["replay", id])?;
    let (candidates, tests) = failed_tests(node, id)?;
    found.see(format!("candidates {}", candidates.join(", ")), !candidates.is_empty());
    found.see(format!("failed: {}", tests.join(", ")), !tests.is_empty());
    found.see("the text names them too", candidates.iter().all(|rule| text.contains(rule.as_str())));
    Ok(())
}

/// Rule ids and, for each, the tests that failed, from `replay --json`.
fn failed_tests(node: &Node, id: &str) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let json: serde_json::Value = serde_json::from_str(&node.supervisor(&["replay", id, "--json"])?)?;
    let rules = json["then"]["rules"].as_array().context("no rules in the replay")?;
    let (mut candidates, mut tests) = (Vec::new(), Vec::new());
    for rule in rules {
        let name = rule["rule"].as_str().context("rule")?;
        candidates.push(name.to_owned());
        for test in rule["tests"].as_array().context("tests")?.iter().filter(|test| test["ok"] == false) {
            tests.push(format!(
                "{name}: {} wanted {} got {}",
                test["test"].as_str().unwrap_or("?"),
                test["wanted"],
                test["got"]
            ));
        }
    }
    Ok((candidates, tests))
}

pub(super) const RULE_CHANGE: Row = Row {
    id: 11,
    what: "a rule for x to b is published, then taken back",
    expected: "row 3 passes without a restart, replay's verdict changes; taking it back closes the open connection",
    play: rule_change,
};

// covers: R11, A5c
fn rule_change(node: &mut Node, found: &mut Findings, notes: &mut Notes) -> anyhow::Result<()> {
    let id = notes.denial.clone().context("row 3 left no decision id")?;
    let pid = node.supervisor_pid();
    let before = verdict_now(node, &id)?;
    node.publish(&format!("{RULES}{RULE_X_TO_B}"))?;
    let x = node.guest(X);
    let answer = wait_for("x reaches b", RELOAD, || {
        let answer = x.curl(&["http://b.t.nova/v1/things"])?;
        if answer.status == 200 { Ok(answer) } else { bail!("{}", answer.status) }
    })?;
    found.see(format!("published: {}", answer.status), answer.status == 200);
    let after = verdict_now(node, &id)?;
    found.see(format!("replay now: {before} before, {after} after"), before == "deny" && after == "allow");
    let open = in_background(&x, "http://b.t.nova/v1/slow?s=90", "b.t.nova");
    wait_for("the slow request is open", RELOAD, || {
        if received(node, B, "/v1/slow")?.is_empty() { bail!("not yet") } else { Ok(()) }
    })?;
    node.publish(RULES)?;
    let outcome = open.join().map_err(|_| anyhow::anyhow!("the open request panicked"))??;
    let whole = outcome.received.contains("piece 9");
    found.see(
        format!("taken back: the open connection ended with {} after {} pieces", outcome.end, pieces(&outcome)),
        !whole && pieces(&outcome) > 0 && outcome.end != "timeout",
    );
    denied(found, &x.curl(&["http://b.t.nova/v1/things"])?);
    found.see("no restart", node.check().is_ok() && node.supervisor_pid() == pid);
    Ok(())
}

fn verdict_now(node: &Node, id: &str) -> anyhow::Result<String> {
    let json: serde_json::Value = serde_json::from_str(&node.supervisor(&["replay", id, "--json"])?)?;
    Ok(json["now"]["verdict"].as_str().context("no verdict in the replay")?.to_owned())
}

pub(super) const DRAIN: Row = Row {
    id: 12,
    what: "service-a's endpoint drains and goes",
    expected: "the open request finishes, new connections are refused, then its address answers nobody",
    play: drain,
};

// covers: R12, A2a, A2b
fn drain(node: &mut Node, found: &mut Findings, _: &mut Notes) -> anyhow::Result<()> {
    let open = in_background(&node.guest(X), "http://service-a.t.nova/v1/orders/slow?s=6", "service-a.t.nova");
    wait_for("the slow request is open", RELOAD, || {
        if received(node, A, "/v1/orders/slow")?.is_empty() { bail!("not yet") } else { Ok(()) }
    })?;
    let address = format!("{}:443", A.ip).parse()?;
    let refused = std::thread::scope(|scope| {
        let node = &*node;
        let draining = scope.spawn(|| node.novalet(&["drain", A.pod]));
        // From the first moment of the drain on: nothing is accepted any more, and the open request still runs.
        let refused = wait_for("new connections are refused", RELOAD, || {
            let outcome = node.talk_from_outside(address, &[], Duration::from_secs(3))?;
            // One that was on its way when the listener closed is reset; from then on all are refused.
            if outcome.end.contains("refused") { Ok(outcome.end) } else { bail!("{}", outcome.end) }
        });
        let still_open = !open.is_finished();
        draining.join().map_err(|_| anyhow::anyhow!("the drain panicked"))??;
        refused.map(|end| (end, still_open))
    })?;
    let outcome = open.join().map_err(|_| anyhow::anyhow!("the open request panicked"))??;
    found.see(format!("open request: {} of 10 pieces", pieces(&outcome)), pieces(&outcome) == 10);
    found.see(format!("new connection beside it: {}", refused.0), refused.1);
    let outcome = node.talk_from_outside(address, &[], Duration::from_secs(4))?;
    found.see(format!("afterwards: {}", outcome.end), !outcome.connected && !outcome.end.contains("refused"));
    Ok(())
}

/// A request through x's proxy that goes on while the row does something else.
fn in_background(x: &Guest, url: &str, host: &str) -> std::thread::JoinHandle<anyhow::Result<Outcome>> {
    let script =
        [Step::Send(format!("GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")), Step::ReadAll];
    let x = x.clone();
    std::thread::spawn(move || x.talk(PROXY, &script, Duration::from_secs(60)))
}

fn pieces(outcome: &Outcome) -> usize {
    outcome.received.matches("piece ").count()
}
