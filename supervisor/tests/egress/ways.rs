//! Every way on which a request may leave a guest, and asking for something on it.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::data::h2::{H2, Reply};
use crate::data::{Answer, Link, Node, X, read_answer_to, read_head, token};
use crate::world::{Target, World};

/// A way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// `GET http://host/path` to the proxy port.
    AbsoluteForm,
    /// HTTP/1.1 inside a CONNECT.
    ConnectPlaintext,
    /// HTTP/2 by prior knowledge inside a CONNECT.
    ConnectH2,
    /// HTTP/1.1 behind SOCKS5.
    Socks5,
    /// HTTP/2 behind SOCKS5.
    Socks5H2,
    /// HTTP/1.1 on a fixed dependency.
    Dependency,
    /// HTTP/2 on a fixed dependency, as gRPC over its Unix socket.
    DependencyH2,
    /// `GET http://host/path` to the egress socket.
    Socket,
    /// HTTP/2 to the egress socket: the authority says where to.
    SocketH2,
    /// HTTP/1.1 in TLS of the app, which the supervisor answers.
    Intercepted,
    /// HTTP/2 in such TLS.
    InterceptedH2,
}

impl Way {
    /// Every one of them: a new way that is not given its place here does not compile.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        std::iter::successors(Some(Self::AbsoluteForm), |way| match way {
            Self::AbsoluteForm => Some(Self::ConnectPlaintext),
            Self::ConnectPlaintext => Some(Self::ConnectH2),
            Self::ConnectH2 => Some(Self::Socks5),
            Self::Socks5 => Some(Self::Socks5H2),
            Self::Socks5H2 => Some(Self::Dependency),
            Self::Dependency => Some(Self::DependencyH2),
            Self::DependencyH2 => Some(Self::Socket),
            Self::Socket => Some(Self::SocketH2),
            Self::SocketH2 => Some(Self::Intercepted),
            Self::Intercepted => Some(Self::InterceptedH2),
            Self::InterceptedH2 => None,
        })
    }

    /// The ways that there are to `target`.
    pub(crate) fn all_to(target: Target) -> impl Iterator<Item = Self> {
        Self::all().filter(move |way| match way {
            Self::Intercepted | Self::InterceptedH2 => target == Target::Intercept,
            _ => true,
        })
    }

    pub(crate) fn is_h2(self) -> bool {
        match self {
            Self::ConnectH2 | Self::Socks5H2 | Self::DependencyH2 | Self::SocketH2 | Self::InterceptedH2 => true,
            Self::AbsoluteForm
            | Self::ConnectPlaintext
            | Self::Socks5
            | Self::Dependency
            | Self::Socket
            | Self::Intercepted => false,
        }
    }

    /// A fresh connection to `target` on which requests can be sent.
    pub(crate) fn open(self, world: &World, target: Target) -> Client {
        let node = &world.node;
        let dependency = || node.guest(X).dial(2, token(X), &target.authority());
        let socket = || node.guest(X).dial(4, token(X), "egress.sock");
        match self {
            Self::AbsoluteForm => Client::absolute(node.proxy(X), target),
            Self::ConnectPlaintext => Client::inside(connect(node, target)),
            Self::ConnectH2 => Client::http2(connect(node, target)),
            Self::Socks5 => Client::inside(socks(node, target)),
            Self::Socks5H2 => Client::http2(socks(node, target)),
            Self::Dependency => Client::inside(dependency()),
            Self::DependencyH2 => Client::http2(dependency()),
            Self::Socket => Client::absolute(socket(), target),
            Self::SocketH2 => Client::http2(socket()),
            Self::Intercepted => Client::inside(tls(world, target, b"http/1.1")),
            Self::InterceptedH2 => Client::http2(tls(world, target, b"h2")),
        }
    }
}

/// TLS of the app inside a CONNECT, which trusts what its guest was told to trust.
fn tls(world: &World, target: Target, protocol: &[u8]) -> StreamOwned<ClientConnection, Link> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(world.trust.as_bytes()) {
        roots.add(certificate.expect("a certificate")).expect("a root");
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = target.host().try_into().expect("a name");
    let mut client = ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut link = connect(&world.node, target);
    while client.is_handshaking() {
        client.complete_io(&mut link).expect("a handshake");
    }
    assert_eq!(client.alpn_protocol(), Some(protocol));
    StreamOwned::new(client, link)
}

