//! `local.oplog.rs`: the log read as a collection.
//!
//! [`OplogScan`] takes the place of a collection scan; bounds on `ts` in the filter decide where it begins
//! and ends. [`shown`] brings an operation into MongoDB's form where storage keeps it in its own.

mod command;
mod scan;
mod shown;
#[cfg(test)]
mod tests;

pub use command::{builds_anew, is_of_view};
pub use scan::OplogScan;
pub use shown::shown;
