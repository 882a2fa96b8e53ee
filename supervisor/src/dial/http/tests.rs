use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::conn::body::Inbound;
use crate::dial::{Pools, Speaks};
use crate::state::room::Room;
use crate::state::table::tests::endpoint;

const HEADERS: u8 = 1;
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
const NO_MORE_STREAMS: [u8; 15] = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0];
/// `:status: 200` and the end of stream 1.
const ANSWER: [u8; 10] = [0, 0, 1, HEADERS, 5, 0, 0, 0, 1, 0x88];

fn call() -> (Request<RequestBody>, Rc<Meter>) {
    let (body, meter) = RequestBody::new(Inbound::Empty);
    let request = Request::post("/a.b/C").header("host", "a").header("content-type", "application/grpc");
    (request.body(body).expect("a request"), meter)
}

/// Reads frames up to the next HEADERS.
async fn until_head(app: &mut TcpStream) {
    loop {
        let mut head = [0; 9];
        app.read_exact(&mut head).await.expect("a frame");
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        app.read_exact(&mut vec![0; length]).await.expect("its payload");
        if head[3] == HEADERS {
            return;
        }
    }
}

// covers: C8b
#[tokio::test]
async fn a_call_that_got_its_place_when_the_app_allowed_no_more_ends_long_before_its_own_deadline() {
    let local = tokio::task::LocalSet::new();
    let talking = async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let addr = listener.local_addr().expect("bound");
        let pool = Pools::default().get(format_args!("in pod 1"), Speaks::Http2, Limits::default());
        let room = Room::new(&endpoint("a", "10.0.0.1", 3));
        let dial = async { TcpStream::connect(addr).await.map(Stream::Tcp).map_err(|_| Reason::UpstreamRefused) };
        let mut first = pool.open(&room, None, dial).await.expect("open");
        let (mut app, _) = listener.accept().await.expect("a caller");
        app.write_all(&SETTINGS).await.expect("sent");
        let (request, meter) = call();
        let asking = send(&mut first, request, &meter);
        let answering = async {
            app.read_exact(&mut [0; 24]).await.expect("the preface");
            until_head(&mut app).await;
            app.write_all(&ANSWER).await.expect("sent");
        };
        assert!(tokio::join!(asking, answering).0.is_ok());
        // It has its place, and before it is used the app allows none any more.
        let mut second = pool.take(None).expect("a place");
        app.write_all(&NO_MORE_STREAMS).await.expect("sent");
        while pool.take(None).is_some() {
            tokio::task::yield_now().await;
        }
        let (request, meter) = call();
        let began = Instant::now();
        let sent = send(&mut second, request, &meter).await;
        assert!(matches!(sent, Err(SendFailure::Failed(Reason::UpstreamTimeout, ""))));
        assert!((SHUT_TIME..SHUT_TIME * 3).contains(&began.elapsed()), "{:?}", began.elapsed());
    };
    local.run_until(tokio::time::timeout(Duration::from_secs(60), talking)).await.expect("in time");
}
