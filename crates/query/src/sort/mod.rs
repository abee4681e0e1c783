//! Sorting: patterns, sort keys, and a sorter bounded in memory.

mod keys;
mod pattern;
mod sorter;

pub use keys::SortKey;
pub use pattern::{FindSort, SortOn, SortPart, SortPattern};
pub use sorter::{MEMORY_LIMIT_BYTES, Run, Runs, Sorted, Sorter, Spills};

#[cfg(test)]
mod tests;
