//! Rows of calls out of a guest.

use std::time::Duration;

use anyhow::Context;
use serde_json::Value;

use super::{Findings, Notes, Row};
use crate::lab::files::{A, B, Workload, X};
use crate::lab::node::Node;
use crate::lab::wait_for;
use crate::lab::world::{STRIPE_HOST, TCP_FIRST_HOST, TCP_FIRST_PORT};
use crate::programs::talk::Step;
use crate::programs::tcp_first::GREETING;

/// Where apps find the proxy.
pub(super) const PROXY: &str = "tcp:127.0.0.1:3128";
/// The audit log is written in batches.
const AUDIT: Duration = Duration::from_secs(5);
const TALK: Duration = Duration::from_secs(20);

pub(super) const ALLOWED: Row = Row {
    id: 1,
    what: "curl in x: GET http://service-a.t.nova/v1/orders/42",
    expected: "200; service-a sees x's SPIFFE ID and address; two decisions under one rule",
    play: allowed,
};

// covers: R1, A7c, A7d, A8, A9a
fn allowed(node: &mut Node, found: &mut Findings, _: &mut Notes) -> anyhow::Result<()> {
    let answer = node.guest(X).curl(&["http://service-a.t.nova/v1/orders/42"])?;
    found.see(format!("{} {}", answer.status, one_line(&answer.body)), answer.status == 200);
    let seen = received(node, A, "/v1/orders/42")?;
    let request = seen.first().context("service-a received nothing")?;
    let (xfcc, xff) = (header(request, "x-forwarded-client-cert"), header(request, "x-forwarded-for"));
    found.see(format!("XFCC {xfcc}"), xfcc.contains(&format!("URI={}", X.spiffe_id())));
    found.see(format!("X-Forwarded-For {xff}"), xff == X.ip);
    let decisions = wait_for("two decisions in the audit log", AUDIT, || {
        let lines = requests(node, "/v1/orders/42")?;
        if lines.len() >= 2 { Ok(lines) } else { anyhow::bail!("{} so far", lines.len()) }
    })?;
    let mut rules: Vec<String> = decisions
        .iter()
        .map(|line| format!("{} of {}: {}", text(line, "direction"), text(line, "workload"), text(line, "rule")))
        .collect();
    rules.sort();
    found.see(rules.join(", "), rules == ["egress of x: x-to-a", "ingress of service-a: x-to-a"]);
    Ok(())
}

pub(super) const METHOD: Row = Row {
    id: 2,
    what: "the same with DELETE",
    expected: "403 with a decision id; nothing reached service-a",
    play: method,
};

// covers: R2
fn method(node: &mut Node, found: &mut Findings, _: &mut Notes) -> anyhow::Result<()> {
    let before = node.guest(A).requests()?.len();
    let answer = node.guest(X).curl(&["-X", "DELETE", "http://service-a.t.nova/v1/orders/42"])?;
    denied(found, &answer);
    let arrived = node.guest(A).requests()?.len() - before;
    found.see(format!("{arrived} requests at service-a"), arrived == 0);
    Ok(())
}

pub(super) const NO_RULE: Row =
    Row { id: 3, what: "x to b, for which there is no rule", expected: "403 at egress of x", play: no_rule };

// covers: R3
fn no_rule(node: &mut Node, found: &mut Findings, notes: &mut Notes) -> anyhow::Result<()> {
    let answer = node.guest(X).curl(&["http://b.t.nova/v1/things"])?;
    denied(found, &answer);
    let id = answer.header("x-nova-decision-id").unwrap_or_default().to_owned();
    let line = wait_for("the decision in the audit log", AUDIT, || {
        node.audit()?.into_iter().find(|line| line["decision_id"] == id.as_str()).context("not yet")
    })?;
    let place = format!(
        "{} of {}: {} ({})",
        text(&line, "direction"),
        text(&line, "workload"),
        text(&line, "verdict"),
        text(&line, "reason")
    );
    found.see(&place, line["direction"] == "egress" && line["workload"] == "x" && line["verdict"] == "deny");
    let arrived = node.guest(B).requests()?.len();
    found.see(format!("{arrived} requests at b"), arrived == 0);
    notes.denial = Some(id);
    Ok(())
}

pub(super) const STRIPE: Row = Row {
    id: 5,
    what: "curl in service-a: POST http://api.stripe.com/v1/charges",
    expected: "TLS by the supervisor, from service-a's address",
    play: stripe,
};

// covers: R5, A8
fn stripe(node: &mut Node, found: &mut Findings, _: &mut Notes) -> anyhow::Result<()> {
    let answer = node.guest(A).curl(&["-d", "amount=1", "http://api.stripe.com/v1/charges"])?;
    found.see(answer.status.to_string(), answer.status == 200);
    let seen = node.world.records("stripe")?;
    let request = seen.iter().find(|record| record["target"] == "/v1/charges").context("the stub received nothing")?;
    let (sni, peer) = (text(request, "sni"), text(request, "peer"));
    found.see(format!("TLS with SNI {sni}"), request["tls"] == true && sni == STRIPE_HOST);
    found.see(format!("from {peer}"), peer == A.ip);
    found.see(format!("{} of {} bytes", text(request, "method"), request["body_length"]), request["body_length"] == 8);
    Ok(())
}

