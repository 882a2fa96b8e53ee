//! Callers whose certificate ends, is taken back, or names them otherwise than by a SPIFFE ID, against the real program.

#![allow(clippy::panic, reason = "a test that cannot go on fails")]

mod data;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data::h2::{Event, NO_ERROR};
use data::{A, HTTPS, Node, Plan, Tls, dial, is, issue, read_request, until};
use nova_proto::ids::SpiffeId;
use nova_supervisor::identity::{DevCa, Issued};
use rcgen::{CertificateParams, DnType, Issuer, KeyPair, KeyUsagePurpose, SanType, SerialNumber, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};

const WRAPPED: u16 = 7443;
const ORDER: &str = "GET /v1/orders/42 HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n";
const HOUR: Duration = Duration::from_secs(3600);

/// An SVID of `x` that ends in `seconds`.
fn ends_in(node: &Node, seconds: u64) -> Issued {
    let x = SpiffeId::new("spiffe://dev.invalid/t/t/w/x").expect("an ID");
    node.ca.issue(&x, "x.t.nova", Duration::from_secs(seconds)).expect("issued")
}

fn with_grace(grace: &str) -> Node {
    Node::with(Plan { identity: format!("peer_grace = \"{grace}\"\n"), ..Plan::default() })
}

// covers: C2b
#[test]
fn a_stream_of_bytes_ends_when_its_callers_certificate_has_ended_and_the_grace_is_over() {
    let node = with_grace("1s");
    let mut short = node.call(Some(&ends_in(&node, 3)), WRAPPED).expect("valid yet");
    let mut long = node.call(Some(&node.svid("x")), WRAPPED).expect("valid");
    assert_eq!(short.ask(ORDER).status, 200);
    assert_eq!(long.ask(ORDER).status, 200);
    assert!(short.answer().is_err(), "it is closed without a byte");
    let line = node.audited_once(|line| is(line, &[("kind", "close"), ("close", "peer_expired")]));
    assert!(is(&line, &[("verdict", "allow"), ("workload", "service-a")]), "{line}");
    assert_eq!(long.ask(ORDER).status, 200, "another caller's stream goes on");
    // And with that certificate nobody comes back.
    let old = ends_in(&node, 1);
    until("it has ended", || {
        node.call(Some(&old), HTTPS)
            .and_then(|mut tls| {
                tls.send(ORDER);
                tls.answer()
            })
            .is_err()
    });
}

// covers: C2b
#[test]
fn an_answer_on_its_way_is_finished_within_the_grace_and_then_the_connection_closes() {
    let node = with_grace("15s");
    let go = node.guest(A).serve_in_halves();
    let who = ends_in(&node, 3);
    let end = SystemTime::now() + Duration::from_secs(4);
    let mut tls = node.call(Some(&who), HTTPS).expect("valid yet");
    let mut idle = node.call(Some(&who), HTTPS).expect("valid yet");
    tls.send(ORDER);
    // An idle connection of the same caller is closed at the end: nothing of it is open.
    assert!(idle.answer().is_err());
    assert!(SystemTime::now() < end + Duration::from_secs(8), "at the end, not at the end of the grace");
    go.send(()).expect("the app waits");
    assert_eq!(tls.answer().expect("whole").text(), "first-last");
    assert!(tls.answer().is_err(), "no further request on it");
    node.audited(2, |line| is(line, &[("kind", "connection"), ("close", "peer_expired")]));
    node.audited_once(|line| is(line, &[("kind", "request"), ("verdict", "allow"), ("close", "done")]));
}

// covers: C2b
#[test]
fn an_answer_that_does_not_end_is_cut_when_the_grace_is_over() {
    let node = with_grace("1s");
    node.guest(A).serve(|mut link, app| {
        while let Ok(request) = read_request(&mut link) {
            app.saw(&request);
            let _ = link.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst");
        }
    });
    let mut tls = node.call(Some(&ends_in(&node, 3)), HTTPS).expect("valid yet");
    tls.send(ORDER);
    assert!(tls.answer().is_err(), "cut");
    node.audited_once(|line| is(line, &[("kind", "request"), ("close", "peer_expired")]));
}

