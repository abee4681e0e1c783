//! What one look at the host gives, and where the facts come from.

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
    pub(super) fn new(name: &'static str, why: &'static str) -> Finding {
        Finding {
            name,
            status: Status::Unknown,
            seen: "this system does not tell".to_owned(),
            why,
            mend: String::new(),
        }
    }

    pub(super) fn ok(mut self, seen: impl Into<String>) -> Finding {
        (self.status, self.seen) = (Status::Ok, seen.into());
        self
    }

    pub(super) fn warn(self, seen: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { status: Status::Warn, seen: seen.into(), mend: mend.into(), ..self }
    }

    pub(super) fn bad(self, seen: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { status: Status::Bad, seen: seen.into(), mend: mend.into(), ..self }
    }

    pub(super) fn unknown(mut self, seen: impl Into<String>) -> Finding {
        self.seen = seen.into();
        self
    }
}

/// Where the facts come from.
pub(super) struct Host {
    pub(super) root: PathBuf,
    /// The data folder, or the nearest folder above it that exists.
    pub(super) data: PathBuf,
}

impl Host {
    pub(super) fn new(root: &Path, dbpath: &Path) -> Host {
        let whole = std::path::absolute(dbpath).unwrap_or_else(|_| dbpath.to_owned());
        let there = whole.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
        Host { root: root.to_owned(), data: there.canonicalize().unwrap_or_else(|_| there.to_owned()) }
    }

    /// The path below the root for a path that begins with a slash.
    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A file's text without the white space around it.
    pub(super) fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.at(path)).ok().map(|text| text.trim().to_owned())
    }

    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// Sorted names in a folder.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// A line of `/proc/meminfo`, in bytes.
    pub(super) fn meminfo(&self, name: &str) -> Option<u64> {
        let text = self.read("/proc/meminfo")?;
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
    }
}
