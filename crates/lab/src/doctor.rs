//! `sheaf doctor`: whether this host suits a document database, why each point matters, and how to mend it.
//!
//! Everything but the measurements is read from `/proc` and `/sys`, below a root that tests replace by a folder.

mod disk;
mod finding;
mod limits;
mod measure;
mod memory;
mod network;
mod processor;
mod reads;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::path::Path;

use finding::Host;
pub use finding::{Finding, Status};
pub use reads::{Reads, measure as measure_reads};

/// Looks at this host; `dbpath` is where the data are or will be.
///
/// Takes a few seconds, because it measures: at most 64 MiB at a time are written to a file without a name in `dbpath`.
pub fn run(dbpath: &Path) -> Vec<Finding> {
    let host = Host::new(Path::new("/"), dbpath);
    let mut findings = facts(&host);
    findings.extend(measure::findings(&host));
    findings
}

/// Everything that is read rather than measured, below another root.
pub fn facts_at(root: &Path, dbpath: &Path) -> Vec<Finding> {
    facts(&Host::new(root, dbpath))
}

fn facts(host: &Host) -> Vec<Finding> {
    [
        limits::findings(host),
        memory::findings(host),
        processor::findings(host),
        network::findings(host),
        disk::findings(host),
    ]
    .concat()
}

/// Bytes that are free on the disk of a folder, or of the nearest one above it that exists.
pub fn free_space(folder: &Path) -> Option<u64> {
    let space = rustix::fs::statvfs(&Host::new(Path::new("/"), folder).data).ok()?;
    Some(space.f_bavail.saturating_mul(space.f_frsize))
}

/// The findings as text: what is well in one line each, the rest with reason and remedy.
pub fn print(findings: &[Finding]) -> String {
    let width = findings.iter().map(|f| f.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let mark = match finding.status {
            Status::Ok => "ok  ",
            Status::Warn => "warn",
            Status::Bad => "BAD ",
            Status::Unknown => "?   ",
        };
        let _ = writeln!(text, "{mark}  {:width$}  {}", finding.name, finding.seen);
        if matches!(finding.status, Status::Warn | Status::Bad) {
            let _ = writeln!(text, "      why:  {}", finding.why);
            for (i, line) in finding.mend.lines().enumerate() {
                let _ = writeln!(text, "      {}  {line}", if i == 0 { "mend:" } else { "     " });
            }
        }
    }
    let count = |status| findings.iter().filter(|f| f.status == status).count();
    let _ = writeln!(
        text,
        "\n{} points: {} ok, {} to improve, {} bad, {} unknown",
        findings.len(),
        count(Status::Ok),
        count(Status::Warn),
        count(Status::Bad),
        count(Status::Unknown)
    );
    text
}
