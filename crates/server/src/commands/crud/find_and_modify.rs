//! `findAndModify`.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, OwnedValue, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::explain::{Rows, Top, stages_of};
use sheaf_exec::plan::Query;
use sheaf_exec::plan::query::Hint;
use sheaf_exec::plan::text::check_collection;
use sheaf_exec::write::{
    BeforeChange, Change, Delete, FindAndModify as OneChange, Modified, PointChange, Seen, UpdateStatement,
    WriteCx, find_and_modify_by_id, run_find_and_modify,
};
use sheaf_expr::{Env, ParseCx};
use sheaf_front::sampling::SAMPLE_ID;
use sheaf_front::session::statements::first_statement;
use sheaf_query::projection::{Mode, Projection};
use sheaf_query::update::Update as Modification;
use sheaf_storage::{Collection, Uuid, Write};

use super::find::only_id;
use super::query::{collated_cx, for_update, parse_filter, parse_update_filter, set_sort};
use super::retried;
use super::told::{add_seen, note_keys};
use super::update::array_filters;
use super::writes::{
    Bypass, check_writable, collection_for_write, encryption_information, refuse_view, with_cx, with_writer,
};
use crate::args::{Args, Loose};
use crate::command::*;
use crate::commands::ddl::names;
use crate::commands::timeseries::{self, Selected};
use crate::op::{Operation, source};
use crate::reply::Reply;
use crate::sampling::{Diffs, sample_of};
use crate::sharding::Writing;

/// `{findAndModify: "users", query, sort, remove | update, new, fields, upsert}`
pub struct FindAndModify<'a> {
    pub(super) collection: &'a str,
    query: Option<RawDoc<'a>>,
    sort: Option<RawDoc<'a>>,
    remove: bool,
    update: Value<'a>,
    new: bool,
    fields: Option<RawDoc<'a>>,
    upsert: bool,
    bypass: Bypass,
    /// None if there were none; an empty list is refused where filters have no meaning.
    array_filters: Option<Vec<RawDoc<'a>>>,
    hint: Value<'a>,
    collation: Option<RawDoc<'a>>,
    variables: Option<RawDoc<'a>>,
    stmt_id: i32,
    uuid: Option<Uuid>,
    sample_id: Value<'a>,
}

