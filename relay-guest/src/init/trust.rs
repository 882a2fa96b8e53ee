//! The CA that the supervisor uses to look into the app's TLS, made known to the app: asked for once, before the app starts.
//!
//! ```text
//! hello Trust --> supervisor: PEM --> <trust_dir>/ca.pem          the CA alone        Node, Deno: they keep their own roots
//!                                     <trust_dir>/bundle.pem      the image's and it  OpenSSL, Python, curl, git, ...
//!                                     <trust_dir>/truststore.p12  the same            Java
//! ```
//! Where the supervisor intercepts nothing, nothing is written and no variable is set. In a microVM the folder is a file
//! system of its own that is read-only when the app starts.

mod ask;
mod store;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

use super::config::GuestConfig;

/// Where images keep the roots of their programs, in one file. The first that is there counts.
const ROOTS: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// What names the roots of an image that keeps them elsewhere.
const ROOTS_VARIABLE: &str = "SSL_CERT_FILE";
/// The options that every JVM reads.
const JAVA: &str = "JAVA_TOOL_OPTIONS";
/// Programs that use this file instead of their own roots.
const BUNDLE_VARIABLES: [&str; 9] = [
    ROOTS_VARIABLE,
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "npm_config_cafile",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
];
/// Programs that use this file beside their own roots.
const CA_VARIABLES: [&str; 2] = ["NODE_EXTRA_CA_CERTS", "DENO_CERT"];

/// Certificates that the app finds on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    dir: PathBuf,
}

/// Asks for the CA and puts it where the app's programs look. `None`: there is none, or nobody said so in time, which is
/// reported; the app then starts without it.
///
/// # Errors
/// When the files cannot be written.
pub async fn prepare(config: &GuestConfig) -> io::Result<Option<Trust>> {
    let Some(dir) = &config.trust_dir else { return Ok(None) };
    let Some(ca) = ask::ask(config).await else {
        eprintln!(
            "nova-init: the supervisor did not say in time which CA to trust; the app starts without it, and calls whose \
             rule says tls: intercept fail until this guest is started anew"
        );
        return Ok(None);
    };
    if ca.is_empty() {
        return Ok(None);
    }
    install(dir, &ca, roots(config).as_deref().unwrap_or_default(), config.is_guest_init)?;
    Ok(Some(Trust { dir: dir.clone() }))
}

impl Trust {
    /// Adds our variables to those of the configuration, which win. Options of Java are joined, and there the last wins.
    pub fn add_to(&self, variables: &mut BTreeMap<String, String>, configured: &BTreeMap<String, String>) {
        let file = |name| self.dir.join(name).display().to_string();
        let bundle = BUNDLE_VARIABLES.map(|variable| (variable, file("bundle.pem")));
        let ca = CA_VARIABLES.map(|variable| (variable, file("ca.pem")));
        for (variable, value) in bundle.into_iter().chain(ca) {
            variables.entry(variable.to_owned()).or_insert(value);
        }
        let ours =
            format!("-Djavax.net.ssl.trustStore={} -Djavax.net.ssl.trustStoreType=PKCS12", file("truststore.p12"));
        let java = configured.get(JAVA).map_or_else(|| ours.clone(), |theirs| format!("{ours} {theirs}"));
        variables.insert(JAVA.to_owned(), java);
    }
}

/// The roots that the image's programs use without us.
fn roots(config: &GuestConfig) -> Option<Vec<u8>> {
    let named = config.env.get(ROOTS_VARIABLE).map(PathBuf::from);
    named.into_iter().chain(ROOTS.map(PathBuf::from)).find_map(|path| fs::read(path).ok())
}

fn install(dir: &Path, ca: &str, roots: &[u8], is_machine: bool) -> io::Result<()> {
    const CLOSED: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);
    const TMPFS: Option<&str> = Some("tmpfs");
    fs::create_dir_all(dir)?;
    if is_machine {
        mount(TMPFS, dir, TMPFS, CLOSED, Some("mode=0755,size=16m"))?;
    }
    let bundle = [ca.as_bytes(), b"\n", roots].concat();
    write(&dir.join("ca.pem"), ca.as_bytes())?;
    write(&dir.join("truststore.p12"), &store::pkcs12(&bundle))?;
    write(&dir.join("bundle.pem"), &bundle)?;
    if is_machine {
        mount(TMPFS, dir, TMPFS, CLOSED | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, None::<&str>)?;
    }
    Ok(())
}

/// For everybody to read and nobody to write; a file of an earlier start is replaced.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::write(path, bytes)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o444))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(configured: &[(&str, &str)]) -> BTreeMap<String, String> {
        let configured: BTreeMap<_, _> =
            configured.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut variables = configured.clone();
        Trust { dir: "/run/nova/trust".into() }.add_to(&mut variables, &configured);
        variables
    }

    // covers: D6d
    #[test]
    fn what_the_app_was_given_on_purpose_stays() {
        let variables = added(&[("SSL_CERT_FILE", "/own.pem"), ("JAVA_TOOL_OPTIONS", "-Xmx1g")]);
        assert_eq!(variables["SSL_CERT_FILE"], "/own.pem");
        assert_eq!(variables["REQUESTS_CA_BUNDLE"], "/run/nova/trust/bundle.pem");
        assert_eq!(variables["NODE_EXTRA_CA_CERTS"], "/run/nova/trust/ca.pem");
        let java = &variables["JAVA_TOOL_OPTIONS"];
        assert!(java.starts_with("-Djavax.net.ssl.trustStore=/run/nova/trust/truststore.p12 "), "{java}");
        assert!(java.ends_with(" -Xmx1g"), "{java}");
        assert!(!variables.contains_key("SSL_CERT_DIR"));
    }

    // covers: D6d
    #[test]
    fn the_bundle_holds_the_ca_and_the_roots_of_the_image() {
        let dir = tempfile::tempdir().expect("a folder");
        for round in ["first", "second"] {
            install(dir.path(), round, b"roots", false).expect("written");
            assert_eq!(fs::read_to_string(dir.path().join("bundle.pem")).expect("there"), format!("{round}\nroots"));
            assert_eq!(fs::read_to_string(dir.path().join("ca.pem")).expect("there"), round);
            let mode = fs::metadata(dir.path().join("truststore.p12")).expect("there").permissions().mode();
            assert_eq!(mode & 0o777, 0o444);
        }
    }
}
