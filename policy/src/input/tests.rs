//! What an input may say, and its one JSON form.

use super::*;

fn read(text: &str) -> Result<Input, serde_json::Error> {
    serde_json::from_str(text)
}

#[test]
fn inputs_that_no_supervisor_writes_are_refused() {
    for bad in [
        r#"{}"#,
        r#"{"direction":"sideways","phase":"connect"}"#,
        r#"{"direction":"egress","phase":"connect","source":"x","dest_host":"h"}"#,
        r#"{"direction":"egress","phase":"connect","source":"x","dest_host":"h","dest_port":0}"#,
        r#"{"direction":"egress","phase":"connect","source":"x","dest_host":"h h","dest_port":1}"#,
        r#"{"direction":"egress","phase":"connect","source":"x","dest_host":"h","dest_port":1,"peer":"spiffe://a/b"}"#,
        r#"{"direction":"egress","phase":"connect","source":"x","dest_host":"h","dest_port":1,"method":"GET"}"#,
        r#"{"direction":"egress","phase":"request","source":"x","dest_host":"h","dest_port":1,"method":"GET","path":"/a?b"}"#,
        r#"{"direction":"egress","phase":"request","source":"x","dest_host":"h","dest_port":1,"method":"GET","path":"/../b"}"#,
        r#"{"direction":"ingress","phase":"connect","target":"x","port":"p","src_ip":"bogus"}"#,
        r#"{"direction":"ingress","phase":"connect","target":"x","port":"p","src_ip":"1.1.1.1","peer":"spiffe://a/../b"}"#,
        r#"{"direction":"ingress","phase":"connect","target":"x","port":"p","src_ip":"1.1.1.1","extra":1}"#,
    ] {
        assert!(read(bad).is_err(), "{bad}");
    }
}

#[test]
fn the_json_form_is_stable_and_reads_back() {
    let peer = Peer::Own(SpiffeId::new("spiffe://dev.invalid/t/t/w/x").expect("valid"));
    let path = CanonicalPath::parse(b"/v1/orders/42?secret=1").expect("valid");
    let input = Input::ingress_request("service-a", "https", &peer, [10, 64, 3, 21].into(), "GET", &path);
    let text = serde_json::to_string(&input).expect("serialises");
    assert_eq!(
        text,
        r#"{"direction":"ingress","phase":"request","target":"service-a","port":"https","peer":"spiffe://dev.invalid/t/t/w/x","peer_ca":"spiffe","src_ip":"10.64.3.21","method":"GET","path":"/v1/orders/42"}"#
    );
    assert_eq!(read(&text).expect("reads back"), input);
    let host = Host::parse("API.stripe.com.").expect("valid");
    assert_eq!(
        serde_json::to_string(&Input::egress_connect("x", &host, 443)).expect("serialises"),
        r#"{"direction":"egress","phase":"connect","source":"x","dest_host":"api.stripe.com","dest_port":443}"#
    );
}
