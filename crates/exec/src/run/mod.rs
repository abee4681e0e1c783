//! Running plans: operators that read collections, on the row protocol of `sheaf_rows`.
//!
//! Leaves read through [`Reads`], which has the state that the command reads at present; an [`Executor`] is a plan being
//! run, an operator itself, which a cursor or a pipeline owns.

mod ahead;
mod build;
mod executor;
mod fetch;
mod merge;
mod metadata;
mod near;
mod number;
mod owned;
mod probe;
mod project;
mod random;
mod reads;
mod scan;
mod text;
mod watched;

pub use executor::{Batch, Chosen, Executor};
pub use owned::{Owned, Ownership, Part};
pub(crate) use probe::{EqualProbe, equals_only_itself};
pub use reads::Reads;
pub use watched::{Watch, Watched, watched};