pub(super) const TUNNEL: Row = Row {
    id: 9,
    what: "x: CONNECT to db.example.net:5432, which speaks first",
    expected: "bytes both ways; after x's end of stream the answer still comes",
    play: tunnel,
};

// covers: R9, A4a
fn tunnel(node: &mut Node, found: &mut Findings, _: &mut Notes) -> anyhow::Result<()> {
    const SENT: usize = 300_000;
    let target = format!("{TCP_FIRST_HOST}:{TCP_FIRST_PORT}");
    let script = [
        Step::Send(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")),
        Step::ReadUntil(GREETING.into()),
        Step::SendZeros(SENT),
        Step::Shutdown,
        Step::ReadAll,
    ];
    let outcome = node.guest(X).talk(PROXY, &script, TALK)?;
    let status = outcome.received.lines().next().unwrap_or_default().to_owned();
    found.see(status.clone(), status.starts_with("HTTP/1.1 200"));
    found.see("the server spoke first", outcome.received.contains(GREETING));
    let bye = format!("bye after {SENT} bytes");
    let last = outcome.received.lines().last().unwrap_or_default();
    found.see(format!("{} zeros echoed", zeros(&outcome.received)), zeros(&outcome.received) == SENT);
    found.see(format!("after the end of stream: {last:.60}"), last == bye && outcome.end == "fin");
    let seen = wait_for("the server's record", AUDIT, || {
        node.world.records("tcp-first")?.into_iter().find(|record| record["event"] == "close").context("still open")
    })?;
    found.see(
        format!("the server saw {} bytes from {}, then {}", seen["bytes"], text(&seen, "peer"), text(&seen, "end")),
        seen["bytes"] == SENT && seen["peer"] == X.ip && seen["end"] == "fin",
    );
    Ok(())
}

pub(super) const CANONICAL: Row = Row {
    id: 13,
    what: "x: /v1/orders/%2e%2e/admin; and two requests in one write, the second not allowed",
    expected: "400; 200 and 403, service-a saw only the first",
    play: canonical,
};

// covers: R13, A7a
fn canonical(node: &mut Node, found: &mut Findings, _: &mut Notes) -> anyhow::Result<()> {
    let before = node.guest(A).requests()?.len();
    let answer = node.guest(X).curl(&["--path-as-is", "http://service-a.t.nova/v1/orders/%2e%2e/admin"])?;
    found.see(answer.status.to_string(), answer.status == 400);
    let one = |method: &str, last: &str| {
        format!("{method} http://service-a.t.nova/v1/orders/13 HTTP/1.1\r\nHost: service-a.t.nova\r\n{last}\r\n")
    };
    let both = one("GET", "") + &one("DELETE", "Connection: close\r\n");
    let outcome = node.guest(X).talk(PROXY, &[Step::Send(both), Step::ReadAll], TALK)?;
    let statuses: Vec<&str> = outcome
        .received
        .match_indices("HTTP/1.1 ")
        .filter_map(|(at, _)| outcome.received.get(at + 9..at + 12))
        .collect();
    found.see(statuses.join(" and "), statuses == ["200", "403"]);
    let arrived: Vec<String> =
        node.guest(A).requests()?.iter().skip(before).map(|record| text(record, "line")).collect();
    found.see(
        format!("service-a saw: {}", arrived.join(", ")),
        arrived.len() == 1 && arrived[0].starts_with("GET /v1/orders/13 "),
    );
    Ok(())
}

/// A refusal by policy that a user can act on.
pub(super) fn denied(found: &mut Findings, answer: &crate::lab::guest::Curl) {
    let id = answer.header("x-nova-decision-id").unwrap_or_default();
    found.see(format!("{} with decision id {id}", answer.status), answer.status == 403 && !id.is_empty());
}

/// Requests at a workload's app whose line names `part`.
pub(super) fn received(node: &Node, workload: Workload, part: &str) -> anyhow::Result<Vec<Value>> {
    let all = node.guest(workload).requests()?;
    Ok(all.into_iter().filter(|record| text(record, "line").contains(part)).collect())
}

/// Audit lines of requests for a path.
fn requests(node: &Node, path: &str) -> anyhow::Result<Vec<Value>> {
    Ok(node.audit()?.into_iter().filter(|line| line["kind"] == "request" && line["path"] == path).collect())
}

/// The only value of a header of a recorded request; several are joined so that a test sees them.
pub(super) fn header(record: &Value, name: &str) -> String {
    let headers = record["headers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = |pair: &&Value| pair[0].as_str().is_some_and(|key| key.eq_ignore_ascii_case(name));
    headers.iter().filter(named).filter_map(|pair| pair[1].as_str()).collect::<Vec<_>>().join(" | ")
}

pub(super) fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn zeros(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == 0).count()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
