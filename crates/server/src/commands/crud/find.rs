//! `find`.

use std::borrow::Cow;
use std::sync::Arc;

use sheaf_aggregate::Namespace;
use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Type, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::plan::Query;
use sheaf_exec::plan::query::Hint;
use sheaf_expr::{Env, ParseCx};
use sheaf_query::projection::{Mode, Projection};
use sheaf_storage::{Collection, Doc, Engine, Uuid, View};

use super::pipeline::PipelineCursor;
use super::query::{
    METRICS, PlanCursor, collated_cx, empty_cursor, first_batch, parse_cx, parse_filter, set_sort,
};
use super::query_settings;
use super::resume::Resume;
use sheaf_rows::{Cx, Limits, Operator};

use crate::args::{Args, Flag, NonNegative, Object};
use crate::command::*;
use crate::commands::ddl::names;
use crate::op::Operation;
use crate::query_settings::FIELD;
use crate::reactor::LONG_BYTES;
use crate::reply::Reply;
use crate::sharding::Placed;

/// `{find: "users", filter: {...}, ...}`
pub struct Find<'a> {
    pub(super) collection: &'a str,
    filter: Option<RawDoc<'a>>,
    sort: Option<RawDoc<'a>>,
    projection: Option<RawDoc<'a>>,
    hint: Value<'a>,
    skip: u64,
    limit: u64,
    batch_size: Option<u64>,
    single_batch: bool,
    min: Option<RawDoc<'a>>,
    max: Option<RawDoc<'a>>,
    return_key: bool,
    show_record_id: bool,
    tailable: bool,
    await_data: bool,
    no_timeout: bool,
    allow_disk_use: Option<bool>,
    collation: Option<RawDoc<'a>>,
    variables: Option<RawDoc<'a>>,
    uuid: Option<Uuid>,
    resume: Resume<'a>,
    /// Options that a view cannot have, by their names.
    not_on_views: Option<&'static str>,
    /// Whether the reply is to have figures.
    tells: bool,
    /// Whether a term of elections is given, as members do.
    has_term: bool,
}

impl<'a> Command<'a, Operation<'a>> for Find<'a> {
    const NAME: &'static str = "find";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "finds documents",
        access: Access::Read,
        transaction: Transaction::Allowed,
        secondary: Secondary::OptIn,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::READ,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::Find])]),
        spread: Spread::Targeted,
        counter: Counter::Query,
        threads: Threads::Data,
        ends_with_client: true,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let flag = |args: &mut Args<'a>, name| -> Result<bool> {
            Ok(args.optional::<Flag>(name)?.is_some_and(|flag| flag.0))
        };
        let object = |args: &mut Args<'a>, name| -> Result<Option<RawDoc<'a>>> {
            Ok(args.optional::<Object<'a>>(name)?.map(|object| object.0))
        };
        let count = |args: &mut Args<'a>, name| -> Result<Option<u64>> {
            Ok(args.optional::<NonNegative>(name)?.map(|n| n.0 as u64))
        };
        let find = Find {
            collection: args.collection()?,
            filter: object(args, "filter")?,
            sort: object(args, "sort")?,
            projection: object(args, "projection")?,
            hint: args.value("hint"),
            skip: count(args, "skip")?.unwrap_or(0),
            limit: count(args, "limit")?.unwrap_or(0),
            batch_size: count(args, "batchSize")?,
            single_batch: flag(args, "singleBatch")?,
            min: object(args, "min")?,
            max: object(args, "max")?,
            return_key: flag(args, "returnKey")?,
            show_record_id: flag(args, "showRecordId")?,
            tailable: flag(args, "tailable")?,
            await_data: flag(args, "awaitData")?,
            no_timeout: flag(args, "noCursorTimeout")?,
            allow_disk_use: args.optional::<Flag>("allowDiskUse")?.map(|flag| flag.0),
            collation: object(args, "collation")?,
            variables: args.optional("let")?,
            uuid: args.optional("collectionUUID")?,
            resume: Resume::parse(args)?,
            not_on_views: None,
            tells: false,
            has_term: false,
        };
        flag(args, "oplogReplay")?;
        let partial = flag(args, "allowPartialResults")?;
        let once = flag(args, "readOnce")?;
        // The one that is allowed is what drivers send for the first document.
        let single = find.single_batch && find.limit != 1;
        let options = [
            (find.no_timeout, "noCursorTimeout"),
            (partial, "allowPartialResults"),
            (single, "singleBatch"),
            (once, "readOnce"),
            (find.resume.is_asked(), "$_requestResumeToken"),
        ];
        let not_on_views = options.into_iter().find(|(given, _)| *given).map(|(_, name)| name);
        let find = Find { not_on_views, ..find };
        let find = Find { has_term: args.optional::<i64>("term")?.is_some(), ..find };
        let find = Find { tells: args.optional::<bool>(METRICS)?.unwrap_or(false), ..find };
        args.ignore(&[FIELD]);
        if find.await_data && !find.tailable {
            bail!(Code::FAILED_TO_PARSE, "Cannot set 'awaitData' without also setting 'tailable'");
        }
        if find.tailable && find.single_batch {
            bail!(Code::BAD_VALUE, "cannot use tailable option with the 'singleBatch' option");
        }
        find.resume.check(find.hint, find.sort)?;
        Ok(find)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        op.metrics().tells.set(self.tells);
        super::query::check_term(op, self.has_term)?;
        if self.tailable && op.in_transaction() {
            bail!(Code::INVALID_OPTIONS, "It is illegal to open a tailable cursor in a transaction");
        }
        query_settings::apply(op, op.body())?;
        if let Some(reply) = self.by_id(op, &namespace)? {
            return Ok(reply);
        }
        let query = self.query(op)?;
        let view = op.view()?;
        names::check_uuid(view.catalog(), &namespace, self.uuid)?;
        if view.collection(&namespace).is_some_and(|collection| collection.is_view()) {
            // Its natural order is that of the collection below, for which the hint holds.
            return op.blocking(|| self.on_view(op, &namespace, query.hint));
        }
        self.scan(op, &namespace, &query)
    }
}

