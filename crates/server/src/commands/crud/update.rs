//! `update`.

use std::cell::RefCell;
use std::sync::Arc;

use sheaf_bson::{DocBuf, Element, OwnedValue, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::plan::Query;
use sheaf_exec::plan::query::Hint;
use sheaf_exec::plan::text::check_collection;
use sheaf_exec::write::{
    BeforeChange, Change, PointChange, UpdateResult, UpdateStatement, WriteCx, run_update, update_by_id,
};
use sheaf_front::dispatch::StatementKind;
use sheaf_front::sampling::SAMPLE_ID;
use sheaf_query::update::Update as Modification;
use sheaf_storage::{Uuid, Write};

use super::find::only_id;
use super::query::{collated_cx, for_update, parse_update_filter, set_sort};
use super::told::{Did, Telling};
use super::writes::{
    StatementOutcomes, WriteFields, check_writable, collection_for_write, refuse_view, with_cx, with_writer,
};
use crate::args::{Args, Array, Documents};
use crate::command::*;
use crate::commands::timeseries::{self, Selected, UpdateParts};
use crate::op::Operation;
use crate::reply::Reply;
use crate::sampling::{Diffs, sample_of};
use crate::sharding::Writing;

/// Statements by `_id` that run on the connection's own task.
const SHORT_BATCH: usize = 64;

/// `{update: "users", updates: [{q, u, ...}], ordered: true, let: {...}}`
pub struct Update<'a> {
    /// What it updates.
    pub(super) collection: &'a str,
    updates: Documents<'a>,
    fields: WriteFields,
    /// `let`
    pub(super) variables: Option<RawDoc<'a>>,
}

impl<'a> Command<'a, Operation<'a>> for Update<'a> {
    const NAME: &'static str = "update";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "updates documents",
        access: Access::Write,
        transaction: Transaction::AllowedOrRetryable,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[
            Privilege::on(Resource::Collection, &[Action::Update]),
            Privilege::on(Resource::Collection, &[Action::Insert])
                .if_asked("a statement upserts", |asked| asked.any_statement("updates", "upsert")),
            Privilege::on(Resource::Collection, &[Action::BypassDocumentValidation])
                .if_asked("bypassDocumentValidation", |asked| asked.bypasses_validation()),
        ]),
        spread: Spread::Targeted,
        counter: Counter::Update,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Ok(Update {
            collection: args.collection()?,
            updates: args.required_documents("updates")?,
            fields: WriteFields::parse(args)?,
            variables: args.optional("let")?,
        })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        self.fields.statements.check(self.updates.count())?;
        check_writable(op, self.collection)?;
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        let statements: Vec<UpdateOne<'a>> =
            self.updates.iter().map(UpdateOne::parse).collect::<Result<_>>()?;
        let parts = &op.front.metrics.parts;
        for one in &statements {
            parts.update_pipelines.add(u64::from(matches!(one.u, Value::Array(_))));
            parts.update_array_filters.add(u64::from(!one.array_filters.is_empty()));
        }
        if let Some(reply) = self.fields.mismatch(op, &namespace)? {
            return Ok(reply.with("nModified", 0));
        }
        let short = statements.len() <= SHORT_BATCH && statements.iter().all(|one| only_id(one.q).is_some());
        let (totals, diffs) = (RefCell::new(Totals::default()), Diffs::default());
        let outcome = with_writer(op, short, |w| {
            with_cx(op, self.fields.bypass, |cx| {
                StatementOutcomes::each(
                    op,
                    &self.fields,
                    statements.iter(),
                    w,
                    |w, at, one| {
                        let (retryable, sample) = (op.records_statements(), sample_of(op, at, one.sample_id));
                        let name = |w: &mut dyn Write, change: Change<'_>| {
                            diffs.note(sample, change);
                            if !retryable {
                                return;
                            }
                            let record = match change {
                                Change::Upsert(doc) => {
                                    doc! { "n": 1, "nModified": 0, "upserted": doc.get_or_missing("_id") }
                                }
                                _ => doc! { "n": 1, "nModified": 1 },
                            };
                            w.statement(op.statement(self.fields.statements.at(at), Some(record)));
                        };
                        let is_told = retryable || sample.is_some();
                        let telling = Telling::begin(op, w, StatementKind::Update, one.sent, &namespace);
                        let before_change: Option<&BeforeChange<'_>> =
                            if is_told { Some(&name) } else { None };
                        let cx = WriteCx { before_change, seen: &telling.seen, ..cx };
                        let result = self.execute(op, w, &cx, &namespace, one);
                        let did = result.as_ref().ok().map(|result| Did::updated(result.as_ref()));
                        let query = || Ok(one.statement(op, self.collection, self.variables)?.query);
                        telling.end(op, w, did, result.as_ref().err(), &query);
                        let Some(result) = result? else { return Ok(None) };
                        let mut totals = totals.borrow_mut();
                        totals.matched += result.matched;
                        totals.modified += result.modified;
                        if let Some(id) = result.upserted {
                            totals.upserted.push((at, id));
                        }
                        Ok(None)
                    },
                    |at, recorded| totals.borrow_mut().take_recorded(at, recorded),
                )
            })
        });
        let totals = totals.into_inner();
        let metrics = op.metrics();
        metrics.matched.set(Some(totals.matched));
        metrics.modified.set(Some(totals.modified));
        metrics.upserted.set(Some(totals.upserted.len() as u64));
        let outcome = outcome?;
        let mut reply = Reply::ok().with("n", (totals.matched as usize + totals.upserted.len()) as i32);
        if !totals.upserted.is_empty() {
            reply.fill(|out| {
                let mut list = out.array("upserted");
                for (index, id) in &totals.upserted {
                    list.document().append("index", *index as i32).append("_id", id.as_value());
                }
            });
        }
        reply.append("nModified", totals.modified as i32);
        if !op.generic.write_concern.is_some_and(|concern| concern.unacknowledged()) {
            outcome.write(&mut reply);
        }
        diffs.tell(op, &namespace, &mut reply);
        Ok(reply)
    }
}

