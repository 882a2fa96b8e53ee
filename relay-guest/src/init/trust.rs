//! The CAs that the supervisor uses to look into the app's TLS, made known to the app: asked for before it starts, and kept up to
//! date for every program that starts later.
//!
//! ```text
//! hello Trust --> supervisor: PEM --> <trust_dir>/ca.pem          the CAs alone         Node, Deno: they keep their own roots
//!            <-- installed            <trust_dir>/bundle.pem      the image's and them  OpenSSL, Python, curl, git, ...
//!                                     <trust_dir>/truststore.p12  the same              Java
//! ```
//! Where the supervisor intercepts nothing when the app starts, nothing is written and no variable is set. In a microVM the
//! folder is a file system of its own that is read-only but for the moments in which its files are replaced.

mod ask;
mod place;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use self::ask::{Asking, Said};
use self::place::Place;
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

/// For the first answer. An instance that is there answers at once, also that there is nothing to trust.
const DEADLINE: Duration = Duration::from_secs(5);
/// For the others after it: most nodes run one instance.
const OTHERS: Duration = Duration::from_millis(300);

/// Certificates that the app finds on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    dir: PathBuf,
}

/// Asks for the CAs and puts them where the app's programs look. No [`Trust`]: there is none, or nobody said so in time, which is
/// reported; the app then starts without it. The [`Keeper`] goes on listening; without one nobody is asked.
///
/// # Errors
/// When the files cannot be written.
pub async fn prepare(config: &GuestConfig) -> io::Result<(Option<Trust>, Option<Keeper>)> {
    let Some(dir) = &config.trust_dir else { return Ok((None, None)) };
    let mut keeper = Keeper { asking: Asking::start(config), latest: BTreeMap::new(), place: None };
    let first = keeper.first_answers(config.host_ports.len()).await;
    if first.is_empty() {
        eprintln!(
            "nova-init: the supervisor did not say in time which CA to trust; the app starts without it, and calls whose \
             rule says tls: intercept fail until this guest is started anew"
        );
    }
    if !keeper.all().is_empty() {
        keeper.place = Some(Place::new(dir.clone(), roots(config).unwrap_or_default(), config.is_guest_init));
        keeper.install()?;
    }
    let has_place = keeper.place.is_some();
    first.into_iter().for_each(|said| said.answer(has_place));
    Ok((has_place.then(|| Trust { dir: dir.clone() }), Some(keeper)))
}

/// Keeps the certificates of a running guest up to date.
#[derive(Debug)]
pub struct Keeper {
    asking: Asking,
    /// What each instance said last, by its port. One that is away keeps its word: nobody else has its keys.
    latest: BTreeMap<u32, String>,
    /// None where the app was started without: no variable of its environment leads to any file.
    place: Option<Place>,
}

impl Keeper {
    /// Installs whatever the supervisor says from now on, for ever.
    pub async fn keep(mut self) -> Infallible {
        while let Some(mut said) = self.asking.next().await {
            let before = self.latest.insert(said.port(), said.take_pem());
            let is_new = before.as_ref() != self.latest.get(&said.port());
            let done = self.place.is_some() && self.install().inspect_err(report).is_ok();
            if self.place.is_none() && is_new && !self.all().is_empty() {
                eprintln!(
                    "nova-init: a rule says tls: intercept by now, but the app was started without a CA to trust: start \
                     this guest anew"
                );
            }
            said.answer(done);
        }
        // All who ask have ended, which they do not by themselves.
        std::future::pending().await
    }

    /// The first answer of each of `instances`, as far as they come in time.
    async fn first_answers(&mut self, instances: usize) -> Vec<Said> {
        let mut first = Vec::new();
        let mut deadline = Instant::now() + DEADLINE;
        while first.len() < instances {
            let Ok(Some(mut said)) = timeout_at(deadline, self.asking.next()).await else { break };
            deadline = deadline.min(Instant::now() + OTHERS);
            self.latest.insert(said.port(), said.take_pem());
            first.push(said);
        }
        first
    }

    /// Every certificate that counts, once.
    fn all(&self) -> String {
        let answers: BTreeSet<&str> = self.latest.values().map(String::as_str).collect();
        answers.into_iter().collect()
    }

    fn install(&self) -> io::Result<()> {
        self.place.as_ref().map_or(Ok(()), |place| place.install(&self.all()))
    }
}

fn report(error: &io::Error) {
    eprintln!("nova-init: the certificates to trust cannot be replaced, the old ones stay: {error}");
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
}
