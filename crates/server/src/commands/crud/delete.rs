//! `delete`.

use std::cell::Cell;
use std::sync::Arc;

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::plan::Query;
use sheaf_exec::plan::query::Hint;
use sheaf_exec::plan::text::check_collection;
use sheaf_exec::write::{Delete as Statement, WriteCx, delete_by_id, run_delete};
use sheaf_front::dispatch::StatementKind;
use sheaf_storage::Write;

use sheaf_timeseries::BUCKETS_PREFIX;

use super::find::only_id;
use super::query::{collated_cx, parse_filter};
use super::told::{Did, Telling};
use super::writes::{StatementOutcomes, WriteFields, check_writable, refuse_view, with_cx, with_writer};
use crate::args::{Args, Documents};
use crate::command::*;
use crate::commands::timeseries::{self, Selected};
use crate::op::Operation;
use crate::reply::Reply;

/// Statements by `_id` that run on the connection's own task.
const SHORT_BATCH: usize = 64;

/// `{delete: "users", deletes: [{q, limit}], ordered: true}`
pub struct Delete<'a> {
    /// What it deletes from.
    pub(super) collection: &'a str,
    deletes: Documents<'a>,
    fields: WriteFields,
    /// `let`
    pub(super) variables: Option<RawDoc<'a>>,
}

impl<'a> Command<'a, Operation<'a>> for Delete<'a> {
    const NAME: &'static str = "delete";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "deletes documents",
        access: Access::Write,
        transaction: Transaction::AllowedOrRetryable,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::Remove])]),
        spread: Spread::Targeted,
        counter: Counter::Delete,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Ok(Delete {
            collection: args.collection()?,
            deletes: args.required_documents("deletes")?,
            fields: WriteFields::parse(args)?,
            variables: args.optional("let")?,
        })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        self.fields.statements.check(self.deletes.count())?;
        // Whole buckets may be deleted, as the TTL monitor does.
        if !self.collection.starts_with(BUCKETS_PREFIX) {
            check_writable(op, self.collection)?;
        }
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        let statements: Vec<DeleteOne<'a>> =
            self.deletes.iter().map(DeleteOne::parse).collect::<Result<_>>()?;
        if let Some(reply) = self.fields.mismatch(op, &namespace)? {
            return Ok(reply);
        }
        let short = statements.len() <= SHORT_BATCH && statements.iter().all(|one| only_id(one.q).is_some());
        let deleted = Cell::new(0u64);
        let outcome = with_writer(op, short, |w| {
            with_cx(op, self.fields.bypass, |cx| {
                StatementOutcomes::each(
                    op,
                    &self.fields,
                    statements.iter(),
                    w,
                    |w, _, one| {
                        let telling = Telling::begin(op, w, StatementKind::Delete, one.sent, &namespace);
                        let cx = WriteCx { seen: &telling.seen, ..cx };
                        let result = self.execute(op, w, &cx, &namespace, one);
                        let did = result.as_ref().ok().map(|n| Did::Deleted(*n));
                        let query = || Ok(one.statement(op, self.collection, self.variables)?.query);
                        telling.end(op, w, did, result.as_ref().err(), &query);
                        deleted.set(deleted.get() + result?);
                        Ok(None)
                    },
                    |_, recorded| {
                        let n = recorded.as_raw().get("n").and_then(|v| v.as_exact_i64()).unwrap_or(1);
                        deleted.set(deleted.get() + n as u64);
                    },
                )
            })
        });
        op.metrics().deleted.set(Some(deleted.get()));
        let outcome = outcome?;
        let mut reply = Reply::ok().with("n", deleted.get() as i32);
        if !op.generic.write_concern.is_some_and(|concern| concern.unacknowledged()) {
            outcome.write(&mut reply);
        }
        Ok(reply)
    }
}

