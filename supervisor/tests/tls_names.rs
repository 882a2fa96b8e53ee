//! Peers of other trust domains, peers without a SPIFFE ID, and peers whose CA took their certificate back. Real TLS over
//! memory; refusals first.

mod tls_support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nova_supervisor::identity::{Crls, Federated, PeerIdentity, TrustBundles};
use nova_supervisor::reason::Reason;
use nova_supervisor::tls::{HandshakeFailure, PeerVerifier, TrustCell};
use rcgen::{DnType, KeyUsagePurpose, SanType};
use rustls::pki_types::UnixTime;
use tls_support::{Ca, Credential, PARTNER, SERVICE_A, Server, X, bundles, connect, id, raw_client, uri};

const DAY: Duration = Duration::from_secs(24 * 3600);

async fn ask(own: &Ca, bundles: TrustBundles, credential: Credential) -> Result<PeerIdentity, HandshakeFailure> {
    let trust = Arc::new(TrustCell::from_pointee(bundles));
    connect(&Server::new(own.cell(SERVICE_A), &trust), &raw_client(Some(credential))).await.server
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().expect("ASCII"))
}

/// A certificate of `ca` with DNS names and a common name, and without a SPIFFE ID.
fn named(ca: &Ca, names: &[&str], cn: &str) -> Credential {
    ca.issue_with(X, |p| {
        p.subject_alt_names = names.iter().map(|name| dns(name)).collect();
        p.distinguished_name = rcgen::DistinguishedName::new();
        p.distinguished_name.push(DnType::OrganizationName, "Partner, Inc.");
        p.distinguished_name.push(DnType::CommonName, cn);
    })
}

fn naming(own: &Ca, partner: &Ca) -> TrustBundles {
    bundles(own, &[("partner-ca", partner)]).with_names_of(BTreeSet::from(["partner-ca".to_owned()]))
}

// covers: C2c
#[tokio::test]
async fn a_certificate_without_a_spiffe_id_is_nobody_unless_rules_name_peers_of_its_ca() {
    let (own, partner, other) = (Ca::new("own"), Ca::new("partner"), Ca::new("other"));
    let gateway = || named(&partner, &["gw.partner.example"], "gw");
    let unnamed = bundles(&own, &[("partner-ca", &partner)]);
    assert_eq!(ask(&own, unnamed, gateway()).await, Err(HandshakeFailure::BadSan));
    // Of another external CA, which rules do not name that way; of a stranger; of our own.
    let two = bundles(&own, &[("other-ca", &other), ("partner-ca", &partner)]);
    let two = two.with_names_of(BTreeSet::from(["other-ca".to_owned()]));
    assert_eq!(ask(&own, two, gateway()).await, Err(HandshakeFailure::UnknownIssuer));
    let stranger = named(&Ca::new("stranger"), &["gw.partner.example"], "gw");
    assert_eq!(ask(&own, naming(&own, &partner), stranger).await, Err(HandshakeFailure::UnknownIssuer));
    let ours = named(&own, &["gw.partner.example"], "gw");
    assert_eq!(ask(&own, naming(&own, &partner), ours).await, Err(HandshakeFailure::UnknownIssuer));
}

// covers: C2c
#[tokio::test]
async fn a_named_peer_keeps_the_rules_of_a_leaf() {
    let (own, partner) = (Ca::new("own"), Ca::new("partner"));
    let with = |spoil: fn(&mut rcgen::CertificateParams)| {
        partner.issue_with(X, |p| {
            p.subject_alt_names = vec![dns("gw.partner.example")];
            spoil(p);
        })
    };
    let refused = [
        (with(|p| p.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained)), HandshakeFailure::CaAsLeaf),
        (with(|p| p.key_usages = vec![KeyUsagePurpose::KeyEncipherment]), HandshakeFailure::KeyUsage),
        (with(|p| p.subject_alt_names.push(uri("https://partner.example/"))), HandshakeFailure::BadSan),
        (with(|p| p.subject_alt_names.extend([uri(PARTNER), uri(X)])), HandshakeFailure::BadSan),
        (
            with(|p| {
                p.subject_alt_names = vec![];
                p.distinguished_name = rcgen::DistinguishedName::new();
            }),
            HandshakeFailure::BadSan,
        ),
        (
            with(|p| p.subject_alt_names = (0..65).map(|n| dns(&format!("n{n}.example"))).collect()),
            HandshakeFailure::PeerUntrusted,
        ),
    ];
    for (number, (credential, wanted)) in refused.into_iter().enumerate() {
        let empty = |p: &PeerIdentity| format!("case {number}: {p:?}");
        let got = ask(&own, naming(&own, &partner), credential).await;
        assert_eq!(got.as_ref().map_err(|failure| *failure).map(empty), Err(wanted), "case {number}");
    }
}

