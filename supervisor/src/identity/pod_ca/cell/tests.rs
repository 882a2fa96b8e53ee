use std::time::Duration;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const LIFE: Duration = Duration::from_secs(16 * 3600);

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

/// A guest of a workload, and the clock that it and we go by.
struct Guest {
    cas: PodCas,
    cell: PodCaCell,
    start: SystemTime,
}

impl Guest {
    fn new() -> Self {
        let cas = PodCas::self_signed(LIFE);
        let guest = Self { cas, cell: PodCaCell::default(), start: SystemTime::now() };
        guest.ask(Duration::ZERO, &["api.test"]);
        guest
    }

    /// What it is told at a time after its start, with rules that name `hosts`.
    fn ask(&self, after: Duration, hosts: &[&str]) -> Told {
        let now = self.start + after;
        self.cell.renew(&self.cas, "x", &names(hosts), now).expect("made");
        self.cell.told(now)
    }

    fn signer(&self, after: Duration, host: &str) -> Option<Arc<PodCa>> {
        self.cell.signer(host, self.start + after)
    }
}

fn is_same(one: &Option<Arc<PodCa>>, other: &Option<Arc<PodCa>>) -> bool {
    one.as_ref().zip(other.as_ref()).is_some_and(|(one, other)| Arc::ptr_eq(one, other))
}

// covers: D6k
#[test]
fn nothing_signs_for_a_guest_that_was_told_nothing() {
    let cell = PodCaCell::default();
    assert!(cell.signer("api.test", SystemTime::now()).is_none() && cell.told(SystemTime::now()).pem().is_empty());
    cell.renew(&PodCas::self_signed(LIFE), "x", &names(&[]), SystemTime::now()).expect("nothing to do");
    assert!(cell.told(SystemTime::now()).pem().is_empty(), "no rule intercepts");
}

// covers: D6k
#[test]
fn a_next_ca_that_the_guest_did_not_confirm_never_signs() {
    let guest = Guest::new();
    let first = guest.signer(Duration::ZERO, "api.test");
    assert!(first.is_some(), "the guest asks before it starts the app");
    let told = guest.ask(LIFE / 2, &["api.test"]);
    assert_eq!(told.cas.len(), 2);
    assert!(is_same(&first, &guest.signer(LIFE - HOUR / 2, "api.test")), "to its end, rather than one nobody trusts");
    assert!(guest.signer(LIFE, "api.test").is_none(), "and then nothing");
    assert!(guest.cell.may_cover("api.test", guest.start + LIFE));
}

// covers: D6k
#[test]
fn the_old_ca_signs_as_long_as_it_can_and_then_the_confirmed_one() {
    let guest = Guest::new();
    let first = guest.signer(Duration::ZERO, "api.test");
    assert_eq!(guest.ask(LIFE / 2 - HOUR, &["api.test"]).cas.len(), 1, "it is not time");
    let told = guest.ask(LIFE / 2, &["api.test"]);
    assert_eq!(told.pem().matches("BEGIN CERTIFICATE").count(), 2, "the guest is to trust both");
    guest.cell.confirm(&told);
    assert!(is_same(&first, &guest.signer(LIFE - 2 * HOUR, "api.test")), "apps that read once know this one only");
    let next = guest.signer(LIFE - HOUR / 2, "api.test");
    assert!(next.is_some() && !is_same(&first, &next));
    let later = guest.ask(LIFE, &["api.test"]);
    assert!(Arc::ptr_eq(&later.cas[0], next.as_ref().expect("one")), "what is over goes");
    assert_eq!(later.cas.len(), 2, "and half of the next one's life is over as well");
}

// covers: D6k
#[test]
fn new_names_get_a_ca_of_their_own_and_the_old_ones_keep_theirs() {
    let guest = Guest::new();
    let first = guest.signer(Duration::ZERO, "api.test");
    let told = guest.ask(HOUR, &["api.test", "later.test"]);
    assert!(guest.signer(HOUR, "later.test").is_none(), "not before the guest has it");
    guest.cell.confirm(&told);
    assert!(is_same(&first, &guest.signer(HOUR, "api.test")));
    assert!(guest.signer(HOUR, "later.test").is_some());
}

// covers: D6k
#[test]
fn however_often_names_come_there_are_few_cas_and_the_oldest_stays() {
    let guest = Guest::new();
    let first = guest.signer(Duration::ZERO, "api.test");
    let mut hosts = vec!["api.test".to_owned()];
    for number in 0..20 {
        hosts.push(format!("n{number}.test"));
        let told = guest.ask(HOUR, &hosts.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(told.cas.len() <= MOST);
        guest.cell.confirm(&told);
    }
    assert!(is_same(&first, &guest.signer(HOUR, "api.test")));
    assert!(hosts.iter().all(|host| guest.signer(HOUR, host).is_some()));
}

// covers: D6k
#[test]
fn the_operator_hears_of_an_end_and_of_what_comes_after_it() {
    let guest = Guest::new();
    let at = |after: Duration| guest.cell.ending(guest.start + after);
    assert_eq!(at(LIFE / 2), None);
    let told = guest.ask(LIFE / 2, &["api.test"]);
    let ends = guest.start + LIFE;
    assert_eq!(at(LIFE - HOUR), Some(Ending::Last { ends }), "an unconfirmed one comes after nothing");
    assert_eq!(at(LIFE), Some(Ending::Over));
    guest.cell.confirm(&told);
    assert_eq!(at(LIFE - HOUR), Some(Ending::Followed { ends, by: guest.start + LIFE / 2 }));
    assert_eq!(at(LIFE), None);
}