impl<'a> Command<'a, Operation<'a>> for FindAndModify<'a> {
    const NAME: &'static str = "findAndModify";
    const SPEC: Spec = Spec {
        aliases: &["findandmodify"],
        help: "changes or deletes one document and returns it",
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
            Privilege::on(Resource::Collection, &[Action::Find]),
            Privilege::on(Resource::Collection, &[Action::Remove])
                .if_asked("remove", |asked| asked.is_true("remove")),
            Privilege::on(Resource::Collection, &[Action::Update])
                .if_asked("no remove", |asked| !asked.is_true("remove")),
            Privilege::on(Resource::Collection, &[Action::Insert])
                .if_asked("upsert", |asked| asked.is_true("upsert")),
            Privilege::on(Resource::Collection, &[Action::BypassDocumentValidation])
                .if_asked("bypassDocumentValidation", |asked| asked.bypasses_validation()),
        ]),
        spread: Spread::Targeted,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let flag = |args: &mut Args<'a>, name| -> Result<bool> {
            Ok(args.optional::<Loose>(name)?.is_some_and(|flag| flag.0))
        };
        let filters = array_filters(args, Self::NAME)?;
        let array_filters = (!args.value("arrayFilters").is_nullish()).then_some(filters);
        let command = FindAndModify {
            collection: args.collection()?,
            query: args.optional("query")?,
            sort: args.optional("sort")?,
            remove: flag(args, "remove")?,
            update: args.value("update"),
            new: flag(args, "new")?,
            fields: args.optional("fields")?,
            upsert: flag(args, "upsert")?,
            bypass: Bypass::parse(args)?,
            array_filters,
            hint: args.value("hint"),
            collation: args.optional("collation")?,
            variables: args.optional("let")?,
            stmt_id: first_statement(args)?.unwrap_or(0),
            uuid: args.optional("collectionUUID")?,
            sample_id: args.value(SAMPLE_ID),
        };
        args.optional::<Uuid>(SAMPLE_ID)?;
        encryption_information(args, "findAndModify.encryptionInformation")?;
        args.ignore(&["isTimeseriesNamespace"]);
        command.check()?;
        Ok(command)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        check_writable(op, self.collection)?;
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        if let Some(recorded) = op.executed_statement(self.stmt_id)? {
            op.note_newest_commit();
            let asked = retried::Asked { remove: self.remove, upsert: self.upsert, new: self.new };
            let answer = retried::answer(recorded.as_raw(), &asked)?;
            let mut reply = Reply::ok();
            reply.fill(|out| {
                out.append_all(answer.as_raw());
                out.append("retriedStmtId", self.stmt_id);
            });
            return Ok(reply);
        }
        let parts = &op.front.metrics.parts;
        parts.modify_pipelines.add(u64::from(matches!(self.update, Value::Array(_))));
        let filtered = self.array_filters.as_ref().is_some_and(|filters| !filters.is_empty());
        parts.modify_array_filters.add(u64::from(filtered));
        op.before_retryable_write()?;
        op.writing.set(if self.remove { Writing::Others } else { Writing::One });
        let point = self.point();
        // The short way needs nothing of the query but its `_id`.
        let mut action = if point.is_some() { None } else { Some(self.action(op)?) };
        // Where there is no collection, nobody looks at what it would be.
        let mut projection = None;
        names::check_uuid(&op.catalog(), &namespace, self.uuid)?;
        let (diffs, sample) = (Diffs::default(), sample_of(op, 0, self.sample_id));
        let modified = with_writer(op, self.query.is_some_and(|query| only_id(query).is_some()), |w| {
            let collection = match w.collection(&namespace)? {
                Some(collection) => collection,
                None if self.upsert => collection_for_write(op, w, &namespace)?,
                None => {
                    let query = action.as_ref().map(|action| match action {
                        OneChange::Remove(delete) => delete.query.matcher(),
                        OneChange::Update { statement, .. } => statement.query.matcher(),
                    });
                    check_collection(query.as_deref(), &namespace)?;
                    let updated_existing = (!self.remove).then_some(false);
                    return Ok(Modified { updated_existing, ..Modified::default() });
                }
            };
            let timeseries = timeseries::is_measured(op, &collection);
            if !timeseries {
                refuse_view(&collection)?;
            }
            projection = self.projection(op)?;
            let projection = projection.as_ref();
            let failed = std::cell::RefCell::new(None);
            let retryable = op.records_statements();
            let name = |w: &mut dyn Write, change: Change<'_>| {
                diffs.note(sample, change);
                match retryable.then(|| self.answer_of_change(change, projection, op)) {
                    Some(Ok(answer)) => w.statement(op.statement(self.stmt_id, Some(answer))),
                    Some(Err(error)) => _ = failed.borrow_mut().get_or_insert(error),
                    None => {}
                }
            };
            let seen = Seen::watched(op.is_profiled());
            let written = w.written_keys();
            let result = with_cx(op, self.bypass, |cx| {
                let is_told = retryable || sample.is_some();
                let before_change: Option<&BeforeChange<'_>> = if is_told { Some(&name) } else { None };
                let cx = WriteCx { before_change, seen: &seen, ..cx };
                if timeseries {
                    return self.remove_measurement(op, w, &cx, &collection);
                }
                if let Some((id, change)) = &point {
                    let done = find_and_modify_by_id(w, &cx, &collection, *id, change.as_ref(), self.new)
                        .map_err(|error| error.context("Plan executor error during findAndModify"))?;
                    if let Some(done) = done.filter(|done| done.n > 0 || !self.upsert) {
                        return Ok(done);
                    }
                    action = Some(self.action(op)?);
                }
                match &action {
                    Some(action) => run_find_and_modify(w, &cx, &collection, action)
                        .map_err(|error| error.context("Plan executor error during findAndModify")),
                    None => bail!(Code::INTERNAL_ERROR, "findAndModify without an action"),
                }
            });
            self.tell(op, &seen);
            note_keys(op.metrics(), written, w);
            if op.records_statements() {
                w.statement(None);
            }
            if let (Ok(modified), false) = (&result, timeseries) {
                self.tell_stages(op, &seen, modified);
            }
            match failed.into_inner() {
                Some(error) => Err(error),
                None => result,
            }
        })?;
        let metrics = op.metrics();
        if self.remove {
            metrics.deleted.set(Some(modified.n));
        } else {
            let upserted = u64::from(modified.upserted.is_some());
            metrics.matched.set(Some(modified.n - upserted));
            metrics.modified.set(Some(modified.changed));
            metrics.upserted.set(Some(upserted));
        }
        let answer = self.answer(op, &modified, projection.as_ref())?;
        let mut reply = Reply::with_capacity(answer.as_bytes().len());
        reply.fill(|out| {
            out.append_all(answer.as_raw());
        });
        diffs.tell(op, &namespace, &mut reply);
        Ok(reply)
    }
}

