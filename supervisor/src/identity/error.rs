//! What can go wrong with our own identities. Every text ends with what to do.

use std::io;
use std::path::PathBuf;

use nova_proto::ids::{InvalidId, SpiffeId};

use super::{IdentifyError, LeafError};
use crate::causes;

/// Why there is no SVID, no source or no trust bundle.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The embedded CA outside dev mode.
    #[error(
        "the dev identity source is for development only; set [identity] to files, or node.mode to \"dev\" on a lab node"
    )]
    DevOutsideDevMode,
    /// The dev source was asked for an identity that it does not issue.
    #[error(
        "the dev identity source issues {issues} and not {asked}; remove trust_domain from the endpoint, or use another source"
    )]
    NotDevIdentity {
        /// What the endpoint declares.
        asked: SpiffeId,
        /// What this source issues for that workload.
        issues: SpiffeId,
    },
    /// `dev.invalid` in a source that is not `dev`.
    #[error(
        "trust domain dev.invalid belongs to the dev identity source; give this node's own trust domain in [identity]"
    )]
    DevDomain,
    /// The endpoint is of another trust domain.
    #[error("{asked} is not in this node's trust domain {own}; correct the endpoint or [identity] trust_domain")]
    ForeignDomain {
        /// What the endpoint declares.
        asked: SpiffeId,
        /// The node's trust domain.
        own: String,
    },
    /// Not a trust domain name.
    #[error("{0}; a trust domain is lower-case letters, digits, '.', '-' and '_', without spiffe://")]
    TrustDomain(#[source] InvalidId),
    /// The handed-over CA cannot be used.
    #[error(
        "the CA of the dev source cannot be used: {problem}; hand over a P-256 CA certificate and its PKCS#8 key, both PEM"
    )]
    DevCa {
        /// What is wrong with it.
        problem: String,
    },
    /// The intermediate of the CAs of pods cannot be used.
    #[error(
        "{what} cannot sign the CAs of pods: {problem}; give the intermediate (P-256, pathlen 1 or none) first and its \
         self-signed root last, and its PKCS#8 key"
    )]
    Intermediate {
        /// Which file.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// A name that a pod's CA may not vouch for.
    #[error(
        "the CA of the pod does not cover {host}, or its time is over; restart the pod, so that it gets another CA"
    )]
    NotCovered {
        /// The name.
        host: String,
    },
    /// A file cannot be read.
    #[error("cannot read {}; check that it exists and that the supervisor's user may read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Something that is not a plain file of a sensible size.
    #[error("{} is not a regular file of at most {max} bytes; put a PEM file there", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// The largest size that is read.
        max: u64,
    },
    /// Others may read the key.
    #[error("{} has mode {mode:04o} and uid {uid}; only its owner (root or the supervisor's user) may have access: chmod 0400", path.display())]
    KeyExposed {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// Its owner.
        uid: u32,
    },
    /// A text that should be PEM.
    #[error("{what} holds no usable {section}: {problem}; write it as PEM (the key as PKCS#8, 'BEGIN PRIVATE KEY')")]
    Pem {
        /// Which text.
        what: String,
        /// The section that was wanted.
        section: &'static str,
        /// What the parser said.
        problem: String,
    },
    /// A root that is none.
    #[error("{what}: certificate {index} cannot be a trusted root: {problem}; list CA certificates only")]
    Root {
        /// Where the roots come from.
        what: String,
        /// Which one, from 1.
        index: usize,
        /// What is wrong.
        problem: String,
    },
    /// One CA under two names.
    #[error(
        "external CAs {first} and {second} share a CA certificate, so a peer's CA would be ambiguous; keep one of them"
    )]
    AmbiguousCa {
        /// The first name.
        first: String,
        /// The second name.
        second: String,
    },
    /// The certificate is not an SVID.
    #[error("{what} is not a usable SVID; issue it again with one URI SAN, keyUsage digitalSignature and CA:FALSE")]
    NotAnSvid {
        /// Which certificate.
        what: String,
        /// The rule it breaks.
        #[source]
        source: LeafError,
    },
    /// The certificate is for somebody else.
    #[error("{what} is for {found} and not for {wanted}; put the certificate of {wanted} there")]
    WrongIdentity {
        /// Which certificate.
        what: String,
        /// Its SPIFFE ID.
        found: SpiffeId,
        /// The endpoint's.
        wanted: SpiffeId,
    },
    /// Certificate and key do not belong together, or the key cannot be used.
    #[error("{what}: key and certificate do not match ({problem}); replace both files together")]
    KeyMismatch {
        /// Which pair.
        what: String,
        /// What the crypto library said.
        problem: String,
    },
    /// The certificate is not one that a server may present.
    #[error("{what} is not a server's certificate: {problem}; put the server's own certificate first, then its CAs")]
    NotAServer {
        /// Which file.
        what: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Not a revocation list.
    #[error("{what} is not a usable revocation list: {problem}; put the CA's current list there, PEM or DER")]
    Crl {
        /// Which file.
        what: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Peers would refuse it.
    #[error("{what} does not verify against this node's own bundle; renew it, or add its CA to bundle.pem")]
    Unverifiable {
        /// Which certificate.
        what: String,
        /// Why a peer would refuse it.
        #[source]
        source: IdentifyError,
    },
    /// Key generation or signing failed.
    #[error("the crypto library could not {doing}; this does not depend on the configuration: restart, and report it")]
    Crypto {
        /// What was tried.
        doing: &'static str,
    },
    /// Some of a source could not be replaced.
    #[error("kept the old value of {} of the identity files: {}", .0.len(), join(.0))]
    Reload(Vec<IdentityError>),
}

fn join(errors: &[IdentityError]) -> String {
    // The list has no single source.
    let texts: Vec<String> = errors.iter().map(|error| causes::on_one_line(error)).collect();
    texts.join(" | ")
}
