//! Tests of the emulated muxer: what it loses is as important as what it carries.

use super::*;

struct Setup {
    folder: tempfile::TempDir,
    _task: tokio::task::JoinHandle<()>,
}

impl Setup {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("pod")).expect("pod folder");
        std::fs::create_dir(folder.path().join("guest")).expect("guest folder");
        let mux = Mux {
            socket: folder.path().join("pod/v.sock"),
            guest: folder.path().join("guest"),
            host_ports: vec![15001],
        };
        let task = tokio::spawn(async move { mux.run().await.expect("serves") });
        while UnixStream::connect(folder.path().join("pod/v.sock")).await.is_err() {
            tokio::task::yield_now().await;
        }
        Self { folder, _task: task }
    }

    fn guest_listener(&self, port: u32) -> UnixListener {
        UnixListener::bind(self.folder.path().join(format!("guest/guest_{port}"))).expect("listens")
    }

    async fn dial(&self, line: &str) -> UnixStream {
        let mut stream = UnixStream::connect(self.folder.path().join("pod/v.sock")).await.expect("connects");
        stream.write_all(line.as_bytes()).await.expect("writes");
        stream
    }
}

async fn everything(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let reading = stream.read_to_end(&mut bytes);
    // A reset after the last byte is an end too.
    let _ = tokio::time::timeout(Duration::from_secs(10), reading).await.expect("ends in time");
    bytes
}

// covers: A3
#[tokio::test]
async fn garbage_and_ports_that_nobody_serves_are_an_end_of_file_without_a_word() {
    let setup = Setup::new().await;
    for line in
        ["GET / HTTP/1.1\r\n\r\n", "CONNECT 15080\n", "CONNECT ../x\n", "CONNECT 11111111111111111111111111111111\n"]
    {
        assert_eq!(everything(&mut setup.dial(line).await).await, b"", "{line:?}");
    }
}

// covers: A3
#[tokio::test]
async fn bytes_cross_in_both_directions_right_behind_the_handshake() {
    let setup = Setup::new().await;
    let listener = setup.guest_listener(15080);
    let mut host = setup.dial("CONNECT 15080\nping").await;
    let (mut guest, _) = listener.accept().await.expect("a connection");
    let mut ping = [0; 4];
    guest.read_exact(&mut ping).await.expect("reads");
    guest.write_all(b"pong").await.expect("writes");
    let mut answer = [0; 13];
    host.read_exact(&mut answer).await.expect("reads");
    assert_eq!((&ping, &answer), (b"ping", b"OK 15080\npong"));
}

// covers: A3
#[tokio::test]
async fn half_close_is_lost_from_the_host_side() {
    let setup = Setup::new().await;
    let listener = setup.guest_listener(15080);
    let mut host = setup.dial("CONNECT 15080\nquestion").await;
    let (mut guest, _) = listener.accept().await.expect("a connection");
    let mut ok = [0; 9];
    host.read_exact(&mut ok).await.expect("the handshake's answer");
    host.shutdown().await.expect("half-closes");
    assert_eq!(everything(&mut guest).await, b"question", "what was sent before is delivered");
    let _ = guest.write_all(b"answer").await;
    assert_eq!(everything(&mut host).await, b"", "the answer is lost");
}

// covers: A3
#[tokio::test]
async fn half_close_is_lost_from_the_guest_side() {
    let setup = Setup::new().await;
    let listener = UnixListener::bind(setup.folder.path().join("pod/v.sock_15001")).expect("listens");
    let mut guest = UnixStream::connect(setup.folder.path().join("guest/host_15001")).await.expect("connects");
    guest.write_all(b"question").await.expect("writes");
    guest.shutdown().await.expect("half-closes");
    let (mut host, _) = listener.accept().await.expect("a connection");
    assert_eq!(everything(&mut host).await, b"question");
    let _ = host.write_all(b"answer").await;
    assert_eq!(everything(&mut guest).await, b"");
}

// covers: A3
#[tokio::test]
async fn a_guest_that_dials_while_no_supervisor_listens_gets_an_end_of_file() {
    let setup = Setup::new().await;
    let mut guest = UnixStream::connect(setup.folder.path().join("guest/host_15001")).await.expect("connects");
    assert_eq!(everything(&mut guest).await, b"");
}
