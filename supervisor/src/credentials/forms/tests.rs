//! Every form, and every place where an app may have written something else.

use http::{Method, Request};
use nova_policy::data::{BodyKind, Places};

use super::*;

const SECRET: &str = "hunter2/\"x\" & y";

fn held() -> Held {
    Held::parse("key", SECRET.as_bytes()).expect("a value")
}

fn head(target: &str, fields: &[(&str, &str)]) -> Parts {
    let request = fields.iter().fold(Request::builder().method(Method::POST).uri(target), |request, (name, value)| {
        request.header(*name, *value)
    });
    request.body(()).expect("a request").into_parts().0
}

fn inject(form: &CredentialForm, head: &mut Parts) -> Result<Body, Fault> {
    Injection { held: &held(), form, now: SystemTime::UNIX_EPOCH }.into_head(head)
}

fn places(header: Option<&str>, parameter: Option<&str>, body: &[BodyKind]) -> CredentialForm {
    CredentialForm::Placeholder(Places {
        header: header.map(str::to_owned),
        parameter: parameter.map(str::to_owned),
        body: body.iter().copied().collect(),
    })
}

fn field(head: &Parts, name: &str) -> Vec<String> {
    head.headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
}

fn header_form() -> CredentialForm {
    CredentialForm::Header { header: "x-api-key".to_owned() }
}

fn query_form() -> CredentialForm {
    CredentialForm::Query { parameter: "key".to_owned() }
}

// covers: D9b
#[test]
fn what_the_app_wrote_in_the_credentials_place_is_replaced() {
    let own = [
        ("authorization", "Bearer own"),
        ("authorization", "Basic b3du"),
        ("x-api-key", "own"),
        ("x_api_key", "own"),
        ("x.api.key", "own"),
    ];
    let basic = format!("Basic {}", STANDARD.encode("user:pass"));
    for (form, value, name, want) in [
        (CredentialForm::Bearer, "token", "authorization", "Bearer token"),
        (CredentialForm::Basic, "user:pass", "authorization", basic.as_str()),
        (header_form(), "token", "x-api-key", "token"),
    ] {
        let held = Held::parse("key", value.as_bytes()).expect("a value");
        let mut head = head("/a?b", &own);
        let done = Injection { held: &held, form: &form, now: SystemTime::UNIX_EPOCH }.into_head(&mut head);
        assert_eq!(done, Ok(Body::Pass));
        assert_eq!(field(&head, name), [want], "{form:?}");
        let is_replaced = |other: &str| !head.headers.contains_key(other);
        assert!(
            name != "x-api-key" || (is_replaced("x_api_key") && is_replaced("x.api.key")),
            "some servers merge them"
        );
        assert!(head.headers[name].is_sensitive(), "{form:?}: HPACK would remember it");
        assert!(!format!("{head:?}").contains(want), "{form:?}");
    }
    for (target, want) in [
        ("/a", "/a?key=hunter2%2F%22x%22%20%26%20y"),
        ("/a?key=own&b=c&k%65y=own&key", "/a?b=c&key=hunter2%2F%22x%22%20%26%20y"),
        ("/a?&&keys=1", "/a?keys=1&key=hunter2%2F%22x%22%20%26%20y"),
    ] {
        let mut head = head(target, &own);
        assert_eq!(inject(&query_form(), &mut head), Ok(Body::Pass));
        assert_eq!(head.uri, want, "{target}");
    }
}

// covers: D9c (F-EH05)
#[test]
fn a_placeholder_is_filled_in_the_place_that_its_credential_names() {
    let mut one = head("/a", &[("x-api-key", "v=nova_credential_key;"), ("x-api-key", "plain")]);
    assert_eq!(inject(&places(Some("x-api-key"), None, &[]), &mut one), Ok(Body::Watch));
    assert_eq!(field(&one, "x-api-key"), [format!("v={SECRET};"), "plain".to_owned()]);
    assert!(one.headers["x-api-key"].is_sensitive());

    let basic = format!("Basic {}", STANDARD.encode("user:nova_credential_key"));
    let mut two = head("/a", &[("authorization", &basic)]);
    assert_eq!(inject(&places(Some("authorization"), None, &[]), &mut two), Ok(Body::Watch));
    assert_eq!(field(&two, "authorization"), [format!("Basic {}", STANDARD.encode(format!("user:{SECRET}")))]);

    let mut three = head("/a?x=1&k%65y=a.nova_credential_key&y", &[]);
    assert_eq!(inject(&places(None, Some("key"), &[]), &mut three), Ok(Body::Watch));
    assert_eq!(three.uri, "/a?x=1&k%65y=a.hunter2%2F%22x%22%20%26%20y&y");

    // Nothing is there to be filled: the app's own affair.
    let mut none = head("/a?key=own", &[("x-api-key", "own")]);
    assert_eq!(inject(&places(Some("x-api-key"), Some("key"), &[]), &mut none), Ok(Body::Watch));
    assert_eq!((field(&none, "x-api-key"), none.uri.to_string()), (vec!["own".to_owned()], "/a?key=own".to_owned()));
}

