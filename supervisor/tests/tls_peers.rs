//! Who gets through an mtls handshake, and as whom. Real TLS over memory; refusals first.

mod tls_support;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nova_supervisor::identity::{RootSet, Usage, identify};
use nova_supervisor::reason::Reason;
use nova_supervisor::tls::{ExternalRoots, HandshakeFailure, SvidCell, Versions, client_config_for_external, quickack};
use rcgen::{ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, SanType};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tls_support::{
    Ca, Credential, PARTNER, SERVICE_A, Server, X, bundles, connect, expired, id, raw_client, set_validity, trust, uri,
    workload_client,
};
use tokio::io::AsyncReadExt;

/// What the server says to a client with `credential`, when it believes `own` and `partner-ca`.
async fn refusal_of(own: &Ca, partner: &Ca, credential: Option<Credential>) -> HandshakeFailure {
    let trust = trust(own, &[("partner-ca", partner)]);
    let outcome = connect(&Server::new(own.cell(SERVICE_A), &trust), &raw_client(credential)).await;
    let client = outcome.client.expect_err("the client must not get a byte");
    assert_eq!(client, HandshakeFailure::RefusedByPeer);
    outcome.server.expect_err("the server must refuse")
}

fn two_cas() -> (Ca, Ca) {
    (Ca::new("own"), Ca::new("partner"))
}

// covers: A7c
#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let (own, partner) = two_cas();
    assert_eq!(refusal_of(&own, &partner, None).await, HandshakeFailure::NoClientCert);
}

// covers: A7c
#[tokio::test]
async fn a_certificate_of_an_unknown_ca_is_refused_for_any_id() {
    let (own, partner) = two_cas();
    for claimed in [X, PARTNER] {
        let stranger = Ca::new("stranger").issue(claimed);
        assert_eq!(refusal_of(&own, &partner, Some(stranger)).await, HandshakeFailure::UnknownIssuer, "{claimed}");
    }
}

// covers: A7c
#[tokio::test]
async fn a_ca_of_the_same_name_is_another_ca() {
    let (own, partner) = two_cas();
    let stranger = Ca::new("own").issue(X);
    assert_eq!(refusal_of(&own, &partner, Some(stranger)).await, HandshakeFailure::UnknownIssuer);
}

// covers: A7c (attack T3)
// covers: C2a
#[tokio::test]
async fn a_partner_ca_that_signs_one_of_our_ids_is_refused() {
    let (own, partner) = two_cas();
    assert_eq!(refusal_of(&own, &partner, Some(partner.issue(X))).await, HandshakeFailure::OwnDomainFromForeignCa);
}

// covers: A7c
#[tokio::test]
async fn our_own_ca_vouches_for_no_other_domain() {
    let (own, partner) = two_cas();
    assert_eq!(refusal_of(&own, &partner, Some(own.issue(PARTNER))).await, HandshakeFailure::UnknownIssuer);
}

// covers: A7c
// covers: C2a
#[tokio::test]
async fn a_certificate_outside_its_time_is_refused() {
    let (own, partner) = two_cas();
    let old = own.issue_with(X, expired);
    assert_eq!(refusal_of(&own, &partner, Some(old)).await, HandshakeFailure::PeerExpired);
    let hour = Duration::from_secs(3600);
    let young = own.issue_with(X, |p| set_validity(p, SystemTime::now() + hour, SystemTime::now() + 2 * hour));
    assert_eq!(refusal_of(&own, &partner, Some(young)).await, HandshakeFailure::PeerExpired);
    let old = partner.issue_with(PARTNER, expired);
    assert_eq!(refusal_of(&own, &partner, Some(old)).await, HandshakeFailure::PeerExpired);
}

// covers: A7c
#[tokio::test]
async fn a_root_whose_time_is_over_vouches_for_nobody() {
    let (own, partner) = (Ca::new("own"), Ca::with("partner", expired));
    let fresh = partner.issue(PARTNER);
    assert_eq!(refusal_of(&own, &partner, Some(fresh)).await, HandshakeFailure::PeerExpired);
}

