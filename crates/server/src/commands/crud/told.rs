//! Statements that the slow log and the profiler tell of, one by one.

use std::time::Instant;

use sheaf_bson::RawDoc;
use sheaf_errors::{Error, Result};
use sheaf_exec::explain::{Rows, Top, names, stages_of};
use sheaf_exec::plan::Query;
use sheaf_exec::write::{Seen, UpdateResult};
use sheaf_front::dispatch::{Statement, StatementKind, tell_statement};
use sheaf_front::request::{OpMetrics, PlanNames};
use sheaf_storage::{Write, WrittenKeys};

use crate::op::{Operation, source};

/// By what names the plan cache knows a query on a collection.
pub fn names_of(op: &Operation<'_>, namespace: &str, query: &Query) -> Option<PlanNames> {
    let catalog = op.catalog();
    let collection = catalog.collection(namespace).filter(|found| !found.is_view())?;
    let [shape, key] = names(query, collection);
    Some(PlanNames { shape, key })
}

/// A statement under way.
pub struct Telling<'s> {
    kind: StatementKind,
    sent: RawDoc<'s>,
    /// Of a group of inserts, those that it has.
    documents: Vec<RawDoc<'s>>,
    namespace: &'s str,
    began: Instant,
    /// What the writer had written.
    before: WrittenKeys,
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
    /// An insert of so many.
    Inserted(u64),
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
    pub fn begin(
        op: &Operation<'_>,
        w: &dyn Write,
        kind: StatementKind,
        sent: RawDoc<'s>,
        namespace: &'s str,
    ) -> Self {
        let db = namespace.split_once('.').map_or(namespace, |(db, _)| db);
        let seen = Seen::watched(op.is_profiled_in(db));
        let (documents, began, before) = (Vec::new(), Instant::now(), w.written_keys());
        Telling { kind, sent, documents, namespace, began, before, seen }
    }

    /// One more document of a group of inserts.
    pub fn add(&mut self, document: RawDoc<'s>) {
        self.documents.push(document);
    }

    /// Whether it is a group of inserts into this.
    pub fn is_group_of(&self, namespace: &str) -> bool {
        !self.documents.is_empty() && self.namespace == namespace
    }

    /// Tells how it has ended, and adds its figures to those of the command. `query` reads its query anew.
    pub fn end(
        &self,
        op: &Operation<'_>,
        w: &dyn Write,
        did: Option<Did>,
        error: Option<&Error>,
        query: &dyn Fn() -> Result<Query>,
    ) {
        let (keys, docs) = self.seen.examined();
        add_seen(op, &self.seen);
        let (namespace, took) = (self.namespace, self.began.elapsed());
        let documents = &self.documents;
        let statement = Statement { kind: self.kind, sent: self.sent, documents, namespace, took, error };
        tell_statement(op, &statement, || {
            let own = OpMetrics::default();
            own.keys_examined.set(keys);
            own.docs_examined.set(docs);
            own.sorts.set(u64::from(self.seen.sorts()));
            own.write_conflicts.set(self.seen.conflicts.get());
            own.plan_source.set(source(self.seen.chosen()));
            note_keys(&own, self.before, w);
            let written = match did {
                Some(Did::Deleted(_)) => "EXPRESS_DELETE",
                _ => "EXPRESS_UPDATE",
            };
            own.plan_summary.replace(self.seen.summary(written).map(Into::into));
            let mut rows = Rows::default();
            match did {
                Some(Did::Updated { matched, modified, upserted }) => {
                    rows = Rows { taken: matched, changed: modified };
                    own.matched.set(Some(matched));
                    own.modified.set(Some(modified));
                    own.upserted.set(Some(upserted));
                }
                Some(Did::Deleted(count)) => {
                    rows = Rows { taken: count, changed: count };
                    own.deleted.set(Some(count));
                }
                Some(Did::Inserted(count)) => own.inserted.set(Some(count)),
                None => {}
            }
            self.note_plan(op, &own, did, rows, query);
            own
        });
    }

    /// Notes by what names the plan cache knows its query, and what the stages of its plan have done.
    fn note_plan(
        &self,
        op: &Operation<'_>,
        own: &OpMetrics,
        did: Option<Did>,
        rows: Rows,
        query: &dyn Fn() -> Result<Query>,
    ) {
        let Some((plan, figures)) = self.seen.plan() else { return };
        let Ok(query) = query() else { return };
        own.plan(|planned| planned.names = names_of(op, self.namespace, &query));
        let catalog = op.catalog();
        let collection = catalog.collection(self.namespace).filter(|found| !found.is_view());
        let Some(collection) = collection.filter(|_| !figures.is_empty()) else { return };
        let all = self.sent.get("limit").and_then(|limit| limit.as_exact_i64()) == Some(0);
        let multi = all || self.sent.get("multi").is_some_and(|multi| multi.truthy());
        let top = match did {
            Some(Did::Deleted(_)) => Top::Delete { multi },
            _ => Top::Update { multi, upsert: self.sent.get("upsert").is_some_and(|upsert| upsert.truthy()) },
        };
        let stages = stages_of(&query, collection, &plan, &figures, rows, top);
        own.plan(|planned| planned.stages = Some(stages));
    }
}

/// Adds what a statement has looked at to the figures of its command.
pub fn add_seen(op: &Operation<'_>, seen: &Seen) {
    op.count_sorted(seen.sorted.get());
    let all = op.metrics();
    all.examined((0, 0), seen.examined());
    all.sorts.set(all.sorts.get() + u64::from(seen.sorts()));
    all.write_conflicts.set(all.write_conflicts.get() + seen.conflicts.get());
}

/// Notes how many keys of indexes have come and gone since `before`.
pub fn note_keys(metrics: &OpMetrics, before: WrittenKeys, w: &dyn Write) {
    let now = w.written_keys();
    metrics.keys_inserted.set(now.inserted - before.inserted);
    metrics.keys_deleted.set(now.deleted - before.deleted);
}
