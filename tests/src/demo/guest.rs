//! The row of what an app finds in its guest: fixed dependencies, egress sockets and ping.

use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

use super::calls::text;
use super::{Findings, Notes, Row};
use crate::lab::files::X;
use crate::lab::net::{STRIPE, TCP_FIRST};
use crate::lab::node::Node;
use crate::lab::stage::GuestKind;
use crate::lab::wait_for;
use crate::programs::talk::Step;
use crate::programs::tcp_first::GREETING;

const TALK: Duration = Duration::from_secs(20);
const AUDIT: Duration = Duration::from_secs(10);
const SOCKETS: &str = "/run/nova/egress";

pub(super) const WAYS_OUT: Row = Row {
    id: 15,
    what: "x: two dependencies on port 443, egress sockets, ping",
    expected: "service-a and db answer, b is refused; only the granted address answers pings; the sockets are root's",
    play: ways_out,
};

// covers: D2a, D2b, D3a, D3b, D3c, D10a, D10c
fn ways_out(node: &mut Node, found: &mut Findings, _: &mut Notes) -> anyhow::Result<()> {
    dependencies(node, found)?;
    sockets(node, found)?;
    pings(node, found)
}

fn dependencies(node: &Node, found: &mut Findings) -> anyhow::Result<()> {
    let hosts = node.guest(X).exec(&["cat", "/etc/hosts"], b"", TALK)?.stdout;
    found.see("hosts", hosts.contains("127.0.1.1 service-a.t.nova\n127.0.1.2 b.t.nova\n"));
    get(node, found, "tcp:127.0.1.1:443", "/v1/orders/15")?;
    let refused =
        node.guest(X).talk("tcp:127.0.1.2:443", &[Step::Send(request("b.t.nova:443", "/")), Step::ReadAll], TALK)?;
    found.see(format!("b: {} bytes, {}", refused.received.len(), refused.end), refused.received.is_empty());
    let line = audited(node, |line| line["dest_host"] == "b.t.nova" && line["dest_port"] == 443)?;
    found.see(format!("b: {}", text(&line, "reason")), line["reason"] == "no_grant");
    Ok(())
}

fn sockets(node: &Node, found: &mut Findings) -> anyhow::Result<()> {
    let at = |name: &str| format!("unix:{SOCKETS}/{name}");
    get(node, found, &at("service-a.t.nova_443.sock"), "/v1/orders/15")?;
    get(node, found, &at("egress.sock"), "http://service-a.t.nova/v1/orders/15")?;
    let db = at("db.example.net_5432.sock");
    let greeted = node.guest(X).talk(&db, &[Step::ReadUntil(GREETING.to_owned())], TALK)?;
    found.see("db greets", greeted.received.contains(GREETING));
    if node.kind == GuestKind::Microvm {
        let remove = node.guest(X).exec(&["rm", "-f", &format!("{SOCKETS}/egress.sock")], b"", TALK)?;
        found.see("x cannot remove a socket", remove.exit.is_some_and(|code| code != 0));
    }
    Ok(())
}

fn get(node: &Node, found: &mut Findings, to: &str, target: &str) -> anyhow::Result<()> {
    let script = [Step::Send(request("service-a.t.nova", target)), Step::ReadAll];
    let answer = node.guest(X).talk(to, &script, TALK)?;
    let status = answer.received.get(9..12).unwrap_or(&answer.end);
    found.see(format!("{to}: {status}"), status == "200");
    Ok(())
}

fn request(host: &str, target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

fn pings(node: &Node, found: &mut Findings) -> anyhow::Result<()> {
    let ended = node.guest(X).exec(&["nova-lab", "probe", "--ping", TCP_FIRST, "--ping", STRIPE], b"", TALK)?;
    let probe: Value = serde_json::from_str(&ended.stdout).context(ended.stderr)?;
    let interfaces = probe["interfaces"].as_array().context("interfaces")?;
    if !interfaces.iter().any(|one| one["name"] == "tun0") {
        // The device is this machine's, and not every machine lets everybody have one.
        found.see("no tun0, so no pings", node.kind == GuestKind::Process);
        return Ok(());
    }
    let attempts = probe["attempts"].as_array().context("attempts")?;
    let out: Vec<String> = attempts.iter().filter(|one| one["out"] == true).map(|one| text(one, "what")).collect();
    found.see(format!("answered: {}", out.join(", ")), out == [format!("ping {TCP_FIRST}")]);
    for (to, reason, rule) in [(TCP_FIRST, "rule", "x-pings-db"), (STRIPE, "no_grant", "")] {
        let line = audited(node, |line| line["input"]["icmp"] == "echo" && line["dest_host"] == to)?;
        found.see(
            format!("{to}: {}", text(&line, "reason")),
            line["reason"] == reason && text(&line, "rule") == rule && line["workload"] == X.id,
        );
    }
    if node.kind == GuestKind::Microvm {
        let ping = node.guest(X).exec(&["ping", "-c", "2", "-W", "20", "-s", "1000", TCP_FIRST], b"", TALK * 3)?;
        let last = ping.stdout.lines().find(|line| line.contains("packets")).unwrap_or(&ping.stderr);
        found.see(last, ping.exit == Some(0) && last.contains(" 0% packet loss"));
    }
    Ok(())
}

/// The first line of x's calls that fits.
fn audited(node: &Node, fits: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
    wait_for("a line of the audit log", AUDIT, || {
        let is_call = |line: &&Value| line["direction"] == "egress" && line["kind"] == "request" && fits(line);
        match node.audit()?.iter().find(is_call) {
            Some(line) => Ok(line.clone()),
            None => bail!("not yet"),
        }
    })
}