// covers: A7c
// covers: C2a
#[tokio::test]
async fn a_ca_certificate_is_nobodys_own() {
    let (own, partner) = two_cas();
    let ca = own.issue_with(X, |p| {
        p.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    });
    assert_eq!(refusal_of(&own, &partner, Some(ca)).await, HandshakeFailure::CaAsLeaf);
}

// covers: A7c
// covers: C2a
#[tokio::test]
async fn a_key_that_may_sign_certificates_or_not_handshakes_is_refused() {
    let (own, partner) = two_cas();
    for usages in [
        vec![],
        vec![KeyUsagePurpose::KeyEncipherment],
        vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign],
        vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::CrlSign],
    ] {
        let leaf = own.issue_with(X, |p| p.key_usages = usages.clone());
        assert_eq!(refusal_of(&own, &partner, Some(leaf)).await, HandshakeFailure::KeyUsage, "{usages:?}");
    }
}

// covers: A7c
// covers: C2a
#[tokio::test]
async fn not_exactly_one_canonical_spiffe_id_is_refused() {
    let (own, partner) = two_cas();
    let names = |names: Vec<SanType>| own.issue_with(X, |p| p.subject_alt_names = names);
    let cases = [
        names(vec![uri(X), uri(SERVICE_A)]),
        names(vec![uri(X), uri(X)]),
        names(vec![uri(X), uri("https://example.com/")]),
        names(vec![SanType::DnsName("x.t.nova".try_into().expect("ASCII"))]),
        names(vec![]),
        names(vec![uri("spiffe://nova.test/t/t/w/../w/x")]),
        names(vec![uri("spiffe://nova.test/t/t/./w/x")]),
        names(vec![uri("spiffe://nova.test/t//w/x")]),
        names(vec![uri("spiffe://nova.test/t/t/w/x/")]),
        names(vec![uri("spiffe://nova.test/t/t/w/%78")]),
        names(vec![uri("spiffe://NOVA.test/t/t/w/x")]),
        names(vec![uri("spiffe://nova.test:443/t/t/w/x")]),
        names(vec![uri("spiffe://nova.test")]),
    ];
    for (number, leaf) in cases.into_iter().enumerate() {
        assert_eq!(refusal_of(&own, &partner, Some(leaf)).await, HandshakeFailure::BadSan, "case {number}");
    }
}

// covers: A7c
// covers: C2a
#[tokio::test]
async fn a_certificate_for_servers_only_cannot_call() {
    let (own, partner) = two_cas();
    let server_only = own.issue_with(X, |p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]);
    assert_eq!(refusal_of(&own, &partner, Some(server_only)).await, HandshakeFailure::ExtendedKeyUsage);
}

// covers: A7c
// covers: C2a
#[tokio::test]
async fn an_svid_cannot_sign_another_svid() {
    let (own, partner) = two_cas();
    // A workload's own, correct certificate in the place of an intermediate.
    let middle = own.intermediate("x", |p| {
        p.subject_alt_names = vec![uri(X)];
        p.is_ca = IsCa::ExplicitNoCa;
        p.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    });
    let mut forged = middle.issue(SERVICE_A);
    forged.chain.push(middle.der());
    assert_eq!(refusal_of(&own, &partner, Some(forged)).await, HandshakeFailure::PeerUntrusted);
}

// covers: A7c
#[tokio::test]
async fn an_intermediate_without_key_cert_sign_vouches_for_nobody() {
    let (own, partner) = two_cas();
    let middle = own.intermediate("middle", |p| p.key_usages = vec![KeyUsagePurpose::DigitalSignature]);
    let mut leaf = middle.issue(X);
    leaf.chain.push(middle.der());
    assert_eq!(refusal_of(&own, &partner, Some(leaf)).await, HandshakeFailure::PeerUntrusted);
}

