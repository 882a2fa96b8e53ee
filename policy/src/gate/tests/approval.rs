//! Who may approve, and for what an approval counts.

use super::*;

struct Held {
    live: Vec<u8>,
    next: Vec<u8>,
    author: Signer,
}

impl Held {
    fn new() -> Self {
        let author = signer("author");
        let mut next = base();
        next["egress"]["x"]["exact"]["api.example.com:443"][0]["credential"] = json!("stripe-live");
        Self { live: packed(&base(), REGO, 5, &author), next: packed(&next, REGO, 6, &author), author }
    }

    fn comparison(&self) -> Comparison {
        let open = |bytes: &[u8]| dangerous_unverified(bytes).expect("a bundle");
        compare(&open(&self.live), &open(&self.next), None).expect("comparable")
    }
}

// covers: B9c
#[test]
fn the_author_cannot_approve_under_any_name() {
    let held = Held::new();
    let comparison = held.comparison();
    assert!(comparison.is_held());
    for id in ["author", "somebody-else"] {
        let refused = approve(&comparison, &held.next, &held.author.key, id);
        assert!(matches!(refused, Err(ApprovalError::Author(_))), "{id}: {refused:?}");
    }
    // With another key, but under the author's id; and with the author's key in the approvers file under another id.
    let other = signer("other");
    assert!(matches!(approve(&comparison, &held.next, &other.key, "author"), Err(ApprovalError::Author(_))));
    let good = approve(&comparison, &held.next, &other.key, "other").expect("approved");
    let public: BTreeMap<String, Value> = serde_json::from_str(&held.author.keys.to_json()).expect("keys");
    let disguised = VerifyKeys::from_json(&json!({"other": public["author"]}).to_string()).expect("keys");
    assert!(matches!(check(&good, &comparison, &held.next, &disguised), Err(ApprovalError::Author(_))));
    assert!(!held.author.pem.is_empty());
}

// covers: B9c
#[test]
fn an_approval_counts_for_one_change_and_is_stale_when_live_has_moved() {
    let held = Held::new();
    let (comparison, other) = (held.comparison(), signer("other"));
    let good = approve(&comparison, &held.next, &other.key, "other").expect("approved");
    let approved = check(&good, &comparison, &held.next, &other.keys).expect("it counts");
    assert_eq!(approved.by, "other");

    let reason = |approval: &Approval, comparison: &Comparison, keys: &VerifyKeys| {
        check(approval, comparison, &held.next, keys).map(|by| by.by).map_err(|error| error.reason())
    };
    let mut moved = comparison.clone();
    moved.live.serial = 7;
    assert_eq!(reason(&good, &moved, &other.keys), Err("stale"));
    let mut replaced = comparison.clone();
    replaced.next.sha256 = "00".to_owned();
    assert_eq!(reason(&good, &replaced, &other.keys), Err("other_bundle"));
    let mut riskier = comparison.clone();
    riskier.risks[0].after.push('!');
    assert_eq!(reason(&good, &riskier, &other.keys), Err("other_risks"));
    assert_eq!(reason(&good, &comparison, &signer("nobody").keys), Err("unknown_approver"));
    assert_eq!(reason(&good, &comparison, &signer("other").keys), Err("bad_signature"));
    // Saying in the file what would fit does not help.
    let edited = Approval { live_serial: 7, ..good.clone() };
    assert_eq!(reason(&edited, &moved, &other.keys), Err("bad_signature"));
    for jws in ["", "..", "e30..AAAA", "a.b.c"] {
        assert_eq!(
            reason(&Approval { jws: jws.to_owned(), ..good.clone() }, &comparison, &other.keys),
            Err("bad_form"),
            "{jws}"
        );
    }
    let mut calm = comparison.clone();
    calm.risks.clear();
    assert!(matches!(approve(&calm, &held.next, &other.key, "other"), Err(ApprovalError::NothingHeld)));
}
