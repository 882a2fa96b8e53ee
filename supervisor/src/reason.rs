//! Why a connection or request ended the way it did: one closed set, which is at once the audit field and the metric label.
//!
//! What a caller reads comes from [`Public`], a smaller set: many reasons, one text, so that outsiders learn nothing and
//! users learn what to do.

/// Every reason there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A rule allows it.
    Rule,
    /// The pair may talk at all; the request or stream is decided next.
    Connect,
    /// No rule allows it, but every candidate only audits.
    WouldDeny,
    /// No rule names this pair.
    NoGrant,
    /// Rules name the pair, none allows this method and path.
    L7Mismatch,
    /// The path has an escaped slash, and no rule of the pair accepts one.
    EscapedSlash,
    /// The pair has only rules with an `http` block, and the stream is opaque.
    NeedsOpaqueGrant,
    /// The rule needs a credential that cannot be had.
    CredentialUnavailable,
    /// The call asks for a credential that it is not granted, or the pod may not use the one that the rule names.
    CredentialNotGranted,
    /// A field of the answer says the secret that was put into the request.
    CredentialEchoed,
    /// The policy changed and no longer allows it.
    PolicyRevoked,
    /// There is no active bundle.
    NoPolicy,
    /// The engine failed or ran out of its budget.
    EngineError,
    /// The audit log cannot be written.
    AuditUnavailable,
    /// The bytes are not one unambiguous message; the gate's own reason is in the record's detail.
    Malformed,
    /// The path is not canonical.
    BadPath,
    /// The destination is not a valid host and port.
    BadDestination,
    /// The guest did not send a valid hello in time.
    BadHello,
    /// The hello's boot token is not the endpoint's.
    WrongToken,
    /// The socket's peer is not the endpoint's VMM.
    WrongPeer,
    /// The endpoint does not exist, is suspended or is not ready for this.
    EndpointNotReady,
    /// The endpoint is draining.
    Draining,
    /// A limit of the endpoint is reached.
    LimitConnections,
    /// The endpoint's connections come faster than its limit allows.
    LimitRate,
    /// The endpoint's share of the process's connections is used up.
    LimitProcess,
    /// The endpoint asks for names faster than its limit allows.
    LimitNames,
    /// Every port between the workload's address and the destination is in use.
    LimitPorts,
    /// TLS: the client sent no certificate.
    NoClientCert,
    /// TLS: the peer's certificate does not lead to a trusted root, or claims what its CA may not.
    PeerUntrusted,
    /// TLS: the peer's certificate is not valid now.
    PeerExpired,
    /// TLS: a CA took the peer's certificate back.
    PeerRevoked,
    /// The request has no token, and only rules for tokens would let it in.
    TokenMissing,
    /// The request's token is not good; the fault is in the record's detail.
    TokenInvalid,
    /// The keys of the token's issuer could not be had.
    TokenKeysUnavailable,
    /// TLS: the handshake failed otherwise.
    HandshakeFailed,
    /// TLS: the handshake did not end in time.
    HandshakeTimeout,
    /// The app speaks TLS to a workload; the supervisor adds TLS itself.
    AppTlsToWorkload,
    /// A TLS name inside a tunnel differs from the tunnel's host.
    SniMismatch,
    /// The app did not believe the certificate that it got in the place of its destination's.
    ClientRejectedCa,
    /// The CA that the guest trusts does not cover the name, or there is none.
    InterceptNeedsRestart,
    /// The name does not resolve.
    ResolveFailed,
    /// The name is one that no rule may lead to, or adds too much to a wildcard.
    NameForbidden,
    /// The address is one that no rule may reach.
    AddressForbidden,
    /// The upstream refused or cannot be reached.
    UpstreamRefused,
    /// The upstream did not answer in time.
    UpstreamTimeout,
    /// The parent proxy on the way opened no tunnel; why is in the record's detail.
    UpstreamProxy,
    /// The upstream's certificate is not the one expected.
    UpstreamIdentity,
    /// The upstream's answer is not one unambiguous message.
    UpstreamMalformed,
    /// The upstream closed before it answered.
    UpstreamClosed,
    /// The system lets the supervisor send no pings.
    PingUnavailable,
    /// The guest's app refused the connection.
    GuestRefused,
    /// The guest cannot be reached.
    GuestUnreachable,
    /// A protocol or method that is not carried.
    Unsupported,
    /// Nothing was sent in time.
    IdleTimeout,
    /// The body of a request stood still.
    BodyTimeout,
    /// The connection is as old as connections may get.
    MaxLifetime,
    /// Both sides finished.
    Done,
    /// One side was reset.
    Reset,
    /// The task that carried it was stopped before the end.
    Aborted,
}

