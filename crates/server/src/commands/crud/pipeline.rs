//! Pipelines as cursors: what `aggregate`, reads of views and `distinct` and `count` on views share.

use std::sync::Arc;

use sheaf_aggregate::stages::change_stream::{ChangeStream, Watched};
use sheaf_aggregate::{Database, Namespace, Pipeline, StatsSource};
use sheaf_auth::UserName;
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::change_stream::SharedPosition;
use sheaf_exec::database::{Db, Hooks, IsSpread, MayReplace};
use sheaf_exec::plan::query::Hint;
use sheaf_expr::ParseCx;
use sheaf_front::access::Rights;
use sheaf_front::operations;
use sheaf_rows::{BoxOperator, Cx, Limits, Operator, Sorted, Step, examined, pull, sorted};

use super::query::note_disk;
use crate::commands::timeseries::make_view;
use crate::cursors::{Batch, Filled, ServerCursor};
use crate::node::Node;
use crate::op::Operation;
use crate::parked::Changes;

/// The database of one pipeline, which reads what the command reads. The hint holds for this namespace.
pub fn database(op: &Operation<'_>, hint: Option<(&Namespace, Hint)>, bypass_validation: bool) -> Result<Db> {
    let (node, metrics, rights) = (op.node().clone(), op.node().clone(), op.rights.clone());
    let maker = op.node().clone();
    let hooks = Hooks {
        server_stats: Box::new(move |source, spec| server_documents(&node, &rights, source, spec)),
        latency_stats: Box::new(move |namespace, histograms| {
            let latencies = metrics.metrics.latencies_of(namespace);
            DocBuf::build(|out| crate::metrics::write_latencies(out, &latencies, histograms))
        }),
        system: op.system_variables(),
        new_object_id: crate::node::new_object_id,
        make_view: Box::new(move |namespace, options, interrupt| {
            make_view(&maker, namespace, options, interrupt)
        }),
        open_buckets: op.node().open_buckets.clone(),
        random: rand::random,
        host: op.node().host_and_port(),
        shard: op.node().sharding().and_then(|sharding| sharding.shard_name()).map(str::to_owned),
        in_transaction: op.in_transaction(),
        bypass_validation,
        is_profiled: op.is_profiled(),
        report: crate::log::events::failed_validation,
        may_replace: may_replace(op),
        is_spread: is_spread(op),
    };
    Ok(Db::new(op.engine().clone(), op.reads(op.view()?), hooks, hint))
}

/// How `$out` learns what it must leave alone, whoever has asked for it: a router may not know yet that a collection is sharded.
fn may_replace(op: &Operation<'_>) -> Option<MayReplace> {
    let node = op.node().clone();
    node.sharding()?;
    Some(Box::new(move |target, shown| {
        let Some(sharding) = node.sharding() else { return Ok(()) };
        match sharding.placements().now(node.engine(), &node.engine().catalog(), &target.uuid)? {
            Some(_) => bail!(28769, "{shown} cannot be sharded"),
            None => Ok(()),
        }
    }))
}

/// How pipelines learn what is sharded, where the command came through a router.
fn is_spread(op: &Operation<'_>) -> Option<IsSpread> {
    op.generic.shard_version.as_ref()?;
    let node = op.node().clone();
    node.sharding()?;
    Some(Box::new(move |view, collection| {
        let Some(sharding) = node.sharding() else { return Ok(false) };
        Ok(sharding.placements().in_view(view, &collection.uuid)?.is_some())
    }))
}

/// By what sessions name these users.
pub fn digests(users: RawDoc<'_>) -> Vec<[u8; 32]> {
    let names = users.values().filter_map(|user| UserName::read(user.as_doc()?));
    names.map(|name| sheaf_auth::user_digest(&name)).collect()
}

