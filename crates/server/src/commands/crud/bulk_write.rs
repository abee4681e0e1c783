//! `bulkWrite`: inserts, updates and deletes on several collections in one command.

mod explained;
mod outcomes;
mod told;

use std::collections::VecDeque;
use std::sync::Arc;

use sheaf_auth::Target;
use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_exec::plan::Query;
use sheaf_exec::plan::query::Hint;
use sheaf_exec::write::{
    BeforeChange, Change, Delete, UpdateStatement, Validator, WriteCx, ends_command, prepare_insert,
    run_delete, run_update,
};
use sheaf_front::access::Rights;
use sheaf_front::dispatch::StatementKind;
use sheaf_front::generic::ShardVersion;
use sheaf_front::sampling::SAMPLE_ID;
use sheaf_query::update::Update as Modification;
use sheaf_storage::{Collection, Uuid, Write};
use sheaf_timeseries::split_buckets;

pub use explained::{Only, OnlyMeasured};

use outcomes::{Done, Totals, recorded_done};

use super::query::{collated_cx, first_batch, parse_filter, parse_update_filter, set_sort};
use super::told::Telling;
use super::update::array_filters;
use super::writes::{
    WriteFields, check_writable_in, collection_for_write, encryption_information, is_stale, refuse_view,
    with_cx, with_writer,
};
use crate::args::{Args, Documents, NonNegative, check_collection_name, check_db_name};
use crate::command::*;
use crate::commands::ddl::names;
use crate::commands::timeseries::{self, Selected, UpdateParts};
use crate::cursors::{Batch, Filled, ServerCursor};
use crate::op::Operation;
use crate::reply::Reply;
use crate::sampling::{Diffs, sample_of};
use crate::sharding::Writing;

/// `{bulkWrite: 1, ops: [...], nsInfo: [{ns: "db.users"}], ordered: true}`
pub struct BulkWrite<'a> {
    ops: Documents<'a>,
    namespaces: Vec<&'a str>,
    /// `collectionUUID` of each.
    uuids: Vec<Option<Uuid>>,
    /// `isTimeseriesNamespace` of each.
    measured: Vec<bool>,
    /// `shardVersion` of each, where a router names one.
    shard_versions: Vec<(String, ShardVersion)>,
    fields: WriteFields,
    ordered: bool,
    errors_only: bool,
    batch_size: Option<usize>,
    variables: Option<RawDoc<'a>>,
}

impl<'a> Command<'a, Operation<'a>> for BulkWrite<'a> {
    const NAME: &'static str = "bulkWrite";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "writes to several collections at once",
        access: Access::Write,
        transaction: Transaction::AllowedOrRetryable,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: true,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::ByCommand(
            "on each namespace that operations name: insert, update (and insert where one upserts), remove; bypassDocumentValidation if it is asked for",
            may_bulk_write,
        ),
        spread: Spread::Targeted,
        counter: Counter::Bulk,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let _ = args.own_value();
        let ops = args.required_documents("ops")?;
        let (mut namespaces, mut uuids, mut shard_versions) = (Vec::new(), Vec::new(), Vec::new());
        let mut measured = Vec::new();
        for info in args.required_documents("nsInfo")? {
            let mut fields = Args::of_part("bulkWrite.nsInfo", info)?;
            let namespace: &'a str = fields.required("ns")?;
            uuids.push(fields.optional("collectionUUID")?);
            if let Some(version) = fields.optional::<RawDoc<'a>>("shardVersion")? {
                shard_versions.push((namespace.to_owned(), ShardVersion::parse(version)?));
            }
            measured.push(fields.optional::<bool>("isTimeseriesNamespace")?.unwrap_or(false));
            encryption_information(&mut fields, "bulkWrite.nsInfo.encryptionInformation")?;
            fields.finish()?;
            check_namespace(namespace)?;
            namespaces.push(namespace);
        }
        let ordered = args.optional::<bool>("ordered")?.unwrap_or(true);
        let errors_only = args.optional::<bool>("errorsOnly")?.unwrap_or(false);
        let mut batch_size = None;
        if let Some(cursor) = args.optional::<RawDoc<'a>>("cursor")? {
            let mut options = Args::of_part("bulkWrite.cursor", cursor)?;
            batch_size = options.optional::<NonNegative>("batchSize")?.map(|n| n.0 as usize);
            options.finish()?;
        }
        let fields = WriteFields::parse(args)?;
        let variables = args.optional("let")?;
        Ok(BulkWrite {
            ops,
            namespaces,
            uuids,
            measured,
            shard_versions,
            fields,
            ordered,
            errors_only,
            batch_size,
            variables,
        })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let parsed = self.operations()?;
        op.shard_versions.replace(self.shard_versions.clone());
        let makes = |namespace: &str| parsed.iter().any(|one| one.namespace == namespace && one.makes());
        op.ask_homes(self.namespaces.iter().map(|namespace| (*namespace, makes(namespace))))?;
        let mut totals = Totals::default();
        let result = with_writer(op, false, |w| self.each(op, w, &parsed, &mut totals));
        result?;
        let cursor = Box::new(ReplyCursor { documents: totals.items.drain(..).collect() });
        let mut reply = first_batch(
            op,
            "admin.$cmd.bulkWrite",
            cursor,
            self.batch_size.or(Some(usize::MAX)),
            false,
            false,
        )?;
        let metrics = &op.metrics;
        metrics.inserted.set(Some(totals.inserted));
        metrics.matched.set(Some(totals.matched));
        metrics.modified.set(Some(totals.modified));
        metrics.upserted.set(Some(totals.upserted));
        metrics.deleted.set(Some(totals.deleted));
        for (name, n) in [
            ("nErrors", totals.errors),
            ("nInserted", totals.inserted),
            ("nMatched", totals.matched),
            ("nModified", totals.modified),
            ("nUpserted", totals.upserted),
            ("nDeleted", totals.deleted),
        ] {
            reply.append(name, n as i32);
        }
        let namespace_of = |id: &[u8; 16]| {
            let sampled = op.sampled.borrow();
            let at = sampled.iter().find(|sample| sample.id == *id).map(|sample| sample.at);
            at.and_then(|at| parsed.get(at)).map_or("", |one| one.namespace)
        };
        totals.diffs.tell_each(op, namespace_of, &mut reply);
        if !totals.retried.is_empty() {
            reply.fill(|out| {
                let mut list = out.array("retriedStmtIds");
                for id in &totals.retried {
                    list.push(*id);
                }
            });
        }
        Ok(reply)
    }
}

