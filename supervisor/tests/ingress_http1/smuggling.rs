//! Items 42 to 50: where a message ends.

use crate::data::is;
use crate::support::{HOST, ORDER, POST, Stand, Wanted, get};

/// What a server that ends the message elsewhere would take for a request.
pub(crate) const SMUGGLED: &str = "GET /v1/orders/SMUGGLED HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n";
pub(crate) const CHUNKED: &str =
    "POST /v1/orders/42 HTTP/1.1\r\nHost: service-a.t.nova\r\nTransfer-Encoding: chunked\r\n\r\n";

pub(crate) fn post(fields: &str, body: &str) -> String {
    format!("{POST}{fields}\r\n{body}")
}

// covers: C5.42 (F-IH01)
#[test]
fn item_42_length_beside_chunked_is_refused_in_both_orders() {
    let stand = Stand::start();
    let (length, chunked) = ("Content-Length: 6\r\n", "Transfer-Encoding: chunked\r\n");
    let body = format!("0\r\n\r\n{SMUGGLED}");
    let cases = [
        post(&format!("{length}{chunked}"), &body),
        post(&format!("{chunked}{length}"), &body),
        post(&format!("{length}X: y\r\n{chunked}"), &body),
        post(&format!("Content-Length: 0\r\n{chunked}"), &body),
        post(&format!("{length}transfer-ENCODING: chunked\r\n"), &body),
        post(&format!("{length}Transfer-Encoding: identity\r\n"), &body),
    ];
    stand.refuses(400, &cases);
    let lines = stand.node.audited(6, |line| is(line, &[("reason", "malformed"), ("detail", "length_and_chunked")]));
    assert!(lines.iter().all(|line| is(line, &[("kind", "connection"), ("verdict", "deny")])), "{lines:#?}");
}

// covers: C5.43 (F-IH02)
#[test]
fn item_43_two_lengths_are_refused_equal_or_not() {
    let stand = Stand::start();
    stand.refuses(
        400,
        &[
            post("Content-Length: 5\r\nContent-Length: 0\r\n", "hello"),
            post("Content-Length: 0\r\nContent-Length: 5\r\n", "hello"),
            post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"),
            post("Content-Length: 5\r\nX: y\r\ncontent-length: 5\r\n", "hello"),
            post("Content-Length: 5, 5\r\n", "hello"),
            post("Content-Length: 5,5\r\n", "hello"),
            post("Content-Length: 0, 5\r\n", "hello"),
            post("Content_Length: 5\r\n", "hello"),
            post("Content-Length: 5\r\nContent_Length: 0\r\n", "hello"),
        ],
    );
}

// covers: C5.44
#[test]
fn item_44_any_coding_but_one_plain_chunked_is_refused() {
    let stand = Stand::start();
    let body = format!("0\r\n\r\n{SMUGGLED}");
    let coded = |value: &str| post(&format!("Transfer-Encoding:{value}\r\n"), &body);
    let values = [
        " chunked, identity",
        " identity, chunked",
        " xchunked",
        " gzip, chunked",
        " chunked,",
        ", chunked",
        " chunked, chunked",
        " chunked ",
        " chunked\t",
        "\tchunked",
        "\x0bchunked",
        " Chunked",
        " \"chunked\"",
        " chunked;q=1",
        " identity",
        "",
    ];
    stand.refuses(400, &values.map(coded));
    stand.refuses(
        400,
        &[
            post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", &body),
            post("Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n", &body),
            post("Transfer_Encoding: chunked\r\n", &body),
            post("Transfer-Encoding : chunked\r\n", &body),
            post("X: y\r\n Transfer-Encoding: chunked\r\n", &body),
            format!("POST /v1/orders/42 HTTP/1.0\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n{body}"),
        ],
    );
    stand.serves(
        format!("{CHUNKED}5\r\nhello\r\n0\r\n\r\n{ORDER}"),
        &[200, 200],
        &[Wanted::line("POST /v1/orders/42").with("transfer-encoding: chunked").body("hello|"), Wanted::order()],
    );
}

// covers: C5.45
#[test]
fn item_45_space_around_a_name_is_refused() {
    let stand = Stand::start();
    let with = |field: &str| get("/v1/orders/42", field);
    stand.refuses(
        400,
        &[
            with("X : y\r\n"),
            with("X\t: y\r\n"),
            with("Content-Length : 5\r\n"),
            with("X\x0b: y\r\n"),
            with(": y\r\n"),
            with("X\r\n"),
            with("X Y: z\r\n"),
            with("\"X\": y\r\n"),
            "GET /v1/orders/42 HTTP/1.1\r\nHost : service-a.t.nova\r\n\r\n".to_owned(),
        ],
    );
}