/// The documents of the stages that show what the server does.
fn server_documents(
    node: &Arc<Node>,
    rights: &Rights,
    source: StatsSource,
    spec: RawDoc<'_>,
) -> Result<Vec<DocBuf>> {
    // Without rights for all, one's own.
    let of_all = rights.are_everything() || spec.get("allUsers").is_some_and(|all| all.truthy());
    match source {
        StatsSource::ListLocalSessions | StatsSource::ListSessions => {
            let mut sessions = node.sessions.list();
            let named = spec.get("users").and_then(|users| users.as_array()).unwrap_or(RawDoc::EMPTY);
            let of_users = digests(named);
            let own = rights.account().map(|account| account.digest());
            sessions.retain(|session| match of_users.as_slice() {
                [] => of_all || (own.is_some() && session.id.uid == own),
                users => session.id.uid.is_some_and(|uid| users.contains(&uid)),
            });
            sessions.sort_by_key(|session| session.id);
            sessions.dedup_by_key(|session| session.id);
            let shown = sessions.iter().map(|session| {
                DocBuf::build(|out| {
                    session.id.write(out, "_id");
                    out.append("lastUse", Value::DateTime(node.last_use_millis(session)));
                })
            });
            Ok(shown.collect())
        }
        StatsSource::ListSampledQueries => crate::sampling::list(node, spec),
        StatsSource::QueryStats => Ok(node.query_stats.list(spec, node.clock.now_millis(), &*node.cursors)),
        StatsSource::QuerySettings => {
            let with_shape = spec.get("showDebugQueryShape").is_some_and(|flag| flag.truthy());
            node.query_settings.list(with_shape)
        }
        _ => {
            if node.sharding().is_none() && spec.get("targetAllNodes").is_some_and(|all| all.truthy()) {
                bail!(
                    Code::FAILED_TO_PARSE,
                    "The 'targetAllNodes' parameter of the $currentOp stage is only supported on mongos"
                );
            }
            let idle = spec.get("idleConnections").is_some_and(|v| v.truthy());
            let mut all = operations::under_way(node, &*node.cursors, idle);
            if spec.get("idleCursors").is_some_and(|v| v.truthy()) {
                all.extend(operations::idle_cursors(node, &*node.cursors));
            }
            if spec.get("idleSessions").is_none_or(|v| v.truthy()) {
                all.extend(node.idle_transactions());
            }
            all.extend(node.resharding_operations());
            all.extend(node.sampling.operations(false));
            all.retain(|operation| of_all || operations::is_of(operation.as_raw(), rights));
            Ok(all)
        }
    }
}

/// Pieces of work that a stream may do on the connection's own task.
const SHORT_WORKS: u64 = 20;

/// A cursor over a pipeline.
pub struct PipelineCursor {
    run: BoxOperator,
    db: Db,
    limits: Limits,
    /// A document that did not fit the last batch.
    waiting: Option<DocBuf>,
    summary: String,
    /// What a cursor on a change stream has besides.
    stream: Option<StreamCursor>,
    /// What was sorted for it so far.
    sorted: Sorted,
}

/// A change stream, as its cursor sees it.
struct StreamCursor {
    /// Where the source stands; it may be ahead of what was sent.
    position: SharedPosition,
    /// Behind what was sent.
    token: DocBuf,
    /// All is sent that is committed before this time.
    sent_before: u64,
    /// The last answer has told all that is committed before this time.
    answered: u64,
    /// The collection that is watched; databases and clusters are watched through the log.
    collection: Option<String>,
    /// What can bring something: the watched collection, if it is there, and the log.
    own: Option<Changes>,
    log: Option<Changes>,
    /// Whether an event comes only with the commit point.
    in_set: bool,
}

impl StreamCursor {
    fn of(stream: &ChangeStream, position: SharedPosition) -> Self {
        let collection = match &stream.watched {
            Watched::Collection(namespace) => Some(namespace.clone()),
            Watched::Database(_) | Watched::Cluster => None,
        };
        let token = position.lock().token();
        StreamCursor {
            position,
            token,
            sent_before: 0,
            answered: 0,
            collection,
            own: None,
            log: None,
            in_set: false,
        }
    }