// covers: C2a (F-IT03)
#[tokio::test]
async fn a_leaf_without_the_ca_between_is_refused_and_one_with_a_crowd_around_it_is_not() {
    let (own, partner) = two_cas();
    let middle = own.intermediate("middle", |_| {});
    assert_eq!(refusal_of(&own, &partner, Some(middle.issue(X))).await, HandshakeFailure::UnknownIssuer);
    let elsewhere = Ca::new("elsewhere").intermediate("middle", |_| {});
    let mut foreign = elsewhere.issue(X);
    foreign.chain.push(elsewhere.der());
    assert_eq!(refusal_of(&own, &partner, Some(foreign)).await, HandshakeFailure::UnknownIssuer);
    let mut crowded = middle.issue(X);
    crowded.chain.push(middle.der());
    crowded.chain.extend((0..8).map(|n| Ca::new(&format!("unrelated {n}")).der()));
    let trust = trust(&own, &[("partner-ca", &partner)]);
    let outcome = connect(&Server::new(own.cell(SERVICE_A), &trust), &raw_client(Some(crowded))).await;
    assert_eq!(outcome.server.expect("a whole chain").spiffe_id, Some(id(X)));
}

// covers: A7c
#[tokio::test]
async fn an_endless_chain_is_not_searched() {
    let (own, partner) = two_cas();
    let mut leaf = own.issue(X);
    leaf.chain.extend(std::iter::repeat_n(partner.der(), 17));
    assert_eq!(refusal_of(&own, &partner, Some(leaf)).await, HandshakeFailure::PeerUntrusted);
}

// covers: A7c
#[test]
fn bytes_after_a_certificate_are_refused() {
    let (own, partner) = two_cas();
    let mut der = own.issue(X).chain.swap_remove(0).to_vec();
    der.push(0);
    let leaf = CertificateDer::from(der);
    let bundles = bundles(&own, &[("partner-ca", &partner)]);
    let refused = identify(&leaf, &[], &bundles, Usage::Client, UnixTime::now()).expect_err("one byte too many");
    assert_eq!(HandshakeFailure::from(&refused), HandshakeFailure::PeerUntrusted);
}

// covers: A7d
#[tokio::test]
async fn another_workload_in_place_of_the_callee_is_refused() {
    let own = Ca::new("own");
    let trust = trust(&own, &[]);
    let server = Server::new(own.cell("spiffe://nova.test/t/t/w/b"), &trust);
    let outcome = connect(&server, &workload_client(&own.cell(X), &trust, SERVICE_A)).await;
    assert_eq!(outcome.client, Err(HandshakeFailure::WrongIdentity));
    assert!(HandshakeFailure::WrongIdentity.is_about_certificate());
}

// covers: A7d
#[tokio::test]
async fn a_callee_vouched_for_by_a_partner_is_refused() {
    let (own, partner) = two_cas();
    let trust = trust(&own, &[("partner-ca", &partner)]);
    for claimed in [SERVICE_A, PARTNER] {
        let server = Server::new(partner.cell(claimed), &trust);
        let outcome = connect(&server, &workload_client(&own.cell(X), &trust, claimed)).await;
        let refused = outcome.client.expect_err("only our own bundle vouches for callees");
        assert!(refused.is_about_certificate(), "{claimed}: {refused}");
    }
}

// covers: A7d
#[tokio::test]
async fn a_caller_without_an_svid_does_not_call_and_a_callee_without_one_does_not_answer() {
    let own = Ca::new("own");
    let trust = trust(&own, &[]);
    let server = Server::new(own.cell(SERVICE_A), &trust);
    let outcome = connect(&server, &workload_client(&SvidCell::empty(), &trust, SERVICE_A)).await;
    assert_eq!(outcome.client, Err(HandshakeFailure::NoSvid));

    let cell = own.cell(SERVICE_A);
    cell.clear();
    let outcome = connect(&Server::new(cell, &trust), &workload_client(&own.cell(X), &trust, SERVICE_A)).await;
    assert_eq!(outcome.server, Err(HandshakeFailure::NoSvid));
    assert_eq!(outcome.client, Err(HandshakeFailure::RefusedByPeer));
}

// covers: A7c
#[tokio::test]
async fn a_workload_of_our_own_domain_is_named_without_a_ca() {
    let (own, partner) = two_cas();
    let trust = trust(&own, &[("partner-ca", &partner)]);
    let outcome =
        connect(&Server::new(own.cell(SERVICE_A), &trust), &workload_client(&own.cell(X), &trust, SERVICE_A)).await;
    assert_eq!(outcome.client, Ok(()));
    assert_eq!(outcome.alpn.as_deref(), Some(b"http/1.1".as_slice()));
    let peer = outcome.server.expect("our own workload");
    assert_eq!((peer.spiffe_id, peer.ca), (Some(id(X)), None));
    assert_eq!(peer.cert_sha256.len(), 64);
    assert!(peer.not_after > SystemTime::now());
}