/// Whether a `bulkWrite` is allowed: each of its operations as it is going to run, where it writes.
fn may_bulk_write(asked: Asked<'_>, rights: &Rights) -> bool {
    let Ok(command) = parsed::<BulkWrite<'_>>(asked) else { return may_know_why(asked, rights) };
    let Ok(operations) = command.operations() else { return may_know_why(asked, rights) };
    operations.iter().all(|one| {
        let mut actions = match &one.kind {
            Kind::Insert(_) => vec![Action::Insert],
            Kind::Update(update) if update.upsert => vec![Action::Update, Action::Insert],
            Kind::Update(_) => vec![Action::Update],
            Kind::Delete { .. } => vec![Action::Remove],
        };
        if command.fields.bypass.validation && !matches!(one.kind, Kind::Delete { .. }) {
            actions.push(Action::BypassDocumentValidation);
        }
        rights.may(Target::of_namespace(one.namespace), &actions)
    })
}

/// Whether somebody is told why a command that cannot be parsed fails: who may write whatever it seems to be about.
fn may_know_why(asked: Asked<'_>, rights: &Rights) -> bool {
    let all = [Action::Insert, Action::Update, Action::Remove];
    asked.documents("nsInfo").iter().all(|info| {
        let named = info.get("ns").and_then(|ns| ns.as_str()).unwrap_or_default();
        rights.may(Target::of_namespace(named), &all)
    })
}

struct Parsed<'a> {
    sent: RawDoc<'a>,
    kind: Kind<'a>,
    namespace: &'a str,
    uuid: Option<Uuid>,
    /// Whether it is about measurements where it names their buckets.
    measured: bool,
}

impl Parsed<'_> {
    /// Whether its collection is made if there is none.
    fn makes(&self) -> bool {
        match &self.kind {
            Kind::Insert(_) => true,
            Kind::Update(update) => update.upsert,
            Kind::Delete { .. } => false,
        }
    }
}

