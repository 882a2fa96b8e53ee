//! Where our own identities come from: the dev CA and certificates on disk. Refusals first.

mod tls_support;

use std::error::Error;
use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nova_proto::ids::{PodUid, TenantId, WorkloadId};
use nova_supervisor::config::Mode;
use nova_supervisor::identity::{
    DevCa, DevSource, FilesSource, IdentityError, IdentityRequest, IdentitySource, RootSet, TrustBundles, TrustDomain,
};
use nova_supervisor::tls::{SvidCell, TrustCell};
use rcgen::KeyUsagePurpose;
use tls_support::{Ca, Credential, Server, X, connect, expired, id, uri, workload_client};
use x509_parser::prelude::ParsedExtension;

fn request(spiffe_id: &str, workload: &str) -> IdentityRequest {
    IdentityRequest {
        spiffe_id: id(spiffe_id),
        workload: WorkloadId::new(workload).expect("a name"),
        tenant: TenantId::new("t").expect("a name"),
        pod_uid: PodUid::new(format!("pod-{workload}")).expect("a name"),
    }
}

fn dev_request(workload: &str) -> IdentityRequest {
    request(&format!("spiffe://dev.invalid/t/t/w/{workload}"), workload)
}

/// The error and all its causes, as the log shows them.
fn text(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(&format!(": {next}"));
        cause = next.source();
    }
    text
}

// covers: A6
#[test]
fn the_dev_source_refuses_to_exist_outside_dev_mode() {
    let ca = DevCa::generate().expect("a CA");
    let error = DevSource::new(Mode::Production, ca).err().expect("it must refuse");
    assert!(matches!(error, IdentityError::DevOutsideDevMode));
    assert!(error.to_string().contains("set [identity] to files"), "{error}");
}

// covers: A6
#[test]
fn the_dev_source_issues_nothing_but_the_endpoints_own_dev_identity() {
    let source = DevSource::new(Mode::Dev, DevCa::generate().expect("a CA")).expect("dev mode");
    for (asked, workload) in [
        ("spiffe://nova.test/t/t/w/x", "x"),
        ("spiffe://dev.invalid/t/t/w/service-a", "x"),
        ("spiffe://dev.invalid/t/other/w/x", "x"),
    ] {
        let error = source.svid(&request(asked, workload)).expect_err("not its identity");
        assert!(matches!(error, IdentityError::NotDevIdentity { .. }), "{asked}: {error}");
    }
}

// covers: A6, C12c
#[test]
fn an_svid_names_the_key_of_its_ca_as_the_ca_itself_does() {
    let lab = DevCa::generate().expect("a CA");
    // Another tool names keys in another way.
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key");
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.key_identifier_method = rcgen::KeyIdMethod::PreSpecified(vec![7; 20]);
    let foreign = params.self_signed(&key).expect("a certificate");
    for pem in [lab.to_pem().expect("PEM").to_string(), format!("{}{}", foreign.pem(), key.serialize_pem())] {
        let ca = DevCa::from_fd(pipe_with(&pem)).expect("a CA");
        let svid = ca.issue(&id(X), "x.t.nova", Duration::from_secs(60)).expect("issued");
        let (_, ca) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).expect("PEM");
        let ca = ca.parse_x509().expect("a certificate");
        let (_, leaf) = x509_parser::parse_x509_certificate(&svid.chain[0]).expect("a certificate");
        let own = ca.iter_extensions().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(key_id) => Some(key_id.0),
            _ => None,
        });
        let named = leaf.iter_extensions().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(issuer) => issuer.key_identifier.as_ref().map(|key_id| key_id.0),
            _ => None,
        });
        assert!(own.is_some() && own == named, "{own:?} {named:?}");
    }
}

// covers: A6
#[test]
fn a_handed_over_ca_that_is_none_is_refused_with_what_to_do() {
    let (ca, other) = (DevCa::generate().expect("a CA"), DevCa::generate().expect("a CA"));
    let both = ca.to_pem().expect("PEM");
    let key_only = both.find("-----BEGIN PRIVATE").map(|at| both[at..].to_owned()).expect("a key");
    let mixed = format!("{}{key_only}", other.certificate_pem());
    let leaf = ca.issue(&id("spiffe://dev.invalid/t/t/w/x"), "x.t.nova", Duration::from_secs(60)).expect("issued");
    let not_a_ca = format!("{}{}", leaf.chain_pem(), *leaf.key_pem());
    for (case, input) in [
        ("nothing", String::new()),
        ("certificate only", ca.certificate_pem()),
        ("key only", key_only),
        ("another CA's key", mixed),
        ("a leaf", not_a_ca),
        ("too long", "x".repeat(100_000)),
    ] {
        let error = DevCa::from_fd(pipe_with(&input)).err().expect(case);
        let text = text(&error);
        assert!(
            text.contains("hand over a P-256 CA") || text.contains("write it as PEM") || text.contains("list CA"),
            "{case}: {text}"
        );
        assert!(!text.contains("MI"), "{case}: no piece of the input is shown: {text}");
    }
}