impl Reason {
    /// The label in audit lines and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Connect => "connect",
            Self::WouldDeny => "would_deny",
            Self::NoGrant => "no_grant",
            Self::L7Mismatch => "l7_mismatch",
            Self::EscapedSlash => "escaped_slash",
            Self::NeedsOpaqueGrant => "needs_opaque_grant",
            Self::CredentialUnavailable => "credential_unavailable",
            Self::CredentialNotGranted => "credential_not_granted",
            Self::CredentialEchoed => "credential_echoed",
            Self::PolicyRevoked => "policy_revoked",
            Self::NoPolicy => "no_policy",
            Self::EngineError => "engine_error",
            Self::AuditUnavailable => "audit_unavailable",
            Self::Malformed => "malformed",
            Self::BadPath => "bad_path",
            Self::BadDestination => "bad_destination",
            Self::BadHello => "bad_hello",
            Self::WrongToken => "wrong_token",
            Self::WrongPeer => "wrong_peer",
            Self::EndpointNotReady => "endpoint_not_ready",
            Self::Draining => "draining",
            Self::LimitConnections => "limit_connections",
            Self::LimitRate => "limit_rate",
            Self::LimitProcess => "limit_process",
            Self::LimitNames => "limit_names",
            Self::LimitPorts => "limit_ports",
            Self::NoClientCert => "no_client_cert",
            Self::PeerUntrusted => "peer_untrusted",
            Self::PeerExpired => "peer_expired",
            Self::PeerRevoked => "peer_revoked",
            Self::TokenMissing => "token_missing",
            Self::TokenInvalid => "token_invalid",
            Self::TokenKeysUnavailable => "token_keys_unavailable",
            Self::HandshakeFailed => "handshake_failed",
            Self::HandshakeTimeout => "handshake_timeout",
            Self::AppTlsToWorkload => "app_tls_to_workload",
            Self::SniMismatch => "sni_mismatch",
            Self::ClientRejectedCa => "client_rejected_ca",
            Self::InterceptNeedsRestart => "intercept_needs_restart",
            Self::ResolveFailed => "resolve_failed",
            Self::NameForbidden => "name_forbidden",
            Self::AddressForbidden => "address_forbidden",
            Self::UpstreamRefused => "upstream_refused",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::UpstreamProxy => "upstream_proxy",
            Self::UpstreamIdentity => "upstream_identity",
            Self::UpstreamMalformed => "upstream_malformed",
            Self::UpstreamClosed => "upstream_closed",
            Self::PingUnavailable => "ping_unavailable",
            Self::GuestRefused => "guest_refused",
            Self::GuestUnreachable => "guest_unreachable",
            Self::Unsupported => "unsupported",
            Self::IdleTimeout => "idle_timeout",
            Self::BodyTimeout => "body_timeout",
            Self::MaxLifetime => "max_lifetime",
            Self::Done => "done",
            Self::Reset => "reset",
            Self::Aborted => "aborted",
        }
    }

    /// What the caller is told.
    #[must_use]
    pub fn public(self) -> Public {
        match self {
            Self::Rule | Self::Connect | Self::WouldDeny | Self::Done => Public::Ok,
            Self::NoGrant
            | Self::L7Mismatch
            | Self::NeedsOpaqueGrant
            | Self::CredentialUnavailable
            | Self::CredentialNotGranted
            | Self::PolicyRevoked
            | Self::NameForbidden
            | Self::AddressForbidden => Public::Denied,
            Self::CredentialEchoed => Public::Withheld,
            Self::AppTlsToWorkload => Public::UseHttp,
            Self::TokenMissing => Public::NoToken,
            Self::TokenInvalid => Public::BadToken,
            Self::NoPolicy
            | Self::TokenKeysUnavailable
            | Self::EngineError
            | Self::AuditUnavailable
            | Self::EndpointNotReady
            | Self::Draining
            | Self::LimitConnections
            | Self::LimitRate
            | Self::LimitProcess
            | Self::LimitNames
            | Self::LimitPorts
            | Self::MaxLifetime
            | Self::PingUnavailable
            | Self::InterceptNeedsRestart
            | Self::Aborted => Public::Unavailable,
            Self::BadDestination => Public::NoDestination,
            Self::Malformed | Self::BadPath | Self::SniMismatch => Public::Malformed,
            Self::EscapedSlash => Public::EscapedSlash,
            Self::Unsupported => Public::NotCarried,
            Self::UpstreamTimeout | Self::IdleTimeout => Public::UpstreamTimeout,
            Self::BodyTimeout => Public::TooSlow,
            Self::GuestRefused | Self::GuestUnreachable => Public::Unavailable,
            Self::BadHello
            | Self::WrongToken
            | Self::WrongPeer
            | Self::NoClientCert
            | Self::PeerUntrusted
            | Self::PeerExpired
            | Self::PeerRevoked
            | Self::HandshakeFailed
            | Self::HandshakeTimeout
            | Self::ClientRejectedCa
            | Self::ResolveFailed
            | Self::UpstreamRefused
            | Self::UpstreamProxy
            | Self::UpstreamIdentity
            | Self::UpstreamMalformed
            | Self::UpstreamClosed
            | Self::Reset => Public::UpstreamFailed,
        }
    }
}

