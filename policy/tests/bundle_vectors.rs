//! The published bundle vectors: every bundle gets the recommended verdict, every hash row our hash or a refusal.

use std::collections::BTreeMap;
use std::path::Path;

use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nova_policy::bundle::canonical::Json;
use nova_policy::{VerifyKeys, VerifyOptions, verify};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    name: String,
    bundle: String,
    keys: BTreeMap<String, (String, String)>,
    keyid: String,
    scope: String,
    recommended_accept: bool,
}

#[derive(Deserialize)]
struct HashRow {
    path: String,
    content_b64: String,
    alg: String,
    hash: String,
    note: String,
}

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/opa-bundle-vectors")
}

fn read<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let text = std::fs::read_to_string(folder().join(name)).expect(name);
    serde_json::from_str(&text).expect(name)
}

// covers: A5a, B4d
#[test]
fn every_bundle_gets_the_recommended_verdict() {
    let reasons = BTreeMap::from([
        ("valid-hs256", "key_algorithm"),
        ("scope-missing", "scope_mismatch"),
        ("expired-exp", "expired"),
        ("wrong-key", "bad_signature"),
        ("unknown-kid", "unknown_key"),
        ("unsigned-keyid-configured", "unsigned"),
        ("empty-signatures", "bad_signatures_file"),
        ("two-signatures", "bad_signatures_file"),
        ("tampered-data", "digest_mismatch"),
        ("tampered-rego", "digest_mismatch"),
        ("tampered-manifest-revision", "digest_mismatch"),
        ("extra-file", "unlisted_file"),
        ("missing-file", "missing_file"),
        ("duplicate-entry-same", "duplicate_entry"),
        ("data-outside-roots", "outside_roots"),
        ("module-outside-roots", "outside_roots"),
        ("snapshot-plus-patch-unsigned", "delta_bundle"),
        ("alg-none", "bad_token"),
        ("md5-file-hash", "hash_algorithm"),
        ("missing-file-alg", "hash_algorithm"),
        ("rego-v0", "rego_version"),
        ("signed-but-syntax-error", "bad_module"),
        ("truncated", "bad_archive"),
    ]);
    let cases: Vec<Case> = read("cases.json");
    assert_eq!(cases.len(), 30);
    for case in cases {
        let bytes = std::fs::read(folder().join(&case.bundle)).expect(&case.bundle);
        let mut keys = VerifyKeys::default();
        for (id, (algorithm, key)) in case.keys {
            keys.insert(id, algorithm, key);
        }
        let options = VerifyOptions {
            keys: &keys,
            key_id: Some(case.keyid.as_str()).filter(|id| !id.is_empty()),
            scope: &case.scope,
            now: 1_800_000_000,
            stale_grace: 0,
            newer_than: None,
        };
        let got = verify(&bytes, &options);
        assert_eq!(got.is_ok(), case.recommended_accept, "{}: {:?}", case.name, got.err());
        let reason = got.map_err(|error| error.reason()).err();
        if let Some(reason) = reason {
            assert_eq!(Some(&reason), reasons.get(case.name.as_str()), "{}", case.name);
        }
    }
}

// covers: A5a, B4d
#[test]
fn a_bundle_that_opa_itself_built_and_signed_is_served() {
    // Made with `opa build -b . --signing-key key.pem --signing-alg ES256 --claims-file claims.json` of OPA 1.22.3.
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let keys = std::fs::read_to_string(data.join("opa-built-keys.json")).expect("keys");
    let keys = VerifyKeys::from_json(&keys).expect("keys");
    let bytes = std::fs::read(data.join("opa-built.tar.gz")).expect("bundle");
    let options = VerifyOptions {
        keys: &keys,
        key_id: Some("k1"),
        scope: "node-1",
        now: 1_796_005_100,
        stale_grace: 0,
        newer_than: None,
    };
    let policy = nova_policy::Policy::load(verify(&bytes, &options).expect("verifies")).expect("loads");
    assert!(policy.knows_workload("service-a"));
    let other_node = VerifyOptions { scope: "node-2", ..options };
    assert_eq!(verify(&bytes, &other_node).map_err(|error| error.reason()).err(), Some("scope_mismatch"));
}

// covers: A5a, B4d
#[test]
fn structured_files_hash_as_opa_hashes_them() {
    let rows: Vec<HashRow> = read("hash-vectors.json");
    let mut compared = 0;
    for row in rows.iter().filter(|row| row.alg == "SHA-256") {
        let content = STANDARD.decode(&row.content_b64).expect("base64");
        let base = row.path.rsplit('/').next().unwrap_or_default();
        let bytes = match base {
            // Refused in a bundle whatever their hash.
            "data.yaml" => continue,
            "data.json" | ".manifest" => match Json::parse(&content) {
                Ok(json) => json.to_canonical().into_bytes(),
                Err(_) => {
                    assert!(row.hash.is_empty() || row.note.contains("YAML"), "{}", row.note);
                    continue;
                }
            },
            _ => content,
        };
        assert_eq!(hex::encode(digest::digest(&digest::SHA256, &bytes)), row.hash, "{}", row.note);
        compared += 1;
    }
    assert!(compared >= 20, "only {compared} rows compared");
}
