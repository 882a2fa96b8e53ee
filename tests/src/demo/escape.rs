//! Rows of a guest that wants out, or wants to be somebody else.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nova_proto::frame::Record;
use nova_proto::hello::{Hello, Kind};
use serde_json::Value;

use super::calls::{PROXY, header, received, text};
use super::{Findings, Notes, Row};
use crate::lab::files::{A, B, X};
use crate::lab::net::{DNS, MANAGEMENT, STRIPE, TCP_FIRST};
use crate::lab::node::Node;
use crate::lab::wait_for;
use crate::lab::world::{STRIPE_HOST, TCP_FIRST_HOST, TCP_FIRST_PORT};
use crate::programs::talk::{Outcome, Step};

const TALK: Duration = Duration::from_secs(15);
const AUDIT: Duration = Duration::from_secs(5);

pub(super) const NO_OTHER_WAY: Row = Row {
    id: 8,
    what: "x tries every other way out: raw sockets, TCP, DNS, ping, IPv6, link-local",
    expected: "nothing leaves; there is no network device but lo, and tun0 that the relay reads",
    play: no_other_way,
};

// covers: R8, A4b
fn no_other_way(node: &mut Node, found: &mut Findings, _: &mut Notes) -> anyhow::Result<()> {
    let before =
        (node.world.records("dns")?.len(), node.world.records("stripe")?.len(), node.world.records("tcp-first")?.len());
    let (a, b, stripe) = (format!("{}:443", A.ip), format!("{}:443", B.ip), format!("{STRIPE}:443"));
    let (db, node_address) = (format!("{TCP_FIRST}:{TCP_FIRST_PORT}"), format!("{MANAGEMENT}:22"));
    let mut argv = vec!["nova-lab", "probe"];
    for tcp in
        [&a, &b, &stripe, &db, &node_address, "169.254.169.254:80", "[fe80::1]:80", "[2001:db8::1]:443", "1.1.1.1:443"]
    {
        argv.extend(["--tcp", tcp]);
    }
    let dns = format!("{DNS}:53");
    for udp in [&dns, "8.8.8.8:53", "[2001:db8::53]:53", "224.0.0.251:5353"] {
        argv.extend(["--udp", udp]);
    }
    for ping in [MANAGEMENT, A.ip, DNS, "2001:db8::1"] {
        argv.extend(["--ping", ping]);
    }
    let ended = node.guest(X).exec(&argv, b"", Duration::from_secs(60))?;
    let probe: Value = serde_json::from_str(&ended.stdout).context(ended.stderr)?;
    let attempts = probe["attempts"].as_array().context("attempts")?;
    let out: Vec<String> = attempts.iter().filter(|one| one["out"] == true).map(|one| text(one, "what")).collect();
    found.see(
        format!("{} attempts, {} got out {}", attempts.len(), out.len(), out.join(", ")),
        out.is_empty() && attempts.len() > 20,
    );
    let interfaces = probe["interfaces"].as_array().context("interfaces")?;
    let mut names: Vec<String> = interfaces.iter().map(|one| text(one, "name")).collect();
    names.sort();
    names.dedup();
    found.see(format!("interfaces: {}", names.join(", ")), names == ["lo"] || names == ["lo", "tun0"]);
    let after =
        (node.world.records("dns")?.len(), node.world.records("stripe")?.len(), node.world.records("tcp-first")?.len());
    found.see(
        format!(
            "arrivals at resolver, stripe, db: {}, {}, {}",
            after.0 - before.0,
            after.1 - before.1,
            after.2 - before.2
        ),
        before == after,
    );
    Ok(())
}

pub(super) const CLAIMS: Row = Row {
    id: 14,
    what: "x claims to be service-a in hello, headers, SOCKS user and SNI",
    expected: "decided as x each time",
    play: claims,
};

// covers: R14, A3c
fn claims(node: &mut Node, found: &mut Findings, _: &mut Notes) -> anyhow::Result<()> {
    let before = node.world.records("stripe")?.len();
    claim_in_headers(node, found)?;
    claim_in_hello(node, found)?;
    claim_in_socks(node, found)?;
    claim_in_sni(node, found)?;
    let arrived = node.world.records("stripe")?.len() - before;
    found.see(format!("{arrived} connections at api.stripe.com, which only service-a may call"), arrived == 0);
    let as_other: Vec<String> = node
        .audit()?
        .iter()
        .filter(|line| {
            text(line, "direction") == "egress" && line["workload"] == "service-a" && line["path"] == "/v1/charges/14"
        })
        .map(|line| text(line, "decision_id"))
        .collect();
    found.see(format!("{} decisions as service-a", as_other.len()), as_other.is_empty());
    Ok(())
}

