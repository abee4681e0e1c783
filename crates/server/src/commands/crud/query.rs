//! What commands that read share: parsing queries, cursors over plans, cursor replies.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Timestamp};
use sheaf_collation::{Collator, SharedCollator};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::explain::{Rows, Top, stages_of};
use sheaf_exec::plan::Query;
use sheaf_exec::plan::query::Hint;
use sheaf_exec::run::{Executor, Reads};
use sheaf_expr::ParseCx;
use sheaf_query::matcher::{Features, Matcher};
use sheaf_query::sort::FindSort;
use sheaf_rows::{Cx, Limits, Operator, Sorted, report};

use super::resume;
use crate::cursors::{Batch, Filled, ServerCursor};
use crate::op::Operation;
use crate::parked::Changes;
use crate::reply::Reply;

/// Documents of a first batch when no size is asked for.
pub const DEFAULT_BATCH: usize = 101;

/// By this field a client asks for the figures of a query in the reply.
pub const METRICS: &str = "includeQueryStatsMetrics";

/// Pieces of work that a query may do on the connection's own task.
const SHORT_WORKS: u64 = 500;

/// The parse context of a command: its time, its `let`, its API rules.
pub fn parse_cx(op: &Operation<'_>, variables: Option<RawDoc<'_>>) -> Result<ParseCx> {
    let cx = ParseCx::new().with_now(op.now_millis()).with_system(op.system_variables());
    let mut cx = cx.with_api_strict(op.api().strict);
    if let Some(variables) = variables {
        cx.declare_let(variables)?;
    }
    Ok(cx)
}

/// The parse context of a view's definition.
pub fn update_cx(op: &Operation<'_>, variables: Option<RawDoc<'_>>) -> Result<ParseCx> {
    Ok(for_update(op, parse_cx(op, variables)?))
}

/// The same for an update or for a view's definition: a pipeline in it may name `$$CLUSTER_TIME` outside a replica set,
/// too, where it is zero.
pub fn for_update(op: &Operation<'_>, cx: ParseCx) -> ParseCx {
    match op.node().replica() {
        Some(_) => cx,
        None => cx.with_cluster_clock(Some(Arc::new(Timestamp(0)))),
    }
}

/// Parses a filter of a command that is not a pipeline.
pub fn parse_filter(filter: Option<RawDoc<'_>>, cx: &mut ParseCx) -> Result<Matcher> {
    parse_with(filter, Features::All, cx)
}

/// Parses an update's filter.
pub fn parse_update_filter(filter: Option<RawDoc<'_>>, upsert: bool, cx: &mut ParseCx) -> Result<Matcher> {
    parse_with(filter, if upsert { Features::Upsert } else { Features::All }, cx)
}

fn parse_with(filter: Option<RawDoc<'_>>, features: Features, cx: &mut ParseCx) -> Result<Matcher> {
    let matcher = Matcher::parse_with(filter.unwrap_or(RawDoc::EMPTY), features, cx)?;
    cx.finish_as("Failed to optimize expression")?;
    Ok(matcher)
}

/// [`parse_cx`] for what reads or writes a collection: with the command's collation, or else the collection's own.
///
/// Errors: those of the collation; `OptionNotSupportedOnView`.
pub fn collated_cx(
    op: &Operation<'_>,
    namespace: &str,
    collation: Option<RawDoc<'_>>,
    variables: Option<RawDoc<'_>>,
) -> Result<ParseCx> {
    let collator = collator_of(op, namespace, collation)?;
    let mut cx = parse_cx(op, None)?.with_collator(collator);
    if let Some(variables) = variables {
        cx.declare_let(variables)?;
    }
    Ok(cx)
}

/// How a command on this namespace compares strings.
fn collator_of(
    op: &Operation<'_>,
    namespace: &str,
    collation: Option<RawDoc<'_>>,
) -> Result<Option<SharedCollator>> {
    let catalog = op.catalog();
    let collection = catalog.collection(namespace);
    let own = collection.and_then(|collection| collection.collator.as_ref());
    let Some(collation) = collation.filter(|collation| !collation.is_empty()) else {
        return Ok(own.cloned());
    };
    let wanted = Collator::parse(collation)?;
    // Measurements may be compared otherwise, though they are a view.
    let fixed = collection.is_some_and(|collection| collection.is_view() && !collection.is_timeseries());
    if fixed && wanted.as_ref() != own {
        bail!(Code::OPTION_NOT_SUPPORTED_ON_VIEW, "Cannot override a view's default collation: {namespace}");
    }
    Ok(wanted)
}

