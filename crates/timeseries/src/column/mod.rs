//! Columns as binaries of subtype 7 have them: values of any types one after the other, each as the difference to the one before where
//! that is small, in words of Simple-8b.
//!
//! A column is a row of control bytes with what belongs to each, and ends with a zero byte. A control byte that is a type is a literal: an
//! element without a name. 0x80 to 0xDF announce words (their number less one in the low bits): differences of whole numbers, or of doubles
//! that a power of ten (9: 1, A: 10, B: 100, C: 10^4, D: 10^8) makes whole; of dates, timestamps and object ids the differences of
//! differences. 0xF1 and 0xF2 announce documents and arrays: a reference document with all their fields, a row for each value in it,
//! interleaved as a reader needs them, and a zero byte.

mod decode;
mod encode;
mod objects;
mod simple8b;
mod stream;
#[cfg(test)]
mod tests;
mod value;

pub use decode::ColumnReader;
pub use encode::ColumnWriter;
