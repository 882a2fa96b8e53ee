//! The L7 cases: what is asked, and what must become of it on every way.

use crate::ways::{Ask, Way};
use crate::world::Target;

/// What must become of a request.
#[derive(Debug, Clone)]
pub(crate) enum Fate {
    /// It reaches the target; these stand in what the target got.
    Passes(Vec<String>),
    /// It is refused with this status and this reason in its record.
    Refused(u16, &'static str),
    /// A call of gRPC is refused with this status of gRPC.
    GrpcRefused(u16, &'static str),
    /// It breaks the rules of HTTP/2 itself: its stream is reset, and no record is about it.
    Reset,
}

/// A case on one way.
pub(crate) struct Case<'a> {
    pub(crate) name: &'static str,
    pub(crate) ask: Ask<'a>,
    pub(crate) fate: Fate,
}

const ORDER: &str = "/v1/orders/1";

fn ask(method: &'static str, path: &'static str) -> Ask<'static> {
    Ask { method, path, fields: Vec::new(), host: None, body: "" }
}

fn passes(parts: &[&str]) -> Fate {
    Fate::Passes(parts.iter().map(|part| (*part).to_owned()).collect())
}

/// All cases, as they are on this way to this target.
pub(crate) fn all(way: Way, target: Target) -> Vec<Case<'static>> {
    let mut cases = requests(target);
    cases.extend(paths());
    cases.extend(slashes(target));
    cases.extend(overrides());
    cases.extend(fields(way));
    cases.extend(destinations(way));
    cases.extend(changes(way));
    cases.extend(framing(way));
    cases
}

fn requests(target: Target) -> Vec<Case<'static>> {
    let with_body = |body| Ask { body, fields: vec![("Content-Length", "5")], ..ask("POST", ORDER) };
    let host = format!("host: {}\r\n", target.authority());
    let grpc = Ask {
        fields: vec![("Content-Type", "application/grpc"), ("Content-Length", "5"), ("TE", "trailers")],
        ..Ask { body: "\0\0\0\0\0", ..ask("POST", "/v1.Files/Get") }
    };
    vec![
        Case {
            name: "granted",
            ask: ask("GET", ORDER),
            fate: Fate::Passes(vec!["GET /v1/orders/1 HTTP/".into(), host]),
        },
        Case {
            name: "query",
            ask: ask("GET", "/v1/orders/1?a=%20&b=../c//d"),
            fate: passes(&["GET /v1/orders/1?a=%20&b=../c//d HTTP/"]),
        },
        Case { name: "unreserved", ask: ask("GET", "/v1/orders/%61"), fate: passes(&["GET /v1/orders/a HTTP/"]) },
        Case { name: "head", ask: ask("HEAD", ORDER), fate: passes(&["HEAD /v1/orders/1 HTTP/"]) },
        Case { name: "body", ask: with_body("hello"), fate: passes(&["POST /v1/orders/1 HTTP/", "\r\n\r\nhello"]) },
        Case { name: "method", ask: ask("DELETE", ORDER), fate: Fate::Refused(403, "l7_mismatch") },
        Case { name: "method in lower case", ask: ask("get", ORDER), fate: Fate::Refused(403, "l7_mismatch") },
        Case { name: "path", ask: ask("GET", "/v1/files/1"), fate: Fate::Refused(403, "l7_mismatch") },
        Case { name: "path in capitals", ask: ask("GET", "/V1/orders/1"), fate: Fate::Refused(403, "l7_mismatch") },
        Case { name: "grpc", ask: grpc, fate: Fate::GrpcRefused(7, "l7_mismatch") },
        Case { name: "trace", ask: ask("TRACE", ORDER), fate: Fate::Refused(400, "unsupported") },
        Case { name: "track", ask: ask("TRACK", ORDER), fate: Fate::Refused(400, "unsupported") },
    ]
}

fn paths() -> Vec<Case<'static>> {
    let bad = [
        "/v1/orders/../files/1",
        "/v1/orders/%2e%2e/files/1",
        "/v1/orders/%2E./files/1",
        "/v1/orders/..;a=b/files/1",
        "/v1/orders/.",
        "/v1//orders/1",
        "//v1/orders/1",
        "/v1/orders%2f..%2ffiles",
        "/v1/orders%2f/1",
        "/v1/orders/..%5Cfiles",
        "/v1/orders/..\\files",
        "/v1/orders/%252e%252e/files",
        "/v1/orders/%00",
        "/v1/orders/%zz",
    ];
    bad.map(|path| Case { name: path, ask: ask("GET", path), fate: Fate::Refused(400, "bad_path") }).into()
}

/// Servers read an escaped slash in two ways: it passes as it is where a rule accepts it, and nowhere else.
fn slashes(target: Target) -> Vec<Case<'static>> {
    let (mine, others) = match target.accepts_slash() {
        true => (passes(&["GET /@scope%2Fpkg HTTP/"]), Fate::Refused(403, "l7_mismatch")),
        false => (Fate::Refused(400, "escaped_slash"), Fate::Refused(400, "escaped_slash")),
    };
    let case = |path, fate: &Fate| Case { name: path, ask: ask("GET", path), fate: fate.clone() };
    vec![
        case("/@scope%2Fpkg", &mine),
        case("/@scope%2fpkg", &mine),
        case("/v1/orders/g%2Fp", &others),
        case("/v1%2Forders/1", &others),
        case("/@scope%2F..%2Fv1", &Fate::Refused(400, "bad_path")),
        case("/@scope%2F/pkg", &Fate::Refused(400, "bad_path")),
    ]
}

