use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyUsagePurpose};
use rustls::pki_types::UnixTime;

use super::*;

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

fn ca(list: &[&str]) -> PodCa {
    PodCas::self_signed(Duration::from_secs(3600)).make("x", &names(list), SystemTime::now()).expect("made")
}

/// As a client verifies that trusts this CA.
fn verify(ca: &PodCa, leaf: &PodLeaf) -> Result<(), webpki::Error> {
    let (leaf, between) = leaf.certified_key.cert.split_first().expect("a leaf");
    let anchor = webpki::anchor_from_trusted_cert(&ca.trust).expect("an anchor");
    let usage = webpki::KeyUsage::server_auth();
    let leaf = webpki::EndEntityCert::try_from(leaf).expect("a certificate");
    let algorithms = webpki::ALL_VERIFICATION_ALGS;
    leaf.verify_for_usage(algorithms, &[anchor], between, UnixTime::now(), usage, None, None).map(|_| ())
}

// covers: D6a
#[test]
fn a_pod_ca_signs_for_no_other_name_and_nobody_believes_it_for_one() {
    let made = ca(&["api.test", "*.files.test"]);
    for (host, covered) in [
        ("api.test", true),
        ("v1.api.test", true),
        ("a.b.files.test", true),
        ("xapi.test", false),
        ("test", false),
        ("evil.test", false),
        ("", false),
    ] {
        assert_eq!(made.covers(host), covered, "{host}");
        assert_eq!(made.issue(host).is_ok_and(|leaf| verify(&made, &leaf).is_ok()), covered, "{host}");
    }
    // The certificate says it as well: a leaf that the key signed all the same is refused.
    let wider = PodCa { names: names(&["test"]), ..ca(&["api.test"]) };
    assert!(verify(&wider, &wider.issue("api.test").expect("a leaf")).is_ok());
    let stray = wider.issue("evil.test").expect("the key would sign it");
    assert!(matches!(verify(&wider, &stray), Err(webpki::Error::NameConstraintViolation)));
}

// covers: D6a
#[test]
fn no_more_names_than_needed_stand_in_the_certificate() {
    let made = ca(&["api.test", "v1.api.test", "*.api.test", "*.a.api.test", "other.test"]);
    assert_eq!(made.names, names(&["api.test", "other.test"]));
}

// covers: D6a
#[test]
fn a_pod_ca_that_is_over_signs_nothing() {
    let over = PodCas::self_signed(Duration::ZERO).make("x", &names(&["api.test"]), SystemTime::now()).expect("made");
    assert!(over.issue("api.test").is_err());
}

#[test]
fn a_long_name_of_a_workload_fits() {
    let made =
        PodCas::self_signed(Duration::from_secs(60)).make(&"w".repeat(63), &names(&["api.test"]), SystemTime::now());
    assert!(made.expect("made").issue("api.test").is_ok());
}

// covers: D6a
#[test]
fn the_end_of_a_ca_is_spoken_of_before_it_comes() {
    const HOUR: Duration = Duration::from_secs(3600);
    let made = PodCas::self_signed(90 * 24 * HOUR).make("x", &names(&["api.test"]), SystemTime::now()).expect("made");
    let now = SystemTime::now();
    assert!(!made.ends_soon(now + 82 * 24 * HOUR));
    assert!(made.ends_soon(now + 84 * 24 * HOUR));
    let made = PodCas::self_signed(8 * HOUR).make("x", &names(&["api.test"]), SystemTime::now()).expect("made");
    assert!(!made.ends_soon(now + 6 * HOUR));
    assert!(made.ends_soon(now + 8 * HOUR));
}

/// A CA, and what it signs with.
fn above(name: &str, by: Option<&Issuer<'static, rcgen::KeyPair>>, length: BasicConstraints) -> Made {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(length);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = rcgen::KeyPair::generate().expect("a key");
    let signed = by.map_or_else(|| params.self_signed(&key), |issuer| params.signed_by(&key, issuer));
    Made { pem: signed.expect("signed").pem(), key: key.serialize_pem(), issuer: Issuer::new(params, key) }
}

struct Made {
    pem: String,
    key: String,
    issuer: Issuer<'static, rcgen::KeyPair>,
}

/// The files of an intermediate.
struct Pair(tempfile::TempDir);

impl Pair {
    fn new(chain: &[&Made], key: &str, mode: u32) -> Self {
        let pair = Self(tempfile::tempdir().expect("a folder"));
        pair.put(chain, key, mode);
        pair
    }

