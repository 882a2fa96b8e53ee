//! One issuer: what its tokens must be, and its keys of now.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::{ArcSwap, ArcSwapOption};
use jsonwebtoken::{Algorithm, Validation, decode};
use nova_policy::input::Token;
use nova_proto::ids::SpiffeId;
use serde_json::Value;
use tokio::sync::Notify;

use super::keys::{KeyError, KeySet};
use super::label::shown;
use super::source::Source;
use super::{Fault, Peeked};
use crate::config::TokenConfig;
use crate::net::guard::AddressGuard;

/// Values that one claim may have; of more, the first count.
const MAX_VALUES: usize = 100;
/// What SPIFFE JWT-SVIDs are signed with (section 2.1).
const SVID_ALGORITHMS: [Algorithm; 8] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];
/// Clocks of one trust domain differ by less.
const SVID_LEEWAY: Duration = Duration::from_secs(30);

/// Keys, and since when.
#[derive(Default)]
pub(super) struct Known {
    pub(super) keys: KeySet,
    /// `None`: not yet.
    pub(super) since: Option<SystemTime>,
}

/// An issuer of tokens.
pub struct Issuer {
    /// What rules call it: `iss` of its tokens.
    pub(super) name: Arc<str>,
    /// `None`: the workload itself, since these are SVIDs.
    audiences: Option<Vec<String>>,
    algorithms: Vec<Algorithm>,
    leeway: Duration,
    /// How long keys are used without another look at their source; `None`: for ever.
    max_age: Option<Duration>,
    pub(super) source: Source,
    pub(super) known: ArcSwap<Known>,
    /// Why the last look at the source failed.
    pub(super) problem: ArcSwapOption<String>,
    /// A token named a key that is not there.
    pub(super) wanted: Notify,
}

/// A token whose signature, audience and times were good.
pub struct Verified {
    issuer: Arc<str>,
    subject: Option<Arc<str>>,
    claims: BTreeMap<String, Value>,
    /// End of its time, leeway included.
    pub until: SystemTime,
    /// The keys that it was verified with.
    known: Arc<Known>,
}

impl Issuer {
    pub(super) fn configured(config: &TokenConfig, guard: &AddressGuard) -> Result<Self, KeyError> {
        let source = Source::new(&config.keys, config.refresh, guard);
        let issuer = Self {
            name: config.issuer.as_str().into(),
            audiences: Some(config.audiences.clone()),
            algorithms: config.algorithms.clone(),
            leeway: config.leeway,
            max_age: source.is_remote().then_some(config.max_age),
            source,
            known: ArcSwap::default(),
            problem: ArcSwapOption::empty(),
            wanted: Notify::new(),
        };
        issuer.read_file()?;
        Ok(issuer)
    }

    pub(super) fn of_svids(trust_domain: &str, bundle: &Path) -> Result<Self, KeyError> {
        let issuer = Self {
            name: format!("spiffe://{trust_domain}").into(),
            audiences: None,
            algorithms: SVID_ALGORITHMS.to_vec(),
            leeway: SVID_LEEWAY,
            max_age: None,
            source: Source::svids(bundle),
            known: ArcSwap::default(),
            problem: ArcSwapOption::empty(),
            wanted: Notify::new(),
        };
        if bundle.exists() {
            issuer.read_file()?;
        }
        Ok(issuer)
    }

    /// Whether there were keys at any time. A trust domain need not have any for tokens.
    pub(super) fn has_been_read(&self) -> bool {
        self.known.load().since.is_some()
    }

    /// Whether a token about `subject` can be one of our own trust domain.
    pub(super) fn vouches_for(&self, subject: Option<&str>) -> bool {
        let id = subject.and_then(|subject| SpiffeId::new(subject).ok());
        id.is_some_and(|id| self.name.strip_prefix("spiffe://") == Some(id.trust_domain()))
    }

    pub(super) fn verify(&self, token: &str, peeked: &Peeked, workload: &SpiffeId) -> Result<Verified, Fault> {
        let algorithm = self.algorithm(&peeked.algorithm)?;
        let known = self.known.load_full();
        if known.keys.is_empty() || self.is_too_old(&known, SystemTime::now()) {
            return Err(Fault::KeysUnavailable);
        }
        let Some(key) = known.keys.find(peeked.key_id.as_deref(), algorithm) else {
            self.wanted.notify_one();
            return Err(Fault::UnknownKey);
        };
        let data = decode::<BTreeMap<String, Value>>(token, key, &self.validation(algorithm, workload))?;
        let claims = data.claims;
        // The library takes a list for `iss`, the standard does not.
        let text = |claim: &str| claims.get(claim).and_then(Value::as_str).map(Arc::<str>::from);
        if self.audiences.is_some() && text("iss").as_ref() != Some(&self.name) {
            return Err(Fault::Issuer);
        }
        let expires = claims.get("exp").and_then(Value::as_f64).filter(|exp| (0.0..1e11).contains(exp));
        let until = UNIX_EPOCH + Duration::from_secs_f64(expires.ok_or(Fault::Claims)?) + self.leeway;
        let subject = text("sub");
        if self.audiences.is_none() && !self.vouches_for(subject.as_deref()) {
            return Err(Fault::Claims);
        }
        Ok(Verified { issuer: Arc::clone(&self.name), subject, claims, until, known })
    }