// covers: C2b
#[test]
fn http_2_is_told_to_go_away_when_its_callers_certificate_has_ended() {
    let node = with_grace("15s");
    let go = node.guest(A).serve_in_halves();
    let mut h2 = node.call_h2(&ends_in(&node, 3), HTTPS);
    h2.request(1, "GET", "/v1/orders/42");
    let (mut body, mut told) = (Vec::new(), false);
    loop {
        match h2.event().expect("a frame") {
            Event::GoAway { code, .. } => {
                assert_eq!(code, NO_ERROR);
                // Only now: whoever is told to go away may still get what was on its way.
                if !std::mem::replace(&mut told, true) {
                    go.send(()).expect("the app waits");
                }
            }
            Event::Data { bytes, end, .. } => {
                body.extend(bytes);
                if end {
                    break;
                }
            }
            _ => {}
        }
    }
    assert!(told && body == b"first-last", "{}", String::from_utf8_lossy(&body));
    node.audited_once(|line| is(line, &[("kind", "connection"), ("close", "peer_expired")]));
}

/// A revocation list of `ca`, as PEM.
fn crl(ca: &DevCa, revoked: &[&Issued], next_update: SystemTime) -> String {
    let date = |time: SystemTime| date_time_ymd(1970, 1, 1) + time.duration_since(UNIX_EPOCH).expect("after 1970");
    let entry = |issued: &&Issued| {
        let (_, parsed) = X509Certificate::from_der(&issued.chain[0]).expect("a certificate");
        rcgen::RevokedCertParams {
            serial_number: SerialNumber::from_slice(parsed.raw_serial()),
            revocation_time: date(SystemTime::now()),
            reason_code: None,
            invalidity_date: None,
        }
    };
    let params = rcgen::CertificateRevocationListParams {
        this_update: date(next_update - 2 * HOUR),
        next_update: date(next_update),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: revoked.iter().map(entry).collect(),
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    params.signed_by(&issuer(ca)).expect("signed").pem().expect("PEM")
}

/// The dev CA as another program would use it.
fn issuer(ca: &DevCa) -> Issuer<'static, KeyPair> {
    use rustls::pki_types::pem::PemObject;
    let both = ca.to_pem().expect("PEM");
    let key = &both[both.find("-----BEGIN PRIVATE").expect("a key")..];
    let der = CertificateDer::from_pem_slice(both.as_bytes()).expect("a certificate");
    let (_, parsed) = X509Certificate::from_der(&der).expect("a certificate");
    let name = parsed.subject().iter_common_name().next().expect("a name").as_str().expect("text").to_owned();
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Issuer::new(params, KeyPair::from_pem(key).expect("PKCS#8"))
}

fn with_crls(prepare: fn(&Path, &DevCa), more: &str) -> Node {
    Node::with(Plan { identity: format!("crls = [\"crls\"]\n{more}"), prepare, ..Plan::default() })
}

fn empty_list(dir: &Path, ca: &DevCa) {
    fs::create_dir(dir.join("crls")).expect("made");
    fs::write(dir.join("crls/own.crl"), crl(ca, &[], SystemTime::now() + HOUR)).expect("written");
}

// covers: C2d
#[test]
fn a_certificate_that_is_revoked_loses_its_connections_and_makes_no_new_ones() {
    let node = with_crls(empty_list, "");
    let (bad, good) = (node.svid("x"), node.svid("x"));
    let mut stream = node.call(Some(&bad), WRAPPED).expect("connected");
    let mut http = node.call(Some(&bad), HTTPS).expect("connected");
    let mut other = node.call(Some(&good), WRAPPED).expect("connected");
    for tls in [&mut stream, &mut http, &mut other] {
        assert_eq!(tls.ask(ORDER).status, 200);
    }
    node.put("crls/own.crl", crl(&node.ca, &[&bad], SystemTime::now() + HOUR).as_bytes());
    assert!(stream.answer().is_err() && http.answer().is_err(), "cut without a byte");
    node.audited_once(|line| is(line, &[("kind", "close"), ("close", "peer_revoked")]));
    node.audited_once(|line| is(line, &[("kind", "connection"), ("verdict", "allow"), ("close", "peer_revoked")]));
    assert_eq!(other.ask(ORDER).status, 200, "the same workload with another certificate goes on");
    let again = node.call(Some(&bad), HTTPS).and_then(|mut tls| {
        let _ = tls.write_all(ORDER.as_bytes());
        tls.answer()
    });
    assert!(again.is_err());
    let line = node.audited_once(|line| is(line, &[("verdict", "deny"), ("reason", "peer_revoked")]));
    assert!(is(&line, &[("kind", "connection"), ("detail", "peer_revoked")]), "{line}");
}