// covers: C5.46
#[test]
fn item_46_a_bare_lf_or_cr_ends_no_line() {
    let stand = Stand::start();
    let with = |field: &str| get("/v1/orders/42", field);
    stand.refuses(
        400,
        &[
            ORDER.replace("\r\n", "\n"),
            ORDER.replace("HTTP/1.1\r\n", "HTTP/1.1\n"),
            ORDER.replace("\r\n\r\n", "\r\n\n"),
            ORDER.replace("\r\n\r\n", "\n\r\n"),
            ORDER.replace("\r\n\r\n", "\r\n\r\r\n"),
            format!("\n{ORDER}"),
            with("X: y\nContent-Length: 5\r\n"),
            with("X: y\rContent-Length: 5\r\n"),
            with("X: y\r\r\n"),
            with("X: \r\r\n"),
            get("/v1/orders/4\r2", ""),
        ],
    );
    stand.refuses_in_body(
        CHUNKED,
        &[
            "5\nhello\r\n0\r\n\r\n",
            "5\r\nhello\n0\r\n\r\n",
            "5\r\nhello\r\n0\n\n",
            "0\r\nX: y\n\r\n",
            "0\r\nX: \ry\r\n\r\n",
        ],
    );
}

// covers: C5.47
#[test]
fn item_47_a_folded_header_is_refused() {
    let stand = Stand::start();
    let with = |field: &str| get("/v1/orders/42", field);
    stand.refuses(
        400,
        &[
            with("X: y\r\n z\r\n"),
            with("X: y\r\n\tz\r\n"),
            with("X:\r\n y\r\n"),
            with(" X: y\r\n"),
            with("X: y\r\n \r\n"),
            post("Transfer-Encoding:\r\n chunked\r\n", &format!("0\r\n\r\n{SMUGGLED}")),
            post("Content-Length: 5\r\n 0\r\n", "hello"),
            format!("GET /v1/orders/42 HTTP/1.1\r\n {HOST}\r\n"),
        ],
    );
    stand.refuses_in_body(CHUNKED, &["0\r\nX: y\r\n z\r\n\r\n"]);
}

// covers: C5.48
#[test]
fn item_48_control_and_non_ascii_bytes_are_refused() {
    let stand = Stand::start();
    let mut cases = Vec::new();
    for byte in [0x00, 0x01, 0x08, 0x0b, 0x0c, 0x1b, 0x1f, 0x7f, 0x80, 0xa0, 0xc3, 0xff] {
        for (before, after) in [
            ("GET /v1/orders/42 HTTP/1.1\r\nHost: service-a.t.nova\r\nX: a", "b\r\n\r\n"),
            ("GET /v1/orders/42 HTTP/1.1\r\nHost: service-a.t.nova\r\nX", ": a\r\n\r\n"),
            ("GET /v1/orders/4", "2 HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n"),
            ("GET /v1/orders/42?a", " HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n"),
            ("GE", "T /v1/orders/42 HTTP/1.1\r\nHost: service-a.t.nova\r\n\r\n"),
            ("GET /v1/orders/42 HTTP/1.1\r\nHost: service-a", ".t.nova\r\n\r\n"),
        ] {
            cases.push([before.as_bytes(), &[byte], after.as_bytes()].concat());
        }
    }
    stand.refuses(400, &cases);
}

// covers: C5.49 (F-IH02)
#[test]
fn item_49_a_length_that_is_not_plain_digits_is_refused() {
    let stand = Stand::start();
    let values = [
        "+5",
        "-5",
        "0x5",
        "5 ",
        " 5",
        "\t5",
        "05",
        "5.0",
        "5e0",
        "5_0",
        "",
        "\"5\"",
        "5;x",
        "18446744073709551616",
        "18446744073709551621",
        "9223372036854775808",
        "99999999999999999999999999999999999999",
    ];
    stand.refuses(400, &values.map(|value| post(&format!("Content-Length: {value}\r\n"), "hello")));
    stand.serves(
        post("Content-Length: 5\r\n", &format!("hello{ORDER}")),
        &[200, 200],
        &[Wanted::line("POST /v1/orders/42").with("content-length: 5").body("hello"), Wanted::order()],
    );
}

// covers: C5.50 (F-IH11)
#[test]
fn item_50_a_chunk_with_an_extension_a_bad_size_or_no_line_end_is_refused() {
    let stand = Stand::start();
    let long = format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(20_000));
    let smuggled = format!("5\r\nhello\r\n0\r\n\r{SMUGGLED}");
    stand.refuses_in_body(
        CHUNKED,
        &[
            "5;a\nhello\r\n0\r\n\r\n",
            "5;a=b\r\nhello\r\n0\r\n\r\n",
            "5;\r\nhello\r\n0\r\n\r\n",
            "5 \r\nhello\r\n0\r\n\r\n",
            " 5\r\nhello\r\n0\r\n\r\n",
            "00000000000000005\r\nhello\r\n0\r\n\r\n",
            "10000000000000005\r\nhello\r\n0\r\n\r\n",
            "ffffffffffffffff\r\nhello\r\n0\r\n\r\n",
            "0x5\r\nhello\r\n0\r\n\r\n",
            "-5\r\nhello\r\n0\r\n\r\n",
            "5,5\r\nhello\r\n0\r\n\r\n",
            "\r\n5\r\nhello\r\n0\r\n\r\n",
            "5\r\nhelloX\r\n0\r\n\r\n",
            "5\r\nhello0\r\n\r\n",
            "5\r\nhello\r\n\r\n0\r\n\r\n",
            "6\r\nhello\r\n0\r\n\r\n",
            "0\r\n\rX\r\n\r\n",
            &long,
            &smuggled,
        ],
    );
}