/// D13: other methods than the one that is decided.
fn overrides() -> Vec<Case<'static>> {
    let fields =
        ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "X_HTTP_Method_Override", "x.method.override"];
    let queries = [
        "/v1/orders/1?_method=DELETE",
        "/v1/orders/1?a=1&_Method=DELETE",
        "/v1/orders/1?%5fmethod=DELETE",
        "/v1/orders/1?X-HTTP-Method-Override=DELETE",
    ];
    let by_field = |name| Case {
        name,
        ask: Ask { fields: vec![("Content-Length", "0"), (name, "DELETE")], ..ask("POST", ORDER) },
        fate: Fate::Refused(400, "malformed"),
    };
    let by_query = |path| Case { name: path, ask: ask("GET", path), fate: Fate::Refused(400, "malformed") };
    fields.into_iter().map(by_field).chain(queries.into_iter().map(by_query)).collect()
}

/// D13: what is removed. Each value says `evil`, which no target may see.
fn fields(way: Way) -> Vec<Case<'static>> {
    let removed = [
        "X-Original-URL",
        "X-Rewrite-URL",
        "X-Original-URI",
        "X_Original_URL",
        "X-Original-Host",
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "X-Forwarded-Client-Cert",
        "Forwarded",
        "X-Real-IP",
        "X-Nova-Anything",
        "Proxy-Authorization",
        "Proxy-Authenticate",
        "Proxy",
    ];
    let mut cases: Vec<_> = removed
        .map(|name| Case {
            name,
            ask: Ask { fields: vec![(name, "evil")], ..ask("GET", ORDER) },
            fate: passes(&["GET /v1/orders/1"]),
        })
        .into();
    // Fields of one connection: HTTP/2 has none of them.
    let of_connection: [(&str, &[(&str, &str)]); 4] = [
        ("Proxy-Connection", &[("Proxy-Connection", "evil")]),
        ("named by Connection", &[("Connection", "close, X-Hop"), ("X-Hop", "evil")]),
        ("Keep-Alive", &[("Keep-Alive", "evil=1")]),
        ("another TE", &[("TE", "evil, trailers")]),
    ];
    cases.extend(of_connection.map(|(name, fields)| Case {
        name,
        ask: Ask { fields: fields.to_vec(), ..ask("GET", ORDER) },
        fate: if way.is_h2() { Fate::Reset } else { passes(&["GET /v1/orders/1"]) },
    }));
    cases.push(Case {
        name: "te trailers",
        ask: Ask { fields: vec![("TE", "trailers")], ..ask("GET", ORDER) },
        fate: passes(&["te: trailers\r\n"]),
    });
    cases
}

/// One place says where a request goes.
fn destinations(way: Way) -> Vec<Case<'static>> {
    let elsewhere = || match way {
        // The target decides, and Host is made from it.
        Way::AbsoluteForm | Way::Socket => passes(&["GET /v1/orders/1"]),
        // The authority is the target, and another one is another destination.
        Way::SocketH2 => Fate::Refused(403, "no_grant"),
        Way::ConnectPlaintext
        | Way::ConnectH2
        | Way::Socks5
        | Way::Socks5H2
        | Way::Dependency
        | Way::DependencyH2
        | Way::Intercepted
        | Way::InterceptedH2 => Fate::Refused(400, "bad_destination"),
    };
    let names = ["evil.test", "evil.test:8080", "plain.test:1", "10.0.0.1"];
    names.map(|name| Case { name, ask: Ask { host: Some(name), ..ask("GET", ORDER) }, fate: elsewhere() }).into()
}

/// Other protocols.
fn changes(way: Way) -> Vec<Case<'static>> {
    let websocket = vec![
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let h2c =
        vec![("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABkAAQAAP__")];
    let udp = vec![("Connection", "Upgrade"), ("Upgrade", "connect-udp"), ("Capsule-Protocol", "?1")];
    let on_http1 = |fate| if way.is_h2() { Fate::Reset } else { fate };
    vec![
        Case {
            name: "websocket without a grant",
            ask: Ask { fields: websocket, ..ask("GET", ORDER) },
            fate: on_http1(Fate::Refused(403, "l7_mismatch")),
        },
        Case {
            name: "h2c",
            ask: Ask { fields: h2c, ..ask("GET", ORDER) },
            fate: on_http1(passes(&["GET /v1/orders/1"])),
        },
        Case {
            name: "connect-udp",
            ask: Ask { fields: udp, ..ask("GET", ORDER) },
            fate: on_http1(Fate::Refused(400, "unsupported")),
        },
    ]
}

/// Messages that two parsers could read in two ways. In HTTP/2 the stream frames them.
fn framing(way: Way) -> Vec<Case<'static>> {
    let twice = vec![("Content-Length", "5"), ("Content-Length", "5")];
    let both = vec![("Content-Length", "5"), ("Transfer-Encoding", "chunked")];
    let signed = vec![("Content-Length", "+5")];
    let post = |fields| Ask { fields, body: "hello", ..ask("POST", ORDER) };
    let malformed = || if way.is_h2() { Fate::Reset } else { Fate::Refused(400, "malformed") };
    vec![
        Case { name: "length twice", ask: post(twice), fate: Fate::Refused(400, "malformed") },
        Case { name: "length and chunked", ask: post(both), fate: malformed() },
        Case { name: "signed length", ask: post(signed), fate: malformed() },
        Case {
            name: "body of a GET",
            ask: Ask { fields: vec![("Content-Length", "5")], body: "hello", ..ask("GET", ORDER) },
            fate: Fate::Refused(400, "malformed"),
        },
    ]
}