// covers: D9c (F-EH04, F-EH05)
#[test]
fn a_placeholder_anywhere_else_is_refused_whatever_the_form() {
    let basic = format!("Basic {}", STANDARD.encode("u:nova_credential_key"));
    let elsewhere = [
        head("/botnova_credential_key/send", &[]),
        head("/a?other=nova_credential_key", &[]),
        head("/a?other=nova%5fcredential_key", &[]),
        head("/a?nova_credential_key=1", &[]),
        head("/a", &[("cookie", "a=nova_credential_key")]),
        head("/a", &[("x-other", "nova_credential_other")]),
        head("/a", &[("x-other", "nova_credential_")]),
    ];
    let forms = [
        CredentialForm::Bearer,
        header_form(),
        query_form(),
        places(Some("x-api-key"), None, &[]),
        places(None, Some("key"), &[BodyKind::Json]),
    ];
    for form in &forms {
        for case in &elsewhere {
            let mut head = case.clone();
            assert_eq!(inject(form, &mut head), Err(Fault::Placeholder), "{form:?} {} {:?}", head.uri, head.headers);
            assert!(!format!("{:?} {}", field(&head, "x-api-key"), head.uri).contains("hunter2"));
        }
    }
    let in_basic = head("/a", &[("authorization", &basic)]);
    for form in [header_form(), places(Some("x-api-key"), None, &[])] {
        assert_eq!(inject(&form, &mut in_basic.clone()), Err(Fault::Placeholder), "{form:?}");
    }
    // In its own place, but of another credential.
    for other in ["nova_credential_other", "nova_credential_key nova_credential_other", "nova_credential_key2"] {
        let mut head = head("/a", &[("x-api-key", other)]);
        assert_eq!(inject(&places(Some("x-api-key"), None, &[]), &mut head), Err(Fault::Placeholder), "{other}");
    }
    // Where the app's own value is replaced anyway, a placeholder is what apps write that must write something.
    let mut own = head("/a?key=nova_credential_key", &[("x-api-key", "nova_credential_key")]);
    own.uri = Uri::from_static("/a");
    assert_eq!(inject(&header_form(), &mut own), Ok(Body::Pass));
}

// covers: D9c, D9e, A12b
#[test]
fn what_would_grow_beyond_its_limit_with_its_placeholders_replaced_is_refused() {
    let held = Held::parse("key", "s".repeat(4096).as_bytes()).expect("a value");
    let form = places(Some("authorization"), Some("key"), &[BodyKind::Json, BodyKind::Form, BodyKind::Text]);
    let injection = Injection { held: &held, form: &form, now: SystemTime::UNIX_EPOCH };
    let many = |count: usize| "nova_credential_key ".repeat(count);
    for kind in [BodyKind::Json, BodyKind::Form, BodyKind::Text] {
        let mut head = head("/", &[]);
        let filled = injection.fill(&mut head, kind, many(255).into_bytes()).expect("less than a mebibyte");
        assert_eq!(filled.len(), 255 * 4097);
        assert_eq!(injection.fill(&mut head, kind, many(256).into_bytes()).err(), Some(Fault::BodySize));
    }
    let basic = |count| format!("Basic {}", STANDARD.encode(format!("u:{}", many(count))));
    let (few, too_many, four) = (many(17), many(18), many(4));
    let (basic_few, basic_too_many) = (basic(13), basic(14));
    for (target, fields, fits) in [
        ("/?key=nova_credential_key".to_owned(), vec![few.as_str()], false),
        ("/".to_owned(), vec![few.as_str()], true),
        ("/".to_owned(), vec![too_many.as_str()], false),
        ("/".to_owned(), vec![basic_few.as_str()], true),
        ("/".to_owned(), vec![basic_too_many.as_str()], false),
        // Each would fit.
        ("/".to_owned(), vec![few.as_str(), "nova_credential_key"], false),
        (format!("/?{}", "key=nova_credential_key&".repeat(15)), vec![], true),
        (format!("/?{}", "key=nova_credential_key&".repeat(16)), vec![], false),
        (format!("/?{}", "key=nova_credential_key&".repeat(2500)), vec![], false),
        // What the app wrote beside it counts as well.
        (format!("/{}", "a".repeat(60_000)), vec![four.as_str()], false),
    ] {
        let fields: Vec<_> = fields.into_iter().map(|field| ("authorization", field)).collect();
        let mut head = head(&target, &fields);
        let filled = injection.into_head(&mut head);
        assert_eq!(filled, if fits { Ok(Body::Watch) } else { Err(Fault::HeadSize) }, "{:.40} {fields:.40?}", target);
    }
}