enum Kind<'a> {
    Insert(RawDoc<'a>),
    Update(UpdateOp<'a>),
    Delete { filter: RawDoc<'a>, multi: bool, hint: Value<'a>, collation: Option<RawDoc<'a>> },
}

struct UpdateOp<'a> {
    filter: RawDoc<'a>,
    update: Value<'a>,
    multi: bool,
    upsert: bool,
    hint: Value<'a>,
    collation: Option<RawDoc<'a>>,
    constants: Option<RawDoc<'a>>,
    sort: Option<RawDoc<'a>>,
    array_filters: Vec<RawDoc<'a>>,
    sample_id: Value<'a>,
}

impl<'a> BulkWrite<'a> {
    /// All operations with their namespaces.
    ///
    /// Errors: those of the first one that is not sound.
    fn operations(&self) -> Result<Vec<Parsed<'a>>> {
        let kinds = self.ops.iter().map(Self::parse_op).collect::<Result<Vec<_>>>()?;
        self.fields.statements.check_bulk(self.ops.count())?;
        self.ops.iter().zip(kinds).map(|(doc, op)| self.addressed(doc, op)).collect()
    }

    fn parse_op(doc: RawDoc<'a>) -> Result<(u64, Kind<'a>)> {
        const PLACE: &str = "bulkWrite.ops";
        let name = doc.iter().next().map_or("", |first| first.key());
        let mut args = Args::of_part(PLACE, doc)?;
        let index = match name {
            "insert" | "update" | "delete" => args.required::<NonNegative>(name)?.0 as u64,
            other => bail!(40415, "BSON field 'bulkWrite.{other}' is an unknown field."),
        };
        let flag =
            |args: &mut Args<'a>, name| -> Result<bool> { Ok(args.optional::<bool>(name)?.unwrap_or(false)) };
        let kind = match name {
            "insert" => Kind::Insert(args.required("document")?),
            "delete" => Kind::Delete {
                filter: args.required("filter")?,
                multi: flag(&mut args, "multi")?,
                hint: args.value("hint"),
                collation: args.optional("collation")?,
            },
            _ => Kind::Update(UpdateOp {
                filter: args.required("filter")?,
                update: update_mods(&mut args)?,
                multi: flag(&mut args, "multi")?,
                upsert: flag(&mut args, "upsert")?,
                hint: args.value("hint"),
                collation: args.optional("collation")?,
                constants: args.optional("constants")?,
                sort: args.optional("sort")?,
                array_filters: array_filters(&mut args, PLACE)?,
                sample_id: args.value(SAMPLE_ID),
            }),
        };
        match &kind {
            Kind::Update(UpdateOp { hint, .. }) | Kind::Delete { hint, .. } => _ = Hint::parse(*hint)?,
            Kind::Insert(_) => {}
        }
        args.optional::<bool>("upsertSupplied")?;
        args.optional::<Uuid>(SAMPLE_ID)?;
        args.finish()?;
        Ok((index, kind))
    }

    /// The operation with the namespace that its index means.
    ///
    /// Errors: `BadValue` where there is none.
    fn addressed(&self, doc: RawDoc<'a>, (index, kind): (u64, Kind<'a>)) -> Result<Parsed<'a>> {
        let at = usize::try_from(index).ok();
        match at.and_then(|at| self.namespaces.get(at)) {
            Some(namespace) => {
                let uuid = at.and_then(|at| self.uuids.get(at).copied().flatten());
                let measured = at.is_some_and(|at| self.measured.get(at) == Some(&true));
                Ok(Parsed { sent: doc, kind, namespace, uuid, measured })
            }
            None => {
                let shown = sheaf_bson::value_text(Value::Document(doc));
                bail!(Code::BAD_VALUE, "BulkWrite ops entry {shown} has an invalid nsInfo index.")
            }
        }
    }

    fn each(
        &self,
        op: &Operation<'_>,
        w: &mut dyn Write,
        parsed: &[Parsed<'a>],
        totals: &mut Totals,
    ) -> Result<()> {
        let mut group = None;
        for (at, one) in parsed.iter().enumerate() {
            self.next_group(op, w, &mut group, Some(one));
            let stmt_id = self.fields.statements.at(at);
            if op.records_statements() {
                if let Some(recorded) = op.executed_statement(stmt_id)? {
                    totals.retried.push(stmt_id);
                    op.note_newest_commit();
                    self.count(at, &one.kind, Ok(recorded_done(&one.kind, &recorded)), totals);
                    continue;
                }
                w.statement(op.statement(stmt_id, None));
                op.before_retryable_write()?;
            }
            let result = self.one(op, w, one, at, &totals.diffs);
            if let Some(group) = &mut group {
                group.took_in(one, &result);
            }
            match result {
                Err(error) if ends_command(&error) => return Err(error),
                Err(error) if is_stale(&error) => {
                    if at == 0 || op.in_transaction() {
                        return Err(error);
                    }
                    self.count(at, &one.kind, Err(error), totals);
                    break;
                }
                result => {
                    let failed = result.is_err();
                    // Whose document is to be another shard's has changed nothing, and the router goes on in the transaction.
                    let ends = |error: &Error| error.code() != Code::WOULD_CHANGE_OWNING_SHARD;
                    op.has_failed.set(op.has_failed.get() || result.as_ref().is_err_and(ends));
                    self.count(at, &one.kind, result, totals);
                    if failed && (self.ordered || op.in_transaction()) {
                        break;
                    }
                }
            }
        }
        self.next_group(op, w, &mut group, None);
        if op.records_statements() {
            w.statement(None);
        }
        Ok(())
    }

    fn one(
        &self,
        op: &Operation<'_>,
        w: &mut dyn Write,
        one: &Parsed<'a>,
        at: usize,
        diffs: &Diffs,
    ) -> Result<Done> {
        let multi = matches!(
            &one.kind,
            Kind::Update(UpdateOp { multi: true, .. }) | Kind::Delete { multi: true, .. }
        );
        if multi && op.is_retryable_write() {
            bail!(Code::INVALID_OPTIONS, "Cannot use retryable writes with multi=true");
        }
        op.writing.set(match &one.kind {
            Kind::Update(update) if update.multi => Writing::Many,
            Kind::Update(_) => Writing::One,
            Kind::Insert(_) | Kind::Delete { .. } => Writing::Others,
        });
        let makes = match &one.kind {
            Kind::Insert(_) => true,
            Kind::Update(update) => update.upsert,
            Kind::Delete { .. } => false,
        };
        let (db, name) = names::split(one.namespace);
        if !one.measured || split_buckets(one.namespace).is_none() {
            check_writable_in(db, name)?;
        }
        if one.uuid.is_some() {
            names::check_uuid(w.view()?.catalog(), one.namespace, one.uuid)?;
        }
        let collection = match w.collection(one.namespace)? {
            Some(collection) => collection,
            None if makes && one.measured => return Err(timeseries::no_buckets(one.namespace)),
            None if makes => collection_for_write(op, w, one.namespace)?,
            None => {
                let modified = matches!(one.kind, Kind::Update(_)).then_some(0);
                return Ok(Done { n: 0, modified, upserted: None });
            }
        };
        let measured = collection.is_timeseries() || (one.measured && timeseries::is_buckets(&collection));
        if !measured {
            refuse_view(&collection)?;
        }
        with_cx(op, self.fields.bypass, |cx| {
            let sample = match &one.kind {
                Kind::Update(update) => sample_of(op, at, update.sample_id),
                Kind::Insert(_) | Kind::Delete { .. } => None,
            };
            let retryable = op.records_statements();
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
            // Inserts are told of in groups.
            let telling = match &one.kind {
                Kind::Insert(_) => None,
                _ => Some(Telling::begin(op, w, StatementKind::Bulk, one.sent, one.namespace)),
            };
            let before_change: Option<&BeforeChange<'_>> = if is_told { Some(&name) } else { None };
            let seen = telling.as_ref().map_or(cx.seen, |telling| &telling.seen);
            let cx = WriteCx { before_change, seen, ..cx };
            let id = self.fields.statements.at(at);
            let result = self.apply(op, w, &cx, (&collection, measured), (&one.kind, id));
            if let Some(telling) = &telling {
                let did = result.as_ref().ok().and_then(|done| done.did(&one.kind));
                telling.end(op, w, did, result.as_ref().err(), &|| self.query_of(op, one));
            }
            if let Err(error) = &result {
                op.metrics().failed.replace(Some(error.clone()));
            }
            result
        })
    }

    fn apply(
        &self,
        op: &Operation<'_>,
        w: &mut dyn Write,
        cx: &WriteCx<'_>,
        (collection, measured): (&Arc<Collection>, bool),
        (kind, stmt_id): (&Kind<'a>, i32),
    ) -> Result<Done> {
        match kind {
            Kind::Insert(document) if measured => {
                timeseries::insert_one(op, w, cx, collection, *document, stmt_id)?;
                Ok(Done { n: 1, modified: None, upserted: None })
            }
            Kind::Update(update) if measured => {
                update.statement(op, &collection.namespace, self.variables)?;
                let result = timeseries::update(op, w, cx, collection, &update.parts(self.variables))?;
                Ok(Done { n: result.matched, modified: Some(result.modified), upserted: None })
            }
            Kind::Delete { filter, multi, hint, collation } if measured => {
                let variables = self.variables;
                let selected = Selected { filter: *filter, variables, collation: *collation, hint: *hint };
                let (n, _) = timeseries::delete(op, w, cx, collection, &selected, *multi)?;
                Ok(Done { n, modified: None, upserted: None })
            }
            Kind::Insert(document) => {
                let prepared = prepare_insert(*document, cx.new_object_id, cx.empty_timestamp())?;
                let document = prepared.as_ref().map_or(*document, |prepared| prepared.as_raw());
                if !cx.bypass_validation
                    && let Some(validator) = Validator::of(collection)?
                {
                    validator.enforce(None, document, cx.report)?;
                }
                w.insert(collection, document)?;
                Ok(Done { n: 1, modified: None, upserted: None })
            }
            Kind::Update(update) => {
                let statement = update.statement(op, &collection.namespace, self.variables)?;
                let result = run_update(w, cx, collection, &statement, false)?;
                let n = result.matched + u64::from(result.upserted.is_some());
                Ok(Done { n, modified: Some(result.modified), upserted: result.upserted })
            }
            Kind::Delete { filter, multi, hint, collation } => {
                let variables = self.variables;
                let selected = Selected { filter: *filter, variables, collation: *collation, hint: *hint };
                let delete = delete_of(op, &collection.namespace, &selected, *multi)?;
                let (n, _) = run_delete(w, cx, collection, &delete, false)?;
                Ok(Done { n, modified: None, upserted: None })
            }
        }
    }
}

fn delete_of(op: &Operation<'_>, namespace: &str, selected: &Selected<'_>, multi: bool) -> Result<Delete> {
    let mut parse = collated_cx(op, namespace, selected.collation, selected.variables)?;
    let collator = parse.collator().cloned();
    let mut query = Query { hint: Hint::parse(selected.hint)?, collator, ..Query::default() };
    query.matcher = Some(Arc::new(parse_filter(Some(selected.filter), &mut parse)?));
    Ok(Delete { query, multi })
}

impl UpdateOp<'_> {
    /// The operation as one on measurements.
    fn parts<'p>(&'p self, variables: Option<RawDoc<'p>>) -> UpdateParts<'p> {
        UpdateParts {
            selected: Selected { filter: self.filter, variables, collation: self.collation, hint: self.hint },
            update: self.update,
            multi: self.multi,
            upsert: self.upsert,
            array_filters: &self.array_filters,
        }
    }

    fn statement(
        &self,
        op: &Operation<'_>,
        namespace: &str,
        variables: Option<RawDoc<'_>>,
    ) -> Result<UpdateStatement> {
        let mut cx = collated_cx(op, namespace, self.collation, variables)?;
        let collator = cx.collator().cloned();
        if self.constants.is_some() && !matches!(self.update, Value::Array(_)) {
            bail!(51198, "Constant values may only be specified for pipeline updates");
        }
        for constant in self.constants.into_iter().flatten() {
            cx.declare_constant(constant.key(), constant.value())?;
        }
        let mut query = Query { hint: Hint::parse(self.hint)?, collator, ..Query::default() };
        query.matcher = Some(Arc::new(parse_update_filter(Some(self.filter), self.upsert, &mut cx)?));
        // What its constants come to is found out when it meets a document.
        let update = Modification::parse(self.update, &self.array_filters, &mut cx)?;
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

fn check_namespace(namespace: &str) -> Result<()> {
    match namespace.split_once('.') {
        Some((db, collection)) => {
            check_db_name(db)?;
            check_collection_name(collection)
        }
        None => bail!(Code::INVALID_NAMESPACE, "Invalid namespace specified for bulkWrite: '{namespace}'"),
    }
}

/// `updateMods`.
///
/// Errors: 40414, `FailedToParse` for what is neither a document nor a pipeline.
fn update_mods<'a>(args: &mut Args<'a>) -> Result<Value<'a>> {
    match args.value("updateMods") {
        Value::Missing => Err(args.missing("updateMods")),
        update @ (Value::Document(_) | Value::Array(_)) => Ok(update),
        _ => bail!(Code::FAILED_TO_PARSE, "Update argument must be either an object or an array"),
    }
}

/// The results that did not fit the first batch.
struct ReplyCursor {
    documents: VecDeque<DocBuf>,
}

impl ServerCursor for ReplyCursor {
    fn fill(&mut self, _: &Operation<'_>, batch: &mut Batch<'_>) -> Result<Filled> {
        while let Some(doc) = self.documents.front() {
            if batch.is_full() || !batch.fits(doc.as_bytes().len()) {
                return Ok(Filled::More);
            }
            batch.push(doc.as_bytes());
            self.documents.pop_front();
        }
        Ok(Filled::Exhausted)
    }
}