/// A CONNECT that was answered with 200.
pub(crate) fn connect(node: &Node, target: Target) -> Link {
    let mut link = node.proxy(X);
    let authority = target.authority();
    link.send(format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n"));
    let head = read_head(&mut link).expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    link
}

fn socks(node: &Node, target: Target) -> Link {
    let mut link = node.proxy(X);
    let reply = socks_request(&mut link, 1, 3, &named(target.host()), target.port());
    assert_eq!(reply[1], 0, "{reply:?}");
    link
}

/// A name as SOCKS5 carries it.
pub(crate) fn named(host: &str) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(host.len()).expect("short")];
    bytes.extend(host.bytes());
    bytes
}

/// Negotiates, asks, and gives the whole reply, which is that of the greeting alone if nothing else comes.
pub(crate) fn socks_request(link: &mut Link, command: u8, kind: u8, address: &[u8], port: u16) -> Vec<u8> {
    link.send([5, 1, 0]);
    let mut chosen = [0; 2];
    link.read_exact(&mut chosen).expect("a choice");
    assert_eq!(chosen, [5, 0]);
    let mut request = vec![5, command, 0, kind];
    request.extend(address);
    request.extend(port.to_be_bytes());
    link.send(request);
    let mut reply = vec![0; 10];
    link.read_exact(&mut reply).expect("a reply");
    reply
}

/// A request as a test words it, before it is put into the form of a way.
#[derive(Debug, Clone)]
pub(crate) struct Ask<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// Lines of the head but Host, in this order.
    pub(crate) fields: Vec<(&'a str, &'a str)>,
    /// Another Host, or `:authority`, than that of the target.
    pub(crate) host: Option<&'a str>,
    pub(crate) body: &'a str,
}

/// What came back.
#[derive(Debug)]
pub(crate) enum Said {
    Http1(Answer),
    Http2(Reply),
    /// The connection, or the stream, ended without an answer.
    Nothing,
}

impl Said {
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Http1(answer) => Some(answer.status),
            Self::Http2(reply) => Some(reply.status()),
            Self::Nothing => None,
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        match self {
            Self::Http1(answer) => answer.header(name),
            Self::Http2(reply) => reply.get(name).map(ToOwned::to_owned),
            Self::Nothing => None,
        }
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Self::Http1(answer) => answer.text(),
            Self::Http2(reply) => reply.text(),
            Self::Nothing => String::new(),
        }
    }
}

/// What a client reads and writes.
pub(crate) trait Io: Read + Write {}

impl<T: Read + Write> Io for T {}

/// A connection on which an app asks.
pub(crate) enum Client {
    Http1 { io: Box<dyn Io>, prefix: String },
    Http2(Box<H2<Box<dyn Io>>>),
}

impl Client {
    fn absolute(io: impl Io + 'static, target: Target) -> Self {
        Self::Http1 { io: Box::new(io), prefix: format!("http://{}", target.authority()) }
    }

    fn inside(io: impl Io + 'static) -> Self {
        Self::Http1 { io: Box::new(io), prefix: String::new() }
    }

    fn http2(io: impl Io + 'static) -> Self {
        Self::Http2(Box::new(H2::client(Box::new(io))))
    }

    /// Sends a request, the first one of the connection, and reads all of its answer.
    pub(crate) fn ask(&mut self, target: Target, ask: &Ask<'_>) -> Said {
        let authority = target.authority();
        let host = ask.host.unwrap_or(&authority);
        match self {
            Self::Http1 { io, prefix } => {
                let fields: String = ask.fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
                let Ask { method, path, body, .. } = ask;
                let head = format!("{method} {prefix}{path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n{body}");
                // Whoever refuses the head may be gone before it has all of it.
                let _ = io.write_all(head.as_bytes()).and_then(|()| io.flush());
                read_answer_to(io, ask.method == "HEAD").map_or(Said::Nothing, Said::Http1)
            }
            Self::Http2(h2) => {
                let mut fields =
                    vec![(":method", ask.method), (":scheme", "http"), (":authority", host), (":path", ask.path)];
                let lower: Vec<_> =
                    ask.fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), *value)).collect();
                fields.extend(lower.iter().map(|(name, value)| (name.as_str(), *value)));
                h2.headers(1, &fields, ask.body.is_empty());
                if !ask.body.is_empty() {
                    h2.data(1, ask.body.as_bytes(), true);
                }
                match h2.try_reply(1) {
                    Ok(reply) if !reply.fields.is_empty() => Said::Http2(reply),
                    _ => Said::Nothing,
                }
            }
        }
    }
}
