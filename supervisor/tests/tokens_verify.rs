//! Which tokens are somebody's. The issuer is this test: its keys are right, and what it signs is as wrong as the test wants.

#![allow(clippy::panic, reason = "a test that cannot go on fails")]

mod tokens_support;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use nova_policy::input::Token;
use nova_supervisor::config::{KeySource, TokenConfig};
use nova_supervisor::net::guard::AddressGuard;
use nova_supervisor::tokens::{Fault, Issuers, Timing};
use serde_json::{Value, json};
use tokens_support::{ISSUER, Key, SERVICE_A, compact, now, service_a, sign};

/// An issuer whose one key is in a file, pinned to what that key signs with.
struct Stand {
    issuers: Issuers,
    key: Key,
    _dir: tempfile::TempDir,
}

impl Stand {
    fn new() -> Self {
        Self::of(Key::ec("k1"), Algorithm::ES256)
    }

    fn of(key: Key, algorithm: Algorithm) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("jwks.json");
        std::fs::write(&path, json!({"keys": [key.jwk()]}).to_string()).expect("written");
        let config = config(KeySource::File(path), algorithm);
        let issuers = Issuers::open(&[config], &AddressGuard::default()).expect("keys");
        Self { issuers, key, _dir: dir }
    }

    fn verify(&self, token: &str) -> Result<Token, Fault> {
        let verified = self.issuers.verify(token, &service_a())?;
        Ok(Token::clone(&verified.token(["role", "scope", "n", "deep"].into_iter())))
    }

    /// What is wrong with a good token after `change`.
    fn fault(&self, change: impl FnOnce(&mut Header, &mut Value)) -> Fault {
        let (mut header, mut claims) = (self.key.header(), good());
        change(&mut header, &mut claims);
        self.verify(&sign(&header, &claims, &self.key)).expect_err("must be refused")
    }
}

fn config(keys: KeySource, algorithm: Algorithm) -> TokenConfig {
    TokenConfig {
        issuer: ISSUER.to_owned(),
        audiences: vec!["orders".to_owned(), "nova".to_owned()],
        keys,
        algorithms: vec![algorithm],
        leeway: Duration::from_secs(5),
        refresh: Duration::from_secs(300),
        max_age: Duration::from_secs(3600),
    }
}

fn good() -> Value {
    json!({"iss": ISSUER, "sub": "alice", "aud": "orders", "exp": now() + 60, "role": "admin"})
}

// covers: C6c (T30)
#[test]
fn a_token_that_is_not_signed_is_refused() {
    let stand = Stand::new();
    for alg in ["none", "None", "NONE", "nOnE", ""] {
        let bare = compact(&json!({"alg": alg, "kid": "k1"}), &good(), b"");
        assert_eq!(stand.verify(&bare).err(), Some(Fault::Algorithm), "{alg:?}");
    }
    // The right algorithm, and no signature at all.
    let bare = compact(&json!({"alg": "ES256", "kid": "k1"}), &good(), b"");
    assert_eq!(stand.verify(&bare).err(), Some(Fault::Signature));
}

// covers: C6c (T30)
#[test]
fn a_public_key_is_never_taken_for_a_shared_one() {
    let stand = Stand::new();
    let jwk = stand.key.jwk().to_string();
    let rsa = Stand::of(Key::rsa("r1"), Algorithm::RS256);
    for (stand, secret) in [
        (&stand, jwk.into_bytes()),
        (&stand, stand.key.public().to_vec()),
        (&rsa, rsa.key.public().to_vec()),
        (&rsa, rsa.key.public_pem().into_bytes()),
    ] {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let header = Header { kid: stand.key.header().kid, ..Header::new(algorithm) };
            let token = jsonwebtoken::encode(&header, &good(), &EncodingKey::from_secret(&secret).expect("a secret"))
                .expect("signed");
            assert_eq!(stand.verify(&token).err(), Some(Fault::Algorithm), "{algorithm:?}");
        }
    }
}

