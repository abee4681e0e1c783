//! Whose projection it is, and what it does with the fields that it does not name.

/// Which projections are allowed: find has `$slice`, `$elemMatch` and `a.$`, and the empty projection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The `projection` or `fields` of find and findAndModify.
    Find,
    /// The `$project` stage (and `$unset`, as an exclusion).
    Aggregate,
}

/// What happens to the fields that the projection does not name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// They are left out.
    Inclusion,
    /// They are kept.
    Exclusion,
    /// They are kept, and named fields are set: `$addFields`.
    Addition,
}