    fn put(&self, chain: &[&Made], key: &str, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        let [chain_file, key_file] = self.files();
        let _ = std::fs::remove_file(&key_file);
        std::fs::write(&chain_file, chain.iter().map(|made| made.pem.as_str()).collect::<String>()).expect("written");
        std::fs::write(&key_file, key).expect("written");
        std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(mode)).expect("changed");
    }

    fn files(&self) -> [PathBuf; 2] {
        ["chain.pem", "key.pem"].map(|file| self.0.path().join(file))
    }

    fn open(&self) -> Result<PodCas, String> {
        let [chain, key] = self.files();
        PodCas::signed_by(&chain, &key, Duration::from_secs(3600)).map_err(|error| error.to_string())
    }
}

fn open(chain: &[&Made], key: &str, mode: u32) -> Result<PodCas, String> {
    Pair::new(chain, key, mode).open()
}

// covers: D6h
#[test]
fn an_intermediate_that_cannot_sign_is_refused_with_what_is_wrong() {
    let root = above("root", None, BasicConstraints::Unconstrained);
    let good = above("good", Some(&root.issuer), BasicConstraints::Constrained(1));
    let short = above("short", Some(&root.issuer), BasicConstraints::Constrained(0));
    let stranger = above("stranger", None, BasicConstraints::Unconstrained);
    for (chain, key, mode, problem) in [
        (&[&good][..], &good.key, 0o400, "one certificate only"),
        (&[&good, &good], &good.key, 0o400, "not a root"),
        (&[&good, &root], &root.key, 0o400, "the key is not the certificate's"),
        (&[&good, &stranger], &good.key, 0o400, "does not verify"),
        (&[&short, &root], &short.key, 0o400, "does not verify"),
        (&[&good, &root], &good.key, 0o444, "chmod 0400"),
    ] {
        let error = open(chain, key, mode).map(|_| ()).expect_err(problem);
        assert!(error.contains(problem), "{problem}: {error}");
    }
    assert!(open(&[&good, &root], &good.key, 0o400).is_ok_and(|cas| cas.have_a_root()));
}

// covers: D6l
#[test]
fn a_pair_that_cannot_sign_leaves_the_old_one_in_force_and_is_reported() {
    let root = above("root", None, BasicConstraints::Unconstrained);
    let good = above("good", Some(&root.issuer), BasicConstraints::Constrained(1));
    let short = above("short", Some(&root.issuer), BasicConstraints::Constrained(0));
    let pair = Pair::new(&[&good, &root], &good.key, 0o400);
    let cas = pair.open().expect("a good pair");
    let now = SystemTime::now();
    for (chain, key, mode) in [
        (&[&short, &root][..], &short.key, 0o400),
        (&[&good, &root], &short.key, 0o400),
        (&[&good, &root], &good.key, 0o444),
    ] {
        pair.put(chain, key, mode);
        assert!(cas.reload().is_err());
        let told = cas.warnings(now).join(" ");
        assert!(told.contains("the old pair stays in force"), "{told}");
        let made = cas.make("x", &names(&["api.test"]), SystemTime::now()).expect("made");
        assert!(verify(&made, &made.issue("api.test").expect("a leaf")).is_ok());
    }
    pair.put(&[&good, &root], &good.key, 0o400);
    assert!(cas.reload().is_ok() && cas.warnings(now).is_empty());
}

// covers: D6l
#[test]
fn the_next_intermediate_of_a_root_signs_at_once_and_one_of_another_root_when_the_guest_has_that() {
    let root = above("root", None, BasicConstraints::Unconstrained);
    let [one, two] = ["one", "two"].map(|name| above(name, Some(&root.issuer), BasicConstraints::Constrained(1)));
    let other = above("other root", None, BasicConstraints::Unconstrained);
    let three = above("three", Some(&other.issuer), BasicConstraints::Constrained(1));
    let pair = Pair::new(&[&one, &root], &one.key, 0o400);
    let (cas, cell, hosts) = (pair.open().expect("a good pair"), PodCaCell::default(), names(&["api.test"]));
    let now = SystemTime::now();
    let renew = || cell.renew(&cas, "x", &hosts, now).expect("made");
    let below = || cell.signer("api.test", now).expect("a signer");
    renew();
    let first = below();
    pair.put(&[&two, &root], &two.key, 0o400);
    cas.reload().expect("a good pair");
    assert!(!cell.is_of_now(&cas));
    renew();
    let second = below();
    assert!(second.chain[1] != first.chain[1] && second.trust == first.trust && cell.is_of_now(&cas));
    pair.put(&[&three, &other], &three.key, 0o400);
    cas.reload().expect("a good pair");
    renew();
    assert!(Arc::ptr_eq(&below(), &second), "apps know the old root only");
    let told = cell.told(now);
    assert_eq!(told.pem().matches("BEGIN CERTIFICATE").count(), 2, "both roots");
    cell.confirm(&told);
    assert!(Arc::ptr_eq(&below(), &second), "as long as it can");
    assert!(cell.signer("api.test", second.not_after()).is_none_or(|next| next.trust != second.trust));
}
