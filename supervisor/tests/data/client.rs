//! A caller with a certificate of its choice, which believes any server.

#[path = "../any_server/mod.rs"]
mod any_server;

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use nova_supervisor::identity::Issued;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned, SupportedProtocolVersion};
use socket2::{Domain, Socket, Type};

use self::any_server::AnyServer;
use super::{Answer, PATIENCE, read_answer};

/// Why there is no connection, or it ended.
pub type TlsError = io::Error;

pub struct Tls(StreamOwned<ClientConnection, TcpStream>);

impl Tls {
    pub fn connect(from: &str, to: &str, who: Option<&Issued>) -> Result<Self, TlsError> {
        Self::over(dial(from, to)?, config(who), "service-a.t.nova")
    }

    pub fn over(tcp: TcpStream, config: Arc<ClientConfig>, name: &str) -> Result<Self, TlsError> {
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let client = ClientConnection::new(config, name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(client, tcp);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Self(stream))
    }

    pub fn conn(&self) -> &ClientConnection {
        &self.0.conn
    }

    /// The protocol that was agreed on.
    pub fn alpn(&self) -> Option<String> {
        self.0.conn.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned())
    }

    /// What the server presented first.
    pub fn server_certificate(&self) -> CertificateDer<'static> {
        self.0.conn.peer_certificates().expect("a server has one")[0].clone().into_owned()
    }

    pub fn tcp(&self) -> &TcpStream {
        &self.0.sock
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).expect("sent");
    }

    pub fn answer(&mut self) -> io::Result<Answer> {
        read_answer(&mut self.0)
    }

    /// One request, one answer.
    pub fn ask(&mut self, request: impl AsRef<[u8]>) -> Answer {
        self.send(request);
        self.answer().expect("an answer")
    }

    /// Whether the server closes without another byte.
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        !matches!(self.0.read(&mut byte), Ok(1..)) && !self.timed_out()
    }

    fn timed_out(&self) -> bool {
        false
    }

    pub fn close_notify(&mut self) {
        self.0.conn.send_close_notify();
        let _ = self.0.flush();
    }
}

impl Read for Tls {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for Tls {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

pub fn dial(from: &str, to: &str) -> io::Result<TcpStream> {
    let from: IpAddr = from.parse().expect("an address");
    let to: SocketAddr = to.parse().expect("an address");
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect_timeout(&to.into(), Duration::from_secs(5))?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

pub fn config(who: Option<&Issued>) -> Arc<ClientConfig> {
    config_of(who, rustls::DEFAULT_VERSIONS)
}

pub fn config_of(who: Option<&Issued>, versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_protocol_versions(versions)
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer));
    Arc::new(match who {
        None => builder.with_no_client_auth(),
        Some(issued) => {
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(issued.key_der().to_vec()));
            builder.with_client_auth_cert(issued.chain.clone(), key).expect("a usable key")
        }
    })
}

pub fn config_with(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer));
    Arc::new(builder.with_client_auth_cert(chain, key).expect("a usable key"))
}
