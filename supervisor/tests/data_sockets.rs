//! The egress sockets of a guest, as the supervisor sees them: the kinds that the relay says hello with.

mod data;

use data::h2::{H2, Reply};
use data::{Link, Node, Upstream, X, is, read_answer, token, until};

/// The hello of the socket that is the proxy.
fn socket(node: &Node) -> Link {
    node.guest(X).dial(4, token(X), "egress.sock")
}

fn ask(link: &mut Link, request: &str) -> data::Answer {
    link.send(request);
    read_answer(link).expect("an answer")
}

// covers: D3a
#[test]
fn the_egress_socket_is_the_proxy() {
    let node = Node::start();
    let upstream = Upstream::http(&format!("{}:8080", node.ip(80)));
    let mut link = socket(&node);
    let get = |path: &str| format!("GET http://plain.test:8080{path} HTTP/1.1\r\nHost: plain.test:8080\r\n\r\n");
    for path in ["/v1/one", "/v1/two"] {
        assert_eq!(ask(&mut link, &get(path)).status, 200);
    }
    let answer = ask(&mut socket(&node), &get("/../x"));
    assert_eq!(answer.status, 400, "{answer:?}");
    let answer = ask(&mut socket(&node), "CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n");
    assert_eq!(answer.status, 403, "{answer:?}");
    // SOCKS5 as on the port: the first byte tells them apart.
    let mut socks = socket(&node);
    socks.send([5, 1, 0]);
    let mut chosen = [0; 2];
    std::io::Read::read_exact(&mut socks, &mut chosen).expect("a choice");
    assert_eq!(chosen, [5, 0]);
    drop((socks, link));
    node.audited(2, |line| is(line, &[("kind", "request"), ("verdict", "allow"), ("rule", "x-to-plain")]));
    assert_eq!(upstream.accepted(), 1);
    until("nothing is left open", || node.open("x") == 0);
}

// covers: D3a
#[test]
fn a_hello_of_the_egress_socket_needs_its_name_and_the_token() {
    let node = Node::start();
    assert!(node.guest(X).dial(4, token(X), "").is_closed());
    assert!(node.guest(X).dial(4, [0; 16], "egress.sock").is_closed());
    node.audited(1, |line| is(line, &[("reason", "bad_hello")]));
    node.audited(1, |line| is(line, &[("reason", "wrong_token")]));
}

/// The first answer to a gRPC call with this authority.
fn grpc(link: Link, authority: &str) -> Reply {
    let mut h2 = H2::client(link);
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", authority),
        (":path", "/v1.Orders/Get"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    h2.headers(1, &fields, true);
    h2.reply(1)
}

fn message(reply: &Reply) -> String {
    assert_eq!(reply.status(), 200, "{reply:?}");
    reply.get("grpc-message").expect("a message").replace("%20", " ")
}

// covers: D3d
#[test]
fn a_grpc_call_whose_authority_is_not_the_dependency_is_told_what_to_set() {
    let node = Node::start();
    let dependency = || node.guest(X).dial(2, token(X), "service-a.t.nova:8443");
    // What libraries send by themselves over a Unix socket, and what people try.
    for authority in ["localhost", "egress.sock", "service-a.t.nova:1"] {
        let reply = grpc(dependency(), authority);
        assert_eq!(reply.get("grpc-status"), Some("3"), "{reply:?}");
        let message = message(&reply);
        assert!(
            message.contains("authority") && message.contains(&format!("http://{authority}/v1.Orders")),
            "{message}"
        );
    }
    node.audited(3, |line| is(line, &[("reason", "bad_destination"), ("detail", "authority_mismatch")]));
    // With the right one the rules decide.
    assert_eq!(grpc(dependency(), "service-a.t.nova").get("grpc-status"), Some("7"));
    node.audited(1, |line| is(line, &[("reason", "l7_mismatch")]));
}

// covers: D3d
#[test]
fn a_grpc_call_over_the_egress_socket_goes_where_its_authority_says_and_is_told_where_that_was() {
    let node = Node::start();
    let reply = grpc(socket(&node), "localhost");
    assert_eq!(reply.get("grpc-status"), Some("7"), "{reply:?}");
    let told = message(&reply);
    assert!(told.contains("no rule") && told.contains("http://localhost/v1.Orders/Get"), "{told}");
    assert_eq!(grpc(socket(&node), "service-a.t.nova:8443").get("grpc-status"), Some("7"));
    node.audited(1, |line| is(line, &[("reason", "no_grant"), ("dest_host", "localhost")]));
    node.audited(1, |line| is(line, &[("reason", "l7_mismatch"), ("dest_host", "service-a.t.nova")]));
}
