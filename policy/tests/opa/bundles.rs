//! OPA bundles in both directions: real OPA verifies, runs and inspects ours, and we verify and run what it made.

use std::collections::BTreeMap;
use std::path::Path;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nova_policy::bundle::{KeyPair, VerifyKeys};
use nova_policy::publish::Evaluation;
use nova_policy::{Evaluator, Input, NodeData, Policy, VerifyOptions, verify};

use crate::opa::{self, Server};
use crate::worlds::{NOW, REGO, Signer, data, options};

const RULES: &str = include_str!("../data/decision-rules.yaml");
const WORKLOADS: &str = include_str!("../data/decision-workloads.yaml");
const SCOPE: &str = "node-1";

fn rs256() -> KeyPair {
    let pair = aws_lc_rs::rsa::KeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).expect("a key");
    let private = AsDer::<Pkcs8V1Der<'_>>::as_der(&pair).expect("der");
    let public = AsDer::<PublicKeyX509Der<'_>>::as_der(aws_lc_rs::signature::KeyPair::public_key(&pair)).expect("der");
    let pem = |label: &str, der: &[u8]| {
        let text = STANDARD.encode(der);
        let lines: Vec<&str> =
            text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).expect("ASCII")).collect();
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
    };
    KeyPair {
        algorithm: "RS256",
        private_pem: pem("PRIVATE KEY", private.as_ref()),
        public_pem: pem("PUBLIC KEY", public.as_ref()),
    }
}

fn pairs() -> [KeyPair; 3] {
    [KeyPair::es256().expect("a key"), rs256(), KeyPair::eddsa().expect("a key")]
}

fn node_data() -> NodeData {
    data(RULES, WORKLOADS, SCOPE)
}

/// Flags with which OPA verifies a bundle.
fn verifying<'a>(pair: &'a KeyPair, scope: &'a str) -> [&'a str; 8] {
    [
        "--verification-key",
        "public.pem",
        "--verification-key-id",
        "k",
        "--signing-alg",
        pair.algorithm,
        "--scope",
        scope,
    ]
}

// covers: B4a
#[test]
fn real_opa_verifies_and_runs_our_bundles_and_refuses_changed_ones() {
    let Some(program) = opa::program() else { return };
    let data = node_data();
    for pair in pairs() {
        let dir = tempfile::tempdir().expect("temp dir");
        let at = dir.path();
        let signer = Signer::of(&pair, "k");
        let bundle = signer.bundle(&data, Evaluation::Rego);
        std::fs::write(at.join("public.pem"), &pair.public_pem).expect("write");
        std::fs::write(at.join("ours.tar.gz"), &bundle).expect("write");
        std::fs::write(at.join("wasm.tar.gz"), signer.bundle(&data, Evaluation::Wasm)).expect("write");
        std::fs::write(at.join("changed.tar.gz"), changed(&bundle)).expect("write");
        let verifies = |file: &str, scope: &str| {
            let mut arguments = vec!["build", "-b", file, "-o", "out.tar.gz"];
            arguments.extend(verifying(&pair, scope));
            opa::run(&program, at, &arguments)
        };
        verifies("ours.tar.gz", SCOPE).expect(pair.algorithm);
        verifies("wasm.tar.gz", SCOPE).expect(pair.algorithm);
        assert!(verifies("ours.tar.gz", "node-2").is_err_and(|why| why.contains("scope")), "{}", pair.algorithm);
        assert!(verifies("changed.tar.gz", SCOPE).is_err_and(|why| why.contains("digest")), "{}", pair.algorithm);
        let mut arguments = vec!["-b", "ours.tar.gz"];
        arguments.extend(verifying(&pair, SCOPE));
        let server = Server::start(&program, at, &arguments).expect("OPA serves our bundle");
        let policy = signer.policy(&data, Evaluation::Rego);
        let vectors = policy.with_opa_server(&server.socket).self_test().expect("OPA answers as the bundle says");
        assert!(vectors > 40, "{vectors}");
        arguments[1] = "changed.tar.gz";
        drop(server);
        assert!(Server::start(&program, at, &arguments).is_none(), "{}", pair.algorithm);
    }
}