// covers: C2d
#[test]
fn a_broken_list_changes_nothing_but_the_warning() {
    let node = with_crls(empty_list, "");
    let bad = node.svid("x");
    node.put("crls/own.crl", crl(&node.ca, &[&bad], SystemTime::now() + HOUR).as_bytes());
    let refused = |who: &Issued| {
        let asked = node.call(Some(who), HTTPS).and_then(|mut tls| {
            let _ = tls.write_all(ORDER.as_bytes());
            tls.answer()
        });
        asked.is_err()
    };
    until("it is revoked", || refused(&bad));
    node.put("crls/own.crl", b"-----BEGIN X509 CRL-----\nAAAA\n");
    until("the broken list is noticed", || node.warnings().contains("own.crl"));
    assert!(refused(&bad), "the old list is in force");
    assert_eq!(node.call(Some(&node.svid("x")), HTTPS).expect("connected").ask(ORDER).status, 200);
}

// covers: C2d
#[test]
fn a_list_that_is_too_old_refuses_every_peer_of_its_ca() {
    let node = with_crls(empty_list, "crl_grace = \"1ms\"\n");
    let mut open = node.call(Some(&node.svid("x")), WRAPPED).expect("connected");
    assert_eq!(open.ask(ORDER).status, 200);
    node.put("crls/own.crl", crl(&node.ca, &[], SystemTime::now() - Duration::from_secs(5)).as_bytes());
    assert!(open.answer().is_err(), "and cuts who is connected");
    until("it is told", || node.warnings().contains("peers of its CA are refused"));
    let asked = node.call(Some(&node.svid("x")), HTTPS).and_then(|mut tls| {
        let _ = tls.write_all(ORDER.as_bytes());
        tls.answer()
    });
    assert!(asked.is_err());
    node.audited_once(|line| is(line, &[("reason", "peer_untrusted"), ("detail", "revocation_unknown")]));
}

/// A certificate of `ca` without a SPIFFE ID.
fn named(ca: &DevCa, dns: &[&str], cn: &str) -> (Vec<CertificateDer<'static>>, KeyPair) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "Partner");
    params.distinguished_name.push(DnType::CommonName, cn);
    params.subject_alt_names = dns.iter().map(|name| SanType::DnsName((*name).try_into().expect("ASCII"))).collect();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2090, 1, 1);
    (vec![params.signed_by(&key, &issuer(ca)).expect("signed").into()], key)
}