impl<'a> FindAndModify<'a> {
    fn check(&self) -> Result<()> {
        let updates = !self.update.is_missing();
        if self.remove {
            if updates {
                bail!(Code::FAILED_TO_PARSE, "Cannot specify both an update and remove=true");
            }
            if self.upsert {
                bail!(Code::FAILED_TO_PARSE, "Cannot specify both upsert=true and remove=true");
            }
            if self.new {
                bail!(
                    Code::FAILED_TO_PARSE,
                    "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document"
                );
            }
            if self.array_filters.is_some() {
                bail!(Code::FAILED_TO_PARSE, "Cannot specify arrayFilters and remove=true");
            }
        } else if !updates {
            bail!(Code::FAILED_TO_PARSE, "Either an update or remove=true must be specified");
        } else if self.array_filters.is_some() && matches!(self.update, Value::Array(_)) {
            bail!(Code::FAILED_TO_PARSE, "Cannot specify arrayFilters and a pipeline update");
        }
        Ok(())
    }

    /// The `_id` and the change (none to remove), if the command can take the short way.
    fn point(&self) -> Option<(Value<'a>, Option<PointChange<'a>>)> {
        let plain = self.sort.is_none_or(RawDoc::is_empty)
            && self.hint.is_missing()
            && self.array_filters.as_ref().is_none_or(Vec::is_empty)
            && self.collation.is_none()
            && self.variables.is_none();
        let id = only_id(self.query.filter(|_| plain)?)?;
        if self.remove {
            return Some((id, None));
        }
        Some((id, Some(PointChange::parse(self.update)?)))
    }

    /// Notes what it has looked at, and how.
    fn tell(&self, op: &Operation<'_>, seen: &Seen) {
        add_seen(op, seen);
        let written = if self.remove { "EXPRESS_DELETE" } else { "EXPRESS_UPDATE" };
        op.metrics().plan_summary.replace(seen.summary(written).map(Into::into));
        op.metrics().plan_source.set(source(seen.chosen()));
    }

    /// Notes what the stages of its plan have done, where that is told.
    fn tell_stages(&self, op: &Operation<'_>, seen: &Seen, modified: &Modified) {
        let Some((plan, figures)) = seen.plan().filter(|(_, figures)| !figures.is_empty()) else { return };
        let Ok(query) = self.query_of_plan(op) else { return };
        let catalog = op.catalog();
        let Some(collection) = catalog.collection(&op.namespace(self.collection)) else { return };
        let (top, changed) = match self.remove {
            true => (Top::Delete { multi: false }, modified.n),
            false => (Top::Update { multi: false, upsert: self.upsert }, modified.changed),
        };
        let taken = modified.n - u64::from(modified.upserted.is_some());
        let stages = stages_of(&query, collection, &plan, &figures, Rows { taken, changed }, top);
        op.metrics().plan(|planned| planned.stages = Some(stages));
    }

    /// Removes one measurement; the only thing that the command does on time-series collections.
    fn remove_measurement(
        &self,
        op: &Operation<'_>,
        w: &mut dyn Write,
        cx: &WriteCx<'_>,
        view: &Collection,
    ) -> Result<Modified> {
        let (n, value) = timeseries::delete(op, w, cx, view, &self.measurements()?, false)?;
        Ok(Modified { n, value, ..Modified::default() })
    }