// covers: A6
#[tokio::test]
async fn a_ca_read_from_a_descriptor_issues_svids_that_peers_accept() {
    let lab = DevCa::generate().expect("a CA");
    let ca = DevCa::from_fd(pipe_with(&lab.to_pem().expect("PEM"))).expect("the lab's CA");
    assert_eq!(ca.certificate_pem(), lab.certificate_pem());
    let source = DevSource::new(Mode::Dev, ca).expect("dev mode");
    assert_eq!((source.name(), source.ca_certificate_pem()), ("dev", lab.certificate_pem()));

    let trust = Arc::new(TrustCell::from(source.trust_bundles()));
    let cell = |workload: &str| {
        let cell = SvidCell::empty();
        cell.replace(source.svid(&dev_request(workload)).expect("an SVID"));
        cell
    };
    let callee = "spiffe://dev.invalid/t/t/w/service-a";
    let server = Server::new(cell("service-a"), &trust);
    let outcome = connect(&server, &workload_client(&cell("x"), &trust, callee)).await;
    assert_eq!(outcome.client, Ok(()));
    assert_eq!(outcome.server.expect("x").spiffe_id, Some(id("spiffe://dev.invalid/t/t/w/x")));

    // The raw client of the demo's row 4: an SVID that the lab issued itself from the same CA.
    let stolen = lab.issue(&id("spiffe://dev.invalid/t/t/w/x"), "x.t.nova", Duration::from_secs(60)).expect("issued");
    let key = rcgen::KeyPair::from_pem(&stolen.key_pem()).expect("PKCS#8 PEM");
    let raw = tls_support::raw_client(Some(Credential { chain: stolen.chain.clone(), key }));
    assert!(connect(&server, &raw).await.server.is_ok());
}

// covers: A6
#[test]
fn a_dev_svid_has_the_form_that_strict_parsers_demand() {
    use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
    let source = DevSource::new(Mode::Dev, DevCa::generate().expect("a CA")).expect("dev mode");
    let svid = source.svid(&dev_request("x")).expect("an SVID");
    let (_, leaf) = X509Certificate::from_der(&svid.certified_key.cert[0]).expect("DER");
    let constraints = leaf.basic_constraints().expect("one").expect("present");
    assert!(!constraints.value.ca);
    let usage = leaf.key_usage().expect("one").expect("present");
    assert!(usage.critical && usage.value.digital_signature() && !usage.value.key_cert_sign());
    let extended = leaf.extended_key_usage().expect("one").expect("present").value;
    assert!(extended.server_auth && extended.client_auth);
    let names = &leaf.subject_alternative_name().expect("one").expect("present").value.general_names;
    assert!(names.contains(&GeneralName::DNSName("x.t.nova")), "{names:?}");
    assert!(names.contains(&GeneralName::URI("spiffe://dev.invalid/t/t/w/x")), "{names:?}");

    let now = SystemTime::now();
    let left = svid.not_after.duration_since(now).expect("in the future");
    assert!(left > Duration::from_secs(3500) && left <= Duration::from_secs(3600));
    let rotate = svid.rotate_after.duration_since(now).expect("in the future");
    assert!(rotate < left / 2 + Duration::from_secs(2) && rotate > left / 2 - Duration::from_secs(2));
    assert!(leaf.validity().not_before.timestamp() <= leaf.validity().not_after.timestamp() - 3659);
}

// covers: A6
#[test]
fn no_text_form_of_an_svid_shows_its_key() {
    let ca = DevCa::generate().expect("a CA");
    let own = ca.roots().expect("roots");
    let who = id("spiffe://dev.invalid/t/t/w/x");
    let issued = ca.issue(&who, "x.t.nova", Duration::from_secs(60)).expect("issued");
    let svid = nova_supervisor::identity::Svid::load("t", issued.chain.clone(), issued.key_der(), &who, &own)
        .expect("an SVID");
    let cell = SvidCell::empty();
    cell.replace(svid.clone());
    let shown = format!("{svid:?} {svid:#?} {cell:?}");
    assert!(shown.contains("spiffe://dev.invalid/t/t/w/x"));
    // Any 8 bytes of the secret scalar, as hex or as a list of numbers.
    let scalar = issued.key_der().get(36..68).expect("P-256 PKCS#8 keeps the scalar there");
    for window in scalar.windows(8) {
        assert!(!shown.contains(&hex::encode(window)));
        assert!(!shown.contains(&format!("{window:?}").trim_matches(['[', ']']).to_owned()));
    }
    assert!(!shown.to_lowercase().contains("key:"), "{shown}");
}

