//! What a statement does, as far as shard keys are concerned.

/// What the statement under way does to documents, as far as that matters for their shard keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writing {
    /// It inserts or deletes.
    #[default]
    Others,
    /// It updates one document, or inserts it.
    One,
    /// It updates all that match.
    Many,
}
