//! How a handshake ended that did not succeed: one closed set for the audit record, from whatever the library reports.

use std::io;
use std::sync::Arc;

use nova_proto::ids::SpiffeId;
use rustls::{AlertDescription, CertificateError, Error, OtherError};

use crate::identity::{IdentifyError, LeafError};
use crate::reason::Reason;

/// Why there is no TLS connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}", self.as_str())]
pub enum HandshakeFailure {
    /// The client sent no certificate.
    NoClientCert,
    /// No CA that we believe signed the peer's certificate.
    UnknownIssuer,
    /// A CA that we believe signed it, and still it is not acceptable for this use.
    PeerUntrusted,
    /// It, or a CA above it, is not valid now.
    PeerExpired,
    /// A CA took it, or a CA above it, back.
    PeerRevoked,
    /// The revocation list about it is too old, or not its CA's.
    RevocationUnknown,
    /// It has no, several, or no canonical SPIFFE ID.
    BadSan,
    /// An external CA signed an ID of our own trust domain.
    OwnDomainFromForeignCa,
    /// The peer presented a CA as its own certificate.
    CaAsLeaf,
    /// keyUsage does not fit.
    KeyUsage,
    /// extendedKeyUsage excludes this use.
    ExtendedKeyUsage,
    /// The server is a workload of ours, but another one.
    WrongIdentity,
    /// The peer refused our certificate.
    RefusedByPeer,
    /// We have no valid SVID to present.
    NoSvid,
    /// It was no correct TLS 1.3.
    Protocol,
    /// It did not end in time.
    Timeout,
    /// The peer went away.
    Closed,
}

impl HandshakeFailure {
    /// The label for records and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoClientCert => "no_client_cert",
            Self::UnknownIssuer => "unknown_issuer",
            Self::PeerUntrusted => "peer_untrusted",
            Self::PeerExpired => "peer_expired",
            Self::PeerRevoked => "peer_revoked",
            Self::RevocationUnknown => "revocation_unknown",
            Self::BadSan => "bad_san",
            Self::OwnDomainFromForeignCa => "own_domain_from_foreign_ca",
            Self::CaAsLeaf => "ca_as_leaf",
            Self::KeyUsage => "key_usage",
            Self::ExtendedKeyUsage => "extended_key_usage",
            Self::WrongIdentity => "wrong_identity",
            Self::RefusedByPeer => "refused_by_peer",
            Self::NoSvid => "no_svid",
            Self::Protocol => "protocol",
            Self::Timeout => "timeout",
            Self::Closed => "closed",
        }
    }

    /// The reason of an inbound connection that ended this way. Outbound, what concerns the server's certificate is
    /// [`Reason::UpstreamIdentity`]: see [`is_about_certificate`](Self::is_about_certificate).
    #[must_use]
    pub fn reason(self) -> Reason {
        match self {
            Self::NoClientCert => Reason::NoClientCert,
            Self::PeerExpired => Reason::PeerExpired,
            Self::PeerRevoked => Reason::PeerRevoked,
            Self::Timeout => Reason::HandshakeTimeout,
            Self::RefusedByPeer | Self::NoSvid | Self::Protocol | Self::Closed => Reason::HandshakeFailed,
            Self::UnknownIssuer
            | Self::PeerUntrusted
            | Self::RevocationUnknown
            | Self::BadSan
            | Self::OwnDomainFromForeignCa
            | Self::CaAsLeaf
            | Self::KeyUsage
            | Self::ExtendedKeyUsage
            | Self::WrongIdentity => Reason::PeerUntrusted,
        }
    }

    /// Whether we refused the peer's certificate.
    #[must_use]
    pub fn is_about_certificate(self) -> bool {
        matches!(
            self.reason(),
            Reason::NoClientCert | Reason::PeerExpired | Reason::PeerRevoked | Reason::PeerUntrusted
        )
    }

    /// From the I/O error of an asynchronous handshake.
    #[must_use]
    pub fn from_io(error: &io::Error) -> Self {
        if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            return Self::from(tls);
        }
        match error.kind() {
            io::ErrorKind::TimedOut => Self::Timeout,
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => Self::Protocol,
            _ => Self::Closed,
        }
    }
}

