//! What an expression reads.

use std::collections::BTreeSet;

/// The dependencies of one or more expressions, collected by [`crate::Expr::dependencies`].
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Deps {
    /// Dotted paths read from the document, as written (a path and its prefix may both be here).
    pub paths: BTreeSet<String>,
    /// The whole document is read (`$$ROOT`, `$$CURRENT`).
    pub whole_document: bool,
    /// Names of the metadata read by `$meta`.
    pub metadata: BTreeSet<&'static str>,
    /// The value differs between evaluations on the same document (`$rand`).
    pub random: bool,
}

impl Deps {
    /// No dependencies.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing of the document is read.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty() && !self.whole_document && self.metadata.is_empty()
    }
}