/// The same bundle with one byte of a file changed.
fn changed(bundle: &[u8]) -> Vec<u8> {
    let mut files = unpack(bundle);
    files.get_mut("nova/authz.rego").expect("the Rego").push(b'\n');
    pack(&files)
}

fn unpack(bundle: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut archive = tar::Archive::new(flate2::bufread::GzDecoder::new(bundle));
    let mut files = BTreeMap::new();
    for entry in archive.entries().expect("entries") {
        let mut entry = entry.expect("an entry");
        let name = String::from_utf8(entry.path_bytes().into_owned()).expect("UTF-8");
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut content).expect("content");
        files.insert(name.trim_start_matches('/').to_owned(), content);
    }
    files
}

fn pack(files: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let mut builder = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    for (name, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_size(content.len().try_into().expect("small"));
        builder.append_data(&mut header, name, &content[..]).expect("memory");
    }
    builder.into_inner().expect("memory").finish().expect("memory")
}

// covers: B4a
#[test]
fn real_opa_inspects_our_bundles() {
    let Some(program) = opa::program() else { return };
    let dir = tempfile::tempdir().expect("temp dir");
    for (evaluation, wasm) in [(Evaluation::Rego, false), (Evaluation::Wasm, true)] {
        let bundle = Signer::new().bundle(&node_data(), evaluation);
        std::fs::write(dir.path().join("ours.tar.gz"), bundle).expect("write");
        let text = opa::run(&program, dir.path(), &["inspect", "ours.tar.gz", "-f", "json"]).expect("OPA reads it");
        let seen: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(seen["manifest"]["revision"], "node-1@1");
        assert_eq!(seen["manifest"]["roots"], serde_json::json!(["nova"]));
        assert_eq!(seen["namespaces"]["data.nova.authz"][0], "nova/authz.rego");
        let module = &seen["manifest"]["wasm"][0];
        assert_eq!(*module == serde_json::json!({"entrypoint": "nova/authz/decision", "module": "policy.wasm"}), wasm);
    }
}

