//! Sorting: patterns, sort keys, and a sorter bounded in memory.

mod keys;
mod pattern;
mod runs;
mod sorted;
mod sorter;
mod store;

pub use keys::SortKey;
pub use pattern::{FindSort, SortOn, SortPart, SortPattern};
pub use runs::{KEY_AT_HAND, READ_AHEAD, ReadRun, Run, Runs};
pub use sorted::Sorted;
pub use sorter::{MEMORY_LIMIT_BYTES, Sorter, Spills};

#[cfg(test)]
mod tests;