impl<'a> Find<'a> {
    /// The find that a pipeline of nothing but filters is, for one that somebody can go on with.
    pub(super) fn of_pipeline(
        collection: &'a str,
        filter: RawDoc<'a>,
        hint: Value<'a>,
        resume: Resume<'a>,
    ) -> Self {
        Find {
            collection,
            filter: Some(filter),
            sort: None,
            projection: None,
            hint,
            skip: 0,
            limit: 0,
            batch_size: None,
            single_batch: false,
            min: None,
            max: None,
            return_key: false,
            show_record_id: false,
            tailable: false,
            await_data: false,
            no_timeout: false,
            allow_disk_use: None,
            collation: None,
            variables: None,
            uuid: None,
            resume,
            not_on_views: None,
            tells: false,
            has_term: false,
        }
    }

    /// The same with what an aggregate says besides.
    pub(super) fn with(
        self,
        batch_size: Option<u64>,
        collation: Option<RawDoc<'a>>,
        variables: Option<RawDoc<'a>>,
    ) -> Self {
        Find { batch_size, collation, variables, ..self }
    }

    /// Answers from the collection itself.
    pub(super) fn scan(&self, op: &Operation<'_>, namespace: &str, query: &Query) -> Result<Reply> {
        let view = op.view()?;
        let Some(collection) = view.collection(namespace).cloned() else {
            sheaf_exec::plan::text::check_collection(query.matcher.as_deref(), namespace)?;
            return Ok(empty_cursor(op, namespace));
        };
        if self.tailable && collection.capped.is_none() {
            bail!(
                Code::BAD_VALUE,
                "error processing query: ns={namespace} tailable cursor requested on non capped collection"
            );
        }
        let stop = op.interrupter();
        let interrupt = || stop.check();
        let allow_disk_use = super::query::disk_use(op, self.allow_disk_use);
        let limits = Limits { allow_disk_use, now_millis: op.now_millis(), ..Limits::default() };
        self.resume.check_record(&collection, &view)?;
        let reads = op.reads(view);
        let mut cx = Cx::new(limits, &interrupt);
        let mut executor = sheaf_exec::find::open(query, &collection, &reads, &mut cx)?;
        executor.suspend();
        reads.detach();
        op.note_plan(executor.plan().summary(), executor.chosen());
        let watched = op.is_profiled().then(|| Box::new(query.clone()));
        let cursor = PlanCursor::new(executor, reads, query, self.await_data, limits).watched(watched);
        let batch_size = self.batch_size.map(|n| n as usize);
        first_batch(op, namespace, Box::new(cursor), batch_size, self.single_batch, self.no_timeout)
            .map_err(|error| error.context(format!("Executor error during find command: {namespace}")))
    }