    /// Notes what a stream that comes to its end now has to wait for; before it reads.
    fn prepare(&mut self, op: &Operation<'_>) {
        let catalog = op.catalog();
        let own = self.collection.as_ref().and_then(|namespace| catalog.collection(namespace));
        self.own = own.map(Changes::on);
        self.log = catalog.oplog().map(Changes::on);
        self.in_set = op.node().replica().is_some();
    }

    /// What it waits for, having come to its end.
    fn waits(&self, asked: bool) -> Option<Changes> {
        // A collection that does not exist may be made by any commit. In a set, an event comes when the commit point
        // does, of which only the log hears, and so does the answer to who asks how far this is; but what others write before that is
        // nothing to wake up for.
        let by_log = self.in_set && (asked || !self.position.lock().is_quiet());
        let own = self.own.as_ref().filter(|_| !by_log);
        own.or(self.log.as_ref()).cloned()
    }

    /// A document goes out, or all is read.
    fn sent(&mut self, document: Option<RawDoc<'_>>) -> Result<()> {
        let mut position = self.position.lock();
        if let Some(document) = document {
            position.follow(document)?;
        }
        (self.token, self.sent_before) = (position.token(), position.time());
        Ok(())
    }
}

impl PipelineCursor {
    /// Starts a pipeline on a collection or view.
    pub fn open(
        op: &Operation<'_>,
        namespace: &Namespace,
        pipeline: &Arc<Pipeline>,
        hint: Hint,
        allow_disk_use: Option<bool>,
        bypass_validation: bool,
    ) -> Result<Self> {
        let db = database(op, Some((namespace, hint)), bypass_validation)?;
        let allow_disk_use = super::query::disk_use(op, allow_disk_use);
        let limits = Limits { allow_disk_use, now_millis: op.now_millis(), ..Limits::default() };
        let stop = op.interrupter();
        let interrupt = || stop.check();
        let mut run = db.run(namespace, pipeline, &mut Cx::new(limits, &interrupt))?;
        run.suspend();
        db.reads().detach();
        let summary = match db.head() {
            None => String::new(),
            Some(head) => {
                op.note_plan(head.summary.clone(), head.chosen);
                head.summary
            }
        };
        let stream = pipeline.change_stream().zip(db.change_stream());
        let stream = stream.map(|(stream, position)| StreamCursor::of(stream, position));
        let sorted = Sorted::default();
        Ok(PipelineCursor { run, db, limits, waiting: None, summary, stream, sorted })
    }

    /// Pulls rows at the state that the command reads; afterwards the cursor holds nothing of it.
    fn pulling<T>(
        &mut self,
        op: &Operation<'_>,
        work: impl FnOnce(&mut Self, &mut Cx<'_>) -> Result<T>,
    ) -> Result<T> {
        self.db.reads().attach(op.view()?)?;
        let stop = op.interrupter();
        let interrupt = || stop.check();
        let before = examined(&mut *self.run);
        let result = work(self, &mut Cx::new(self.limits, &interrupt));
        self.run.suspend();
        if let Some(watch) = self.db.head().and_then(|head| head.watch) {
            op.metrics().plan(|planned| planned.stages = Some(watch.stages()));
        }
        note_disk(op, &mut *self.run);
        let after = examined(&mut *self.run);
        self.db.reads().detach();
        op.metrics().examined(before, after);
        if let Some(sorted) = sorted(&mut *self.run) {
            op.metrics().sorts.set(1);
            let before = std::mem::replace(&mut self.sorted, sorted);
            op.count_sorted(sorted.since(before));
        }
        if let Some(position) = self.db.take_committed() {
            op.note_commit(position);
        }
        result
    }

    /// Runs to the end and hands each document over.
    pub fn each(&mut self, op: &Operation<'_>, mut take: impl FnMut(RawDoc<'_>) -> Result<()>) -> Result<()> {
        self.pulling(op, |cursor, cx| {
            while pull(&mut cursor.run, cx)? {
                take(cursor.run.row().document())?;
            }
            Ok(())
        })
    }
}

