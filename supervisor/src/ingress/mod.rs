//! Callers of a workload: accept, identify, decide, dial, copy, audit.
//!
//! ```text
//! tcp  --------------------------------\                 /-- raw:  decide(opaque)  -> guest, byte copy
//!                                       decide(connect) <
//! mtls -- handshake, exactly one peer --/                 \-- http: per request gate -> path -> decide(request) -> guest
//! tls  -- handshake, no certificate ----/
//! ```
//! A caller without any grant is refused at `decide(connect)`, before a byte of its protocol is parsed.

mod http;
mod raw;
mod tls;
mod token;
mod xfcc;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use nova_policy::input::{Input, Peer};
use tokio::net::TcpStream;

use crate::audit::AuditSink;
use crate::conn::{
    Accepted, Caller, Cut, Identified, Live, PeerWatch, Registry, until_closed, until_overdue, until_port_overdue,
};
use crate::decide::Decider;
use crate::dial::{Dialer, Speaks};
use crate::net::outbound;
use crate::net::stream::Stream;
use crate::reason::Reason;
use crate::state::endpoint::{Endpoint, PortMode, Protocol, Stage};
use crate::state::policy::PolicyCell;
use crate::state::port::{OpenPort, PortStage};
use crate::tls::{Certificates, PeerIdentity, PeerVerifier};
use crate::tokens::Issuers;

/// The ingress service of one data-plane thread.
pub struct Ingress {
    decider: Rc<Decider>,
    dialer: Rc<Dialer>,
    audit: Arc<AuditSink>,
    policy: Arc<PolicyCell>,
    registry: Arc<Registry>,
    known_by: KnownBy,
    tls: tls::Terminator,
}

/// By what callers and we know each other.
#[derive(Clone)]
pub struct KnownBy {
    /// Client certificates of `mtls` ports.
    pub verifier: Arc<PeerVerifier>,
    /// Server certificates that `tls` ports may name.
    pub certificates: Arc<Certificates>,
    /// Issuers of bearer tokens on `tls` ports.
    pub tokens: Arc<Issuers>,
}

impl Ingress {
    /// The service for this thread.
    #[must_use]
    pub fn new(
        decider: Rc<Decider>,
        dialer: Rc<Dialer>,
        audit: Arc<AuditSink>,
        policy: Arc<PolicyCell>,
        registry: Arc<Registry>,
        known_by: KnownBy,
    ) -> Self {
        let tls = tls::Terminator::new(Arc::clone(&known_by.verifier), Arc::clone(&known_by.certificates));
        Self { decider, dialer, audit, policy, registry, known_by, tls }
    }

    /// What ends a connection before its peers say so.
    fn watch(&self, conn: &Identified, port: &OpenPort) -> Cut {
        let verifier = &self.known_by.verifier;
        let peer = conn.who.identity.clone().map(|identity| PeerWatch::new(identity, Arc::clone(verifier)));
        Cut::watch(&conn.endpoint, &self.policy).of_port(port).of_peer(peer)
    }

    /// Serves one connection, from accept to close. What has no cut of its own (a dial) ends with the endpoint
    /// or the port as well.
    pub async fn serve(self: Rc<Self>, endpoint: Arc<Endpoint>, port: OpenPort, tcp: TcpStream, from: SocketAddr) {
        let (gone, taken) = (endpoint.clone(), port.clone());
        tokio::select! {
            biased;
            () = self.carry(endpoint, port, tcp, from) => {}
            () = until_overdue(&gone) => {}
            () = until_port_overdue(&taken) => {}
        }
    }

    async fn carry(self: Rc<Self>, endpoint: Arc<Endpoint>, open: OpenPort, tcp: TcpStream, from: SocketAddr) {
        let port = &open.spec;
        let Some(mut accepted) = Accepted::new(&endpoint, &self.audit, "ingress", from) else {
            return Stream::Tcp(tcp).abort().await;
        };
        accepted.record.dest(port.name.as_str(), port.port);
        let is_over = endpoint.stage() == Stage::Closed || open.stage() == PortStage::Closed;
        if endpoint.stage() < Stage::Serving || is_over {
            accepted.record.deny(Reason::EndpointNotReady);
            return Stream::Tcp(tcp).abort().await;
        }
        // Options that only tune: a socket on which they fail is dead and shows it at once.
        let _ = outbound::tune(&tcp);
        let (stream, identity) = match port.mode {
            PortMode::Tcp => (Stream::Tcp(tcp), None),
            PortMode::Mtls | PortMode::Tls => {
                let accepting = self.tls.accept(&endpoint, port, tcp, from, &mut accepted.record);
                let accepted_tls = tokio::select! {
                    biased;
                    done = accepting => done,
                    () = until_closed(&endpoint) => {
                        accepted.record.deny(Reason::Draining);
                        None
                    }
                    () = open.until(PortStage::Closed) => {
                        accepted.record.deny(Reason::Draining);
                        None
                    }
                };
                match accepted_tls {
                    Some(done) => done,
                    None => return,
                }
            }
        };
        let conn = accepted.identified(Caller { identity, addr: Some(from) });
        self.decide_connection(conn, open, stream, from).await;
    }

    async fn decide_connection(&self, mut conn: Identified, open: OpenPort, stream: Stream, from: SocketAddr) {
        let port = &open.spec;
        let peer = policy_peer(&conn.who);
        let input =
            Input::ingress_connect(conn.spec.workload.as_str(), port.name.as_str(), &peer, from.ip().to_canonical());
        let permit = match self.decider.decide(input, &mut conn.record) {
            Ok(permit) => permit,
            Err(_) => return stream.abort().await,
        };
        let _listed = self.registry.enter(Live {
            decision_id: conn.record.decision_id().to_owned(),
            direction: "ingress",
            workload: conn.spec.workload.to_string(),
            peer: conn.who.identity.as_ref().map_or_else(|| from.to_string(), PeerIdentity::label),
            what: port.name.to_string(),
            since: std::time::Instant::now(),
        });
        match port.protocol {
            Protocol::Raw => raw::carry(self, conn, &open, permit, stream, from).await,
            Protocol::Http => http::serve(self, conn, &open, permit, stream, Speaks::Http1).await,
            Protocol::Grpc => http::serve(self, conn, &open, permit, stream, Speaks::Http2).await,
        }
    }
}

fn policy_peer(who: &Caller) -> Peer {
    let Some(identity) = &who.identity else { return Peer::Anonymous };
    match (&identity.ca, &identity.spiffe_id, &identity.names) {
        (Some(ca), id, Some(names)) => Peer::Named {
            ca: ca.as_str().into(),
            id: id.clone(),
            dns: names.dns.clone(),
            cn: names.cn.as_deref().map(Into::into),
        },
        (Some(ca), Some(id), None) => Peer::External { ca: ca.as_str().into(), id: id.clone() },
        (None, Some(id), _) => Peer::Own(id.clone()),
        // Nobody: `identify` gives no such identity, and no rule would fit it.
        (_, None, _) => Peer::Anonymous,
    }
}