// covers: C6c (T30)
#[test]
fn an_algorithm_that_the_issuer_is_not_pinned_to_is_refused_though_its_key_could_verify_it() {
    let rsa = Stand::of(Key::rsa("r1"), Algorithm::RS256);
    for algorithm in [Algorithm::RS384, Algorithm::RS512, Algorithm::PS256] {
        assert_eq!(rsa.fault(|header, _| header.alg = algorithm), Fault::Algorithm, "{algorithm:?}");
    }
    assert_eq!(
        rsa.verify(&sign(&rsa.key.header(), &good(), &rsa.key)).map(|token| token.subject),
        Ok(Some("alice".into()))
    );
}

// covers: C6c (T30)
#[test]
fn a_key_that_the_token_brings_along_or_points_to_is_not_looked_at() {
    let stand = Stand::new();
    let mallory = Key::ec("k1");
    let x5c = vec!["MIIB".to_owned()];
    let headers = [
        Header { jku: Some("http://169.254.169.254/keys".to_owned()), ..mallory.header() },
        Header { x5u: Some("http://127.0.0.1:1/cert".to_owned()), ..mallory.header() },
        Header { x5c: Some(x5c), ..mallory.header() },
        Header { jwk: Some(serde_json::from_value(mallory.jwk()).expect("a key")), ..mallory.header() },
    ];
    for header in headers {
        let token = sign(&header, &good(), &mallory);
        assert_eq!(stand.verify(&token).err(), Some(Fault::Signature), "{header:?}");
        // Beside a good signature they mean nothing.
        assert!(stand.verify(&sign(&header, &good(), &stand.key)).is_ok(), "{header:?}");
    }
}

// covers: C6c (T30)
#[test]
fn a_key_id_is_a_name_and_never_a_path_or_a_query() {
    let stand = Stand::new();
    for id in ["../../../etc/passwd", "/dev/null", "k1\u{0}", "K1", "k1 ", "' or '1'='1", "", "http://127.0.0.1/k1"] {
        assert_eq!(stand.fault(|header, _| header.kid = Some(id.to_owned())), Fault::UnknownKey, "{id:?}");
    }
}

// covers: C6c
#[test]
fn a_token_that_demands_an_extension_is_refused() {
    let stand = Stand::new();
    assert_eq!(stand.fault(|header, _| header.crit = Some(vec!["exp".to_owned()])), Fault::Critical);
    assert_eq!(stand.fault(|header, _| header.extras.insert("b64", false)), Fault::Critical);
}

// covers: C6c
#[test]
fn a_token_that_is_too_long_is_not_read() {
    let stand = Stand::new();
    assert_eq!(stand.fault(|_, claims| claims["padding"] = "x".repeat(8 * 1024).into()), Fault::Oversized);
}

// covers: C6c
#[test]
fn what_was_signed_by_another_key_or_changed_afterwards_is_refused() {
    let stand = Stand::new();
    assert_eq!(stand.verify(&sign(&stand.key.header(), &good(), &Key::ec("k1"))).err(), Some(Fault::Signature));
    let token = sign(&stand.key.header(), &good(), &stand.key);
    let (head, signature) = token.rsplit_once('.').expect("three parts");
    let mut other = good();
    other["sub"] = "root".into();
    let forged = sign(&stand.key.header(), &other, &Key::ec("k1"));
    let (forged_head, _) = forged.rsplit_once('.').expect("three parts");
    assert_eq!(stand.verify(&format!("{forged_head}.{signature}")).err(), Some(Fault::Signature));
    for broken in
        [format!("{head}."), format!("{head}.{signature}="), format!("{token}.x"), format!(" {token}"), head.to_owned()]
    {
        assert!(stand.verify(&broken).is_err(), "{broken}");
    }
    assert!(stand.verify(&token).is_ok());
}

// covers: C6c
#[test]
fn a_token_for_somebody_else_or_for_nobody_is_refused() {
    let stand = Stand::new();
    for aud in [
        Value::Null,
        json!("invoices"),
        json!(["invoices", "x"]),
        json!([]),
        json!(7),
        json!({"orders": true}),
        json!(""),
    ] {
        assert_eq!(stand.fault(|_, claims| claims["aud"] = aud.clone()), Fault::Audience, "{aud}");
    }
    let without = |_: &mut Header, claims: &mut Value| _ = claims.as_object_mut().expect("an object").remove("aud");
    assert_eq!(stand.fault(without), Fault::Audience);
    let mut both = good();
    both["aud"] = json!(["invoices", "nova"]);
    assert!(stand.verify(&sign(&stand.key.header(), &both, &stand.key)).is_ok());
}

