//! Collations: how strings compare where a command, a collection or an index names a locale.
//!
//! - [`Collation`] is the document `{locale: "fr", strength: 1}`, checked and completed.
//! - [`Collator`] compares by it, and makes keys whose bytes have the same order. The rules and their data are those of
//!   ICU4X (`icu_collator`), compiled in; [`data_version`] names them, because keys of indexes are made by them.
//!
//! Whoever has no collator compares bytes with [`sheaf_bson::compare`]; [`compare_by`] is that with one branch more.

#![forbid(unsafe_code)]

mod collator;
mod locales;
mod spec;

pub use collator::{Collator, SharedCollator, compare_by, hash_by, key_hex, key_of};
pub use spec::{Collation, Rules};

/// The rules and data by which keys of indexes are made. It changes with the version of `icu_collator`.
pub fn data_version(locale: &str) -> &'static str {
    match locale {
        // Keys that are marked without the word were made by the rules of `en_US`.
        "en_US_POSIX" => "icu4x-2.4.0 posix",
        _ => "icu4x-2.4.0",
    }
}
