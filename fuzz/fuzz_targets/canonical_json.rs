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
    // What we accept, others accept too.
    assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok() || text.contains('e') || text.contains('E'));
});