// covers: D9e
#[test]
fn a_declared_body_is_filled_in_the_manner_of_its_kind_and_has_a_new_length() {
    let json = "application/json; charset=utf-8";
    for (content_type, kind, body, want) in [
        (json, BodyKind::Json, r#"{"k":"nova_credential_key"}"#, r#"{"k":"hunter2/\"x\" & y"}"#),
        ("application/x+json", BodyKind::Json, "[]", "[]"),
        (
            "Application/X-WWW-Form-urlencoded",
            BodyKind::Form,
            "k=nova_credential_key&a=b",
            "k=hunter2%2F%22x%22%20%26%20y&a=b",
        ),
        ("text/plain", BodyKind::Text, "nova_credential_key", SECRET),
    ] {
        let form = places(None, None, &[BodyKind::Json, BodyKind::Form, BodyKind::Text]);
        let mut head = head("/", &[("content-type", content_type), ("content-length", "1"), ("trailer", "x")]);
        assert_eq!(inject(&form, &mut head), Ok(Body::Fill(kind)), "{content_type}");
        let (held, now) = (held(), SystemTime::UNIX_EPOCH);
        let injection = Injection { held: &held, form: &form, now };
        let filled = injection.fill(&mut head, kind, body.as_bytes().to_vec()).expect("filled");
        assert_eq!(&*filled, want.as_bytes());
        assert_eq!(field(&head, "content-length"), [want.len().to_string()]);
        assert!(!head.headers.contains_key("trailer"));
        let foreign = injection.fill(&mut head, kind, b"nova_credential_other".to_vec());
        assert_eq!(foreign.err(), Some(Fault::Placeholder));
    }
    let form = places(None, None, &[BodyKind::Json]);
    for (content_type, want) in [("text/plain", Body::Watch), ("multipart/form-data", Body::Watch)] {
        assert_eq!(inject(&form, &mut head("/", &[("content-type", content_type)])), Ok(want));
    }
    let packed = &[("content-type", json), ("content-encoding", "gzip")];
    assert_eq!(inject(&form, &mut head("/", packed)), Err(Fault::BodyEncoding));
}

// covers: D9b
#[test]
fn a_value_that_does_not_suit_its_form_is_not_used() {
    let keys = Held::parse("k", b"{\n\"access_key_id\": \"a\", \"secret_access_key\": \"b\"}").expect("keys");
    let sigv4 = CredentialForm::Sigv4 { region: "r".to_owned(), service: "s".to_owned() };
    for (form, fits_text, fits_keys) in [
        (CredentialForm::Bearer, true, false),
        (CredentialForm::Basic, false, false),
        (sigv4, false, true),
        (header_form(), true, false),
        (CredentialForm::Header { header: "host".to_owned() }, false, false),
        (CredentialForm::Header { header: "content-length".to_owned() }, false, false),
        (CredentialForm::Header { header: "a b".to_owned() }, false, false),
        (places(Some("transfer-encoding"), None, &[]), false, false),
    ] {
        assert_eq!(
            (Injection::fits(&held(), &form), Injection::fits(&keys, &form)),
            (fits_text, fits_keys),
            "{form:?}"
        );
        if !fits_text {
            assert_eq!(inject(&form, &mut head("/", &[])), Err(Fault::Form));
        }
    }
}

// covers: D9b
#[test]
fn a_value_that_no_header_can_hold_fits_no_form_that_is_one() {
    let held = Held::parse("key", "caf\u{e9}".as_bytes()).expect("a value");
    let header = places(Some("x-api-key"), None, &[]);
    for form in [CredentialForm::Bearer, header_form(), header] {
        assert!(!Injection::fits(&held, &form), "{form:?}");
    }
    for form in [query_form(), places(None, Some("key"), &[BodyKind::Json])] {
        assert!(Injection::fits(&held, &form), "{form:?}");
    }
}
