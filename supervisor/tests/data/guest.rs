//! A guest: its muxer and relay as the supervisor sees them (`v.sock`), an app behind it, and what it dials.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use super::{PATIENCE, Shared, read_request, until};

type Handler = Arc<dyn Fn(Link, &App) + Send + Sync>;

/// What the app of a guest saw.
#[derive(Default)]
pub struct App {
    /// Every request, as the bytes that arrived.
    pub requests: Mutex<Vec<String>>,
    /// Connections on which anything arrived.
    pub connections: AtomicUsize,
}

impl App {
    /// Notes a request, and that it is the first of its connection.
    pub fn saw(&self, request: &str) {
        self.requests.lock().expect("no panic").push(request.to_owned());
    }

    pub fn seen(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").clone()
    }
}

pub struct Guest {
    socket: PathBuf,
    framed: bool,
    pub app: Arc<App>,
    handler: Shared<Handler>,
    /// While set, the muxer accepts and says nothing.
    pub stalled: Arc<AtomicBool>,
}

impl Guest {
    /// Serves `<dir>/v.sock`; every port leads to an app that answers each request with 200.
    pub fn start(dir: &Path, framed: bool) -> Self {
        std::fs::create_dir_all(dir).expect("a folder");
        let socket = dir.join("v.sock");
        let listener = UnixListener::bind(&socket).expect("bound");
        let app = Arc::<App>::default();
        let handler: Shared<Handler> = Arc::new(Mutex::new(Arc::new(polite)));
        let stalled = Arc::<AtomicBool>::default();
        let (shared_app, shared, stall) = (Arc::clone(&app), Arc::clone(&handler), Arc::clone(&stalled));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stall.load(Ordering::SeqCst) {
                    // Held until the process ends: the other side must give up by itself.
                    std::mem::forget(stream);
                    continue;
                }
                let (app, handler) = (Arc::clone(&shared_app), Arc::clone(&shared));
                std::thread::spawn(move || {
                    if let Ok(Some(link)) = receive(stream) {
                        let handler = Arc::clone(&handler.lock().expect("no panic"));
                        handler(link, &app);
                    }
                });
            }
        });
        Self { socket, framed, app, handler, stalled }
    }

    /// Replaces the app.
    pub fn serve(&self, app: impl Fn(Link, &App) + Send + Sync + 'static) {
        *self.handler.lock().expect("no panic") = Arc::new(app);
    }

    /// Replaces the app by one that answers with `first` at once, and with `-last` when the sender says so.
    pub fn serve_in_halves(&self) -> mpsc::Sender<()> {
        let (go, wait) = mpsc::channel();
        let wait = Mutex::new(wait);
        self.serve(move |mut link, app| {
            while let Ok(request) = read_request(&mut link) {
                app.saw(&request);
                let _ = link.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst");
                let _ = wait.lock().expect("no panic").recv();
                let _ = link.write_all(b"-last");
            }
        });
        go
    }

    /// Connects to what the supervisor bound for this guest. Nothing is sent.
    pub fn connect(&self) -> UnixStream {
        self.try_connect().expect("the supervisor listens for the guest")
    }

    pub fn try_connect(&self) -> io::Result<UnixStream> {
        let mut path = self.socket.clone().into_os_string();
        path.push("_15001");
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Connects and says hello.
    pub fn dial(&self, kind: u8, token: [u8; 16], target: &str) -> Link {
        let mut stream = self.connect();
        stream.write_all(&hello(kind, self.framed, token, target)).expect("sent");
        Link::new(stream, self.framed)
    }
}

pub fn hello(kind: u8, framed: bool, token: [u8; 16], target: &str) -> Vec<u8> {
    let mut bytes = b"NOVR\x01".to_vec();
    bytes.extend([kind, u8::from(framed), u8::try_from(target.len()).expect("short")]);
    bytes.extend(token);
    bytes.extend(target.as_bytes());
    bytes
}

/// The muxer's handshake and the relay's hello. `None`: not a connection to an app.
fn receive(mut stream: UnixStream) -> io::Result<Option<Link>> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    stream.write_all(b"OK 1073741824\n")?;
    let mut head = [0; 24];
    stream.read_exact(&mut head)?;
    let mut target = vec![0; usize::from(head[7])];
    stream.read_exact(&mut target)?;
    stream.write_all(&[0])?;
    let mut link = Link::new(stream, head[6] & 1 == 1);
    link.target = String::from_utf8(target).unwrap_or_default();
    Ok(Some(link))
}

/// Answers every request with 200 and its first line.
pub fn polite(mut link: Link, app: &App) {
    let mut first = true;
    while let Ok(request) = read_request(&mut link) {
        if std::mem::take(&mut first) {
            app.connections.fetch_add(1, Ordering::Relaxed);
        }
        app.saw(&request);
        let line = request.lines().next().unwrap_or_default().to_owned();
        let is_head = line.starts_with("HEAD ");
        let answer =
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", line.len(), if is_head { "" } else { &line });
        if link.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// A connection between guest and supervisor, framed or not.
pub struct Link {
    pub stream: UnixStream,
    framed: bool,
    left: usize,
    ended: bool,
    /// Target of the supervisor's hello.
    pub target: String,
}

impl Link {
    pub fn new(stream: UnixStream, framed: bool) -> Self {
        Self { stream, framed, left: 0, ended: false, target: String::new() }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.write_all(bytes.as_ref()).expect("sent");
    }

    pub fn another(&self) -> Self {
        Self::new(self.stream.try_clone().expect("a descriptor"), self.framed)
    }

    /// Ends this side only.
    pub fn finish(&mut self) {
        if self.framed {
            let _ = self.stream.write_all(&[1, 0, 0]);
        } else {
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    /// Everything until the other side ends in good order.
    pub fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        self.read_to_end(&mut all)?;
        Ok(all)
    }

    /// Whether the connection is over, however that looks on this kind of link.
    pub fn is_closed(&mut self) -> bool {
        !matches!(self.read(&mut [0; 4096]), Ok(1..))
    }

    pub fn wait_closed(&mut self) {
        self.stream.set_read_timeout(Some(Duration::from_millis(20))).expect("set");
        until("the connection closes", || match self.read(&mut [0; 64 * 1024]) {
            Ok(read) => read == 0,
            Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
        });
    }
}

impl Read for Link {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if !self.framed {
            return self.stream.read(buf);
        }
        while self.left == 0 && !self.ended {
            let mut head = [0; 3];
            if self.stream.read(&mut head[..1])? == 0 {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            self.stream.read_exact(&mut head[1..])?;
            match head {
                [0, high, low] => self.left = usize::from(u16::from_be_bytes([high, low])),
                [1, 0, 0] => self.ended = true,
                [2, 0, 0] => return Err(io::ErrorKind::ConnectionReset.into()),
                other => panic!("broken record head {other:?}"),
            }
        }
        if self.ended {
            return Ok(0);
        }
        let wanted = buf.len().min(self.left);
        let read = self.stream.read(&mut buf[..wanted])?;
        self.left -= read;
        if read == 0 { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(read) }
    }
}

impl Write for Link {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if !self.framed {
            return self.stream.write(buf);
        }
        let part = &buf[..buf.len().min(60_000)];
        let mut record = vec![0];
        record.extend(u16::try_from(part.len()).expect("short").to_be_bytes());
        record.extend(part);
        self.stream.write_all(&record)?;
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
