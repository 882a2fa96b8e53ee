//! What a decision needs of a verified token.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A token whose signature, audience and times were verified: who issued it, for whom, and its claims. Claims that no
/// rule asks for can be left out; a claim with one value is a list of one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// `iss`.
    pub issuer: Arc<str>,
    /// `sub`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Arc<str>>,
    /// Claim to its values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub claims: BTreeMap<Arc<str>, Vec<Arc<str>>>,
}

impl Token {
    /// The values of a claim.
    #[must_use]
    pub fn claim(&self, name: &str) -> &[Arc<str>] {
        self.claims.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// The JSON form, without a way to fail.
    pub(super) fn to_json(&self) -> serde_json::Value {
        let mut map = serde_json::Map::new();
        map.insert("issuer".to_owned(), (&*self.issuer).into());
        if let Some(subject) = &self.subject {
            map.insert("subject".to_owned(), (&**subject).into());
        }
        if !self.claims.is_empty() {
            let values = |all: &Vec<Arc<str>>| all.iter().map(|text| serde_json::Value::from(&**text)).collect();
            let claims = self.claims.iter().map(|(name, all)| (name.to_string(), values(all)));
            map.insert("claims".to_owned(), serde_json::Value::Object(claims.collect()));
        }
        serde_json::Value::Object(map)
    }
}