// covers: A6 (attack T42)
#[test]
fn dev_identities_are_refused_by_the_files_source() {
    let dir = tempfile::tempdir().expect("a folder");
    let ca = Ca::new("own");
    write_bundle(dir.path(), &ca);
    let dev = TrustDomain::new("dev.invalid").expect("a domain");
    assert!(matches!(FilesSource::open(dir.path(), dev), Err(IdentityError::DevDomain)));
    let source = open(dir.path());
    let error = source.svid(&dev_request("x")).expect_err("a dev identity");
    assert!(matches!(error, IdentityError::DevDomain), "{error}");
}

// covers: A13
#[test]
fn a_pair_on_disk_that_peers_would_refuse_is_refused_at_load() {
    let ca = Ca::new("own");
    let stranger = Ca::new("stranger");
    let cases: Vec<(&str, Credential, &str)> = vec![
        ("another workload's", ca.issue("spiffe://nova.test/t/t/w/b"), "put the certificate of"),
        ("another CA's", stranger.issue(X), "add its CA to bundle.pem"),
        ("expired", ca.issue_with(X, expired), "renew it"),
        ("two URIs", ca.issue_with(X, |p| p.subject_alt_names.push(uri(X))), "one URI SAN"),
        ("signing", ca.issue_with(X, |p| p.key_usages.push(KeyUsagePurpose::KeyCertSign)), "keyUsage"),
        (
            "clients only",
            ca.issue_with(X, |p| {
                p.extended_key_usages.remove(0);
            }),
            "extendedKeyUsage",
        ),
    ];
    for (case, credential, remedy) in cases {
        let dir = tempfile::tempdir().expect("a folder");
        write_bundle(dir.path(), &ca);
        write_pair(dir.path(), &credential, &credential);
        let error = open(dir.path()).svid(&request(X, "x")).expect_err(case);
        assert!(text(&error).contains(remedy), "{case}: {}", text(&error));
        assert!(text(&error).contains("x.t.crt"), "{case}: {}", text(&error));
    }
}

// covers: A13 (attack T40)
#[test]
fn a_key_that_is_not_the_certificates_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let ca = Ca::new("own");
    write_bundle(dir.path(), &ca);
    write_pair(dir.path(), &ca.issue(X), &ca.issue(X));
    let error = open(dir.path()).svid(&request(X, "x")).expect_err("not a pair");
    assert!(matches!(error, IdentityError::KeyMismatch { .. }), "{error}");
    assert!(error.to_string().contains("replace both files together"), "{error}");
}

// covers: A13 (attack T40)
#[test]
fn a_key_that_others_may_read_is_refused_also_behind_a_link() {
    let dir = tempfile::tempdir().expect("a folder");
    let ca = Ca::new("own");
    write_bundle(dir.path(), &ca);
    let pair = ca.issue(X);
    write_pair(dir.path(), &pair, &pair);
    let (key, real) = (dir.path().join("x.t.key"), dir.path().join("real.key"));
    for mode in [0o640, 0o604, 0o620, 0o666] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).expect("chmod");
        let error = open(dir.path()).svid(&request(X, "x")).expect_err("exposed");
        assert!(error.to_string().contains(&format!("mode {mode:04o}")), "{error}");
        assert!(error.to_string().contains("chmod 0400"), "{error}");
    }
    fs::rename(&key, &real).expect("rename");
    symlink("real.key", &key).expect("a link");
    assert!(matches!(open(dir.path()).svid(&request(X, "x")), Err(IdentityError::KeyExposed { .. })));
    fs::set_permissions(&real, fs::Permissions::from_mode(0o400)).expect("chmod");
    open(dir.path()).svid(&request(X, "x")).expect("now it is private");
}

