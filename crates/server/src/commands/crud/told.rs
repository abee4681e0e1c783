//! Statements that the slow log and the profiler tell of, one by one.

use std::time::Instant;

use sheaf_bson::RawDoc;
use sheaf_errors::Error;
use sheaf_exec::write::{Seen, UpdateResult};
use sheaf_front::dispatch::{Statement, StatementKind, tell_statement};
use sheaf_front::request::OpMetrics;

use crate::op::Operation;

/// A statement under way.
pub struct Telling<'s> {
    kind: StatementKind,
    sent: RawDoc<'s>,
    namespace: &'s str,
    began: Instant,
    /// What it looks at.
    pub seen: Seen,
}

/// What a statement did.
#[derive(Clone, Copy)]
pub enum Did {
    /// An update.
    Updated {
        /// Documents that matched.
        matched: u64,
        /// Documents that changed.
        modified: u64,
        /// Documents inserted.
        upserted: u64,
    },
    /// A delete of so many documents.
    Deleted(u64),
}

impl Did {
    /// Of an update; `None`: there was no collection.
    pub fn updated(result: Option<&UpdateResult>) -> Did {
        let count = |of: fn(&UpdateResult) -> u64| result.map_or(0, of);
        Did::Updated {
            matched: count(|result| result.matched),
            modified: count(|result| result.modified),
            upserted: count(|result| u64::from(result.upserted.is_some())),
        }
    }
}

impl<'s> Telling<'s> {
    /// Begins the statement.
    pub fn begin(kind: StatementKind, sent: RawDoc<'s>, namespace: &'s str) -> Self {
        Telling { kind, sent, namespace, began: Instant::now(), seen: Seen::default() }
    }

    /// Tells how it has ended, and adds its figures to those of the command. `written` is the stage that writes.
    pub fn end(&self, op: &Operation<'_>, written: &str, did: Option<Did>, error: Option<&Error>) {
        let all = op.metrics();
        let (keys, docs) = self.seen.examined();
        add_seen(all, &self.seen);
        let (namespace, took) = (self.namespace, self.began.elapsed());
        tell_statement(op, &Statement { kind: self.kind, sent: self.sent, namespace, took, error }, || {
            let own = OpMetrics::default();
            own.keys_examined.set(keys);
            own.docs_examined.set(docs);
            own.sorts.set(u64::from(self.seen.sorts()));
            own.write_conflicts.set(self.seen.conflicts.get());
            own.plan_summary.replace(self.seen.summary(written));
            match did {
                Some(Did::Updated { matched, modified, upserted }) => {
                    own.matched.set(Some(matched));
                    own.modified.set(Some(modified));
                    own.upserted.set(Some(upserted));
                }
                Some(Did::Deleted(count)) => own.deleted.set(Some(count)),
                None => {}
            }
            own
        });
    }
}

/// Adds what a statement has looked at to the figures of its command.
pub fn add_seen(all: &OpMetrics, seen: &Seen) {
    all.examined((0, 0), seen.examined());
    all.sorts.set(all.sorts.get() + u64::from(seen.sorts()));
    all.write_conflicts.set(all.write_conflicts.get() + seen.conflicts.get());
}