impl<'a> Delete<'a> {
    /// Runs one statement, and gives the number of documents that are gone.
    fn execute(
        &self,
        op: &Operation<'_>,
        w: &mut dyn Write,
        cx: &WriteCx<'_>,
        namespace: &str,
        one: &DeleteOne<'_>,
    ) -> Result<u64> {
        if let Some(id) = one.point().filter(|_| self.variables.is_none())
            && let Some(collection) = w.collection(namespace)?
            && !timeseries::is_measured(op, &collection)
        {
            refuse_view(&collection)?;
            self.fields.check_collection(op, &collection)?;
            if let Some(gone) = delete_by_id(w, cx, &collection, id)? {
                return Ok(u64::from(gone.is_some()));
            }
        }
        let statement = one.statement(op, self.collection, self.variables)?;
        if op.is_retryable_write() && statement.multi {
            bail!(Code::INVALID_OPTIONS, "Cannot use retryable writes with limit=0");
        }
        let Some(collection) = w.collection(namespace)? else {
            check_collection(Some(&statement.query.matcher()), namespace)?;
            return Ok(0);
        };
        if timeseries::is_measured(op, &collection) {
            let selected = one.selected(self.variables);
            let (n, _) = timeseries::delete(op, w, cx, &collection, &selected, statement.multi)?;
            return Ok(n);
        }
        refuse_view(&collection)?;
        self.fields.check_collection(op, &collection)?;
        run_delete(w, cx, &collection, &statement, false).map(|(n, _)| n)
    }

    /// The only statement, for `explain`.
    ///
    /// Errors: `InvalidLength` if there are several.
    pub(super) fn only(&self) -> Result<DeleteOne<'a>> {
        if self.deletes.count() != 1 {
            bail!(Code::INVALID_LENGTH, "explained write batches must be of size 1");
        }
        DeleteOne::parse(self.deletes.iter().next().unwrap_or(RawDoc::EMPTY))
    }
}

/// One entry of `deletes`.
pub struct DeleteOne<'a> {
    sent: RawDoc<'a>,
    q: RawDoc<'a>,
    /// All that match.
    pub(super) multi: bool,
    hint: Value<'a>,
    collation: Option<RawDoc<'a>>,
}

impl<'a> DeleteOne<'a> {
    fn parse(doc: RawDoc<'a>) -> Result<Self> {
        let mut args = Args::of_part("delete.deletes", doc)?;
        let q = args.required("q")?;
        let limit: Value<'a> = args.required("limit")?;
        // What is no number counts as 0, as in MongoDB.
        let multi = match limit.as_f64().unwrap_or(0.0) {
            0.0 => true,
            1.0 => false,
            _ => bail!(
                Code::FAILED_TO_PARSE,
                "The limit field in delete objects must be 0 or 1. Got {}",
                sheaf_bson::value_text(limit)
            ),
        };
        let (hint, collation) = (args.value("hint"), args.optional("collation")?);
        let one = DeleteOne { sent: doc, q, multi, hint, collation };
        args.ignore(&["sampleId"]);
        args.finish()?;
        Ok(one)
    }

    /// The `_id`, if the statement can take the short way.
    fn point(&self) -> Option<Value<'a>> {
        let plain = !self.multi && self.hint.is_missing() && self.collation.is_none();
        only_id(self.q).filter(|_| plain)
    }

    /// What is to be deleted of measurements.
    pub(super) fn selected<'s>(&'s self, variables: Option<RawDoc<'s>>) -> Selected<'s> {
        Selected { filter: self.q, variables, collation: self.collation, hint: self.hint }
    }

    /// The same of documents.
    ///
    /// Errors: those of the filter.
    pub(super) fn statement(
        &self,
        op: &Operation<'_>,
        collection: &str,
        variables: Option<RawDoc<'_>>,
    ) -> Result<Statement> {
        let mut cx = collated_cx(op, &op.namespace(collection), self.collation, variables)?;
        let collator = cx.collator().cloned();
        let mut query = Query { hint: Hint::parse(self.hint)?, collator, ..Query::default() };
        query.matcher = Some(Arc::new(parse_filter(Some(self.q), &mut cx)?));
        Ok(Statement { query, multi: self.multi })
    }
}
