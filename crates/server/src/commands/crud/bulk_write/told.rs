//! What the slow log and the profiler are told of a `bulkWrite`'s operations.

use sheaf_errors::{Error, Result};
use sheaf_exec::plan::Query;
use sheaf_front::dispatch::StatementKind;
use sheaf_storage::Write;

use super::super::told::{Did, Telling};
use super::outcomes::Done;
use super::{BulkWrite, Kind, Parsed, delete_of};
use crate::commands::timeseries::Selected;
use crate::op::Operation;

/// Consecutive inserts into one collection, which are told of together.
pub(super) struct Group<'a> {
    telling: Telling<'a>,
    inserted: u64,
    error: Option<Error>,
}

impl<'a> Group<'a> {
    /// Takes in what one of them came to.
    pub(super) fn took_in(&mut self, one: &Parsed<'a>, result: &Result<Done>) {
        if let Kind::Insert(document) = &one.kind {
            self.telling.add(*document);
        }
        match result {
            Ok(done) => self.inserted += done.n,
            Err(error) => self.error = Some(error.clone()),
        }
    }
}

impl<'a> BulkWrite<'a> {
    /// Tells of a group of inserts that the next operation does not belong to, and begins another if it is an insert.
    pub(super) fn next_group(
        &self,
        op: &Operation<'_>,
        w: &dyn Write,
        group: &mut Option<Group<'a>>,
        next: Option<&Parsed<'a>>,
    ) {
        let next = next.filter(|next| matches!(next.kind, Kind::Insert(_)));
        if next
            .is_some_and(|next| group.as_ref().is_some_and(|group| group.telling.is_group_of(next.namespace)))
        {
            return;
        }
        if let Some(ended) = group.take() {
            let did = Some(Did::Inserted(ended.inserted));
            ended.telling.end(op, w, did, ended.error.as_ref(), &|| Ok(Query::default()));
        }
        *group = next.map(|next| Group {
            telling: Telling::begin(op, w, StatementKind::Bulk, next.sent, next.namespace),
            inserted: 0,
            error: None,
        });
    }

    /// The query of an operation.
    pub(super) fn query_of(&self, op: &Operation<'_>, one: &Parsed<'_>) -> Result<Query> {
        match &one.kind {
            Kind::Insert(_) => Ok(Query::default()),
            Kind::Update(update) => Ok(update.statement(op, one.namespace, self.variables)?.query),
            Kind::Delete { filter, multi, hint, collation } => {
                let variables = self.variables;
                let selected = Selected { filter: *filter, variables, collation: *collation, hint: *hint };
                Ok(delete_of(op, one.namespace, &selected, *multi)?.query)
            }
        }
    }
}