// covers: A7c
#[tokio::test]
async fn a_partner_is_named_with_the_ca_that_vouches_for_it() {
    let (own, partner, other) = (Ca::new("own"), Ca::new("partner"), Ca::new("other"));
    let trust = trust(&own, &[("another-ca", &other), ("partner-ca", &partner)]);
    let server = Server::new(own.cell(SERVICE_A), &trust);
    for _again in 0..2 {
        let middle = partner.intermediate("partner issuing", |_| {});
        let mut leaf = middle.issue(PARTNER);
        leaf.chain.push(middle.der());
        let peer = connect(&server, &raw_client(Some(leaf))).await.server.expect("a partner");
        assert_eq!((peer.spiffe_id, peer.ca.as_deref()), (Some(id(PARTNER)), Some("partner-ca")));
    }
    // The same ID from another partner is another peer.
    let peer = connect(&server, &raw_client(Some(other.issue(PARTNER)))).await.server.expect("another partner");
    assert_eq!(peer.ca.as_deref(), Some("another-ca"));
}

// covers: A7c
#[tokio::test]
async fn new_roots_count_from_the_next_handshake_on() {
    let (own, partner) = two_cas();
    let trust = trust(&own, &[]);
    let server = Server::new(own.cell(SERVICE_A), &trust);
    let client = raw_client(Some(partner.issue(PARTNER)));
    assert_eq!(connect(&server, &client).await.server, Err(HandshakeFailure::UnknownIssuer));
    trust.store(Arc::new(bundles(&own, &[("partner-ca", &partner)])));
    assert!(connect(&server, &client).await.server.is_ok());
    assert!(connect(&server, &client).await.server.is_ok(), "also from memory");
    trust.store(Arc::new(bundles(&own, &[])));
    assert_eq!(connect(&server, &client).await.server, Err(HandshakeFailure::UnknownIssuer));
}

// covers: A7d
#[tokio::test]
async fn a_rotated_svid_is_presented_from_the_next_handshake_on() {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let trust = trust(&old, &[]);
    let server = Server::new(old.cell(SERVICE_A), &trust);
    let cell = old.cell(X);
    let client = workload_client(&cell, &trust, SERVICE_A);
    assert!(connect(&server, &client).await.server.is_ok());
    trust.store(Arc::new(bundles(&new, &[])));
    server.svid.replace(new.svid(SERVICE_A));
    cell.replace(new.svid(X));
    assert!(connect(&server, &client).await.server.is_ok());
}

// covers: A7c
#[tokio::test]
async fn no_ticket_is_sent_and_a_second_connection_proves_itself_again() {
    let own = Ca::new("own");
    let trust = trust(&own, &[]);
    let server = Server::new(own.cell(SERVICE_A), &trust);
    // A client that would resume if it could: rustls's default keeps sessions.
    let client = raw_client(Some(own.issue(X)));
    for _again in 0..2 {
        let outcome = connect(&server, &client).await;
        assert_eq!(outcome.client, Ok(()));
        assert_eq!(outcome.tickets, 0);
        assert!(!outcome.resumed);
    }
}

// covers: A7d
#[tokio::test]
async fn an_external_host_needs_the_rules_own_ca_and_its_name() {
    let (web, other) = (Ca::new("stub web CA"), Ca::new("other"));
    let dns = |ca: &Ca, name: &str| {
        ca.issue_with(X, |p| p.subject_alt_names = vec![SanType::DnsName(name.try_into().expect("ASCII"))])
    };
    let custom = ExternalRoots::Custom(web.roots());
    let good = handshake_external(&custom, dns(&web, "api.stripe.com")).await;
    assert_eq!(good, Ok(()));
    let name = handshake_external(&custom, dns(&web, "api.example.com")).await;
    assert_eq!(name, Err(HandshakeFailure::WrongIdentity));
    let ca = handshake_external(&custom, dns(&other, "api.stripe.com")).await;
    assert_eq!(ca, Err(HandshakeFailure::UnknownIssuer));
    let public = handshake_external(&ExternalRoots::Web, dns(&web, "api.stripe.com")).await;
    assert_eq!(public, Err(HandshakeFailure::UnknownIssuer));
    let own_ca_replaces_the_web = RootSet::from_pem("rule", web.pem().as_bytes()).expect("a CA");
    assert_eq!(own_ca_replaces_the_web.fingerprint(), web.roots().fingerprint());
}

