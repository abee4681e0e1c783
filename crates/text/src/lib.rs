//! Text search as pure functions: which words a text has, what a text index holds of a document, what a `$text`
//! condition looks for, and how well a document fits it.
//!
//! A [`TextSpec`] is read from an index specification; [`TextSpec::terms`] gives the words of a document with their
//! scores, which are the index's keys. A [`TextQuery`] is a parsed condition; [`TextQuery::score`] decides about a document
//! and tells its score by itself, so that an index only has to name candidates. Nothing here knows of indexes or plans.

#![forbid(unsafe_code)]

mod fold;
mod language;
mod query;
mod spec;
mod stop_words;
mod tokens;
mod walk;

pub use language::Language;
pub use query::{Params, TextQuery};
pub use spec::{NORMAL_FIELDS, TextSpec, is_text_key, normal_fields, normal_key};

#[cfg(test)]
mod tests;
