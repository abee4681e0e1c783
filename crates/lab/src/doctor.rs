//! `sheaf doctor`: whether this host suits a document database, why each point matters, and how to mend it.
//!
//! Everything but the measurements is read from `/proc` and `/sys`, below a root that tests replace by a folder.

mod disk;
mod limits;
mod measure;
mod memory;
mod network;
mod processor;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// How well one point of the host suits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// It works, but slower or with less room than it could.
    Warn,
    /// Data or availability is at risk, or it is very slow.
    Bad,
    /// This system does not tell.
    Unknown,
}

/// One point that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What was looked at: "open files".
    pub name: &'static str,
    /// See [`Status`].
    pub status: Status,
    /// What was seen: "1024, at most 4096".
    pub seen: String,
    /// Why it matters.
    pub why: &'static str,
    /// How to mend it: a command, or what to change. Empty when there is nothing to mend.
    pub mend: String,
}

impl Finding {
    fn new(name: &'static str, why: &'static str) -> Finding {
        Finding {
            name,
            status: Status::Unknown,
            seen: "this system does not tell".to_owned(),
            why,
            mend: String::new(),
        }
    }

    fn ok(mut self, seen: impl Into<String>) -> Finding {
        (self.status, self.seen) = (Status::Ok, seen.into());
        self
    }

    fn warn(self, seen: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { status: Status::Warn, seen: seen.into(), mend: mend.into(), ..self }
    }

    fn bad(self, seen: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { status: Status::Bad, seen: seen.into(), mend: mend.into(), ..self }
    }

    fn unknown(mut self, seen: impl Into<String>) -> Finding {
        self.seen = seen.into();
        self
    }
}

/// Where the facts come from.
struct Host {
    root: PathBuf,
    /// The data folder, or the nearest folder above it that exists.
    data: PathBuf,
}

impl Host {
    fn new(root: &Path, dbpath: &Path) -> Host {
        let whole = std::path::absolute(dbpath).unwrap_or_else(|_| dbpath.to_owned());
        let there = whole.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
        Host { root: root.to_owned(), data: there.canonicalize().unwrap_or_else(|_| there.to_owned()) }
    }

    /// The path below the root for a path that begins with a slash.
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A file's text without the white space around it.
    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.at(path)).ok().map(|text| text.trim().to_owned())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// Sorted names in a folder.
    fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// A line of `/proc/meminfo`, in bytes.
    fn meminfo(&self, name: &str) -> Option<u64> {
        let text = self.read("/proc/meminfo")?;
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
    }
}

/// Looks at this host; `dbpath` is where the data are or will be.
///
/// Takes a few seconds, because it measures: at most 64 MiB are written to a file without a name in `dbpath`.
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
