//! Keys, sizes, documents and records to load a database with. Everything comes from a seed, so that a run can be
//! repeated and what is read back can be checked.
//!
//! - [`Random`]: the one source of chance.
//! - [`keys`]: which key an operation is for; [`Sequence`] hands out new ones.
//! - [`Sizes`]: how long a value is.
//! - [`body`]: contents and their checksums; [`document`]: documents that can tell whether they are whole.
//! - [`records`]: small records for bulk imports; [`files`]: records from NDJSON, CSV and BSON files.

pub mod body;
pub mod document;
pub mod files;
pub mod keys;
mod random;
pub mod records;
mod sequence;
mod sizes;
mod zipf;

pub use random::Random;
pub use sequence::Sequence;
pub use sizes::Sizes;
pub use zipf::Zipfian;

/// A word for a word, every bit of which depends on every bit of the other (the finalizer of MurmurHash3). It is a
/// bijection: different numbers stay different.
#[inline]
pub fn mix(mut word: u64) -> u64 {
    word ^= word >> 33;
    word = word.wrapping_mul(0xff51_afd7_ed55_8ccd);
    word ^= word >> 33;
    word = word.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ (word >> 33)
}
