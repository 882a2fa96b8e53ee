//! A destination outside, which counts who comes.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use nova_supervisor::identity::Issued;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::{PATIENCE, Shared, read_request};

pub struct Upstream {
    /// Where it listens.
    pub address: String,
    accepted: Arc<AtomicUsize>,
    pub requests: Shared<Vec<String>>,
    pub peers: Shared<Vec<String>>,
}

impl Upstream {
    /// Every connection goes to `serve`, on a thread of its own.
    pub fn start(address: &str, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        let address = listener.local_addr().expect("bound").to_string();
        let accepted = Arc::<AtomicUsize>::default();
        let peers: Shared<Vec<String>> = Arc::default();
        let (count, seen, serve) = (Arc::clone(&accepted), Arc::clone(&peers), Arc::new(serve));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                if let Ok(peer) = stream.peer_addr() {
                    seen.lock().expect("no panic").push(peer.ip().to_string());
                }
                let _ = stream.set_read_timeout(Some(PATIENCE * 3));
                let serve = Arc::clone(&serve);
                std::thread::spawn(move || serve(stream));
            }
        });
        Self { address, accepted, requests: Arc::default(), peers }
    }

    /// An HTTP server that answers with 200 and the request's first line.
    pub fn http(address: &str) -> Self {
        let requests: Shared<Vec<String>> = Arc::default();
        let seen = Arc::clone(&requests);
        let upstream = Self::start(address, move |mut stream| answer_all(&mut stream, &seen));
        Self { requests, ..upstream }
    }

    /// The same over TLS.
    pub fn https(address: &str, who: &Issued) -> Self {
        let requests: Shared<Vec<String>> = Arc::default();
        let seen = Arc::clone(&requests);
        let config = server_config(who);
        let upstream = Self::start(address, move |stream| {
            let Ok(server) = ServerConnection::new(Arc::clone(&config)) else { return };
            answer_all(&mut StreamOwned::new(server, stream), &seen);
        });
        Self { requests, ..upstream }
    }

    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    pub fn seen(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").clone()
    }
}

pub fn server_config(who: &Issued) -> Arc<ServerConfig> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(who.key_der().to_vec()));
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(who.chain.clone(), key)
        .expect("a usable key");
    Arc::new(config)
}

fn answer_all(stream: &mut (impl std::io::Read + Write), seen: &Mutex<Vec<String>>) {
    while let Ok(request) = read_request(stream) {
        let line = request.lines().next().unwrap_or_default().to_owned();
        seen.lock().expect("no panic").push(request);
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{line}", line.len());
        if stream.write_all(answer.as_bytes()).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}
