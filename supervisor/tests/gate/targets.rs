//! Request identity: items 31 to 39 of the check list of request smuggling.

use nova_supervisor::gate::{Gate, Limits, Progress, Refusal};

use crate::raw::{accepted, refused, requests};

#[test]
fn item_31_absolute_form_keeps_its_authority_and_needs_a_host_too() {
    accepted("GET http://a.test/x HTTP/1.1\r\nHost: other.test\r\n\r\n", 1);
    accepted("GET http://a.test/x HTTP/1.1\r\nHost:\r\n\r\n", 1);
    refused("GET http://a.test/x HTTP/1.1\r\n\r\n", Refusal::MissingHost);
}

#[test]
fn item_32_connect_may_have_another_host_or_none_as_node_sends_it() {
    let connect = "CONNECT api.test:443 HTTP/1.1\r\nHost: 127.0.0.1:3128\r\nConnection: keep-alive\r\n\r\n";
    accepted(connect, 1);
    accepted("CONNECT api.test:443 HTTP/1.1\r\n\r\n", 1);
    accepted("CONNECT api.test:443 HTTP/1.0\r\n\r\n", 1);
}

#[test]
fn item_35_two_hosts_are_refused_equal_or_not_and_in_any_spelling() {
    refused("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", Refusal::DuplicateHost);
    refused("GET / HTTP/1.1\r\nHost: a\r\nhOST: b\r\n\r\n", Refusal::DuplicateHost);
    refused("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", Refusal::DuplicateHost);
    refused("CONNECT a:1 HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", Refusal::DuplicateHost);
}

#[test]
fn host_is_a_host_and_a_port() {
    for host in ["a b", "a,b", "a@b", "a/b", "a:99999x", "[::1", "[a]", "http://a", "a%2e", "a:"] {
        refused(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), Refusal::BadHost);
    }
    refused("GET / HTTP/1.1\r\nHost: \r\n\r\n", Refusal::MissingHost);
    refused("GET / HTTP/1.1\r\nAccept: */*\r\n\r\n", Refusal::MissingHost);
    accepted("GET / HTTP/1.1\r\nHost: [2001:db8::7]:8080\r\n\r\n", 1);
}

#[test]
fn item_36_every_form_of_target_goes_with_its_method_only() {
    refused("GET * HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::BadTarget);
    refused("GET a.test:443 HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::BadTarget);
    refused("CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::BadTarget);
    refused("GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::FragmentInTarget);
    refused("GET http://a/#/../x HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::FragmentInTarget);
    accepted("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 1);
}

#[test]
fn item_38_connect_needs_one_host_and_one_port() {
    for target in ["a.test", "a.test:", "2001:db8::7:443", "[[a]]:1", "u@a:1", "a:1/"] {
        refused(&format!("CONNECT {target} HTTP/1.1\r\n\r\n"), Refusal::BadTarget);
    }
    accepted("CONNECT [2001:db8::7]:443 HTTP/1.1\r\n\r\n", 1);
}

#[test]
fn item_39_connect_has_no_body() {
    refused("CONNECT a:1 HTTP/1.1\r\nContent-Length: 4\r\n\r\nGET ", Refusal::UnexpectedBody);
    refused("CONNECT a:1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Refusal::UnexpectedBody);
    // Windows clients say so with every CONNECT.
    accepted("CONNECT a:1 HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 1);
}

#[test]
fn bytes_behind_a_connect_are_held_until_its_answer() {
    let head = b"CONNECT a:1 HTTP/1.1\r\n\r\n";
    let input = [&head[..], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
    assert_eq!(requests(&input), (head.to_vec(), 1, 1, None));
    let mut gate = Gate::requests(Limits::default());
    assert_eq!(gate.feed(&input).release, head.len());
    assert!(gate.is_held());
    gate.switch_to_raw();
    assert_eq!(gate.feed(&input[head.len()..]).release, input.len() - head.len());
    let mut gate = Gate::requests(Limits::default());
    assert_eq!(gate.feed(&input).release, head.len());
    gate.close();
    assert_eq!(gate.feed(&input[head.len()..]), Progress { release: 0, heads: 0, ends: 0, refusal: None });
}