/// A folder as an author has it before OPA builds or signs it.
fn source_folder(at: &Path, pair: &KeyPair) {
    let nova = at.join("source/nova");
    std::fs::create_dir_all(&nova).expect("mkdir");
    let manifest = serde_json::json!({"revision": "theirs", "roots": ["nova"], "rego_version": 1, "metadata": {"serial": 7, "expires": NOW + 60}});
    std::fs::write(at.join("source/.manifest"), manifest.to_string()).expect("write");
    let data = serde_json::json!({ "nova": node_data() });
    std::fs::write(at.join("source/data.json"), data.to_string()).expect("write");
    std::fs::copy(REGO, nova.join("authz.rego")).expect("copy");
    std::fs::write(at.join("private.pem"), &pair.private_pem).expect("write");
    std::fs::write(at.join("claims.json"), r#"{"keyid": "k", "scope": "node-1", "iss": "test"}"#).expect("write");
}

fn decides(policy: &Policy) {
    let ask = |host: &str| {
        let text =
            format!(r#"{{"direction":"egress","phase":"connect","source":"x","dest_host":"{host}","dest_port":443}}"#);
        let input: Input = serde_json::from_str(&text).expect("an input");
        Evaluator::new().decide(policy, &input).allow
    };
    assert!(ask("service-a.t.nova") && !ask("service-b.t.nova"));
}

// covers: B4b
#[test]
fn we_verify_and_run_what_real_opa_built_and_signed() {
    let Some(program) = opa::program() else { return };
    for pair in pairs() {
        let dir = tempfile::tempdir().expect("temp dir");
        let at = dir.path();
        source_folder(at, &pair);
        let signer = Signer::of(&pair, "k");
        let signing =
            ["--signing-key", "../private.pem", "--signing-alg", pair.algorithm, "--claims-file", "../claims.json"];
        let source = at.join("source");
        let run = |first: &[&str]| {
            let arguments: Vec<&str> = first.iter().chain(&signing).copied().collect();
            opa::run(&program, &source, &arguments).unwrap_or_else(|why| panic!("{}: {why}", pair.algorithm));
        };
        run(&["build", "-b", ".", "-o", "../rego.tar.gz"]);
        run(&["build", "-b", ".", "-t", "wasm", "-e", "nova/authz/decision", "-o", "../wasm.tar.gz"]);
        for (file, engine) in [("rego.tar.gz", "regorus"), ("wasm.tar.gz", "opa-wasm")] {
            let bundle = std::fs::read(at.join(file)).expect("a bundle");
            let policy = signer.load(&bundle, SCOPE).expect(file);
            assert_eq!((policy.engine_name(), policy.serial()), (engine, 7), "{file}");
            decides(&policy);
            let refused = |options: &VerifyOptions<'_>| verify(&bundle, options).map_err(|error| error.reason()).err();
            assert_eq!(refused(&options(&signer.keys, "node-2")), Some("scope_mismatch"));
            let other = Signer::of(&pairs_like(&pair), "k");
            assert_eq!(refused(&options(&other.keys, SCOPE)), Some("bad_signature"));
        }
        // `opa sign` only writes the signature file; the author packs the folder.
        run(&["sign", "-b", "."]);
        let mut files = BTreeMap::new();
        for name in [".manifest", ".signatures.json", "data.json", "nova/authz.rego"] {
            files.insert(name.to_owned(), std::fs::read(source.join(name)).expect(name));
        }
        decides(&signer.load(&pack(&files), SCOPE).expect("it loads"));
        files.insert("data.json".to_owned(), br#"{"nova":{}}"#.to_vec());
        let error = verify(&pack(&files), &options(&signer.keys, SCOPE)).map_err(|error| error.reason());
        assert_eq!(error.err(), Some("digest_mismatch"));
    }
}

/// Another key of the same kind.
fn pairs_like(pair: &KeyPair) -> KeyPair {
    match pair.algorithm {
        "ES256" => KeyPair::es256().expect("a key"),
        "EdDSA" => KeyPair::eddsa().expect("a key"),
        _ => rs256(),
    }
}

// covers: B4c
#[test]
fn two_keys_are_valid_at_once_and_a_retired_one_is_not() {
    let data = node_data();
    let (old, new) = (KeyPair::es256().expect("a key"), KeyPair::eddsa().expect("a key"));
    let sign = |pair: &KeyPair, id: &str| {
        let how = nova_policy::publish::Publish {
            key: &Signer::of(pair, id).key,
            key_id: id,
            serial: 1,
            now: NOW,
            expires_in: 60,
        };
        nova_policy::publish::bundle_of(&data, &how).expect("a bundle")
    };
    let (by_old, by_new) = (sign(&old, "2026-11"), sign(&new, "2026-12"));
    let keys = |known: &[(&str, &KeyPair)]| {
        let mut keys = VerifyKeys::default();
        for (id, pair) in known {
            keys.insert(*id, pair.algorithm, &pair.public_pem);
        }
        keys
    };
    let got = |bundle: &[u8], keys: &VerifyKeys| match verify(bundle, &options(keys, SCOPE)) {
        Ok(bundle) => bundle.key_id().to_owned(),
        Err(error) => error.reason().to_owned(),
    };
    let both = keys(&[("2026-11", &old), ("2026-12", &new)]);
    assert_eq!((got(&by_old, &both), got(&by_new, &both)), ("2026-11".to_owned(), "2026-12".to_owned()));
    let after = keys(&[("2026-12", &new)]);
    assert_eq!((got(&by_old, &after), got(&by_new, &after)), ("unknown_key".to_owned(), "2026-12".to_owned()));
    // A token chooses among the keys by id, and only by id: the right key under another's id is the wrong key.
    let swapped = keys(&[("2026-11", &new), ("2026-12", &old)]);
    assert_eq!(
        (got(&by_old, &swapped), got(&by_new, &swapped)),
        ("algorithm_mismatch".to_owned(), "algorithm_mismatch".to_owned())
    );
    let pinned = VerifyOptions { key_id: Some("2026-12"), ..options(&both, SCOPE) };
    assert_eq!(verify(&by_old, &pinned).map_err(|error| error.reason()).err(), Some("algorithm_mismatch"));
}
