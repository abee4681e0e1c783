//! An operation of the log that cannot be applied, and the operator's way out.
//!
//! It should not be: the log says what was done. If it is all the same, a start ends there, for what follows may build on it.
//! [`repair`] finds the operation, and leaves it out if its name is given; what is left out is written to `repair.json` in the
//! data folder first. Nothing else ever passes over an operation.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::str::FromStr;
use std::sync::Arc;

use sheaf_bson::json::{Style, to_json, value_to_json};
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result};

use crate::core::Core;
use crate::options::{OpTime, Options};
use crate::order::Mutex;
use crate::order::rank::LEAF;

/// Where what was left out is kept: a line of Extended JSON for each operation.
const FILE: &str = "repair.json";

/// One operation of the log, written `term/index/seconds.increment`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationId {
    /// Term of its entry.
    pub term: u64,
    /// Index of its entry.
    pub index: u64,
    /// Its cluster time.
    pub time: u64,
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}.{}", self.term, self.index, self.time >> 32, self.time as u32)
    }
}

impl FromStr for OperationId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no entry: term/index/seconds.increment");
        let mut parts = text.split(['/', '.']).map(str::parse::<u64>);
        let mut next = || parts.next().and_then(Result::ok).ok_or_else(wrong);
        let (term, index, seconds, increment) = (next()?, next()?, next()?, next()?);
        let small = seconds <= u64::from(u32::MAX) && increment <= u64::from(u32::MAX);
        let id = OperationId { term, index, time: seconds << 32 | increment };
        if small && id.to_string() == text { Ok(id) } else { Err(wrong()) }
    }
}

/// An operation that cannot be applied, or was left out.
#[derive(Clone, Debug)]
pub struct Unapplied {
    /// Which it is.
    pub id: OperationId,
    /// As it is in the log.
    pub operation: DocBuf,
    /// Why it cannot be applied; nothing if it was left out without trying.
    pub why: Option<String>,
    /// It was left out although nobody had named it: with the rest of its transaction.
    pub along: bool,
}

impl Unapplied {
    pub(crate) fn of(term: u64, index: u64, operation: RawDoc<'_>) -> Unapplied {
        let id = OperationId { term, index, time: crate::oplog::time(operation.as_bytes()) };
        Unapplied { id, operation: operation.into(), why: None, along: false }
    }

    /// Whether it is an entry of a transaction that has several.
    pub fn is_of_chain(&self) -> bool {
        let link = crate::oplog::link_of(self.operation.as_raw());
        link.is_some_and(|link| link.partial || link.previous.is_some())
    }

    /// Operation, namespace and `_id`, as far as it has them.
    pub fn summary(&self) -> String {
        let doc = self.operation.as_raw();
        let text = |name: &str| doc.get(name).and_then(|value| value.as_str()).unwrap_or("?").to_owned();
        let mut summary = format!("op: {}, ns: {}", text("op"), text("ns"));
        let of = if text("op") == "u" { "o2" } else { "o" };
        if let Some(id) = doc.get(of).and_then(|value| value.as_doc()).and_then(|o| o.get("_id")) {
            summary.push_str(&format!(", _id: {}", value_to_json(id, Style::Relaxed)));
        }
        summary
    }
}

/// What a repair is to do, and what it has met.
#[derive(Default)]
pub struct Repair {
    skip: Vec<OperationId>,
    skipped: Mutex<LEAF, Vec<Unapplied>>,
    failed: Mutex<LEAF, Option<Unapplied>>,
}

/// What [`repair`] has found and done.
#[derive(Clone, Debug, Default)]
pub struct Repaired {
    /// What was left out.
    pub skipped: Vec<Unapplied>,
    /// The first operation that cannot be applied and was not to be left out. The folder does not open.
    pub failed: Option<Unapplied>,
    /// How far the log was applied.
    pub last: OpTime,
}