impl ServerCursor for PipelineCursor {
    fn fill(&mut self, op: &Operation<'_>, batch: &mut Batch<'_>) -> Result<Filled> {
        if let Some(stream) = &mut self.stream {
            stream.prepare(op);
            // A stream has little to read, mostly: that needs no thread.
            if let Some(filled) = self.pulling(op, |cursor, cx| cursor.fill_some(batch, cx, SHORT_WORKS))? {
                return Ok(filled);
            }
        }
        // What a batch costs nobody knows before: a group by a million keys comes first, perhaps.
        let filled = op.blocking(|| self.pulling(op, |cursor, cx| cursor.fill_some(batch, cx, u64::MAX)))?;
        Ok(filled.expect("a batch is full or at its end, whatever that takes"))
    }

    fn waits(&self, asked: bool) -> Option<Changes> {
        self.stream.as_ref()?.waits(asked)
    }

    fn resume_token(&self) -> Option<DocBuf> {
        Some(self.stream.as_ref()?.token.clone())
    }

    fn promise(&mut self, time: u64) {
        if let Some(stream) = &self.stream {
            stream.position.lock().promise(time);
        }
    }

    fn note_answer(&mut self) {
        if let Some(stream) = &mut self.stream {
            stream.answered = stream.sent_before;
        }
    }

    fn was_answered_up_to(&self, time: u64) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.answered > time)
    }

    fn is_known_up_to(&self, time: u64) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.position.lock().is_behind(time))
    }

    fn is_tailable(&self) -> bool {
        self.stream.is_some()
    }

    fn is_await_data(&self) -> bool {
        self.stream.is_some()
    }

    fn plan_summary(&self) -> String {
        self.summary.clone()
    }
}

impl PipelineCursor {
    /// Fills the batch, or gives up (`None`) after so many pieces of work.
    fn fill_some(
        &mut self,
        batch: &mut Batch<'_>,
        cx: &mut Cx<'_>,
        mut works: u64,
    ) -> Result<Option<Filled>> {
        loop {
            if batch.is_full() {
                return Ok(Some(Filled::More));
            }
            if self.waiting.is_none() {
                cx.check_interrupt()?;
                match self.run.work(cx)? {
                    Step::Row => {}
                    Step::Eof => return self.at_end().map(Some),
                    Step::More if works == 0 => return Ok(None),
                    Step::More => {
                        works -= 1;
                        continue;
                    }
                }
            }
            let document = match &self.waiting {
                Some(waiting) => waiting.as_raw(),
                None => self.run.row().document(),
            };
            sheaf_aggregate::check_output_size(document)?;
            if !batch.fits(document.len()) {
                self.waiting = Some(DocBuf::from(document));
                return Ok(Some(Filled::More));
            }
            if let Some(stream) = &mut self.stream {
                stream.sent(Some(document))?;
            }
            batch.push(document.as_bytes());
            self.waiting = None;
            self.run.release();
        }
    }

    /// No more documents, or none now.
    fn at_end(&mut self) -> Result<Filled> {
        let Some(stream) = &mut self.stream else { return Ok(Filled::Exhausted) };
        let ended = stream.position.lock().has_ended();
        stream.sent(None)?;
        Ok(if ended { Filled::Exhausted } else { Filled::More })
    }
}

/// Parses a pipeline.
pub fn parse(stages: RawDoc<'_>, namespace: &Namespace, cx: &mut ParseCx) -> Result<Arc<Pipeline>> {
    let pipeline = Pipeline::parse(stages, namespace, cx)?;
    cx.finish()?;
    Ok(Arc::new(pipeline))
}