    /// The shortest way: `{_id: value}` and nothing else is one read, answered from where the document lies.
    fn by_id(&self, op: &Operation<'a>, namespace: &str) -> Result<Option<Reply>> {
        let plain = self.sort.is_none_or(RawDoc::is_empty)
            && self.hint.is_missing()
            && self.skip == 0
            && self.batch_size != Some(0)
            && self.min.is_none()
            && self.max.is_none()
            && !(self.return_key || self.show_record_id || self.tailable)
            && self.collation.is_none()
            && self.variables.is_none()
            && self.uuid.is_none()
            && !op.in_transaction()
            && !op.reads_majority();
        let Some(filter) = self.filter.filter(|_| plain) else { return Ok(None) };
        let Some(id) = only_id(filter) else { return Ok(None) };
        let Some(projection) = self.point_projection(op)? else { return Ok(None) };
        // What a shard owns and the document have to be of one moment.
        let shard = op.shard();
        let view = shard.map(|_| op.view()).transpose()?;
        let catalog = view.as_ref().map_or_else(|| op.catalog(), |view| view.catalog().clone());
        let Some(collection) = catalog.collection(namespace) else {
            return Ok(Some(empty_cursor(op, namespace)));
        };
        if collection.is_view() || collection.capped.is_some() || collection.collator.is_some() {
            return Ok(None);
        }
        let placed = match (shard, &view) {
            (Some(shard), Some(view)) => shard.placements().in_view(view, &collection.uuid)?,
            _ => None,
        };
        let point = Point { view: view.as_ref(), placed: placed.as_deref(), collection, projection };
        let key = collection.record_key(id)?;
        if let Some(index) = collection.indexes.first() {
            index.accesses.count();
        }
        // Where documents are large, reading and copying one takes long by itself.
        let large = collection.data_bytes() / collection.count().max(1) >= LONG_BYTES as u64;
        if large {
            return op.blocking(|| point.reply(op, namespace, &key)).map(Some);
        }
        point.reply(op, namespace, &key).map(Some)
    }

    /// The projection for the shortest way (`Some(None)`: there is none); `None` if it asks more of the query.
    fn point_projection(&self, op: &Operation<'_>) -> Result<Option<Option<Projection>>> {
        let Some(spec) = self.projection.filter(|projection| !projection.is_empty()) else {
            return Ok(Some(None));
        };
        let mut cx = parse_cx(op, None)?;
        let projection = Projection::parse(spec, Mode::Find, &mut cx)?;
        cx.finish_as("Failed to optimize expression")?;
        // What reads metadata or variables of the query is for the planner.
        let plain = !projection.needs_match_details() && !projection.is_computed();
        Ok(plain.then_some(Some(projection)))
    }

    /// What its parts are parsed in.
    pub(super) fn parse_cx(&self, op: &Operation<'_>) -> Result<ParseCx> {
        collated_cx(op, &op.namespace(self.collection), self.collation, self.variables)
    }

    /// The query in the form that planning reads.
    pub(super) fn query(&self, op: &Operation<'_>) -> Result<Query> {
        let mut cx = self.parse_cx(op)?;
        let collator = cx.collator().cloned();
        let mut query = Query { hint: Hint::parse(self.hint)?, collator, ..Query::default() };
        query.matcher = Some(Arc::new(parse_filter(self.filter, &mut cx)?));
        set_sort(&mut query, self.sort)?;
        if let Some(projection) = self.projection.filter(|p| !p.is_empty()) {
            let parsed = Projection::parse(projection, Mode::Find, &mut cx)?;
            parsed.check_filter(self.filter.unwrap_or(RawDoc::EMPTY), &mut cx)?;
            let near = query.matcher.as_ref().is_some_and(|matcher| matcher.root().near().is_some());
            parsed.check_metadata(query.sort.is_some(), near, query.matcher().has_text())?;
            cx.finish_as("Failed to optimize expression")?;
            query.projection = Some(Arc::new(parsed));
            query.projection_spec = DocBuf::from(projection);
        }
        query.skip = self.skip;
        query.limit = (self.limit > 0).then_some(self.limit);
        query.min = self.min.filter(|d| !d.is_empty()).map(DocBuf::from);
        query.max = self.max.filter(|d| !d.is_empty()).map(DocBuf::from);
        query.return_key = self.return_key;
        query.show_record_id = self.show_record_id;
        query.tailable = self.tailable;
        query.resumable = self.resume.is_asked();
        query.start = self.resume.start();
        if self.tailable && !query.sort_spec.as_raw().is_empty() && query.natural_sort() != Some(false) {
            bail!(Code::BAD_VALUE, "cannot use tailable option with a sort other than {{$natural: 1}}");
        }
        Ok(query)
    }