// covers: C2c
#[tokio::test]
async fn a_named_peer_has_its_names_and_no_id() {
    let (own, partner) = (Ca::new("own"), Ca::new("partner"));
    let credential = named(&partner, &["gw.partner.example", "*.wild.example", "10.0.0.1"], "gw 1");
    let peer = ask(&own, naming(&own, &partner), credential).await.expect("somebody");
    assert_eq!((&peer.spiffe_id, peer.ca.as_deref()), (&None, Some("partner-ca")));
    let names = peer.names.as_deref().expect("names");
    let found: Vec<_> = names.dns.iter().map(ToString::to_string).collect();
    assert_eq!(found, ["gw.partner.example"], "a wildcard and an address name nobody");
    assert_eq!(names.cn.as_deref(), Some("gw 1"));
    assert_eq!(names.subject.as_deref(), Some(r"CN=gw 1,O=Partner\, Inc."));
    assert_eq!(peer.label(), "dns:gw.partner.example");
    // With an ID it is known by both.
    let both = partner.issue_with(PARTNER, |p| p.subject_alt_names.push(dns("gw.partner.example")));
    let peer = ask(&own, naming(&own, &partner), both).await.expect("somebody");
    assert_eq!((peer.label().as_str(), peer.names.expect("names").dns.len()), (PARTNER, 1));
}

fn federation(own: &Ca, domain: &str, roots: &Ca, external: &[(&str, &Ca)]) -> TrustBundles {
    let federated = Federated { name: "fed".to_owned(), roots: roots.roots() };
    bundles(own, external).with_federated(BTreeMap::from([(domain.to_owned(), federated)]))
}

// covers: C2f
#[tokio::test]
async fn an_id_of_a_federated_domain_counts_only_under_that_domains_bundle() {
    let (own, partner, fed) = (Ca::new("own"), Ca::new("partner"), Ca::new("fed"));
    let id = "spiffe://fed.test/t/t/w/y";
    let external: &[(&str, &Ca)] = &[("partner-ca", &partner)];
    let bundles = || federation(&own, "fed.test", &fed, external);
    assert_eq!(ask(&own, bundles(), partner.issue(id)).await, Err(HandshakeFailure::OwnDomainFromForeignCa));
    assert_eq!(ask(&own, bundles(), own.issue(id)).await, Err(HandshakeFailure::UnknownIssuer));
    assert_eq!(ask(&own, bundles(), Ca::new("fed").issue(id)).await, Err(HandshakeFailure::UnknownIssuer));
    // And its bundle vouches for no other domain, ours least of all.
    assert_eq!(ask(&own, bundles(), fed.issue(X)).await, Err(HandshakeFailure::UnknownIssuer));
    assert_eq!(ask(&own, bundles(), fed.issue(PARTNER)).await, Err(HandshakeFailure::UnknownIssuer));
    let peer = ask(&own, bundles(), fed.issue(id)).await.expect("somebody");
    assert_eq!((peer.label().as_str(), peer.ca.as_deref()), (id, Some("fed")));
}

fn with_crls(own: &Ca, partner: &Ca, lists: &[Vec<u8>], grace: Duration) -> TrustBundles {
    let dir = tempfile::tempdir().expect("a folder");
    for (number, list) in lists.iter().enumerate() {
        std::fs::write(dir.path().join(format!("{number}.crl")), list).expect("written");
    }
    let crls = Crls::read(&[dir.path()], grace).expect("lists");
    bundles(own, &[("partner-ca", partner)]).with_crls(Arc::new(crls))
}