impl<'a> Update<'a> {
    /// Runs one statement; `None` if there is no collection, nor is one to be made.
    fn execute(
        &self,
        op: &Operation<'_>,
        w: &mut dyn Write,
        cx: &WriteCx<'_>,
        namespace: &str,
        one: &UpdateOne<'_>,
    ) -> Result<Option<UpdateResult>> {
        op.writing.set(if one.multi { Writing::Many } else { Writing::One });
        if let Some((id, change)) = one.point().filter(|_| self.variables.is_none())
            && let Some(collection) = w.collection(namespace)?
            && !timeseries::is_measured(op, &collection)
        {
            refuse_view(&collection)?;
            self.fields.check_collection(op, &collection)?;
            let result = update_by_id(w, cx, &collection, id, &change, false)?;
            if let Some(result) = result.filter(|result| result.matched > 0 || !one.upsert) {
                return Ok(Some(result));
            }
        }
        let statement = one.statement(op, self.collection, self.variables)?;
        if op.is_retryable_write() && statement.multi {
            bail!(Code::INVALID_OPTIONS, "Cannot use retryable writes with multi=true");
        }
        let measured = w.collection(namespace)?.filter(|found| timeseries::is_measured(op, found));
        if let Some(measured) = measured {
            return timeseries::update(op, w, cx, &measured, &one.parts(self.variables)).map(Some);
        }
        let collection = match w.collection(namespace)? {
            Some(collection) => collection,
            None if statement.upsert => collection_for_write(op, w, namespace)?,
            None => {
                check_collection(Some(&statement.query.matcher()), namespace)?;
                return Ok(None);
            }
        };
        refuse_view(&collection)?;
        self.fields.check_collection(op, &collection)?;
        run_update(w, cx, &collection, &statement, false).map(Some)
    }

    /// The only statement, for `explain`.
    ///
    /// Errors: `BadValue` if there are several.
    pub(super) fn only(&self) -> Result<UpdateOne<'a>> {
        if self.updates.count() != 1 {
            bail!(Code::INVALID_LENGTH, "explained write batches must be of size 1");
        }
        UpdateOne::parse(self.updates.iter().next().unwrap_or(RawDoc::EMPTY))
    }
}

#[derive(Default)]
struct Totals {
    matched: u64,
    modified: u64,
    upserted: Vec<(usize, OwnedValue)>,
}

impl Totals {
    /// A statement of a retried command counts as it did the first time.
    fn take_recorded(&mut self, at: usize, recorded: &DocBuf) {
        let recorded = recorded.as_raw();
        let number = |name: &str| recorded.get(name).and_then(|v| v.as_exact_i64()).unwrap_or(0) as u64;
        match recorded.get("upserted") {
            Some(id) => self.upserted.push((at, OwnedValue::from(id))),
            None => {
                self.matched += number("n");
                self.modified += recorded.get("nModified").map_or(number("n"), |_| number("nModified"));
            }
        }
    }
}

/// One entry of `updates`.
pub struct UpdateOne<'a> {
    sent: RawDoc<'a>,
    q: RawDoc<'a>,
    u: Value<'a>,
    constants: Option<RawDoc<'a>>,
    multi: bool,
    upsert: bool,
    hint: Value<'a>,
    array_filters: Vec<RawDoc<'a>>,
    collation: Option<RawDoc<'a>>,
    sort: Option<RawDoc<'a>>,
    sample_id: Value<'a>,
}

