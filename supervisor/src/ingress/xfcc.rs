//! How the app learns who calls: `X-Forwarded-Client-Cert` as Envoy forms it.

use http::HeaderValue;

use crate::conn::Identified;
use crate::identity::PeerIdentity;

/// `By;Hash;URI` for a caller with a SPIFFE ID: all three are canonical, so nothing needs quoting. A caller that an external CA
/// names otherwise is `By;Hash;Subject;URI;DNS`, with what of these there is.
pub(super) fn header(conn: &Identified) -> Option<HeaderValue> {
    let peer = conn.who.identity.as_ref()?;
    HeaderValue::from_str(&text(conn.spec.spiffe_id.as_str(), peer)).ok()
}

fn text(by: &str, peer: &PeerIdentity) -> String {
    let mut text = format!("By={by};Hash={}", peer.cert_sha256);
    let names = peer.names.as_deref();
    if let Some(subject) = names.and_then(|names| names.subject.as_ref()).filter(|subject| !subject.is_empty()) {
        text.push_str(&format!(";Subject=\"{}\"", quoted(subject)));
    }
    if let Some(id) = &peer.spiffe_id {
        text.push_str(&format!(";URI={id}"));
    }
    // A host is lower-case letters, digits, dots and hyphens: nothing that a parser could take for the next part.
    for name in names.into_iter().flat_map(|names| &names.dns) {
        text.push_str(&format!(";DNS={name}"));
    }
    text
}

/// Inside of quotes only the quote and the backslash are special.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use nova_policy::host::Host;

    use super::*;
    use crate::identity::Names;

    // covers: C2c
    #[test]
    fn a_subject_cannot_add_a_part_of_its_own() {
        let names = Names {
            dns: vec![Host::parse("gw.partner.example").expect("a host")],
            cn: Some("gw".to_owned()),
            subject: Some(r#"CN=gw\";URI=spiffe://evil/x"#.to_owned()),
        };
        let peer = PeerIdentity {
            spiffe_id: None,
            names: Some(Arc::new(names)),
            ca: Some("partner-ca".to_owned()),
            cert_sha256: "ab".to_owned(),
            not_after: SystemTime::UNIX_EPOCH,
            chain: Arc::from([]),
        };
        let wanted = r#"By=spiffe://t/a;Hash=ab;Subject="CN=gw\\\";URI=spiffe://evil/x";DNS=gw.partner.example"#;
        assert_eq!(text("spiffe://t/a", &peer), wanted);
    }
}
