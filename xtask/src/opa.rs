//! The real OPA.

use std::path::PathBuf;

use crate::go_tool::GoTool;

/// The version that compiles our Rego and that the tests compare with.
pub(crate) const VERSION: &str = "1.22.3";
const OPA: GoTool = GoTool { name: "opa", package: "github.com/open-policy-agent/opa", version: VERSION };

/// Where it is, if it is there. The tests look at the same place.
pub(crate) fn find() -> Option<PathBuf> {
    OPA.find()
}

/// Builds it if it is missing.
pub(crate) fn install() -> anyhow::Result<PathBuf> {
    OPA.install()
}