/// `arrayFilters` of a part of a command that stands at `place`.
///
/// Errors: `TypeMismatch`, also for an item that is no document.
pub(super) fn array_filters<'a>(args: &mut Args<'a>, place: &str) -> Result<Vec<RawDoc<'a>>> {
    let Some(Array(list)) = args.optional("arrayFilters")? else { return Ok(Vec::new()) };
    let filter = |item: Element<'a>| match item.value() {
        Value::Document(filter) => Ok(filter),
        other => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{place}.arrayFilters.{}' is the wrong type '{}', expected type 'object'",
            item.key(),
            other.type_name()
        ),
    };
    list.iter().map(filter).collect()
}

/// A stage that does not exist fails the whole command, before any statement runs.
fn check_stage_names(update: Value<'_>) -> Result<()> {
    let Value::Array(stages) = update else { return Ok(()) };
    let names = stages.values().filter_map(|stage| stage.as_doc()?.iter().next());
    for name in names.map(|field| field.key()) {
        if sheaf_aggregate::stage_entry(name).is_none() {
            bail!(40324, "Unrecognized pipeline stage name: '{name}'");
        }
    }
    Ok(())
}

impl<'a> UpdateOne<'a> {
    fn parse(doc: RawDoc<'a>) -> Result<Self> {
        let mut args = Args::of_part("update.updates", doc)?;
        let flag =
            |args: &mut Args<'a>, name| -> Result<bool> { Ok(args.optional::<bool>(name)?.unwrap_or(false)) };
        let array_filters = array_filters(&mut args, "update.updates")?;
        args.optional::<Uuid>(SAMPLE_ID)?;
        let one = UpdateOne {
            sent: doc,
            q: args.required("q")?,
            u: args.required("u")?,
            constants: args.optional("c")?,
            multi: flag(&mut args, "multi")?,
            upsert: flag(&mut args, "upsert")?,
            hint: args.value("hint"),
            array_filters,
            collation: args.optional("collation")?,
            sort: args.optional("sort")?,
            sample_id: args.value(SAMPLE_ID),
        };
        check_stage_names(one.u)?;
        for flag in ["upsertSupplied", "allowShardKeyUpdatesWithoutFullShardKeyInQuery"] {
            args.optional::<bool>(flag)?;
        }
        args.finish()?;
        Ok(one)
    }

    /// The `_id` and the change, if the statement can take the short way.
    fn point(&self) -> Option<(Value<'a>, PointChange<'a>)> {
        let plain = !self.multi
            && self.hint.is_missing()
            && self.array_filters.is_empty()
            && self.constants.is_none()
            && self.collation.is_none()
            && self.sort.is_none();
        if !plain {
            return None;
        }
        Some((only_id(self.q)?, PointChange::parse(self.u)?))
    }

    /// The statement as one on measurements.
    pub(super) fn parts<'p>(&'p self, variables: Option<RawDoc<'p>>) -> UpdateParts<'p> {
        UpdateParts {
            selected: Selected { filter: self.q, variables, collation: self.collation, hint: self.hint },
            update: self.u,
            multi: self.multi,
            upsert: self.upsert,
            array_filters: &self.array_filters,
        }
    }

    /// The statement on documents.
    ///
    /// Errors: those of filters and updates.
    pub(super) fn statement(
        &self,
        op: &Operation<'_>,
        collection: &str,
        variables: Option<RawDoc<'_>>,
    ) -> Result<UpdateStatement> {
        let cx = collated_cx(op, &op.namespace(collection), self.collation, variables)?;
        let mut cx = for_update(op, cx);
        if let Some(constants) = self.constants {
            if !matches!(self.u, Value::Array(_)) {
                bail!(51198, "Constant values may only be specified for pipeline updates");
            }
            for element in constants.iter() {
                cx.declare_constant(element.key(), element.value())?;
            }
        }
        let collator = cx.collator().cloned();
        let mut query = Query { hint: Hint::parse(self.hint)?, collator, ..Query::default() };
        query.matcher = Some(Arc::new(parse_update_filter(Some(self.q), self.upsert, &mut cx)?));
        // What its constants come to is found out when it meets a document.
        let update = Modification::parse(self.u, &self.array_filters, &mut cx)?;
        if self.multi && update.is_replacement() {
            bail!(Code::FAILED_TO_PARSE, "multi update is not supported for replacement-style update");
        }
        if self.sort.is_some() && self.multi {
            bail!(Code::FAILED_TO_PARSE, "Cannot specify sort with multi=true");
        }
        set_sort(&mut query, self.sort)?;
        Ok(UpdateStatement { query, update, multi: self.multi, upsert: self.upsert })
    }
}