// covers: A13
#[test]
fn what_is_not_a_small_regular_file_is_neither_read_nor_waited_for() {
    let dir = tempfile::tempdir().expect("a folder");
    let ca = Ca::new("own");
    write_bundle(dir.path(), &ca);
    let pair = ca.issue(X);
    write_pair(dir.path(), &pair, &pair);
    let certificate = dir.path().join("x.t.crt");
    fs::remove_file(&certificate).expect("rm");
    nix::unistd::mkfifo(&certificate, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    assert!(matches!(open(dir.path()).svid(&request(X, "x")), Err(IdentityError::NotAFile { .. })));
    fs::remove_file(&certificate).expect("rm");
    fs::write(&certificate, vec![b'-'; 2 * 1024 * 1024]).expect("a large file");
    assert!(matches!(open(dir.path()).svid(&request(X, "x")), Err(IdentityError::NotAFile { .. })));
    fs::remove_file(&certificate).expect("rm");
    let missing = open(dir.path()).svid(&request(X, "x")).expect_err("nothing there");
    assert!(text(&missing).contains("check that it exists"), "{}", text(&missing));
}

// covers: A13
#[test]
fn a_failed_reload_keeps_everything_and_names_everything() {
    let dir = tempfile::tempdir().expect("a folder");
    let ca = Ca::new("own");
    write_bundle(dir.path(), &ca);
    let pair = ca.issue(X);
    write_pair(dir.path(), &pair, &pair);
    let source = open(dir.path());
    let before = source.svid(&request(X, "x")).expect("an SVID");
    let roots = source.trust_bundles().own().fingerprint().to_owned();

    fs::write(dir.path().join("bundle.pem"), "half a fi").expect("write");
    write_pair(dir.path(), &ca.issue(X), &ca.issue(X));
    let error = source.reload().expect_err("both are broken");
    let text = text(&error);
    assert!(text.contains("bundle.pem") && text.contains("x.t.crt"), "{text}");
    assert_eq!(source.svid(&request(X, "x")).expect("the old one").serial, before.serial);
    assert_eq!(source.trust_bundles().own().fingerprint(), roots);
}

// covers: A13
#[test]
fn replaced_files_are_in_force_after_a_reload_also_by_a_kubernetes_link_swap() {
    let dir = tempfile::tempdir().expect("a folder");
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    for (name, ca) in [("..1", &old), ("..2", &new)] {
        let version = dir.path().join(name);
        fs::create_dir(&version).expect("a folder");
        write_bundle(&version, ca);
        let pair = ca.issue(X);
        write_pair(&version, &pair, &pair);
    }
    symlink("..1", dir.path().join("..data")).expect("a link");
    for name in ["bundle.pem", "x.t.crt", "x.t.key"] {
        symlink(Path::new("..data").join(name), dir.path().join(name)).expect("a link");
    }
    let source = open(dir.path());
    let before = source.svid(&request(X, "x")).expect("an SVID");

    symlink("..2", dir.path().join("..data_tmp")).expect("a link");
    fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).expect("the swap");
    assert_eq!(source.svid(&request(X, "x")).expect("unchanged").serial, before.serial);
    source.reload().expect("the new files are good");
    let after = source.svid(&request(X, "x")).expect("an SVID");
    assert_ne!(after.serial, before.serial);
    assert_eq!(source.trust_bundles().own().fingerprint(), new.roots().fingerprint());
}

// covers: A7c
#[test]
fn roots_that_are_none_and_cas_that_are_two_are_refused() {
    let (ca, other) = (Ca::new("own"), Ca::new("other"));
    let leaf = RootSet::from_der("partner.pem", ca.issue(X).chain).expect_err("a leaf is no root");
    assert!(leaf.to_string().contains("partner.pem: certificate 1"), "{leaf}");
    assert!(RootSet::from_der("nothing", vec![]).is_err());
    let no_sign = Ca::with("ca", |p| p.key_usages = vec![KeyUsagePurpose::CrlSign]);
    assert!(RootSet::from_der("ca", vec![no_sign.der()]).is_err());

    let own = TrustBundles::new(TrustDomain::new("nova.test").expect("a domain"), ca.roots());
    let both = [("a".to_owned(), other.roots()), ("b".to_owned(), other.roots())];
    let error = own.with_external(both.into()).expect_err("one CA, two names");
    assert!(error.to_string().contains("external CAs a and b"), "{error}");
    for bad in ["", "a/b", "NOVA", "spiffe://x", "a:1"] {
        assert!(TrustDomain::new(bad).is_err(), "{bad}");
    }
}

fn open(dir: &Path) -> FilesSource {
    FilesSource::open(dir, TrustDomain::new("nova.test").expect("a domain")).expect("a usable bundle")
}

fn write_bundle(dir: &Path, ca: &Ca) {
    fs::write(dir.join("bundle.pem"), ca.pem()).expect("write");
}

/// `x.t.crt` of one credential and `x.t.key` of the other.
fn write_pair(dir: &Path, certificate: &Credential, key: &Credential) {
    let pem: String = certificate.chain.iter().map(|der| pem("CERTIFICATE", der)).collect();
    fs::write(dir.join("x.t.crt"), pem).expect("write");
    let path = dir.join("x.t.key");
    fs::write(&path, key.key.serialize_pem()).expect("write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
}

fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

/// A descriptor as a parent hands it over: the read end of a pipe whose writer is another thread.
fn pipe_with(text: &str) -> OwnedFd {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let text = text.to_owned();
    // The reader may close early (too long); that is its right.
    std::thread::spawn(move || drop(writer.write_all(text.as_bytes())));
    reader.into()
}
