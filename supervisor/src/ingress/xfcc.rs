//! How the app learns who calls: `X-Forwarded-Client-Cert` as Envoy forms it.

use http::HeaderValue;

use crate::conn::Identified;
use crate::identity::PeerIdentity;

/// Longest header, in bytes. Servers take 8 KiB for a line, or for the whole head, and the caller's own fields need room beside it.
const MOST: usize = 4096;

/// `By;Hash;URI` for a caller with a SPIFFE ID: all three are canonical, so nothing needs quoting. A caller that an external CA
/// names otherwise is `By;Hash;Subject;URI;DNS`, with what of these there is. Where that is
/// longer than [`MOST`], a subject or the last names are left out: who looks for one that is not there lets nobody in.
pub(super) fn header(conn: &Identified) -> Option<HeaderValue> {
    let peer = conn.who.identity.as_ref()?;
    HeaderValue::from_str(&text(conn.spec.spiffe_id.as_str(), peer)).ok()
}

fn text(by: &str, peer: &PeerIdentity) -> String {
    let names = peer.names.as_deref();
    let head = format!("By={by};Hash={}", peer.cert_sha256);
    let id = peer.spiffe_id.as_ref().map(|id| format!(";URI={id}")).unwrap_or_default();
    let subject = names.and_then(|names| names.subject.as_ref()).filter(|subject| !subject.is_empty());
    let subject = subject.map(|subject| format!(";Subject=\"{}\"", quoted(subject))).unwrap_or_default();
    let has_room = head.len() + id.len() + subject.len() <= MOST;
    let mut text = format!("{head}{}{id}", if has_room { &subject } else { "" });
    // A host is lower-case letters, digits, dots and hyphens: nothing that a parser could take for the next part.
    for name in names.into_iter().flat_map(|names| &names.dns) {
        let part = format!(";DNS={name}");
        if text.len() + part.len() > MOST {
            break;
        }
        text.push_str(&part);
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

    fn peer(names: Names) -> PeerIdentity {
        PeerIdentity {
            spiffe_id: None,
            names: Some(Arc::new(names)),
            ca: Some("partner-ca".to_owned()),
            cert_sha256: "ab".to_owned(),
            not_after: SystemTime::UNIX_EPOCH,
            chain: Arc::from([]),
        }
    }

    // covers: C2c
    #[test]
    fn a_subject_cannot_add_a_part_of_its_own() {
        let peer = peer(Names {
            dns: vec![Host::parse("gw.partner.example").expect("a host")],
            cn: Some("gw".to_owned()),
            subject: Some(r#"CN=gw\";URI=spiffe://evil/x"#.to_owned()),
        });
        let wanted = r#"By=spiffe://t/a;Hash=ab;Subject="CN=gw\\\";URI=spiffe://evil/x";DNS=gw.partner.example"#;
        assert_eq!(text("spiffe://t/a", &peer), wanted);
    }

    // covers: C2c
    #[test]
    fn names_beyond_what_a_server_reads_are_left_out_whole() {
        let label = "x".repeat(60);
        let name = |n: usize| Host::parse(&format!("n{n}.{label}.{label}.{label}.example")).expect("a host");
        let many = |subject: usize| {
            peer(Names { dns: (0..64).map(name).collect(), cn: None, subject: Some(r#"""#.repeat(subject)) })
        };
        let header = text("spiffe://t/a", &many(8));
        assert!((MOST - 300..=MOST).contains(&header.len()), "{}", header.len());
        let last = header.rsplit(";DNS=").next().expect("names");
        assert!(header.contains(";Subject=") && last.starts_with('n') && last.ends_with(".example"), "{last}");
        // A subject without room is left out before any name.
        let header = text("spiffe://t/a", &many(2047));
        assert!(header.starts_with("By=spiffe://t/a;Hash=ab;DNS=n0.") && header.len() <= MOST, "{}", header.len());
    }
}