/// Sets a query's order.
pub fn set_sort(query: &mut Query, sort: Option<RawDoc<'_>>) -> Result<()> {
    let Some(sort) = sort else { return Ok(()) };
    match FindSort::parse(sort)? {
        FindSort::None => return Ok(()),
        FindSort::Natural(backward) => {
            if query.hint != Hint::None && query.hint != Hint::Natural(backward) {
                bail!(Code::BAD_VALUE, "$natural sort cannot be combined with a hint");
            }
            query.hint = Hint::Natural(backward);
        }
        FindSort::Pattern(pattern) => {
            if pattern.needs_text_score() && !query.matcher.as_ref().is_some_and(|matcher| matcher.has_text())
            {
                bail!(40218, "query requires text score metadata, but it is not available");
            }
            let near = query.matcher.as_ref().is_some_and(|matcher| matcher.root().near().is_some());
            if pattern.needs_distance() && !near {
                bail!(40218, "query requires $geoNear distance metadata, but it is not available");
            }
            query.sort = Some(Arc::new(pattern.with_collator(query.collator.as_ref())));
        }
    }
    query.sort_spec = DocBuf::from(sort);
    Ok(())
}

/// A reply's batch as a plan fills it.
struct Filling<'b, 'w>(&'b mut Batch<'w>);

impl sheaf_exec::run::Batch for Filling<'_, '_> {
    fn is_full(&self) -> bool {
        self.0.is_full()
    }
    fn fits(&mut self, bytes: usize) -> bool {
        self.0.fits(bytes)
    }
    fn push(&mut self, document: &[u8]) {
        self.0.push(document);
    }
}

/// A cursor over a plan on one collection.
pub struct PlanCursor {
    executor: Executor,
    reads: Reads,
    limits: Limits,
    tailable: bool,
    await_data: bool,
    /// What the cursor waits for when it comes to its end.
    waits: Option<Changes>,
    /// Where it began, if whoever reads wants to be told where another could go on.
    resumable: Option<Option<Vec<u8>>>,
    /// How many documents may come yet, if there is a limit: it ends a read before all is read.
    left: Option<u64>,
    /// All is read.
    at_end: bool,
    /// The query, where what its stages do is told.
    watched: Option<Box<Query>>,
    /// What was sorted for it so far.
    sorted: Sorted,
}

/// Notes whether something was put on disk for want of memory, where that is told.
pub fn note_disk(op: &Operation<'_>, run: &mut dyn Operator) {
    let metrics = op.metrics();
    if metrics.tells.get() {
        report(run, &mut |figures| {
            metrics.used_disk.set(metrics.used_disk.get() || figures.spilled.count > 0);
        });
    }
}

/// Notes what the stages of a plan have done.
pub fn note_stages(op: &Operation<'_>, query: &Query, run: &mut Executor, rows: Rows, top: Top<'_>) {
    let (figures, plan, collection) = (run.figures(), run.plan().clone(), run.collection().clone());
    let stages = stages_of(query, &collection, &plan, &figures, rows, top);
    op.metrics().plan(|planned| planned.stages = Some(stages));
}

impl PlanCursor {
    /// A cursor over a run that has begun; the run has let go of its state.
    pub fn new(executor: Executor, reads: Reads, query: &Query, await_data: bool, limits: Limits) -> Self {
        let mut executor = executor;
        let start = query.start.as_ref().map(|start| start.record.clone());
        let resumable = query.resumable.then_some(start);
        if resumable.is_some() {
            executor.keep_last();
        }
        PlanCursor {
            executor,
            reads,
            limits,
            tailable: query.tailable,
            await_data,
            waits: None,
            resumable,
            left: query.limit,
            at_end: false,
            watched: None,
            sorted: Sorted::default(),
        }
    }

    /// Tells what its stages do.
    pub fn watched(self, query: Option<Box<Query>>) -> Self {
        PlanCursor { watched: query, ..self }
    }
}

impl ServerCursor for PlanCursor {
    fn fill(&mut self, op: &Operation<'_>, batch: &mut Batch<'_>) -> Result<Filled> {
        self.reads.attach(op.view()?)?;
        if self.await_data {
            self.waits = Some(Changes::on(self.executor.collection()));
        }
        let stop = op.interrupter();
        let interrupt = || stop.check();
        let mut cx = Cx::new(self.limits, &interrupt);
        let before = self.executor.examined();
        // What is short runs right here; what is not may hold the thread up.
        let executor = &mut self.executor;
        let filling = &mut Filling(batch);
        let filled = match executor.fill_some(&mut cx, filling, SHORT_WORKS) {
            Ok(None) => op.blocking(|| executor.fill_some(&mut cx, filling, u64::MAX)),
            other => other,
        };
        note_disk(op, &mut self.executor);
        if let Some(query) = &self.watched {
            let rows = Rows { taken: batch.count() as u64, changed: 0 };
            note_stages(op, query, &mut self.executor, rows, Top::Find);
        }
        self.executor.suspend();
        self.reads.detach();
        let done = filled?.unwrap_or(true);
        op.metrics().examined(before, self.executor.examined());
        if self.executor.plan().blocks() {
            op.metrics().sorts.set(1);
            let before = std::mem::replace(&mut self.sorted, self.executor.sorted());
            op.count_sorted(self.sorted.since(before));
        }
        self.left = self.left.map(|left| left.saturating_sub(batch.count() as u64));
        self.at_end = done && !self.tailable && self.left != Some(0);
        Ok(if done { Filled::Exhausted } else { Filled::More })
    }

