//! What the operations of a `bulkWrite` have come to, each by itself and together.

use sheaf_bson::{DocBuf, DocWriter, OwnedValue, RawDoc};
use sheaf_errors::{Error, Result};

use super::super::told::Did;
use super::{BulkWrite, Kind};
use crate::sampling::Diffs;

/// All of them.
#[derive(Default)]
pub(super) struct Totals {
    pub(super) diffs: Diffs,
    pub(super) items: Vec<DocBuf>,
    pub(super) retried: Vec<i32>,
    pub(super) errors: u64,
    pub(super) inserted: u64,
    pub(super) matched: u64,
    pub(super) modified: u64,
    pub(super) upserted: u64,
    pub(super) deleted: u64,
}

/// What one operation came to.
pub(super) struct Done {
    pub(super) n: u64,
    pub(super) modified: Option<u64>,
    pub(super) upserted: Option<OwnedValue>,
}

impl Done {
    /// As the slow log and the profiler tell it.
    pub(super) fn did(&self, kind: &Kind<'_>) -> Option<Did> {
        match kind {
            Kind::Insert(_) => None,
            Kind::Delete { .. } => Some(Did::Deleted(self.n)),
            Kind::Update(_) => {
                let upserted = u64::from(self.upserted.is_some());
                let (matched, modified) = (self.n - upserted, self.modified.unwrap_or(0));
                Some(Did::Updated { matched, modified, upserted })
            }
        }
    }
}

impl BulkWrite<'_> {
    /// Takes in what the operation at this place has come to.
    pub(super) fn count(&self, at: usize, kind: &Kind<'_>, result: Result<Done>, totals: &mut Totals) {
        let item = match result {
            Ok(done) => {
                match kind {
                    Kind::Insert(_) => totals.inserted += done.n,
                    Kind::Delete { .. } => totals.deleted += done.n,
                    Kind::Update(_) => {
                        let inserted = u64::from(done.upserted.is_some());
                        totals.upserted += inserted;
                        totals.matched += done.n - inserted;
                        totals.modified += done.modified.unwrap_or(0);
                    }
                }
                if self.errors_only {
                    return;
                }
                DocBuf::build(|out| {
                    out.append("ok", 1.0).append("idx", at as i32).append("n", done.n as i32);
                    if let Some(modified) = done.modified {
                        out.append("nModified", modified as i32);
                    }
                    if let Some(id) = &done.upserted {
                        out.document("upserted").append("_id", id.as_value());
                    }
                })
            }
            Err(error) => {
                totals.errors += 1;
                DocBuf::build(|out| write_failure(out, at, kind, &error))
            }
        };
        totals.items.push(item);
    }
}

fn write_failure(out: &mut DocWriter<'_, Vec<u8>>, at: usize, kind: &Kind<'_>, error: &Error) {
    out.append("ok", 0.0).append("idx", at as i32).append("n", 0);
    if matches!(kind, Kind::Update(_)) {
        out.append("nModified", 0);
    }
    out.append("code", error.code().0);
    if let Some(extra) = error.extra() {
        out.append_all(RawDoc::new(extra));
    }
    if let Some(info) = error.err_info() {
        out.append("errInfo", RawDoc::new(info));
    }
    out.append("errmsg", error.message());
}

/// A statement of a retried command counts as it did the first time.
pub(super) fn recorded_done(kind: &Kind<'_>, recorded: &DocBuf) -> Done {
    let recorded = recorded.as_raw();
    let number = |name: &str| recorded.get(name).and_then(|v| v.as_exact_i64()).unwrap_or(0) as u64;
    Done {
        n: number("n"),
        modified: matches!(kind, Kind::Update(_)).then(|| number("nModified")),
        upserted: recorded.get("upserted").map(OwnedValue::from),
    }
}
