//! What the sections have in common: their settings, and the tables that they print.

use std::path::PathBuf;

/// What the sections need to know.
pub(crate) struct Settings {
    /// The server binary.
    pub binary: PathBuf,
    /// Shorter runs, for a look; the figures in the documentation are from full ones.
    pub quick: bool,
    /// Data for the start-up measurement and for sustained writes.
    pub gigabytes: u64,
    /// Processors of this machine.
    pub processors: usize,
}

impl Settings {
    /// A count for full runs, a tenth of it for quick ones.
    pub fn count(&self, full: usize) -> usize {
        if self.quick { (full / 10).max(1) } else { full }
    }
}

/// Prints a Markdown table.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) {
    println!("| {} |\n|{}", head.join(" | "), " --- |".repeat(head.len()));
    for row in rows {
        println!("| {} |", row.join(" | "));
    }
    println!();
}