fn soon() -> SystemTime {
    SystemTime::now() + Duration::from_secs(3600)
}

// covers: C2d
#[tokio::test]
async fn a_revoked_certificate_is_refused_and_only_that_one() {
    let (own, partner) = (Ca::new("own"), Ca::new("partner"));
    let (taken_back, good) = (own.issue(X), own.issue(X));
    let list = own.crl(&[&taken_back], soon());
    let bundles = || with_crls(&own, &partner, std::slice::from_ref(&list), DAY);
    let refused = ask(&own, bundles(), taken_back).await.expect_err("revoked");
    assert_eq!((refused, refused.reason()), (HandshakeFailure::PeerRevoked, Reason::PeerRevoked));
    assert!(ask(&own, bundles(), good).await.is_ok());
    // Nothing is known of the partner's CA, which publishes no list here.
    assert!(ask(&own, bundles(), partner.issue(PARTNER)).await.is_ok());
}

// covers: C2d
#[tokio::test]
async fn a_revoked_intermediate_takes_everybody_below_with_it() {
    let (own, partner) = (Ca::new("own"), Ca::new("partner"));
    let middle = own.intermediate("middle", |_| {});
    let revoked = Credential { chain: vec![middle.der()], key: rcgen::KeyPair::generate().expect("a key") };
    let list = own.crl(&[&revoked], soon());
    let mut leaf = middle.issue(X);
    leaf.chain.push(middle.der());
    let bundles = with_crls(&own, &partner, &[list], DAY);
    assert_eq!(ask(&own, bundles, leaf).await, Err(HandshakeFailure::PeerRevoked));
}

// covers: C2d
#[tokio::test]
async fn a_list_that_another_key_signed_vouches_for_nobody() {
    let (own, partner) = (Ca::new("own"), Ca::new("partner"));
    // Same name, another key: whoever can write the folder cannot un-revoke anybody.
    let forged = Ca::new("own").crl(&[], soon());
    let bundles = with_crls(&own, &partner, &[forged], DAY);
    assert_eq!(ask(&own, bundles, own.issue(X)).await, Err(HandshakeFailure::RevocationUnknown));
}

// covers: C2h
#[tokio::test]
async fn two_cas_of_one_name_have_a_list_each_and_both_count() {
    // Our own CA of last year and that of today, and a partner that calls itself the same.
    let (own, partner) = (Ca::new("ca"), Ca::new("ca"));
    for turned in [false, true] {
        let (bad, good) = (own.issue(X), own.issue(X));
        let (bad_partner, good_partner) = (partner.issue(PARTNER), partner.issue(PARTNER));
        let mut lists = [own.crl(&[&bad], soon()), partner.crl(&[&bad_partner], soon())];
        if turned {
            lists.reverse();
        }
        let bundles = || with_crls(&own, &partner, &lists, DAY);
        assert_eq!(ask(&own, bundles(), bad).await, Err(HandshakeFailure::PeerRevoked));
        assert_eq!(ask(&own, bundles(), bad_partner).await, Err(HandshakeFailure::PeerRevoked));
        assert!(ask(&own, bundles(), good).await.is_ok());
        assert!(ask(&own, bundles(), good_partner).await.is_ok());
    }
    // One that is over makes nobody of its own CA's peers, and of them alone.
    let over = SystemTime::now() - Duration::from_secs(60);
    let lists = [own.crl(&[], over), partner.crl(&[], soon())];
    let bundles = || with_crls(&own, &partner, &lists, Duration::from_secs(1));
    assert_eq!(ask(&own, bundles(), own.issue(X)).await, Err(HandshakeFailure::RevocationUnknown));
    assert!(ask(&own, bundles(), partner.issue(PARTNER)).await.is_ok());
}

