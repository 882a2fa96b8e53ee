//! What is measured: cases, and the ways through the proxies that are compared in each.

use super::call::Call;

/// Something that callers do.
pub(super) struct Case {
    /// For `--case` and programs.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// Callers at once.
    pub(super) callers: usize,
    pub(super) pattern: Pattern,
    /// The first is what the others are compared with.
    pub(super) rows: Vec<Row>,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    /// One request after the other on each connection.
    Keep,
    /// A connection for every request.
    Once,
    /// Answers without end, by the MiB.
    Download,
    /// Bodies without end, by the MiB.
    Upload,
}

/// One way through one proxy.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// Of the stand's proxies.
    pub(super) proxy: usize,
    /// Whether muxer and relay are on the way.
    pub(super) relayed: bool,
    pub(super) call: Call,
    /// What must be refused on the same way, and how.
    pub(super) refused: Vec<(Call, Refused)>,
    /// The audit lines of which there must be one for everything that is counted: their `kind`.
    pub(super) audited: Option<&'static str>,
}

/// What a refusal looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// 403, or the end of the connection.
    Somehow,
    /// No answer: the connection is not made.
    Unconnected,
}

impl Pattern {
    /// What the columns count.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Keep | Self::Once => "request",
            Self::Download | Self::Upload => "MiB",
        }
    }
}