    fn waits(&self, _asked: bool) -> Option<Changes> {
        self.waits.clone()
    }

    fn resume_token(&self) -> Option<DocBuf> {
        let start = self.resumable.as_ref()?;
        if self.at_end {
            return Some(resume::token(None));
        }
        Some(resume::token(self.executor.last().or(start.as_deref())))
    }

    fn is_tailable(&self) -> bool {
        self.tailable
    }

    fn is_await_data(&self) -> bool {
        self.await_data
    }

    fn plan_summary(&self) -> String {
        self.executor.plan().summary()
    }
}

/// Room for a reply without large documents.
const SMALL_REPLY_BYTES: usize = 1024;

/// As much as a batch may hold.
const MAX_BATCH_BYTES: u64 = 16 << 20;

/// Answers with a new cursor's first batch; keeps the cursor if there is more.
pub fn first_batch(
    op: &Operation<'_>,
    namespace: &str,
    cursor: Box<dyn ServerCursor>,
    batch_size: Option<usize>,
    single_batch: bool,
    no_timeout: bool,
) -> Result<Reply> {
    let mut cursor = cursor;
    let documents = batch_size.unwrap_or(DEFAULT_BATCH);
    let mut reply = Reply::with_capacity(batch_room(op, namespace, Some(documents)));
    let mut result = Ok(Filled::More);
    let mut returned = 0;
    reply.fill(|doc| {
        let mut body = doc.document("cursor");
        let mut batch = Batch::new(body.array("firstBatch"), Some(documents));
        result = cursor.fill(op, &mut batch);
        returned = batch.count();
        if let Some(error) = batch.cut().filter(|_| single_batch) {
            // Nobody would fetch the rest.
            result = Err(error);
        }
        drop(batch);
        if let Some(token) = cursor.resume_token() {
            body.append("postBatchResumeToken", &token);
        }
        let id = match &result {
            Ok(Filled::More) if !single_batch => op.keep(namespace, no_timeout, cursor),
            _ => 0,
        };
        op.metrics().cursor_id.set((id != 0).then_some(id));
        op.metrics().cursor_exhausted.set(id == 0);
        body.append("id", id);
        body.append("ns", namespace);
        if let Some(time) = op.at_cluster_time() {
            body.append("atClusterTime", time);
        }
        op.write_metrics(&mut body);
    });
    result?;
    op.metrics().returned.set(Some(returned as u64));
    Ok(reply)
}

/// Room that a batch of so many of the collection's documents is likely to take, so that a large reply is not moved
/// again and again while it grows. What is not used is never touched.
pub fn batch_room(op: &Operation<'_>, namespace: &str, limit: Option<usize>) -> usize {
    let catalog = op.catalog();
    let Some(collection) = catalog.collection(namespace) else { return SMALL_REPLY_BYTES };
    let (count, bytes) = (collection.count().max(1), collection.data_bytes());
    let documents = limit.map_or(count, |limit| count.min(limit as u64));
    // A name (its number) and a type per document; a little more, because documents differ.
    let each = (bytes / count + 8).saturating_mul(9) / 8;
    SMALL_REPLY_BYTES + documents.saturating_mul(each).min(MAX_BATCH_BYTES) as usize
}

/// The answer of a cursor on nothing.
pub fn empty_cursor(op: &Operation<'_>, namespace: &str) -> Reply {
    Reply::ok().with_document("cursor", |cursor| {
        drop(cursor.array("firstBatch"));
        cursor.append("id", 0i64);
        cursor.append("ns", namespace);
        if let Some(time) = op.at_cluster_time() {
            cursor.append("atClusterTime", time);
        }
        op.write_metrics(cursor);
    })
}

/// Whether an operation may use files where its memory does not suffice: what it says, or `allowDiskUseByDefault`.
pub(super) fn disk_use(op: &Operation<'_>, asked: Option<bool>) -> bool {
    asked.unwrap_or_else(|| op.node().parameters.bool("allowDiskUseByDefault"))
}

/// The term of a set's elections has no sense for a server that is in none.
///
/// Errors: `BadValue`.
pub(super) fn check_term(op: &Operation<'_>, given: bool) -> Result<()> {
    if given && op.node().options.set_name.is_none() {
        bail!(Code::BAD_VALUE, "cannot supply 'term' without active replication");
    }
    Ok(())
}
