//! What the configuration lists: tables that may be there several times, each with a name.

use std::collections::BTreeSet;

use super::CertificateConfig;
use super::document::Document;
use super::value;

pub(super) fn certificates(document: &Document<'_>) -> Vec<CertificateConfig> {
    let mut names = BTreeSet::new();
    let mut all = Vec::new();
    for mut section in document.tables("certificates") {
        let name = section.required("name", value::name, "write the name that ports use in `certificate`");
        let mut file = |key, remedy| section.required(key, value::path, remedy).map(|path| section.path(path));
        let chain = file("chain", "write the path of the certificates, the server's own first, PEM");
        let key = file("key", "write the path of its key, PEM, mode 0400 or 0600");
        if let Some(name) = name.as_ref().filter(|name| !names.insert((*name).clone())) {
            section.refuse("name", format!("{name:?} is there twice"), "rename one");
        }
        section.finish();
        if let (Some(name), Some(chain), Some(key)) = (name, chain, key) {
            all.push(CertificateConfig { name, chain, key });
        }
    }
    all
}
