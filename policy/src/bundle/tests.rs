//! Cases of our own beside the published vectors: rollback, expiry, duplicate members, key and algorithm confusion.

use std::collections::BTreeMap;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::*;

const NOW: u64 = 1_800_000_000;

struct Signer {
    keys: VerifyKeys,
    key: SigningKey,
}

fn signer(pair: &KeyPair) -> Signer {
    let mut keys = VerifyKeys::default();
    keys.insert("k1", pair.algorithm, &pair.public_pem);
    Signer { keys, key: SigningKey::from_pem(pair.private_pem.as_bytes()).expect("a key") }
}

fn files(manifest: &str) -> BTreeMap<String, Vec<u8>> {
    BTreeMap::from([
        (".manifest".to_owned(), manifest.as_bytes().to_vec()),
        ("data.json".to_owned(), b"{\"nova\":{\"u\":\"\\u2028\",\"n\":1.0}}".to_vec()),
        ("nova/authz.rego".to_owned(), b"package nova.authz\n\ndefault allow := false\n".to_vec()),
    ])
}

const MANIFEST: &str = r#"{"revision":"r","roots":["nova"],"metadata":{"serial":7,"expires":1800000100}}"#;

fn claims<'a>() -> Claims<'a> {
    Claims { key_id: "k1", scope: "node-1", issued_at: NOW, expires: None }
}

fn options(keys: &VerifyKeys) -> VerifyOptions<'_> {
    VerifyOptions { keys, key_id: Some("k1"), scope: "node-1", now: NOW, stale_grace: 0, newer_than: None }
}

fn reason(bundle: &[u8], options: &VerifyOptions<'_>) -> &'static str {
    verify(bundle, options).map_or_else(|error| error.reason(), |_| "accepted")
}

fn rs256() -> KeyPair {
    let pair = aws_lc_rs::rsa::KeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).expect("a key");
    let private = AsDer::<Pkcs8V1Der<'_>>::as_der(&pair).expect("der");
    let public = AsDer::<PublicKeyX509Der<'_>>::as_der(aws_lc_rs::signature::KeyPair::public_key(&pair)).expect("der");
    let pem =
        |label: &str, der: &[u8]| format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der));
    KeyPair {
        algorithm: "RS256",
        private_pem: pem("PRIVATE KEY", private.as_ref()),
        public_pem: pem("PUBLIC KEY", public.as_ref()),
    }
}

// covers: A5a, B4d
#[test]
fn what_we_sign_verifies_with_every_algorithm_and_with_no_other_key() {
    let pairs = [KeyPair::es256().expect("key"), KeyPair::eddsa().expect("key"), rs256()];
    for pair in &pairs {
        let signer = signer(pair);
        let bundle = build(&files(MANIFEST), &signer.key, &claims()).expect("signs");
        let verified = verify(&bundle, &options(&signer.keys)).expect(pair.algorithm);
        assert_eq!((verified.manifest().serial(), verified.expires()), (Some(7), Some(1_800_000_100)));
        assert_eq!(verified.data_json(), "{\"nova\":{\"n\":1.0,\"u\":\"\\u2028\"}}");
        for other in &pairs {
            // Another key of another kind under the same id: the algorithm is the key's, never the token's.
            let mut keys = VerifyKeys::default();
            keys.insert("k1", other.algorithm, &other.public_pem);
            let same = other.algorithm == pair.algorithm;
            assert_eq!(reason(&bundle, &options(&keys)) == "accepted", same, "{} {}", pair.algorithm, other.algorithm);
            keys.insert("k1", "HS256", &pair.public_pem);
            assert_eq!(reason(&bundle, &options(&keys)), "key_algorithm");
            keys.insert("k1", "none", "");
            assert_eq!(reason(&bundle, &options(&keys)), "key_algorithm");
        }
    }
}