/// What a caller is told: status code and one text each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Public {
    /// Nothing to tell.
    Ok,
    /// 403: policy says no.
    Denied,
    /// 403: the app speaks TLS to a workload.
    UseHttp,
    /// 401: a token is wanted.
    NoToken,
    /// 401: the token is not good.
    BadToken,
    /// 400: the message is malformed or ambiguous.
    Malformed,
    /// 400: the path has an escaped slash.
    EscapedSlash,
    /// 400: it does not say where it goes, or another place than the connection leads to.
    NoDestination,
    /// 400: a form or method that is not carried.
    NotCarried,
    /// 408: the rest of the request did not come.
    TooSlow,
    /// 503: cannot decide, cannot record or cannot serve now.
    Unavailable,
    /// 502: the upstream failed.
    UpstreamFailed,
    /// 502: the answer may not be shown to the app.
    Withheld,
    /// 504: the upstream did not answer in time.
    UpstreamTimeout,
}

impl Public {
    /// HTTP status code.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::Ok => 200,
            Self::NoToken | Self::BadToken => 401,
            Self::Denied | Self::UseHttp => 403,
            Self::Malformed | Self::EscapedSlash | Self::NoDestination | Self::NotCarried => 400,
            Self::TooSlow => 408,
            Self::Unavailable => 503,
            Self::UpstreamFailed | Self::Withheld => 502,
            Self::UpstreamTimeout => 504,
        }
    }

    /// Status code of gRPC: permission denied, invalid argument, internal, unavailable, deadline exceeded,
    /// unauthenticated.
    #[must_use]
    pub fn grpc_status(self) -> u16 {
        match self {
            Self::Ok => 0,
            Self::Malformed | Self::EscapedSlash | Self::NoDestination => 3,
            Self::UpstreamTimeout | Self::TooSlow => 4,
            Self::Denied | Self::UseHttp => 7,
            Self::NotCarried | Self::Withheld => 13,
            Self::NoToken | Self::BadToken => 16,
            Self::Unavailable | Self::UpstreamFailed => 14,
        }
    }

    /// The challenge that goes with a 401 (RFC 6750, section 3).
    #[must_use]
    pub fn challenge(self) -> Option<&'static str> {
        match self {
            Self::NoToken => Some("Bearer realm=\"nova\""),
            Self::BadToken => Some("Bearer realm=\"nova\", error=\"invalid_token\""),
            _ => None,
        }
    }

    /// What a guest of this node can do about it: as [`Public::text`], where its proxy asks for something else.
    #[must_use]
    pub fn text_for_guests(self) -> &'static str {
        match self {
            Self::NotCarried => {
                "this form or method is not carried; a proxy takes `GET http://host/path` and `CONNECT host:port`, no TRACE and no UDP"
            }
            other => other.text(),
        }
    }

    /// What the caller can do about it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Ok => "",
            Self::Denied => {
                "no rule grants this call; ask the owner of the policy for a rule, and give the decision id"
            }
            Self::NoToken => "send a bearer token of an issuer that this service trusts",
            Self::BadToken => "the bearer token is not valid here; get a fresh one for this audience",
            Self::UseHttp => {
                "the supervisor adds mutual TLS itself; call this workload with http:// instead of https://"
            }
            Self::Malformed => "the request is malformed or ambiguous and was not forwarded",
            Self::EscapedSlash => {
                "the path has an escaped slash (%2F), which no rule for this call accepts; write it as it is, or ask the owner of the policy for a rule with encoded_slash"
            }
            Self::NoDestination => {
                "the request does not name the host that this connection leads to; set its Host, in gRPC its authority, to the host that you call, with the port if it is not the usual one"
            }
            Self::NotCarried => {
                "this method is not carried; call the service with another one, and not with CONNECT or TRACE"
            }
            Self::TooSlow => "the body of the request did not go on; send it faster",
            Self::Unavailable => "the call cannot be decided or served at the moment; try again",
            Self::UpstreamFailed => "the destination could not be reached or did not prove its identity",
            Self::Withheld => {
                "the destination's answer says what the supervisor sent to it, and may not be shown to an app"
            }
            Self::UpstreamTimeout => "the destination did not answer in time",
        }
    }
}