    /// Whether a token that was verified before would be so now.
    pub(super) fn still_verifies(&self, verified: &Verified) -> bool {
        let known = self.known.load();
        let now = SystemTime::now();
        Arc::ptr_eq(&known, &verified.known) && !self.is_too_old(&known, now) && now < verified.until
    }

    /// What an operator should know.
    pub(super) fn warning(&self, now: SystemTime) -> Option<String> {
        let known = self.known.load();
        let problem = self.problem.load();
        // Nobody has to have a bundle with keys for tokens.
        if self.audiences.is_none() && known.since.is_none() && problem.is_none() {
            return None;
        }
        let effect = match known.since {
            None => "its tokens are refused",
            Some(_) if self.is_too_old(&known, now) => "the old ones are too old, and its tokens are refused",
            Some(_) if problem.is_some() => "the old ones are still used",
            Some(_) => return None,
        };
        let why = problem.as_deref().map_or("they were not read yet", String::as_str);
        Some(format!("keys of the token issuer {}: {effect}: {why}", self.name))
    }

    /// The one algorithm that the token says, if this issuer signs with it.
    fn algorithm(&self, said: &str) -> Result<Algorithm, Fault> {
        let algorithm: Algorithm = said.parse().map_err(|_| Fault::Algorithm)?;
        if self.algorithms.contains(&algorithm) { Ok(algorithm) } else { Err(Fault::Algorithm) }
    }

    fn validation(&self, algorithm: Algorithm, workload: &SpiffeId) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.leeway = self.leeway.as_secs();
        validation.validate_nbf = true;
        match &self.audiences {
            Some(audiences) => {
                validation.set_audience(audiences);
                validation.set_issuer(&[&self.name]);
                validation.set_required_spec_claims(&["exp", "aud", "iss"]);
            }
            None => {
                validation.set_audience(&[workload.as_str()]);
                validation.set_required_spec_claims(&["exp", "aud", "sub"]);
            }
        }
        validation
    }

    fn is_too_old(&self, known: &Known, now: SystemTime) -> bool {
        let since = known.since.zip(self.max_age);
        since.is_some_and(|(since, max_age)| now > since + max_age)
    }

    fn read_file(&self) -> Result<(), KeyError> {
        match self.source.read_file() {
            None => Ok(()),
            Some(keys) => {
                self.take(keys?);
                Ok(())
            }
        }
    }

    pub(super) fn take(&self, keys: KeySet) {
        self.problem.store(None);
        self.known.store(Arc::new(Known { keys, since: Some(SystemTime::now()) }));
    }
}

impl Verified {
    /// The part that a decision needs: who issued it, for whom, and those of the `wanted` claims that it has.
    #[must_use]
    pub fn token<'a>(&self, wanted: impl Iterator<Item = &'a str>) -> Arc<Token> {
        let claim = |name: &'a str| Some((Arc::from(name), values(name, self.claims.get(name)?)));
        let claims = wanted.filter_map(claim).filter(|(_, values)| !values.is_empty()).collect();
        Arc::new(Token { issuer: Arc::clone(&self.issuer), subject: self.subject.clone(), claims })
    }

    /// What records call whoever it names, and its issuer.
    #[must_use]
    pub fn label(&self) -> (String, String) {
        (format!("token:{}", shown(self.subject.as_deref().unwrap_or_default())), shown(&self.issuer))
    }

    /// Who issued it.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.issuer
    }
}

/// A claim as a list of texts. `scope` is one text of several words (RFC 8693, section 4.2); objects are no values.
fn values(name: &str, value: &Value) -> Vec<Arc<str>> {
    let one = |value: &Value| match value {
        Value::String(text) => Some(Arc::from(text.as_str())),
        Value::Bool(_) | Value::Number(_) => Some(Arc::from(value.to_string())),
        _ => None,
    };
    match value {
        Value::String(words) if name == "scope" => words.split(' ').take(MAX_VALUES).map(Arc::from).collect(),
        Value::Array(all) => all.iter().take(MAX_VALUES).filter_map(one).collect(),
        other => one(other).into_iter().collect(),
    }
}