// covers: C6c
#[test]
fn a_token_outside_its_time_or_without_an_end_is_refused() {
    let stand = Stand::new();
    assert_eq!(stand.fault(|_, claims| claims["exp"] = (now() - 10).into()), Fault::Expired);
    assert_eq!(stand.fault(|_, claims| claims["nbf"] = (now() + 20).into()), Fault::NotYetValid);
    for exp in [Value::Null, json!("soon"), json!(-1), json!([])] {
        assert_eq!(stand.fault(|_, claims| claims["exp"] = exp.clone()), Fault::Claims, "{exp}");
    }
    // Clocks may be five seconds apart here.
    let mut close = good();
    (close["exp"], close["nbf"]) = ((now() - 2).into(), (now() + 2).into());
    assert!(stand.verify(&sign(&stand.key.header(), &close, &stand.key)).is_ok());
}

// covers: C6c
#[test]
fn a_token_of_another_issuer_is_refused_though_the_key_is_known() {
    let stand = Stand::new();
    for iss in [
        json!("https://evil.test"),
        json!("https://issuer.test/"),
        json!("HTTPS://issuer.test"),
        json!(""),
        Value::Null,
    ] {
        assert_eq!(stand.fault(|_, claims| claims["iss"] = iss.clone()), Fault::Issuer, "{iss}");
    }
    assert_eq!(stand.fault(|_, claims| claims["iss"] = json!([ISSUER])), Fault::Malformed);
}

// covers: C6b
#[test]
fn a_good_token_is_its_issuer_its_subject_and_the_claims_that_are_asked_for() {
    let stand = Stand::new();
    let mut claims = good();
    claims["role"] = json!(["ops", 7, true, {"a": 1}, null, "admin"]);
    claims["scope"] = "read write".into();
    claims["n"] = 5.into();
    claims["deep"] = json!({"role": "admin"});
    claims["secret"] = "not asked for".into();
    let token = stand.verify(&sign(&stand.key.header(), &claims, &stand.key)).expect("good");
    assert_eq!((&*token.issuer, token.subject.as_deref()), (ISSUER, Some("alice")));
    let values = |name: &str| token.claim(name).iter().map(|value| value.to_string()).collect::<Vec<_>>();
    assert_eq!(values("role"), ["ops", "7", "true", "admin"]);
    assert_eq!((values("scope"), values("n")), (vec!["read".to_owned(), "write".to_owned()], vec!["5".to_owned()]));
    assert_eq!(token.claims.keys().map(|name| &**name).collect::<Vec<_>>(), ["n", "role", "scope"]);
}

const DOMAIN: &str = "nova.test";
const X: &str = "spiffe://nova.test/t/t/w/x";

/// A SPIFFE bundle.
fn spiffe_bundle(keys: &[(&Key, &str)]) -> String {
    let of = |(key, usage): &(&Key, &str)| {
        let mut jwk = key.jwk();
        jwk["use"] = (*usage).into();
        jwk
    };
    json!({"spiffe_sequence": 1, "keys": keys.iter().map(of).collect::<Vec<_>>()}).to_string()
}

/// Our own trust domain's SPIFFE bundle, with a key for each purpose.
fn svids() -> (Issuers, Key, Key) {
    let (jwt, x509) = (Key::ec("jwt"), Key::ec("x509"));
    let dir = tempfile::tempdir().expect("a folder");
    let bundle = spiffe_bundle(&[(&jwt, "jwt-svid"), (&x509, "x509-svid")]);
    std::fs::write(dir.path().join("bundle.json"), bundle).expect("written");
    let issuers = Issuers::default().with_svids(DOMAIN, &dir.path().join("bundle.json")).expect("keys");
    (issuers, jwt, x509)
}

fn svid() -> Value {
    json!({"sub": X, "aud": [SERVICE_A], "exp": now() + 60})
}