/// Applies the log as a start does, without the operations named, and flushes. Nothing is changed if some other operation
/// cannot be applied, or if none had to be left out.
pub fn repair(options: Options, skip: &[OperationId]) -> Result<Repaired> {
    let repair = Arc::new(Repair { skip: skip.to_vec(), ..Repair::default() });
    let opened = Core::open(Options { repair: Some(repair.clone()), ..options });
    let failed = repair.failed.lock().take();
    let skipped = std::mem::take(&mut *repair.skipped.lock());
    let last = match opened {
        Ok(core) => {
            if !skipped.is_empty() {
                record(&core, &skipped)?;
                core.flush_whatever_the_set_has()?;
            }
            core.published.last()
        }
        Err(_) if failed.is_some() => OpTime::default(),
        Err(error) => return Err(error),
    };
    Ok(Repaired { skipped, failed, last })
}

impl Repair {
    /// Which of an entry's operations are to be left out. Those of one transaction go together.
    pub(crate) fn left_out(&self, term: u64, index: u64, operations: &[RawDoc<'_>]) -> Vec<bool> {
        let mut out = vec![false; operations.len()];
        let mut first = 0;
        for (at, doc) in operations.iter().enumerate() {
            let id = OperationId { term, index, time: crate::oplog::time(doc.as_bytes()) };
            out[at] |= self.skip.contains(&id);
            let goes_on = doc.get("o").and_then(|o| o.as_doc()).and_then(|o| o.get("partialTxn"));
            if goes_on.is_none_or(|value| !value.truthy()) {
                if out[first..=at].contains(&true) {
                    out[first..=at].fill(true);
                }
                first = at + 1;
            }
        }
        out
    }

    pub(crate) fn skipped(&self, mut unapplied: Unapplied) {
        unapplied.along = !self.skip.contains(&unapplied.id);
        self.skipped.lock().push(unapplied);
    }

    pub(crate) fn failed(&self, unapplied: Unapplied) {
        *self.failed.lock() = Some(unapplied);
    }
}

/// Keeps what is left out, for good, before the data without it is.
fn record(core: &Core, skipped: &[Unapplied]) -> Result<()> {
    let path = core.base.options.path.join(FILE);
    let mut lines = String::new();
    for unapplied in skipped {
        let line = sheaf_bson::doc! {
            "skipped": &unapplied.id.to_string(),
            "at": Value::DateTime((core.base.options.clock)()),
            "operation": &unapplied.operation
        };
        lines.push_str(&to_json(line.as_raw(), Style::Canonical));
        lines.push('\n');
        tracing::warn!(entry = %unapplied.id, what = unapplied.summary(), "left out an operation of the log");
    }
    let written = OpenOptions::new().create(true).append(true).open(&path).and_then(|mut file| {
        file.write_all(lines.as_bytes())?;
        file.sync_all()?;
        File::open(&core.base.options.path)?.sync_all()
    });
    written.map_err(|error| {
        Error::new(Code::FILE_STREAM_FAILED, format!("writing {} failed: {error}", path.display()))
    })
}

/// The error of an operation that cannot be applied: which, and why.
pub(crate) fn unappliable(core: &Core, term: u64, index: u64, operation: RawDoc<'_>, error: &Error) -> Error {
    let why = Some(error.message().to_owned());
    let unapplied = Unapplied { why, ..Unapplied::of(term, index, operation) };
    let (id, what) = (unapplied.id, unapplied.summary());
    let text = format!("entry {id} of the log ({what}) cannot be applied: {}", error.message());
    let starting = core.me().is_none();
    let way_out = format!("; `sheaf repair --dbpath {}` shows it", core.base.options.path.display());
    let text = if starting { text + &way_out } else { text };
    if let Some(repair) = &core.base.options.repair {
        repair.failed(unapplied);
    }
    Error::new(error.code(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_entries() {
        let id = OperationId { term: 3, index: 77, time: (1_700_000_000 << 32) | 5 };
        assert_eq!(id.to_string(), "3/77/1700000000.5");
        assert_eq!("3/77/1700000000.5".parse(), Ok(id));
        for wrong in ["", "3/77", "3/77/1.2.3", "3/77/1/2", "3/77/-1.2", "+3/77/1.2", "3/77/1.99999999999"] {
            assert!(wrong.parse::<OperationId>().is_err(), "{wrong}");
        }
    }
}