// covers: C2h
#[tokio::test]
async fn what_any_list_of_a_ca_takes_back_is_taken_back() {
    let (own, partner) = (Ca::new("own"), Ca::new("partner"));
    let (first, second, good) = (own.issue(X), own.issue(X), own.issue(X));
    let lists = [own.crl(&[&first], soon()), own.crl(&[&second], soon())];
    let bundles = || with_crls(&own, &partner, &lists, DAY);
    assert_eq!(ask(&own, bundles(), first).await, Err(HandshakeFailure::PeerRevoked));
    assert_eq!(ask(&own, bundles(), second).await, Err(HandshakeFailure::PeerRevoked));
    assert!(ask(&own, bundles(), good).await.is_ok());
    // Each more makes every check longer, so there is an end to it.
    let dir = tempfile::tempdir().expect("a folder");
    for number in 0..65 {
        std::fs::write(dir.path().join(format!("{number}.crl")), own.crl(&[], soon())).expect("written");
    }
    let error = Crls::read(&[dir.path()], DAY).expect_err("too many").to_string();
    assert!(error.contains("remove those that newer ones replace"), "{error}");
}

// covers: C2d
#[tokio::test]
async fn an_expired_list_is_used_for_its_grace_and_then_nobody_is_believed() {
    let (own, partner) = (Ca::new("own"), Ca::new("partner"));
    let (taken_back, good, late) = (own.issue(X), own.issue(X), own.issue(X));
    let list = own.crl(&[&taken_back], SystemTime::now() - Duration::from_secs(60));
    let within = || with_crls(&own, &partner, std::slice::from_ref(&list), DAY);
    assert_eq!(ask(&own, within(), taken_back).await, Err(HandshakeFailure::PeerRevoked));
    assert!(ask(&own, within(), good).await.is_ok());
    assert!(within().crls().warnings(SystemTime::now())[0].contains("has expired, it is still used"));
    let over = with_crls(&own, &partner, &[list], Duration::from_secs(1));
    assert!(over.crls().warnings(SystemTime::now())[0].contains("refused"));
    assert_eq!(ask(&own, over, late).await, Err(HandshakeFailure::RevocationUnknown));
}

// covers: C2d
#[test]
fn what_is_no_list_is_refused_as_a_whole() {
    let own = Ca::new("own");
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("a.crl"), own.crl(&[], soon())).expect("written");
    for broken in [&b""[..], b"hello", b"0\x03\x02\x01\x05", own.pem().as_bytes()] {
        std::fs::write(dir.path().join("b.crl"), broken).expect("written");
        let error = Crls::read(&[dir.path()], DAY).expect_err("no list").to_string();
        assert!(error.contains("b.crl") && error.contains("put the CA's current list there"), "{error}");
    }
}

// covers: C2b
#[test]
fn a_connected_peer_is_asked_for_again_when_trust_changes() {
    let (own, partner) = (Ca::new("own"), Ca::new("partner"));
    let trust = Arc::new(TrustCell::from_pointee(bundles(&own, &[("partner-ca", &partner)])));
    let verifier = PeerVerifier::new(Arc::clone(&trust));
    let leaf = partner.issue(PARTNER);
    let now = UnixTime::now();
    let peer = nova_supervisor::identity::identify(
        &leaf.chain[0],
        &[],
        &trust.load_full(),
        nova_supervisor::identity::Usage::Client,
        now,
    )
    .expect("somebody");
    assert_eq!(verifier.confirm(&peer), Ok(()));
    // The same trust again wakes nobody.
    let mut changes = trust.watch();
    trust.store(Arc::new(bundles(&own, &[("partner-ca", &partner)])));
    assert!(!changes.has_changed().expect("open"));
    // Under another name it is another peer; without its CA it is nobody.
    trust.store(Arc::new(bundles(&own, &[("other-ca", &partner)])));
    assert!(changes.borrow_and_update().gt(&0));
    assert_eq!(verifier.confirm(&peer), Err(HandshakeFailure::PeerUntrusted));
    trust.store(Arc::new(bundles(&own, &[])));
    assert_eq!(verifier.confirm(&peer), Err(HandshakeFailure::UnknownIssuer));
    assert_eq!(peer.spiffe_id, Some(id(PARTNER)));
}