fn call_as(node: &Node, (chain, key): (Vec<CertificateDer<'static>>, KeyPair)) -> std::io::Result<data::Answer> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let tcp = dial(&node.ip(99), &format!("{}:{HTTPS}", node.ip(21))).expect("connected");
    let mut tls = Tls::over(tcp, data::config_with(chain, key), "service-a.t.nova")?;
    tls.write_all(ORDER.as_bytes())?;
    tls.answer()
}

// covers: C2c
#[test]
fn a_partner_without_spiffe_is_known_by_the_names_that_rules_ask_for_and_by_no_other() {
    let rules = data::RULES.replace(
        "    from: {external_ca: partner-ca, uri: 'spiffe://partner/*'}\n",
        "    from: {external_ca: partner-ca, dns: '*.partner.example'}\n",
    );
    let by_cn = "  - {id: by-cn, tenant: t, from: {external_ca: partner-ca, cn: gw-7}, to: {workload: service-a, port: https}, http: {methods: [GET], paths: ['/v1/orders/**']}}\n";
    let node = Node::with(Plan { rules: format!("{rules}{by_cn}"), ..Plan::default() });
    // Names that no rule asks for, and the right names from a CA that nobody knows.
    assert!(call_as(&node, named(&node.partner, &["partner.example.evil.test"], "gw-8")).is_err());
    assert!(call_as(&node, named(&node.web, &["gw.partner.example"], "gw-7")).is_err());
    assert!(call_as(&node, named(&node.ca, &["gw.partner.example"], "gw-7")).is_err());
    node.audited_once(|line| {
        is(line, &[("verdict", "deny"), ("reason", "no_grant"), ("peer", "dns:partner.example.evil.test")])
    });
    node.audited(2, |line| {
        is(line, &[("verdict", "deny"), ("reason", "peer_untrusted"), ("detail", "unknown_issuer")])
    });
    assert!(node.guest(A).app.seen().is_empty());

    assert_eq!(call_as(&node, named(&node.partner, &["gw.partner.example"], "a;\"b")).expect("answered").status, 200);
    assert_eq!(call_as(&node, named(&node.partner, &[], "gw-7")).expect("answered").status, 200);
    let seen = node.guest(A).app.seen();
    let header = |request: &String| data::header(request, "x-forwarded-client-cert").expect("set by us");
    let (first, second) = (header(&seen[0]), header(&seen[1]));
    assert!(first.starts_with("By=spiffe://dev.invalid/t/t/w/service-a;Hash="), "{first}");
    assert!(first.ends_with(r#";Subject="CN=a\\;\\\"b,O=Partner";DNS=gw.partner.example"#), "{first}");
    assert!(second.ends_with(r#";Subject="CN=gw-7,O=Partner""#), "{second}");
    let line = node.audited_once(|line| is(line, &[("kind", "request"), ("rule", "by-cn")]));
    assert!(is(&line, &[("peer", "cn:gw-7"), ("peer_ca", "partner-ca")]), "{line}");
    assert_eq!(line["input"]["peer_cn"], "gw-7", "{line}");
}

// covers: C2c
#[test]
fn a_partner_without_spiffe_is_nobody_where_no_rule_asks_for_names() {
    let node = Node::start();
    assert!(call_as(&node, named(&node.partner, &["gw.partner.example"], "gw-7")).is_err());
    node.audited_once(|line| is(line, &[("reason", "peer_untrusted"), ("detail", "bad_san")]));
}

// covers: C2f
#[test]
fn a_federated_domains_bundle_is_followed_without_a_restart() {
    let rules = data::RULES
        .replace("name: partner-ca,", "name: fed,")
        .replace("external_ca: partner-ca, uri: 'spiffe://partner/*'", "external_ca: fed, uri: 'spiffe://fed.test/*'");
    let node = Node::with(Plan {
        rules,
        identity: "federated = [{trust_domain = \"fed.test\", bundle = \"fed.pem\", name = \"fed\"}]\n".to_owned(),
        prepare: |dir, _| {
            let fed = DevCa::generate().expect("a CA");
            fs::write(dir.join("fed.pem"), fed.certificate_pem()).expect("written");
            fs::write(dir.join("fed-ca.pem"), fed.to_pem().expect("PEM").as_bytes()).expect("written");
        },
        ..Plan::default()
    });
    let id = "spiffe://fed.test/billing";
    let old = DevCa::from_pem(&fs::read(node.dir.path().join("fed-ca.pem")).expect("there")).expect("a CA");
    let ask = |ca: &DevCa, port: u16| {
        node.call(Some(&issue(ca, id, "billing.fed.test")), port).and_then(|mut tls| {
            tls.write_all(ORDER.as_bytes())?;
            let answer = tls.answer()?;
            Ok((tls, answer.status))
        })
    };
    // The rules' own CA of that name does not vouch for the domain: its bundle on this node does.
    assert!(ask(&node.partner, HTTPS).is_err());
    node.audited_once(|line| is(line, &[("reason", "peer_untrusted"), ("detail", "own_domain_from_foreign_ca")]));
    let (mut open, status) = ask(&old, HTTPS).expect("answered");
    assert_eq!(status, 200);
    let new = DevCa::generate().expect("a CA");
    node.put("fed.pem", new.certificate_pem().as_bytes());
    assert!(open.answer().is_err(), "whoever only the old bundle knew is cut");
    assert_eq!(ask(&new, HTTPS).expect("answered").1, 200);
    assert!(ask(&old, HTTPS).is_err());
    let line = node.audited(2, |line| is(line, &[("kind", "request"), ("verdict", "allow")])).remove(0);
    assert!(is(&line, &[("peer", id), ("peer_ca", "fed")]), "{line}");
}