// covers: C6e
#[test]
fn a_jwt_svid_of_our_trust_domain_needs_our_key_our_id_and_the_workload_as_its_audience() {
    let (issuers, key, x509) = svids();
    let ask = |claims: &Value, key: &Key| {
        issuers.verify(&sign(&key.header(), claims, key), &service_a()).map(|verified| verified.token([].into_iter()))
    };
    let with = |claim: &str, value: Value| {
        let mut claims = svid();
        claims[claim] = value;
        claims
    };
    let refused = [
        (with("aud", json!("orders")), Fault::Audience),
        (with("aud", json!("spiffe://nova.test/t/t/w/b")), Fault::Audience),
        (with("sub", json!("spiffe://other.test/t/t/w/x")), Fault::Issuer),
        (with("sub", json!("spiffe://nova.test/t/t/w/../w/x")), Fault::Issuer),
        (with("sub", json!("alice")), Fault::Issuer),
        (with("sub", Value::Null), Fault::Issuer),
        (with("exp", json!(now() - 60)), Fault::Expired),
        (with("exp", Value::Null), Fault::Claims),
    ];
    for (claims, fault) in refused {
        assert_eq!(ask(&claims, &key).err(), Some(fault), "{claims}");
    }
    // The key for certificates signs no tokens, nor does one without an id.
    assert_eq!(ask(&svid(), &x509).err(), Some(Fault::UnknownKey));
    let token = ask(&svid(), &key).expect("good");
    assert_eq!((&*token.issuer, token.subject.as_deref()), ("spiffe://nova.test", Some(X)));
}

// covers: C6k
#[test]
fn keys_for_jwt_svids_are_read_when_their_bundle_comes_and_again_when_it_changes() {
    let dir = tempfile::tempdir().expect("a folder");
    let (path, beside) = (dir.path().join("bundle.json"), dir.path().join("new"));
    let put = |text: &str| {
        std::fs::write(&beside, text).expect("written");
        std::fs::rename(&beside, &path).expect("renamed");
    };
    let issuers = Arc::new(Issuers::default().with_svids(DOMAIN, &path).expect("no bundle is no fault"));
    let warnings = || issuers.warnings(SystemTime::now());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let timing = Timing { poll: Duration::from_millis(20), ..Timing::default() };
    runtime.spawn(Arc::clone(&issuers).follow(timing));
    let (first, second) = (Key::ec("first"), Key::ec("second"));
    let fault = |key: &Key| issuers.verify(&sign(&key.header(), &svid(), key), &service_a()).err();
    assert_eq!((fault(&first), warnings()), (Some(Fault::Issuer), vec![]), "nobody is missed");
    put(&spiffe_bundle(&[(&first, "jwt-svid")]));
    until("the first is known", || fault(&first).is_none());
    put(&spiffe_bundle(&[(&second, "jwt-svid")]));
    until("the second is known", || fault(&second).is_none());
    assert_eq!(fault(&first), Some(Fault::UnknownKey));
    put("no bundle");
    until("it is told", || warnings().iter().any(|text| text.contains("the old ones are still used")));
    assert_eq!(fault(&second), None);
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// As the fuzz target `token`, with changes that keep most of a good token.
// covers: C6i
#[test]
fn fuzz_smoke_a_token_with_any_byte_changed_is_refused() {
    let stand = Stand::new();
    let token = sign(&stand.key.header(), &good(), &stand.key);
    for at in 0..token.len() {
        for byte in [b'.', b'=', b'A', b'B', b' ', 0, 0xff] {
            let mut changed = token.clone().into_bytes();
            if changed[at] == byte {
                continue;
            }
            changed[at] = byte;
            let _ = nova_supervisor::tokens::Peeked::parse(&changed);
            if let Ok(text) = std::str::from_utf8(&changed) {
                assert!(stand.verify(text).is_err(), "byte {at} as {byte}");
            }
        }
    }
    let set = json!({"keys": [stand.key.jwk()]}).to_string().into_bytes();
    for at in 0..set.len() {
        for byte in [b'"', b'{', b']', b'0', 0, 0xff] {
            let mut changed = set.clone();
            changed[at] = byte;
            let _ = nova_supervisor::tokens::KeySet::parse("fuzz", &changed);
            let _ = nova_supervisor::tokens::KeySet::parse("fuzz", &changed[..at]);
        }
    }
}
