//! The phases of `control.proto` and the closed set of reasons that go with them.

use nova_proto::control as proto;

use crate::reason::Reason;

/// How far an endpoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Something is missing that the supervisor waits for.
    Waiting,
    /// The app may call out.
    SvidReady,
    /// All ports accept connections.
    Listening,
    /// The app answers and the policy knows the workload.
    Healthy,
    /// Calls are served.
    Serving,
    /// The app does not answer.
    Unhealthy,
    /// Open connections may finish.
    Draining,
    /// No connection is left, nothing is held any more.
    Drained,
    /// The update is refused and changed nothing.
    Rejected,
}

impl Phase {
    /// The name in `control.proto`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.to_proto().as_str_name()
    }

    /// The value on the wire.
    #[must_use]
    pub fn to_proto(self) -> proto::Phase {
        match self {
            Self::Waiting => proto::Phase::Waiting,
            Self::SvidReady => proto::Phase::SvidReady,
            Self::Listening => proto::Phase::Listening,
            Self::Healthy => proto::Phase::Healthy,
            Self::Serving => proto::Phase::Serving,
            Self::Unhealthy => proto::Phase::Unhealthy,
            Self::Draining => proto::Phase::DrainingNow,
            Self::Drained => proto::Phase::Drained,
            Self::Rejected => proto::Phase::Rejected,
        }
    }
}

/// Why an endpoint is in its phase: the `reason` of an acknowledgement and the metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    /// Nothing is wrong.
    Fine,
    /// The pod uid is not valid.
    BadPodUid,
    /// The workload id is not valid.
    BadWorkload,
    /// The SPIFFE ID is not valid, or is not this workload's.
    BadSpiffeId,
    /// The workload IP is not one that a workload can have.
    BadIp,
    /// The CID is reserved.
    BadCid,
    /// The socket file is not one path segment.
    BadSocket,
    /// A port number or name is not valid.
    BadPort,
    /// A port leads nowhere, or to two places.
    BadTarget,
    /// Two ports share a number or a name.
    DuplicatePort,
    /// The boot token is not 16 bytes.
    BadToken,
    /// A dependency is not valid.
    BadDependency,
    /// A name of a credential is not valid.
    BadCredential,
    /// The health check is not valid.
    BadHealthCheck,
    /// The state is not one that this build knows.
    BadState,
    /// Neither shared nor dedicated.
    UnknownIsolation,
    /// A dedicated endpoint belongs to an instance of its own.
    DedicatedNotHere,
    /// A port mode that this build does not serve.
    UnsupportedMode,
    /// A port protocol that this build does not serve.
    UnsupportedProtocol,
    /// A backend that this build does not serve.
    UnsupportedBackend,
    /// A limit that this build does not enforce.
    BadLimit,
    /// A feature of an endpoint that this build does not have.
    UnsupportedFeature,
    /// A newer generation is known.
    OlderGeneration,
    /// Another endpoint owns the IP.
    IpInUse,
    /// Another endpoint owns the CID.
    CidInUse,
    /// The update changes what only a new generation may change.
    ChangedInPlace,
    /// The endpoint drains and cannot come back in this generation.
    DrainingAlready,
    /// READY cannot become PENDING again.
    StateGoesBack,
    /// The guest is not there yet.
    WaitingForBackend,
    /// The ports cannot be bound.
    BindFailed,
    /// The guest's socket cannot be opened.
    GuestSocketFailed,
    /// The SVID has not come yet.
    WaitingForSvid,
    /// The SVID did not come in time.
    SvidTimeout,
    /// The SVID's time is over and there is no new one.
    SvidExpired,
    /// The address is not local to the supervisor.
    RouteMissing,
    /// The active bundle does not know the workload.
    WaitingForPolicy,
    /// The app has not answered yet, or stopped to: the reason of the last check.
    App(Reason),
    /// novalet has not said READY.
    WaitingForOrder,
    /// The guest's presence connection is lost.
    PresenceLost,
    /// novalet wants it drained.
    Ordered,
    /// A newer generation took its place.
    Superseded,
    /// The supervisor ends.
    Shutdown,
    /// Connections were cut when the drain time was over.
    DrainTimeout,
    /// A fault of this program.
    Internal,
}

impl Why {
    /// The label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "",
            Self::BadPodUid => "bad_pod_uid",
            Self::BadWorkload => "bad_workload",
            Self::BadSpiffeId => "bad_spiffe_id",
            Self::BadIp => "bad_ip",
            Self::BadCid => "bad_cid",
            Self::BadSocket => "bad_socket",
            Self::BadPort => "bad_port",
            Self::BadTarget => "bad_target",
            Self::DuplicatePort => "duplicate_port",
            Self::BadToken => "bad_token",
            Self::BadDependency => "bad_dependency",
            Self::BadCredential => "bad_credential",
            Self::BadHealthCheck => "bad_health_check",
            Self::BadState => "bad_state",
            Self::UnknownIsolation => "unknown_isolation",
            Self::DedicatedNotHere => "dedicated_not_here",
            Self::UnsupportedMode => "unsupported_mode",
            Self::UnsupportedProtocol => "unsupported_protocol",
            Self::UnsupportedBackend => "unsupported_backend",
            Self::BadLimit => "bad_limit",
            Self::UnsupportedFeature => "unsupported_feature",
            Self::OlderGeneration => "older_generation",
            Self::IpInUse => "ip_in_use",
            Self::CidInUse => "cid_in_use",
            Self::ChangedInPlace => "changed_in_place",
            Self::DrainingAlready => "draining_already",
            Self::StateGoesBack => "state_goes_back",
            Self::WaitingForBackend => "waiting_for_backend",
            Self::BindFailed => "bind_failed",
            Self::GuestSocketFailed => "guest_socket_failed",
            Self::WaitingForSvid => "waiting_for_svid",
            Self::SvidTimeout => "svid_timeout",
            Self::SvidExpired => "svid_expired",
            Self::RouteMissing => "route_missing",
            Self::WaitingForPolicy => "waiting_for_policy",
            Self::App(reason) => reason.as_str(),
            Self::WaitingForOrder => "waiting_for_order",
            Self::PresenceLost => "presence_lost",
            Self::Ordered => "ordered",
            Self::Superseded => "superseded",
            Self::Shutdown => "shutdown",
            Self::DrainTimeout => "drain_timeout",
            Self::Internal => "internal",
        }
    }

    /// The phase that a refused update is acknowledged with.
    #[must_use]
    pub fn phase(self) -> Phase {
        if self == Self::WaitingForBackend { Phase::Waiting } else { Phase::Rejected }
    }
}
