//! Lengths, chunks and bytes of heads: items 42 to 51 of the check list of request smuggling.

use nova_supervisor::gate::Refusal;

use crate::raw::{CHUNKED, accepted, refused, refused_in_body, requests};

#[test]
fn item_42_length_beside_chunked_is_refused_in_both_orders() {
    let (length, chunked) = ("Content-Length: 6\r\n", "Transfer-Encoding: chunked\r\n");
    for fields in [[length, chunked], [chunked, length]] {
        let input = format!("POST / HTTP/1.1\r\nHost: a\r\n{}\r\n0\r\n\r\nX", fields.concat());
        refused(&input, Refusal::LengthAndChunked);
    }
}

#[test]
fn item_43_two_lengths_are_refused_equal_or_not_and_as_a_list() {
    for (fields, refusal) in [
        ("Content-Length: 5\r\nContent-Length: 0\r\n", Refusal::DuplicateContentLength),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", Refusal::DuplicateContentLength),
        ("Content-Length: 5, 5\r\n", Refusal::BadContentLength),
        ("Content-Length: 5,5\r\n", Refusal::BadContentLength),
    ] {
        refused(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\nhello"), refusal);
    }
}

#[test]
fn item_44_any_coding_but_one_plain_chunked_is_refused() {
    for value in [
        " chunked, identity",
        " xchunked",
        " gzip, chunked",
        " chunked,",
        " chunked ",
        " chunked\t",
        "\tchunked",
        "  chunked",
        " Chunked",
        " \"chunked\"",
        " chunked;q=1",
        " identity",
        "",
    ] {
        let input = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:{value}\r\n\r\n0\r\n\r\n");
        refused(&input, Refusal::BadTransferEncoding);
    }
    let twice = "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n";
    refused(&format!("POST / HTTP/1.1\r\nHost: a\r\n{twice}\r\n0\r\n\r\n"), Refusal::BadTransferEncoding);
    let old = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    refused(old, Refusal::BadTransferEncoding);
}

#[test]
fn framing_headers_with_underscores_are_refused() {
    for name in ["Content_Length", "Transfer_Encoding"] {
        refused(&format!("POST / HTTP/1.1\r\nHost: a\r\n{name}: 5\r\n\r\n"), Refusal::BadHeaderName);
    }
}

#[test]
fn item_45_space_around_names_is_refused() {
    refused("GET / HTTP/1.1\r\nHost : a\r\n\r\n", Refusal::SpaceBeforeColon);
    refused("GET / HTTP/1.1\r\nHost: a\r\nContent-Length\t: 5\r\n\r\n", Refusal::SpaceBeforeColon);
    for line in [": x", "X", "X Y: z", "X(: y", "\"X\": y", "X\u{b}: y"] {
        let (_, _, _, refusal) = requests(format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n").as_bytes());
        assert!(matches!(refusal, Some(Refusal::BadHeaderName | Refusal::ControlByte)), "{line:?} {refusal:?}");
    }
}

#[test]
fn item_46_bare_lf_and_bare_cr_are_refused_everywhere() {
    refused("GET / HTTP/1.1\nHost: a\n\n", Refusal::BareLf);
    refused("GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", Refusal::BareLf);
    refused("GET / HTTP/1.1\r\nHost: a\r\n\n", Refusal::BareLf);
    refused("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::BareLf);
    refused("GET / HTTP/1.1\r\nHost: a\r\nX: y\rZ: q\r\n\r\n", Refusal::BareCr);
    refused("GET / HTTP/1.1\r\r\nHost: a\r\n\r\n", Refusal::BareCr);
    refused("GET / HTTP/1.1\r\nHost: a\r\n\r\r\n", Refusal::BareCr);
    refused("GET /\rx HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::BareCr);
    for body in ["5\nhello\r\n0\r\n\r\n", "5\r\nhello\r\n0\n\r\n"] {
        refused_in_body(CHUNKED, body, Refusal::BareLf);
    }
    refused_in_body(CHUNKED, "0\r\n\n", Refusal::BareLf);
    refused_in_body(CHUNKED, "0\r\nX: y\n\r\n", Refusal::BareLf);
    refused_in_body(CHUNKED, "0\r\nX: \ry\r\n\r\n", Refusal::BareCr);
}

#[test]
fn item_47_folded_headers_are_refused() {
    refused("GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n", Refusal::ObsFold);
    refused("GET / HTTP/1.1\r\n Host: a\r\n\r\n", Refusal::ObsFold);
    refused("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n", Refusal::BadTransferEncoding);
}

#[test]
fn item_48_control_and_non_ascii_bytes_are_refused() {
    refused("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", Refusal::ControlByte);
    refused("GET / HTTP/1.1\r\nHost: a\r\nX: a\u{7f}b\r\n\r\n", Refusal::ControlByte);
    refused("GET / HTTP/1.1\r\nHost: a\r\nX: \u{1b}[0m\r\n\r\n", Refusal::ControlByte);
    refused("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::ControlByte);
    refused("GE\0T / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::ControlByte);
    refused("GET / HTTP/1.1\r\nHost: a\r\nX: caf\u{e9}\r\n\r\n", Refusal::NonAscii);
    refused("GET / HTTP/1.1\r\nHost: a\r\nX\u{e9}: a\r\n\r\n", Refusal::NonAscii);
    refused("GET /caf\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::NonAscii);
    accepted("GET / HTTP/1.1\r\nHost: a\r\nX:\ta\tb \r\n\r\n", 1);
}

#[test]
fn item_49_lengths_that_are_not_plain_digits_are_refused() {
    for value in [
        "+0",
        "-0",
        "0x0",
        "5 ",
        " 5",
        "\t5",
        "5\t",
        "",
        "05",
        "5.0",
        "5e1",
        "1_0",
        "18446744073709551616",
        "9999999999999999999",
        "\"5\"",
    ] {
        refused(&format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {value}\r\n\r\n"), Refusal::BadContentLength);
    }
    accepted("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", 1);
    accepted("POST / HTTP/1.1\r\nHost: a\r\ncontent-length:5\r\n\r\nhello", 1);
}

#[test]
fn item_50_chunks_with_extensions_bad_sizes_or_lost_line_ends_are_refused() {
    for body in [
        "5;a=b\r\nhello\r\n0\r\n\r\n",
        "5;\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "00000000000000005\r\nhello\r\n0\r\n\r\n",
        "ffffffffffffffff\r\n",
        "10000000000000005\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "-1\r\n",
        "\r\n5\r\nhello\r\n0\r\n\r\n",
        "5\r\nhelloX\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhell\r\n0\r\n\r\n",
    ] {
        refused_in_body(CHUNKED, body, Refusal::BadChunk);
    }
    refused_in_body(CHUNKED, "5;a\nhello\r\n0\r\n\r\n", Refusal::BadChunk);
    accepted(&format!("{CHUNKED}5\r\nhello\r\nA\r\n0123456789\r\n0\r\n\r\n"), 1);
}

#[test]
fn item_51_trailers_are_bounded_and_cannot_frame_or_identify() {
    for name in ["Content-Length", "Transfer_Encoding", "Host", "Connection", "X-Forwarded-Client-Cert", "Trailer"] {
        refused_in_body(CHUNKED, &format!("0\r\n{name}: 1\r\n\r\n"), Refusal::BadTrailer);
    }
    refused_in_body(CHUNKED, &format!("0\r\n{}\r\n", "a: b\r\n".repeat(33)), Refusal::BadTrailer);
    refused_in_body(CHUNKED, &format!("0\r\nX: {}\r\n\r\n", "y".repeat(8192)), Refusal::BadTrailer);
    refused_in_body(CHUNKED, &format!("0\r\nX: {}", "y".repeat(8192)), Refusal::BadTrailer);
    accepted(&format!("{CHUNKED}0\r\nGrpc-Status: 5\r\nX-Detail-Bin: AAE=\r\n\r\n"), 1);
}
