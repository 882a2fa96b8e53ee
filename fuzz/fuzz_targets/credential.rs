//! Any head and body through every form of a credential: the value is where the form says, and no placeholder is left anywhere.
#![no_main]

use std::time::SystemTime;

use http::request::Parts;
use http::{HeaderName, HeaderValue, Request};
use libfuzzer_sys::fuzz_target;
use nova_policy::data::{BodyKind, CredentialForm, Places};
use nova_supervisor::credentials::{Body, Held, Injection, PREFIX, is_in_head};

/// Holds no placeholder itself, so that one that is found was left.
const TEXT: &str = "user:s3cr3t \"&=%";
const KEYS: &str = r#"{"access_key_id": "AK", "secret_access_key": "s3cr3t"}"#;

fuzz_target!(|data: &[u8]| {
    let Some((head, body)) = parse(data) else { return };
    for form in forms() {
        let file = if matches!(form, CredentialForm::Sigv4 { .. }) { KEYS } else { TEXT };
        let Ok(held) = Held::parse("key", file.as_bytes()) else { return };
        let injection = Injection { held: &held, form: &form, now: SystemTime::UNIX_EPOCH };
        let mut head = head.clone();
        let Ok(todo) = injection.into_head(&mut head) else { continue };
        assert_eq!(is_in_head(&head), None, "{form:?}");
        match todo {
            Body::Fill(kind) => {
                if let Ok(filled) = injection.fill(&mut head, kind, body.to_vec()) {
                    assert!(!filled.windows(PREFIX.len()).any(|text| text == PREFIX.as_bytes()));
                    assert_eq!(head.headers["content-length"], filled.len().to_string());
                }
            }
            Body::Sign => assert_eq!(injection.sign(&mut head, body), Ok(())),
            Body::Pass | Body::Watch => {}
        }
    }
});

fn forms() -> [CredentialForm; 6] {
    let body = [BodyKind::Json, BodyKind::Form, BodyKind::Text].into();
    [
        CredentialForm::Header { header: "x-api-key".to_owned() },
        CredentialForm::Bearer,
        CredentialForm::Basic,
        CredentialForm::Query { parameter: "key".to_owned() },
        CredentialForm::Sigv4 { region: "r".to_owned(), service: "s".to_owned() },
        CredentialForm::Placeholder(Places {
            header: Some("authorization".to_owned()),
            parameter: Some("key".to_owned()),
            body,
        }),
    ]
}

/// A target, fields one a line, an empty line, a body; as far as each can be.
fn parse(data: &[u8]) -> Option<(Parts, &[u8])> {
    let mut lines = data.splitn(12, |&byte| byte == b'\n');
    let target = lines.next()?;
    let mut request = Request::builder().uri([b"/", target].concat().as_slice()).body(()).ok()?;
    let mut body = &b""[..];
    for line in lines {
        match line.iter().position(|&byte| byte == b':') {
            Some(colon) => {
                let name = HeaderName::from_bytes(&line[..colon]).ok()?;
                request.headers_mut().append(name, HeaderValue::from_bytes(&line[colon + 1..]).ok()?);
            }
            None => body = line,
        }
    }
    Some((request.into_parts().0, body))
}
