//! Rows of callers outside the node.

use std::time::Duration;

use super::calls::{header, received, text};
use super::{Findings, Notes, Row};
use crate::lab::files::{A, B, X};
use crate::lab::net::OUTSIDE;
use crate::lab::node::Node;
use crate::lab::wait_for;
use crate::programs::client::Outcome;

pub(super) const COMPROMISED_CALLER: Row = Row {
    id: 4,
    what: "a raw mTLS client with x's SVID, straight to b's address",
    expected: "refused by b's ingress",
    play: compromised_caller,
};

// covers: R4
fn compromised_caller(node: &mut Node, found: &mut Findings, _: &mut Notes) -> anyhow::Result<()> {
    let svid = node.dev_ca.leaf(Some(&X.spiffe_id()), Some(&X.host()))?;
    let outcome = node.call_from_outside(B, Some(&svid), "/v1/stolen")?;
    found.see(summary(&outcome), outcome.handshake && outcome.status.is_none_or(|status| status == 403));
    let arrived = received(node, B, "/v1/stolen")?.len();
    found.see(format!("{arrived} requests at b"), arrived == 0);
    let line = wait_for("the refusal in the audit log", Duration::from_secs(5), || {
        let refused = |line: &serde_json::Value| {
            line["direction"] == "ingress" && line["workload"] == "b" && line["verdict"] == "deny"
        };
        node.audit()?.into_iter().find(refused).ok_or_else(|| anyhow::anyhow!("no such line"))
    })?;
    found.see(
        format!("ingress of b: {} for {}", text(&line, "reason"), text(&line, "peer")),
        line["peer"] == X.spiffe_id().as_str(),
    );
    Ok(())
}

pub(super) const PARTNER: Row = Row {
    id: 6,
    what: "an external caller to service-a:443 with a partner's certificate; another CA's; a partner's that claims x's ID",
    expected: "200; handshake refused; refused",
    play: partner,
};

// covers: R6, A7b
fn partner(node: &mut Node, found: &mut Findings, _: &mut Notes) -> anyhow::Result<()> {
    let partner = node.partner_ca.leaf(Some("spiffe://partner/billing"), None)?;
    let outcome = node.call_from_outside(A, Some(&partner), "/v1/orders/6-partner")?;
    found.see(summary(&outcome), outcome.status == Some(200));
    let seen = received(node, A, "/v1/orders/6-partner")?;
    let xfcc = seen.first().map(|record| header(record, "x-forwarded-client-cert")).unwrap_or_default();
    let xff = seen.first().map(|record| header(record, "x-forwarded-for")).unwrap_or_default();
    found.see(format!("XFCC {xfcc} from {xff}"), xfcc.contains("URI=spiffe://partner/billing") && xff == OUTSIDE);
    let stranger = node.stranger_ca.leaf(Some("spiffe://partner/billing"), None)?;
    let liar = node.partner_ca.leaf(Some(&X.spiffe_id()), None)?;
    for (who, identity) in
        [("another CA", Some(&stranger)), ("x's ID by the partner", Some(&liar)), ("no certificate", None)]
    {
        let outcome = node.call_from_outside(A, identity.map(String::as_str), "/v1/orders/6-other")?;
        found.see(format!("{who}: {}", summary(&outcome)), outcome.connected && outcome.status.is_none());
    }
    let arrived = received(node, A, "/v1/orders/6-other")?.len();
    found.see(format!("{arrived} of these at service-a"), arrived == 0);
    Ok(())
}

pub(super) const CLOSED_PORT: Row = Row {
    id: 7,
    what: "a port of service-a that policy does not expose",
    expected: "connection reset by the kernel",
    play: closed_port,
};

// covers: R7
fn closed_port(node: &mut Node, found: &mut Findings, _: &mut Notes) -> anyhow::Result<()> {
    // 8080 is where the app listens in the guest; 22 nobody ever heard of.
    for port in [8080, 22] {
        let address = format!("{}:{port}", A.ip).parse()?;
        let outcome = node.talk_from_outside(address, &[], Duration::from_secs(5))?;
        found.see(format!("{port}: {}", outcome.end), !outcome.connected && outcome.end.contains("refused"));
    }
    Ok(())
}

fn summary(outcome: &Outcome) -> String {
    match (&outcome.status, &outcome.error) {
        (Some(status), _) => status.to_string(),
        (None, Some(error)) => error.clone(),
        (None, None) => "nothing".into(),
    }
}