fn claim_in_headers(node: &Node, found: &mut Findings) -> anyhow::Result<()> {
    let xfcc = format!("X-Forwarded-Client-Cert: By=spiffe://dev.invalid/t/t/w/b;URI={}", A.spiffe_id());
    let lies = [
        "-H",
        &xfcc,
        "-H",
        "X-Nova-Workload: service-a",
        "-H",
        "X-Forwarded-For: 10.64.3.21",
        "-H",
        "Forwarded: for=10.64.3.21",
    ];
    let mut argv = lies.to_vec();
    argv.extend(["-d", "amount=1", "http://api.stripe.com/v1/charges/14"]);
    let answer = node.guest(X).curl(&argv)?;
    found.see(format!("headers, to stripe: {}", answer.status), answer.status == 403);
    let mut argv = lies.to_vec();
    argv.push("http://service-a.t.nova/v1/orders/14");
    let answer = node.guest(X).curl(&argv)?;
    found.see(format!("headers, to service-a: {}", answer.status), answer.status == 200);
    let seen = received(node, A, "/v1/orders/14")?;
    let record = seen.first().context("service-a received nothing")?;
    let xfcc = header(record, "x-forwarded-client-cert");
    let said = record["headers"].to_string();
    found.see(
        format!("service-a sees {xfcc}"),
        xfcc.contains(&X.spiffe_id())
            && !xfcc.contains(&format!("URI={}", A.spiffe_id()))
            && !said.contains("x-nova-workload"),
    );
    Ok(())
}

/// The hello has no field for a name, so what can be claimed is service-a's boot token, which a thief might have.
fn claim_in_hello(node: &Node, found: &mut Findings) -> anyhow::Result<()> {
    let outcome = hello_and_request(node, node.boot_token(A)?)?;
    found.see(
        format!("hello with service-a's token: {} bytes came back", outcome.received.len()),
        outcome.connected && outcome.received.is_empty(),
    );
    let line = wait_for("the refused hello in the audit log", AUDIT, || {
        node.audit()?.into_iter().find(|line| line["reason"] == "wrong_token").context("not yet")
    })?;
    found.see(format!("recorded as {}'s: wrong_token", text(&line, "workload")), line["workload"] == "x");
    let outcome = hello_and_request(node, node.boot_token(X)?)?;
    let answer = outcome.received.trim_start_matches(|letter| letter != 'H').lines().next().unwrap_or_default();
    found.see(format!("hello with its own token: {answer}"), answer.starts_with("HTTP/1.1 403"));
    Ok(())
}

/// Past the relay: a hello of our own making, and in it a request that only service-a may make.
fn hello_and_request(node: &Node, token: [u8; 16]) -> anyhow::Result<Outcome> {
    let request =
        b"POST http://api.stripe.com/v1/charges/14 HTTP/1.1\r\nHost: api.stripe.com\r\nContent-Length: 0\r\n\r\n";
    let mut bytes = Hello { kind: Kind::Proxy, framed: true, token, target: String::new() }.encode()?;
    bytes.extend(Record::Data(request.len()).encode());
    bytes.extend_from_slice(request);
    let script = [Step::SendB64(STANDARD.encode(bytes)), Step::ReadUntil("\r\n\r\n".into())];
    // A muxer may keep a refused connection open towards its guest, so the end of it is not waited for long.
    node.guest(X).talk(&node.guest(X).uplink, &script, Duration::from_secs(4))
}

fn claim_in_socks(node: &Node, found: &mut Findings) -> anyhow::Result<()> {
    let mut bytes = b"\x05\x01\x02\x01\x09service-a\x06secret\x05\x01\x00\x03".to_vec();
    bytes.push(u8::try_from(STRIPE_HOST.len())?);
    bytes.extend_from_slice(STRIPE_HOST.as_bytes());
    bytes.extend_from_slice(&443u16.to_be_bytes());
    let script = [Step::SendB64(STANDARD.encode(bytes)), Step::ReadAll];
    let outcome = node.guest(X).talk(PROXY, &script, TALK)?;
    found.see(
        format!("SOCKS user: {}", if outcome.received.is_empty() { "closed" } else { "refused" }),
        outcome.end != "timeout" && !outcome.received.contains("\x05\x00\x00"),
    );
    Ok(())
}

/// A tunnel to where x may go, with a TLS hello inside that names where only service-a may.
fn claim_in_sni(node: &Node, found: &mut Findings) -> anyhow::Result<()> {
    let target = format!("{STRIPE_HOST}:443");
    let connect = |target: &str| Step::Send(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"));
    let outcome = node.guest(X).talk(PROXY, &[connect(&target), Step::ReadUntil("\r\n\r\n".into())], TALK)?;
    found.see(
        format!("CONNECT {target}: {}", outcome.received.lines().next().unwrap_or_default()),
        outcome.received.starts_with("HTTP/1.1 403"),
    );
    let before = node.world.records("tcp-first")?.len();
    let target = format!("{TCP_FIRST_HOST}:{TCP_FIRST_PORT}");
    let script = [
        connect(&target),
        Step::ReadUntil("\r\n\r\n".into()),
        Step::SendB64(STANDARD.encode(client_hello()?)),
        Step::ReadAll,
    ];
    let outcome = node.guest(X).talk(PROXY, &script, TALK)?;
    let got: Vec<Value> = node.world.records("tcp-first")?.into_iter().skip(before).collect();
    let bytes: u64 = got.iter().filter_map(|record| record["bytes"].as_u64()).sum();
    found.see(
        format!("SNI {STRIPE_HOST} inside a tunnel to {TCP_FIRST_HOST}: {}, {bytes} bytes passed", outcome.end),
        outcome.end != "timeout" && bytes == 0,
    );
    Ok(())
}

/// First flight of a TLS client that wants api.stripe.com.
fn client_hello() -> anyhow::Result<Vec<u8>> {
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let mut client = rustls::ClientConnection::new(Arc::new(config), STRIPE_HOST.try_into()?)?;
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes)?;
    Ok(bytes)
}