async fn handshake_external(roots: &ExternalRoots, server: Credential) -> Result<(), HandshakeFailure> {
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(server.key.serialize_der()).into();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(server.chain, key)
        .expect("a pair");
    let client = client_config_for_external(roots, &[b"http/1.1"], Versions::Tls12Too).expect("config");
    let (near, far) = tokio::io::duplex(64 * 1024);
    let accept = tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(near);
    let name = ServerName::try_from("api.stripe.com").expect("a name");
    let dial = tokio_rustls::TlsConnector::from(client).connect(name, far);
    let (accepted, dialled) = tokio::join!(accept, dial);
    if let Ok(stream) = &accepted {
        assert_eq!(stream.get_ref().1.server_name(), Some("api.stripe.com"), "SNI is sent");
        assert!(stream.get_ref().1.peer_certificates().is_none(), "no SVID leaves for the internet");
    }
    dialled.map(|_| ()).map_err(|e| HandshakeFailure::from_io(&e))
}

// covers: C1d
#[tokio::test]
async fn a_host_outside_may_speak_tls_1_2_and_a_workload_may_not() {
    let own = Ca::new("own");
    let trust = trust(&own, &[]);
    let dns = |p: &mut rcgen::CertificateParams| {
        p.subject_alt_names.push(SanType::DnsName("api.stripe.com".try_into().expect("ASCII")));
    };
    let roots = ExternalRoots::Custom(own.roots());
    let outside = client_config_for_external(&roots, &[b"http/1.1"], Versions::Tls12Too).expect("config");
    let workload = workload_client(&own.cell(X), &trust, SERVICE_A);
    for (client, wanted) in [(outside, Ok(())), (workload, Err(HandshakeFailure::Protocol))] {
        let server = own.issue_with(SERVICE_A, dns);
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(server.key.serialize_der()).into();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS12])
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(server.chain, key)
            .expect("a pair");
        let (near, far) = tokio::io::duplex(64 * 1024);
        let accept = tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(near);
        let name = ServerName::try_from("api.stripe.com").expect("a name");
        let dial = tokio_rustls::TlsConnector::from(client).connect(name, far);
        let (_, dialled) = tokio::join!(accept, dial);
        assert_eq!(dialled.map(|_| ()).map_err(|error| HandshakeFailure::from_io(&error)), wanted);
    }
}

// covers: A7c
#[tokio::test]
async fn what_is_not_tls_is_a_protocol_failure_and_silence_is_not_mistaken_for_one() {
    let own = Ca::new("own");
    let trust = trust(&own, &[]);
    let server = Server::new(own.cell(SERVICE_A), &trust);
    let config = nova_supervisor::tls::server_config(server.svid, server.verifier, &[]).expect("config");
    let acceptor = tokio_rustls::TlsAcceptor::from(config);

    let plain: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
    let failed = acceptor.accept(tokio::io::join(plain, tokio::io::sink())).await.expect_err("not TLS");
    assert_eq!(HandshakeFailure::from_io(&failed), HandshakeFailure::Protocol);

    let gone = acceptor.accept(tokio::io::join(tokio::io::empty(), tokio::io::sink())).await.expect_err("closed");
    assert_eq!(HandshakeFailure::from_io(&gone), HandshakeFailure::Closed);
    let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
    assert_eq!(HandshakeFailure::from_io(&late).reason(), Reason::HandshakeTimeout);
}

#[tokio::test]
async fn quickack_is_set_on_a_tcp_socket() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let client = tokio::net::TcpStream::connect(listener.local_addr().expect("bound"));
    let (accepted, dialled) = tokio::join!(listener.accept(), client);
    let (mut accepted, _) = accepted.expect("accepted");
    quickack(&accepted).expect("a TCP socket");
    drop(dialled.expect("connected"));
    assert_eq!(accepted.read(&mut [0u8; 1]).await.expect("end of stream"), 0);
}