// covers: A5a, B4d (attack T31, K20)
#[test]
fn expired_older_and_foreign_bundles_are_refused() {
    let signer = signer(&KeyPair::eddsa().expect("key"));
    let bundle = build(&files(MANIFEST), &signer.key, &claims()).expect("signs");
    let base = options(&signer.keys);
    for (options, want) in [
        (VerifyOptions { now: NOW + 99, ..base.clone() }, "accepted"),
        (VerifyOptions { now: NOW + 100, ..base.clone() }, "expired"),
        (VerifyOptions { now: NOW + 100, stale_grace: 10, ..base.clone() }, "accepted"),
        (VerifyOptions { now: NOW + 110, stale_grace: 10, ..base.clone() }, "expired"),
        (VerifyOptions { newer_than: Some(6), ..base.clone() }, "accepted"),
        (VerifyOptions { newer_than: Some(7), ..base.clone() }, "older_serial"),
        (VerifyOptions { newer_than: Some(8), ..base.clone() }, "older_serial"),
        (VerifyOptions { scope: "node-2", ..base.clone() }, "scope_mismatch"),
        (VerifyOptions { scope: "", ..base.clone() }, "scope_mismatch"),
        (VerifyOptions { key_id: Some("k2"), ..base.clone() }, "unknown_key"),
        (VerifyOptions { key_id: None, ..base.clone() }, "accepted"),
    ] {
        assert_eq!(reason(&bundle, &options), want, "{options:?}");
    }
    let token_first = Claims { expires: Some(NOW + 5), ..claims() };
    let bundle = build(&files(MANIFEST), &signer.key, &token_first).expect("signs");
    assert_eq!(reason(&bundle, &VerifyOptions { now: NOW + 5, ..base.clone() }), "expired");
    let no_serial = build(&files(r#"{"roots":["nova"]}"#), &signer.key, &claims()).expect("signs");
    assert_eq!(reason(&no_serial, &base), "accepted");
    assert_eq!(reason(&no_serial, &VerifyOptions { newer_than: Some(0), ..base }), "older_serial");
}

// covers: A5a, B4d
#[test]
fn signed_files_that_another_reader_would_read_differently_are_refused() {
    let signer = signer(&KeyPair::eddsa().expect("key"));
    let base = options(&signer.keys);
    for (name, content, want) in [
        ("patch.json", "{\"data\":[]}", "delta_bundle"),
        ("nova/patch.json", "{\"data\":[]}", "delta_bundle"),
        ("nova/.signatures.json", "{}", "bad_signatures_file"),
        ("xsignatures.json", "{}", "bad_signatures_file"),
        ("nova/.manifest", "{}", "bad_manifest"),
        ("nova/data.yaml", "a: 1", "unsupported_file"),
        ("nova/data.yml", "a: 1", "unsupported_file"),
        ("nova/data.json", "{\"u\":1}", "data_conflict"),
        ("nova/deep/data.json", "{\"a\":1}", "accepted"),
        ("nova/deep/data.json", "[1]", "accepted"),
        ("other/data.json", "{\"a\":1}", "outside_roots"),
        ("notes.txt", "hello", "accepted"),
        ("policy.wasm", "\0asm", "accepted"),
    ] {
        let mut all = files(MANIFEST);
        all.insert(name.to_owned(), content.as_bytes().to_vec());
        let bundle = build(&all, &signer.key, &claims()).expect(name);
        assert_eq!(reason(&bundle, &base), want, "{name}");
    }
    for content in ["{\"nova\":{},\"nova\":{}}", "{\"nova\":{}} {}", "nova: {}"] {
        let mut all = files(MANIFEST);
        all.insert("data.json".to_owned(), content.as_bytes().to_vec());
        assert!(matches!(build(&all, &signer.key, &claims()), Err(SignError::Json(..))), "{content}");
    }
}

// covers: A5a, B4d
#[test]
fn no_single_changed_byte_gets_through() {
    let signer = signer(&KeyPair::eddsa().expect("key"));
    let bundle = build(&files(MANIFEST), &signer.key, &claims()).expect("signs");
    let base = options(&signer.keys);
    let whole = verify(&bundle, &base).expect("verifies");
    for index in 0..bundle.len() {
        let mut changed = bundle.clone();
        changed[index] ^= 1;
        // Header fields of gzip carry no content; whatever still verifies must mean exactly the same.
        if let Ok(same) = verify(&changed, &base) {
            assert_eq!((same.data_json(), same.manifest()), (whole.data_json(), whole.manifest()), "byte {index}");
            assert_eq!(same.modules, whole.modules, "byte {index}");
        }
        assert!(verify(&bundle[..index], &base).is_err(), "cut at {index}");
    }
}

// covers: B4d
#[test]
fn a_bundle_that_no_node_would_accept_is_not_written() {
    let signer = signer(&KeyPair::eddsa().expect("key"));
    let mut all = files(MANIFEST);
    all.insert("nova/large.bin".to_owned(), vec![0; MAX_UNPACKED - 64 * 1024]);
    let bundle = build(&all, &signer.key, &claims()).expect("signs");
    assert_eq!(reason(&bundle, &options(&signer.keys)), "accepted");
    all.insert("nova/large.bin".to_owned(), vec![0; MAX_UNPACKED]);
    assert!(matches!(build(&all, &signer.key, &claims()), Err(SignError::TooLarge(_))));
    let mut many = files(MANIFEST);
    many.extend((0..MAX_ENTRIES).map(|index| (format!("nova/{index}.txt"), Vec::new())));
    assert!(matches!(build(&many, &signer.key, &claims()), Err(SignError::TooLarge(_))));
}

/// A signed bundle of hostile content, as a node would read it.
fn hostile(name: &str, content: &str) -> Result<crate::Policy, &'static str> {
    let signer = signer(&KeyPair::eddsa().expect("key"));
    let mut all = files(r#"{"revision":"r","roots":["nova","x"],"metadata":{"serial":7,"expires":1800000100}}"#);
    let data = crate::NodeData { schema: crate::data::SCHEMA, ..Default::default() };
    all.insert("data.json".to_owned(), serde_json::json!({ "nova": data }).to_string().into_bytes());
    all.insert("nova/authz.rego".to_owned(), crate::publish::REGO.as_bytes().to_vec());
    all.insert(name.to_owned(), content.as_bytes().to_vec());
    let bundle = build(&all, &signer.key, &claims()).map_err(|_| "unsigned")?;
    let verified = verify(&bundle, &options(&signer.keys)).map_err(|error| error.reason())?;
    crate::Policy::load(verified).map_err(|error| error.reason())
}

// covers: B4d, B13a
#[test]
fn a_signed_bundle_takes_neither_the_stack_nor_the_time_of_a_node() {
    let many = |text: &str, count: usize| text.repeat(count);
    let rego = |text: String| ("nova/a.rego", format!("package nova.a\n\nimport rego.v1\n\n{text}\n"));
    // What it refuses would overflow the stack, or take for ever.
    for (name, content) in [
        rego(format!("x := {}1{}", many("[", 30), many("]", 30))),
        rego(format!("x := {}1{}", many("{[", 12), many("]}", 12))),
        rego(format!("x := {}1", many("-", 1_000))),
        rego(format!("x := 1{}", many("+\n1", 15_000))),
        rego(format!("x := {{1}}{}", many("|\n{1}", 15_000))),
        rego(format!("x := a{}", many("[\n0]", 15_000))),
        rego(format!("x if {{ 1{} }}", many("==\n1", 15_000))),
        ("x/data.json", format!("{{\"a\":{}{}}}", many("[", 70), many("]", 70))),
    ] {
        let refused = hostile(name, &content).map(|_| ());
        assert!(matches!(refused, Err("bad_module" | "unsigned")), "{refused:?} {}", &content[..60]);
    }
    // What it takes, the engine must get through, as do numbers of any size.
    for (name, content) in [
        rego(format!("x := {}1{}", many("[", 15), many("]", 15))),
        rego(format!("x := 1{}", many(" + 1", 60))),
        rego(format!("x := -{}1", many(" -", 7))),
        rego(format!("x := {{1}}{}", many(" | {1}", 30))),
        rego(format!("x := a{}", many("\n[0]", 15_000))),
        rego(many("x := 1 if { true } else := 2 if { false }\n", 500)),
        ("x/data.json", format!("{{\"a\":1{}}}", many("0", 100_000))),
        ("x/data.json", "{\"a\":1e999999999}".to_owned()),
        ("x/data.json", "{\"a\":1e-999999999}".to_owned()),
        ("x/data.json", format!("{{\"a\":{}{}}}", many("[", 60), many("]", 60))),
    ] {
        let started = std::time::Instant::now();
        // Whether a number or a name is good is the engine's affair.
        drop(hostile(name, &content));
        assert!(started.elapsed() < std::time::Duration::from_secs(60), "{name} {}", &content[..content.len().min(60)]);
    }
    assert!(hostile("x/data.json", "{\"a\":1}").is_ok(), "the fixture itself is good");
}