impl From<&Error> for HandshakeFailure {
    fn from(error: &Error) -> Self {
        match error {
            Error::NoCertificatesPresented => Self::NoClientCert,
            Error::InvalidCertificate(error) => from_certificate_error(error),
            Error::AlertReceived(alert) => from_alert(*alert),
            // What rustls says when the resolver had nothing; a test holds it to these words.
            Error::General(text) if text == "no server certificate chain resolved" => Self::NoSvid,
            _ => Self::Protocol,
        }
    }
}

impl From<&IdentifyError> for HandshakeFailure {
    fn from(error: &IdentifyError) -> Self {
        match error {
            IdentifyError::Leaf(LeafError::IsCa) => Self::CaAsLeaf,
            IdentifyError::Leaf(LeafError::KeyUsage(_)) => Self::KeyUsage,
            IdentifyError::Leaf(LeafError::UriNames(_) | LeafError::NotSpiffe(_)) => Self::BadSan,
            IdentifyError::UnknownIssuer(_) => Self::UnknownIssuer,
            IdentifyError::OwnDomainFromForeignCa { .. } => Self::OwnDomainFromForeignCa,
            IdentifyError::Expired | IdentifyError::NotYetValid => Self::PeerExpired,
            IdentifyError::Revoked => Self::PeerRevoked,
            IdentifyError::RevocationUnknown(_) => Self::RevocationUnknown,
            IdentifyError::Purpose => Self::ExtendedKeyUsage,
            IdentifyError::Leaf(LeafError::Malformed(_))
            | IdentifyError::TooManyIntermediates(_)
            | IdentifyError::Chain(_) => Self::PeerUntrusted,
        }
    }
}

/// Why a client of ours refuses a server that is somebody.
#[derive(Debug, thiserror::Error)]
pub(super) enum WrongPeer {
    #[error("there is no valid SVID to call with")]
    NoSvid,
    #[error("the server is {found} and not {expected}")]
    Unexpected { found: String, expected: SpiffeId },
}

/// For rustls, which picks the alert from the kind: the common ones get their own, everything else `certificate_unknown`.
pub(super) fn to_rustls(error: IdentifyError) -> Error {
    match error {
        IdentifyError::UnknownIssuer(_) => CertificateError::UnknownIssuer.into(),
        IdentifyError::Expired => CertificateError::Expired.into(),
        IdentifyError::NotYetValid => CertificateError::NotValidYet.into(),
        IdentifyError::Revoked => CertificateError::Revoked.into(),
        error => other(error),
    }
}

pub(super) fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    CertificateError::Other(OtherError(Arc::new(error))).into()
}

fn from_certificate_error(error: &CertificateError) -> HandshakeFailure {
    match error {
        CertificateError::UnknownIssuer => HandshakeFailure::UnknownIssuer,
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => HandshakeFailure::PeerExpired,
        CertificateError::Revoked => HandshakeFailure::PeerRevoked,
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            HandshakeFailure::ExtendedKeyUsage
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            HandshakeFailure::WrongIdentity
        }
        CertificateError::Other(OtherError(inner)) => {
            if let Some(error) = inner.downcast_ref::<IdentifyError>() {
                return HandshakeFailure::from(error);
            }
            match inner.downcast_ref::<WrongPeer>() {
                Some(WrongPeer::NoSvid) => HandshakeFailure::NoSvid,
                Some(WrongPeer::Unexpected { .. }) => HandshakeFailure::WrongIdentity,
                None => HandshakeFailure::PeerUntrusted,
            }
        }
        _ => HandshakeFailure::PeerUntrusted,
    }
}

fn from_alert(alert: AlertDescription) -> HandshakeFailure {
    match alert {
        AlertDescription::CloseNotify | AlertDescription::UserCanceled => HandshakeFailure::Closed,
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateRequired
        | AlertDescription::UnknownCA
        | AlertDescription::AccessDenied => HandshakeFailure::RefusedByPeer,
        _ => HandshakeFailure::Protocol,
    }
}