    /// The stages that do what the query says.
    pub(super) fn pipeline(&self) -> ArrayBuf {
        ArrayBuf::build(|out| {
            if let Some(filter) = self.filter.filter(|filter| !filter.is_empty()) {
                out.document().append("$match", filter);
            }
            if let Some(sort) = self.sort.filter(|sort| !sort.is_empty() && sort.get("$natural").is_none()) {
                out.document().append("$sort", sort);
            }
            if self.skip > 0 {
                out.document().append("$skip", self.skip as i64);
            }
            if self.limit > 0 {
                out.document().append("$limit", self.limit as i64);
            }
            if let Some(projection) = self.projection.filter(|projection| !projection.is_empty()) {
                out.document().append("$project", projection);
            }
        })
    }

    /// A query on a view is a pipeline on what the view stands on.
    fn on_view(&self, op: &Operation<'a>, namespace: &str, hint: Hint) -> Result<Reply> {
        for (given, what) in [
            (self.tailable, "tailable"),
            (self.return_key, "returnKey"),
            (self.show_record_id, "showRecordId"),
            (self.min.is_some(), "min"),
            (self.max.is_some(), "max"),
            (self.not_on_views.is_some(), self.not_on_views.unwrap_or_default()),
        ] {
            if given {
                bail!(Code::INVALID_PIPELINE_OPERATOR, "Option {what} not supported in aggregation.");
            }
        }
        let on = Namespace::new(op.db(), self.collection);
        let stages = self.pipeline();
        let pipeline = super::pipeline::parse(stages.as_raw(), &on, &mut self.parse_cx(op)?)?;
        let cursor = PipelineCursor::open(op, &on, &pipeline, hint, self.allow_disk_use, false)?;
        let batch_size = self.batch_size.map(|n| n as usize);
        first_batch(op, namespace, Box::new(cursor), batch_size, self.single_batch, self.no_timeout)
    }
}

/// Where one document is read, and what is given of it.
struct Point<'p> {
    /// The state; `None`: the newest.
    view: Option<&'p View>,
    /// What the shard owns in this state.
    placed: Option<&'p Placed>,
    collection: &'p Collection,
    projection: Option<Projection>,
}

impl Point<'_> {
    fn document<'d>(&'d self, engine: &'d Engine, key: &[u8]) -> Result<Option<Doc<'d>>> {
        let found = match self.view {
            Some(view) => view.get(self.collection, key)?,
            None => engine.get_decided(self.collection, key)?,
        };
        match (&found, self.placed.filter(|placed| placed.placement.filters())) {
            (Some(doc), Some(placed)) if !placed.owns(doc.as_raw(), &mut Vec::new())? => Ok(None),
            _ => Ok(found),
        }
    }

    /// Reads the document into its reply.
    fn reply(&self, op: &Operation<'_>, namespace: &str, key: &[u8]) -> Result<Reply> {
        let doc = self.document(op.engine(), key)?;
        let metrics = op.metrics();
        metrics.plan_summary.replace(Some(Cow::Borrowed("EXPRESS_IXSCAN { _id: 1 }")));
        metrics.keys_examined.set(1);
        metrics.docs_examined.set(u64::from(doc.is_some()));
        metrics.returned.set(Some(u64::from(doc.is_some())));
        metrics.cursor_exhausted.set(true);
        let mut reply = Reply::with_capacity(128 + doc.as_ref().map_or(0, |doc| doc.len()));
        let mut projected = Ok(());
        reply.fill(|out| {
            let mut cursor = out.document("cursor");
            let mut batch = cursor.array("firstBatch");
            match (&doc, &self.projection) {
                (Some(doc), Some(projection)) => {
                    let env = Env::new(op.arena()).with_now(op.now_millis());
                    projected = projection.apply(doc.as_raw(), &env, None, &mut batch.document());
                }
                (Some(doc), None) => _ = batch.push_raw_document(doc),
                (None, _) => {}
            }
            drop(batch);
            cursor.append("id", 0i64);
            cursor.append("ns", namespace);
            op.write_metrics(&mut cursor);
        });
        projected?;
        Ok(reply)
    }
}

/// The value of a filter that is exactly `{_id: value}` with a value that equals only itself.
pub fn only_id(filter: RawDoc<'_>) -> Option<Value<'_>> {
    let mut fields = filter.iter();
    let first = fields.next()?;
    if first.key_bytes() != b"_id" || fields.next().is_some() {
        return None;
    }
    match first.kind() {
        Type::ObjectId
        | Type::String
        | Type::Int32
        | Type::Int64
        | Type::Double
        | Type::Binary
        | Type::DateTime
        | Type::Bool
        | Type::Timestamp
        | Type::Decimal128 => Some(first.value()),
        _ => None,
    }
}
