//! A host outside that speaks TLS: what it agreed on, and what came on which connection.

use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use nova_supervisor::identity::{DevCa, Issued};
use rcgen::{CertificateParams, DistinguishedName, DnType, Issuer, KeyPair, KeyUsagePurpose, SanType};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::h2::{Event, H2};
use super::{Shared, Upstream, read_request};

pub type TlsServer = StreamOwned<ServerConnection, TcpStream>;

/// A request, and the connection that it came on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub connection: usize,
    /// Who connected.
    pub from: String,
    /// What the handshake agreed on.
    pub alpn: String,
    /// The head: as it came, or the fields of HTTP/2, one a line.
    pub head: String,
}

impl Seen {
    pub fn has(&self, line: &str) -> bool {
        self.head.lines().any(|known| known == line)
    }
}

#[derive(Clone, Default)]
pub struct Log(Shared<Vec<Seen>>);

impl Log {
    pub fn all(&self) -> Vec<Seen> {
        self.0.lock().expect("no panic").clone()
    }

    /// The connections that requests came on.
    pub fn connections(&self) -> Vec<usize> {
        let mut all: Vec<_> = self.all().iter().map(|seen| seen.connection).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// What a server gets of each connection.
pub struct Connection {
    pub number: usize,
    pub from: String,
    pub alpn: String,
    pub log: Log,
}

impl Connection {
    pub fn saw(&self, head: String) {
        let (connection, from, alpn) = (self.number, self.from.clone(), self.alpn.clone());
        self.log.0.lock().expect("no panic").push(Seen { connection, from, alpn, head });
    }

    pub fn saw_fields(&self, fields: &[(String, String)]) {
        self.saw(fields.iter().map(|(name, value)| format!("{name}: {value}\n")).collect());
    }
}

pub struct Host {
    pub upstream: Upstream,
    pub log: Log,
    config: Shared<Arc<ServerConfig>>,
    /// Payload that came on connections, whatever became of their handshake.
    pub payload: Arc<AtomicUsize>,
}

impl Host {
    /// Every connection whose handshake ends well goes to `serve`.
    pub fn start(
        address: &str,
        config: Arc<ServerConfig>,
        serve: impl Fn(&Connection, TlsServer) + Send + Sync + 'static,
    ) -> Self {
        let (log, payload) = (Log::default(), Arc::<AtomicUsize>::default());
        let config: Shared<Arc<ServerConfig>> = Arc::new(Mutex::new(config));
        let number = AtomicUsize::new(0);
        let (for_all, counted, current) = (log.clone(), Arc::clone(&payload), Arc::clone(&config));
        let upstream = Upstream::start(address, move |tcp| {
            let config = Arc::clone(&current.lock().expect("no panic"));
            let from = tcp.peer_addr().map(|peer| peer.ip().to_string()).unwrap_or_default();
            let mut tls = StreamOwned::new(ServerConnection::new(config).expect("a server"), tcp);
            while tls.conn.is_handshaking() {
                if tls.conn.complete_io(&mut tls.sock).is_err() {
                    let mut rest = Vec::new();
                    let _ = std::io::Read::read_to_end(&mut tls.conn.reader(), &mut rest);
                    counted.fetch_add(rest.len(), Ordering::SeqCst);
                    return;
                }
            }
            let alpn = tls.conn.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned());
            let (number, log) = (number.fetch_add(1, Ordering::SeqCst), for_all.clone());
            serve(&Connection { number, from, alpn: alpn.unwrap_or_default(), log }, tls);
        });
        Self { upstream, log, config, payload }
    }

    /// Answers every request with 200 and the number of its connection, in the version that was agreed on.
    pub fn polite(address: &str, config: Arc<ServerConfig>) -> Self {
        Self::start(address, config, |connection, tls| {
            if connection.alpn == "h2" {
                serve_h2(connection, tls, |_, _| vec![(":status", "200")]);
            } else {
                serve_h1(connection, tls);
            }
        })
    }

    /// Other certificates or protocols for connections that come from now on.
    pub fn configure(&self, config: Arc<ServerConfig>) {
        *self.config.lock().expect("no panic") = config;
    }
}

pub fn serve_h1(connection: &Connection, mut tls: TlsServer) {
    while let Ok(request) = read_request(&mut tls) {
        connection.saw(request.replace("\r\n", "\n"));
        let body = connection.number.to_string();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if std::io::Write::write_all(&mut tls, answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Each whole request gets the head that `answer` makes of its stream and head, and the connection's number as body.
pub fn serve_h2(
    connection: &Connection,
    tls: TlsServer,
    answer: impl Fn(u32, &str) -> Vec<(&'static str, &'static str)>,
) {
    let Ok(mut h2) = H2::server(tls) else { return };
    let mut heads = std::collections::HashMap::new();
    while let Ok(event) = h2.event() {
        if let Event::Headers { stream, fields, .. } = &event {
            connection.saw_fields(fields);
            heads.insert(*stream, fields.iter().map(|(name, value)| format!("{name}: {value}\n")).collect::<String>());
        }
        let (Event::Headers { stream, end: true, .. } | Event::Data { stream, end: true, .. }) = event else {
            continue;
        };
        let head = answer(stream, heads.get(&stream).map_or("", String::as_str));
        h2.headers(stream, &head, false);
        h2.data(stream, connection.number.to_string().as_bytes(), true);
    }
}

/// A server with the certificate of `who` and these protocols.
pub fn speaks(who: &Issued, alpn: &[&str]) -> Arc<ServerConfig> {
    speaks_with(who.chain.clone(), who.key_der(), alpn)
}

pub fn speaks_with(chain: Vec<CertificateDer<'static>>, key: &[u8], alpn: &[&str]) -> Arc<ServerConfig> {
    speaks_versions(chain, key, alpn, rustls::DEFAULT_VERSIONS)
}

pub fn speaks_versions(
    chain: Vec<CertificateDer<'static>>,
    key: &[u8],
    alpn: &[&str],
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Arc<ServerConfig> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.to_vec()));
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_protocol_versions(versions)
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a usable key");
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// A certificate of which a test decides everything, with its key.
pub struct Leaf {
    pub chain: Vec<CertificateDer<'static>>,
    key: KeyPair,
}

impl Leaf {
    /// One of `ca`, for no name unless `spoil` says so.
    pub fn of(ca: &DevCa, spoil: impl FnOnce(&mut CertificateParams)) -> Self {
        let text = ca.to_pem().expect("a CA");
        let key = text.find("-----BEGIN PRIVATE KEY").map(|at| &text[at..]).expect("a key");
        let (_, pem) = x509_parser::pem::parse_x509_pem(text.as_bytes()).expect("PEM");
        let certificate = pem.parse_x509().expect("a certificate");
        let name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        let mut of_ca = CertificateParams::default();
        of_ca.distinguished_name = DistinguishedName::new();
        of_ca.distinguished_name.push(DnType::CommonName, name.expect("a name"));
        let issuer = Issuer::new(of_ca, KeyPair::from_pem(key).expect("a key"));
        let (params, key) = Self::begun(spoil);
        Self { chain: vec![params.signed_by(&key, &issuer).expect("signed").into()], key }
    }

    /// One that vouches for itself.
    pub fn self_signed(spoil: impl FnOnce(&mut CertificateParams)) -> Self {
        let (params, key) = Self::begun(spoil);
        Self { chain: vec![params.self_signed(&key).expect("signed").into()], key }
    }

    fn begun(spoil: impl FnOnce(&mut CertificateParams)) -> (CertificateParams, KeyPair) {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        spoil(&mut params);
        (params, KeyPair::generate().expect("a key"))
    }

    pub fn speaks(&self, alpn: &[&str]) -> Arc<ServerConfig> {
        speaks_with(self.chain.clone(), self.key.serialized_der(), alpn)
    }
}

pub fn dns(names: &[&str]) -> Vec<SanType> {
    names.iter().map(|name| SanType::DnsName((*name).try_into().expect("ASCII"))).collect()
}

pub fn uri(id: &str) -> SanType {
    SanType::URI(id.try_into().expect("ASCII"))
}
