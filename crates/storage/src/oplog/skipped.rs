//! Operations of the log that cannot be applied, or are left out.

use std::fmt;
use std::str::FromStr;

use sheaf_bson::json::{Style, value_to_json};
use sheaf_bson::{DocBuf, RawDoc};

use super::damaged::DamagedLog;
use crate::order::Mutex;
use crate::order::rank::LEAF;

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
    /// Whether a damaged log is cut.
    cut_log: bool,
    skipped: Mutex<LEAF, Vec<Unapplied>>,
    failed: Mutex<LEAF, Option<Unapplied>>,
    damaged: Mutex<LEAF, Vec<DamagedLog>>,
}

impl Repair {
    /// Which leaves these operations out.
    pub(crate) fn without(skip: &[OperationId]) -> Repair {
        Repair { skip: skip.to_vec(), ..Repair::default() }
    }

    /// Which mends a damaged log.
    pub(crate) fn cutting_log() -> Repair {
        Repair { cut_log: true, ..Repair::default() }
    }

    /// What was left out, and the first operation that cannot be applied and was not.
    pub(crate) fn take(&self) -> (Vec<Unapplied>, Option<Unapplied>) {
        let skipped = std::mem::take(&mut *self.skipped.lock());
        (skipped, self.failed.lock().take())
    }

    /// What damage the log has.
    pub(crate) fn take_damaged(&self) -> Vec<DamagedLog> {
        std::mem::take(&mut *self.damaged.lock())
    }

    pub(crate) fn cuts_log(&self) -> bool {
        self.cut_log
    }

    pub(crate) fn damaged(&self, damaged: DamagedLog) {
        self.damaged.lock().push(damaged);
    }

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
