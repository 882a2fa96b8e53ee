//! What the ports offer, asked by openssl and curl: each connection proves itself anew, and none is negotiated twice.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::data::Node;
use crate::programs::{Ended, installed, run, run_on};
use crate::stage::{self, EDGE, MTLS, NAME, Way};

fn s_client(openssl: &Path, way: Way<'_>, words: &[&str]) -> Command {
    let mut command = Command::new(openssl);
    command.args(["s_client", "-connect", &format!("{}:{}", way.address(), way.port), "-servername", NAME]);
    command.args(["-CAfile", &way.file("ca.pem"), "-verify_return_error", "-verify_hostname", NAME]).args(words);
    if way.port == MTLS {
        command.args(["-cert", &way.file("x.crt"), "-key", &way.file("x.key")]);
    }
    command
}

fn ways(node: &Node) -> [(Way<'_>, &'static str); 3] {
    let way = |port| Way { node, port, protocol: "h1" };
    [(way(EDGE), "-tls1_2"), (way(EDGE), "-tls1_3"), (way(MTLS), "-tls1_3")]
}

fn is_new(ended: &Ended) {
    assert!(ended.out.contains("Verify return code: 0 (ok)"), "{ended:#?}");
    assert!(ended.out.contains("New, TLSv1."), "{ended:#?}");
    for sign in ["Reused, ", "session ticket", "Session ticket"] {
        assert!(!ended.out.contains(sign), "{sign} in {ended:#?}");
    }
}

// covers: C12i
#[test]
fn openssl_cannot_take_up_a_session_that_it_saved() {
    let Some(openssl) = installed("openssl") else { return };
    let (node, _app) = stage::http();
    for (way, version) in ways(&node) {
        let file = way.file(&format!("session{version}-{}", way.port));
        is_new(&run(node.dir.path(), &mut s_client(&openssl, way, &[version, "-sess_out", &file])));
        // Nothing to save means nothing to take up.
        let saved: &[&str] = if fs::exists(&file).expect("looked") { &["-sess_in", &file] } else { &[] };
        is_new(&run(node.dir.path(), &mut s_client(&openssl, way, &[&[version][..], saved].concat())));
        let again = run(node.dir.path(), &mut s_client(&openssl, way, &[version, "-reconnect"]));
        is_new(&again);
        assert_eq!(again.out.matches("New, TLSv1.").count(), 6, "{again:#?}");
    }
}

// covers: C12i
#[test]
fn openssl_cannot_negotiate_a_connection_of_tls_1_2_again() {
    let Some(openssl) = installed("openssl") else { return };
    let (node, _app) = stage::http();
    let way = Way { node: &node, port: EDGE, protocol: "h1" };
    let input = way.file("renegotiate");
    fs::write(&input, "R\n").expect("written");
    let input = Stdio::from(fs::File::open(&input).expect("written"));
    let ended = run_on(input, node.dir.path(), &mut s_client(&openssl, way, &["-tls1_2"]));
    assert!(ended.out.contains("RENEGOTIATING") || ended.err.contains("RENEGOTIATING"), "{ended:#?}");
    assert!(!ended.success && ended.err.contains("no renegotiation"), "{ended:#?}");
}

// covers: C12i
#[test]
fn curl_comes_back_without_a_session_id() {
    let Some(curl) = installed("curl") else { return };
    let (node, app) = stage::http();
    for (port, version) in [(EDGE, "1.2"), (EDGE, "1.3"), (MTLS, "1.3")] {
        let way = Way { node: &node, port, protocol: "h1" };
        let mut command = Command::new(&curl);
        command.args(["-q", "-sSv", "--max-time", "20", "--http1.1", "-H", "Connection: close"]);
        command.args(["--resolve", &format!("{NAME}:{port}:{}", way.address()), "--cacert", &way.file("ca.pem")]);
        command.args([&format!("--tlsv{version}"), "--tls-max", version]);
        if port == MTLS {
            command.args(["--cert", &way.file("x.crt"), "--key", &way.file("x.key")]);
        }
        let url = format!("{}/v1/orders/1", way.url());
        let ended = run(node.dir.path(), command.args([&url, &url]));
        assert!(ended.success && !ended.err.contains("re-using session ID"), "{ended:#?}");
        assert_eq!(ended.err.matches("Connected to").count(), 2, "{ended:#?}");
        assert!(ended.err.contains(&format!("TLSv{version} (")), "{ended:#?}");
    }
    assert_eq!(app.seen().len(), 6);
}
