//! Any bytes as JSON: the canonical form is read back as the same document and is its own canonical form.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nova_policy::bundle::canonical::Json;

fuzz_target!(|data: &[u8]| {
    let Ok(document) = Json::parse(data) else { return };
    let text = document.to_canonical();
    let again = Json::parse(text.as_bytes());
    assert_eq!(again.as_ref(), Ok(&document));
    assert_eq!(again.map(|again| again.to_canonical()), Ok(text.clone()));
    // What we accept, others accept too, unless it is a number that no double can hold.
    let elsewhere = serde_json::from_str::<serde_json::Value>(&text).map_err(|error| error.to_string());
    assert!(elsewhere.is_ok() || elsewhere.is_err_and(|error| error.starts_with("number out of range")));
});