    /// The measurement that it removes.
    ///
    /// Errors: `InvalidOptions` for what time-series collections do not have.
    pub(super) fn measurements(&self) -> Result<Selected<'_>> {
        if !self.remove {
            bail!(Code::INVALID_OPTIONS, "Cannot perform a non-multi update on a time-series collection");
        }
        if self.sort.is_some_and(|sort| !sort.is_empty()) {
            bail!(
                Code::INVALID_OPTIONS,
                "Cannot perform findAndModify with sort on a time-series collection"
            );
        }
        Ok(Selected {
            filter: self.query.unwrap_or(RawDoc::EMPTY),
            variables: self.variables,
            collation: self.collation,
            hint: self.hint,
        })
    }

    /// What is shown of the document.
    ///
    /// Errors: those of projections, `BadValue` for what a changed document cannot be asked.
    fn projection(&self, op: &Operation<'_>) -> Result<Option<Projection>> {
        let Some(fields) = self.fields.filter(|fields| !fields.is_empty()) else { return Ok(None) };
        let mut cx = self.parse_cx(op)?;
        let projection = Projection::parse(fields, Mode::Find, &mut cx)?;
        projection.check_filter(self.query.unwrap_or(RawDoc::EMPTY), &mut cx)?;
        cx.finish_as("Failed to optimize pipeline")?;
        if self.new && projection.needs_match_details() {
            // The query may match no more what has been changed.
            bail!(Code::BAD_VALUE, "cannot use a positional projection and return the new document");
        }
        if projection.metadata().contains(&"sortKey") {
            bail!(Code::BAD_VALUE, "Cannot use a $meta sortKey projection in findAndModify commands.");
        }
        Ok(Some(projection))
    }

    fn parse_cx(&self, op: &Operation<'_>) -> Result<ParseCx> {
        collated_cx(op, &op.namespace(self.collection), self.collation, self.variables)
    }

    fn action(&self, op: &Operation<'_>) -> Result<OneChange> {
        let mut cx = for_update(op, self.parse_cx(op)?);
        let collator = cx.collator().cloned();
        let mut query = Query { hint: Hint::parse(self.hint)?, collator, ..Query::default() };
        query.matcher = Some(Arc::new(parse_update_filter(self.query, self.upsert, &mut cx)?));
        set_sort(&mut query, self.sort)?;
        if self.remove {
            return Ok(OneChange::Remove(Delete { query, multi: false }));
        }
        let filters = self.array_filters.as_deref().unwrap_or_default();
        let update = Modification::parse(self.update, filters, &mut cx)?;
        let statement = UpdateStatement { query, update, multi: false, upsert: self.upsert };
        // What an update's constants come to is found out when it meets a document.
        Ok(OneChange::Update { statement, new: self.new })
    }

    /// What it would do: for `explain`.
    pub(super) fn explained(&self, op: &Operation<'_>) -> Result<OneChange> {
        self.projection(op)?;
        self.action(op)
    }

    /// The query of its plan.
    pub(super) fn query_of_plan(&self, op: &Operation<'_>) -> Result<Query> {
        Ok(match self.action(op)? {
            OneChange::Remove(delete) => delete.query,
            OneChange::Update { statement, .. } => statement.query,
        })
    }

    /// What a retry is answered with.
    fn answer_of_change(
        &self,
        change: Change<'_>,
        projection: Option<&Projection>,
        op: &Operation<'_>,
    ) -> Result<DocBuf> {
        let modified = match change {
            Change::Upsert(doc) => Modified {
                n: 1,
                changed: 0,
                updated_existing: Some(false),
                upserted: doc.get("_id").map(OwnedValue::from),
                value: self.new.then(|| DocBuf::from(doc)),
            },
            Change::Update { before, after } => Modified {
                n: 1,
                changed: 1,
                updated_existing: Some(true),
                upserted: None,
                value: Some(DocBuf::from(if self.new { after } else { before })),
            },
            Change::Delete(doc) => Modified { n: 1, value: Some(DocBuf::from(doc)), ..Modified::default() },
        };
        let updates = modified.updated_existing == Some(true);
        let answer = self.answer(op, &modified, projection)?;
        Ok(if updates { retried::of_update(answer, self.new) } else { answer })
    }

    fn answer(
        &self,
        op: &Operation<'_>,
        modified: &Modified,
        projection: Option<&Projection>,
    ) -> Result<DocBuf> {
        let value = match (&modified.value, projection) {
            (Some(doc), Some(projection)) => Some(self.project(op, doc, projection)?),
            (Some(doc), None) => Some(doc.clone()),
            (None, _) => None,
        };
        Ok(DocBuf::build(|out| {
            let mut last = out.document("lastErrorObject");
            last.append("n", modified.n as i32);
            if let Some(existing) = modified.updated_existing {
                last.append("updatedExisting", existing);
            }
            if let Some(id) = &modified.upserted {
                last.append("upserted", id.as_value());
            }
            drop(last);
            match &value {
                Some(doc) => out.append("value", doc),
                None => out.append("value", Value::Null),
            };
        }))
    }

    fn project(&self, op: &Operation<'_>, doc: &DocBuf, projection: &Projection) -> Result<DocBuf> {
        let arena = Bump::new();
        let env = Env::new(&arena).with_now(op.now_millis());
        let details = if projection.needs_match_details() {
            let matcher = parse_filter(self.query, &mut self.parse_cx(op)?)?;
            matcher.matches_with_details(doc.as_raw(), &Env::new(&Bump::new()))?
        } else {
            None
        };
        let projected = projection.apply_in(doc.as_raw(), &env, details)?;
        if projection.is_computed() {
            sheaf_expr::check_nesting(Value::Document(projected))?;
        }
        Ok(DocBuf::from(projected))
    }
}
