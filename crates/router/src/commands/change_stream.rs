//! Change streams: opening one on all shards, and its batches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_aggregate::stages::change_stream::{ChangeStream, ResumeToken, Start};
use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_bson::{DocBuf, RawDoc, Timestamp};
use sheaf_cluster::{ELECTION, no_longer_than};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_exec::change_stream::StreamPosition;
use sheaf_front::args::{Args, NonNegative};
use sheaf_front::concern::ReadLevel;
use sheaf_front::cursors::{Batch, CursorInfo, OpenCursors, Pinned};
use sheaf_front::outcome::Parked;
use sheaf_front::reply::Reply;
use sheaf_front::role::{Cause, Coming};
use sheaf_rows::{BoxOperator, Cx, Limits, Operator, Step};

use crate::addressed::Addressed;
use crate::cursor::RouterCursor;
use crate::database::ClusterDatabase;
use crate::forward::{self, Body};
use crate::gather::{Cluster, Current, Link, Reads};
use crate::op::Operation;
use crate::router::Router;
use crate::streams::{Input, Inputs, Known, Opening, StreamCursor, StreamSource, answers, looks_up};
use crate::target::Target;

/// How long `getMore` waits when the client names no time.
const DEFAULT_WAIT: Duration = Duration::from_secs(1);

/// Documents of a first batch when no size is asked for.
const DEFAULT_BATCH: usize = 101;

/// Opens a stream on all shards: a collection may come to be on any of them.
///
/// Errors: those of the pipeline and of the shards.
pub fn open(op: &Operation<'_>, namespace: &Namespace, pipeline: &Pipeline) -> Result<Reply> {
    let Some(stream) = pipeline.change_stream() else { bail!(Code::INTERNAL_ERROR, "no change stream") };
    check(op)?;
    let cursor = op.body().get("cursor").and_then(|cursor| cursor.as_doc()).unwrap_or(RawDoc::EMPTY);
    let size = Args::of_part("aggregate.cursor", cursor)?.optional::<NonNegative>("batchSize")?;
    let size = size.map_or(DEFAULT_BATCH, |size| size.0 as usize);
    let shown = match namespace.collection.is_empty() {
        true => op.namespace("$cmd.aggregate"),
        false => namespace.to_string(),
    };
    op.metrics().namespace.replace(Some(shown.clone()));
    let mut stream = on_all_shards(op, stream, pipeline)?;
    let mut reply = Reply::with_capacity(1024);
    let mut filled = Ok(true);
    let mut returned = 0;
    reply.fill(|out| {
        let mut body = out.document("cursor");
        let mut batch = Batch::new(body.array("firstBatch"), Some(size));
        filled = fill(op, &mut stream, &mut batch);
        returned = batch.count();
        drop(batch);
        body.append("postBatchResumeToken", &stream.token);
        let id = match filled {
            Ok(true) => op.router.cursors.register(op, &shown, false, RouterCursor::Stream(Box::new(stream))),
            _ => 0,
        };
        op.metrics().cursor_id.set((id != 0).then_some(id));
        op.metrics().cursor_exhausted.set(id == 0);
        body.append("id", id).append("ns", &*shown);
    });
    filled?;
    op.metrics().returned.set(Some(returned as u64));
    Ok(reply)
}

fn check(op: &Operation<'_>) -> Result<()> {
    if op.in_transaction() {
        bail!(
            Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            "Stage not supported inside of a multi-document transaction: $changeStream"
        );
    }
    let level = op.generic.read_concern.and_then(|concern| concern.level);
    if !matches!(level, None | Some(ReadLevel::Majority)) {
        bail!(Code::INVALID_OPTIONS, "$changeStream cannot run with a readConcern other than 'majority'");
    }
    if op.body().get("cursor").is_none() {
        bail!(
            Code::FAILED_TO_PARSE,
            "The 'cursor' option is required, except for aggregate with the explain argument"
        );
    }
    Ok(())
}

fn on_all_shards(
    op: &Operation<'_>,
    stream: &Arc<ChangeStream>,
    pipeline: &Pipeline,
) -> Result<StreamCursor> {
    let go_on = || op.check_interrupt();
    // What the client has seen, by whichever router, is before.
    let now = op.router.present().max(op.generic.cluster_time.unwrap_or(Timestamp(0)));
    let opening = Opening::new(op.db(), op.body(), stream, now);
    let link = link(op);
    // What is done to the shards from here on is told; those that there are now are read.
    let known = op.blocking(|| opening.known(&link, now, &no_longer_than(ELECTION, &go_on)));
    if let Err(error) = &known {
        go_on()?;
        tracing::debug!(%error, "a change stream does not hear who comes to be a shard");
    }
    let known = known.ok();
    let inputs = op.blocking(|| shards(op, &opening, &link, known.as_ref(), &go_on))?;
    let token = match &stream.start {
        Start::Now => ResumeToken::high_water_mark(now.0 + 1),
        Start::At(time) => ResumeToken::high_water_mark(*time),
        Start::After(token) => token.clone(),
    };
    let documents =
        looks_up(stream).then(|| ClusterDatabase::new(op.router, link.clone(), op.body(), false).shared());
    let inputs =
        Arc::new(Mutex::new(Inputs::new(link.clone(), opening, inputs, known.map(|known| known.watch))));
    let position = Arc::new(Mutex::new(StreamPosition::at(token)));
    let source = StreamSource::new(inputs.clone(), position.clone(), documents.clone());
    let run: BoxOperator = match &documents {
        // Shards have run the stages.
        None => Box::new(source),
        Some(documents) => pipeline.open_from(1, Box::new(source), documents),
    };
    let limits = Limits { now_millis: op.now_millis(), ..Limits::default() };
    let token = position.lock().token();
    Ok(StreamCursor { run, inputs, position, link, limits, waiting: None, token })
}

/// The way to the shards; documents are looked up as a majority has them.
fn link(op: &Operation<'_>) -> Arc<Link> {
    let to = Cluster {
        directory: op.router.directory.clone(),
        clock: op.router.clock.clone(),
        abandoned: op.router.abandoned.clone(),
        rights: op.rights.clone(),
        local_threshold: op.router.local_threshold(),
    };
    let concern = op.body().get("readConcern").and_then(|concern| concern.as_doc());
    let body = DocBuf::build(|out| {
        for field in op.body().iter().filter(|field| field.key() != "readConcern") {
            out.append_element(field);
        }
        let mut read_concern = out.document("readConcern");
        read_concern.append("level", "majority");
        if let Some(after) = concern.and_then(|concern| concern.get("afterClusterTime")) {
            read_concern.append("afterClusterTime", after);
        }
    });
    Link::new(to, body.as_raw(), Reads { at: None, in_transaction: false, writes: false, settings: None })
}

/// Opens it on all shards that there are, or on those that this router knows where the config servers do not answer.
fn shards(
    op: &Operation<'_>,
    opening: &Opening,
    link: &Link,
    known: Option<&Known>,
    go_on: &dyn Fn() -> Result<()>,
) -> Result<Vec<Input>> {
    let directory = &op.router.directory;
    let mut inputs = Vec::new();
    let all = match known {
        Some(known) => {
            for (name, added) in known.late(opening) {
                inputs.extend(opening.on_late_shard(link, name, added, &known.changes, go_on)?);
            }
            let all = known.early(opening).map(|name| directory.shard(name, go_on).map(Target::Shard));
            all.collect::<Result<Vec<_>>>()?
        }
        // Who is added is heard of later.
        None => directory.shards(go_on)?.into_iter().map(Target::Shard).collect(),
    };
    if all.is_empty() && inputs.is_empty() {
        bail!(Code::SHARD_NOT_FOUND, "No shards found");
    }
    let all: Vec<Addressed> = all.into_iter().map(Addressed::from).collect();
    let command = general(op, opening.command());
    let answers = forward::ask_each(op, &all, &Body { db: opening.db(), body: command.as_raw() })?;
    let mut failed = None;
    for (to, answer) in all.iter().zip(answers) {
        match answer.and_then(|answer| Input::of(&op.router.abandoned, &to.target, &answer)) {
            Ok(input) => inputs.push(input),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    for input in &mut inputs {
        if known.is_some_and(|known| known.is_draining(input.name())) {
            input.may_leave();
        }
    }
    match failed {
        None => Ok(inputs),
        Some(error) => Err(error),
    }
}

/// The command with what of the client's goes with each request.
fn general(op: &Operation<'_>, command: DocBuf) -> DocBuf {
    DocBuf::build(|out| {
        out.append_all(command.as_raw());
        for field in op.body().iter() {
            if matches!(
                field.key(),
                "lsid"
                    | "apiVersion"
                    | "apiStrict"
                    | "comment"
                    | "$readPreference"
                    | "readConcern"
                    | "maxTimeMS"
            ) {
                out.append_element(field);
            }
        }
    })
}

/// Adds the events that can be told to a batch; whether the stream goes on.
fn fill(op: &Operation<'_>, stream: &mut StreamCursor, batch: &mut Batch<'_>) -> Result<bool> {
    let link = stream.link.clone();
    let lent = Current { cluster_time: op.generic.cluster_time, ..Current::default() };
    let (filled, back) = link.during(lent, || op.blocking(|| fill_here(op, stream, batch)));
    op.note_time(Timestamp(back.time));
    filled
}

fn fill_here(op: &Operation<'_>, stream: &mut StreamCursor, batch: &mut Batch<'_>) -> Result<bool> {
    let stop = op.interrupter();
    let interrupt = || stop.check();
    let mut cx = Cx::new(stream.limits, &interrupt);
    let filled = fill_with(stream, &mut cx, batch);
    stream.run.suspend();
    filled
}

fn fill_with(stream: &mut StreamCursor, cx: &mut Cx<'_>, batch: &mut Batch<'_>) -> Result<bool> {
    loop {
        if batch.is_full() {
            return Ok(true);
        }
        if stream.waiting.is_none() {
            cx.check_interrupt()?;
            match stream.run.work(cx)? {
                Step::Row => {}
                Step::More => continue,
                Step::Eof => {
                    let position = stream.position.lock();
                    stream.token = position.token();
                    return Ok(!position.has_ended());
                }
            }
        }
        let document = match &stream.waiting {
            Some(waiting) => waiting.as_raw(),
            None => stream.run.row().document(),
        };
        sheaf_aggregate::check_output_size(document)?;
        if !batch.fits(document.len()) {
            stream.waiting = Some(DocBuf::from(document));
            return Ok(true);
        }
        let mut position = stream.position.lock();
        position.follow(document)?;
        stream.token = position.token();
        drop(position);
        batch.push(document.as_bytes());
        stream.waiting = None;
        stream.run.release();
    }
}

/// The next batch. Where there is nothing to tell, the request waits without a thread until a shard answers, and runs again.
///
/// Errors: those of shards, upon which the stream is closed: the client opens another one behind what it has.
pub fn next(
    op: &Operation<'_>,
    id: i64,
    namespace: &str,
    mut pinned: Pinned<'_, RouterCursor>,
) -> Result<Reply> {
    let began = Instant::now();
    let info = pinned.info().clone();
    let patience = op.max_time_ms().filter(|ms| *ms > 0).map(Duration::from_millis);
    // One that was parked goes on waiting where it left off.
    let parked = info.await_until.lock().take();
    let until = parked.unwrap_or_else(|| began + patience.unwrap_or(DEFAULT_WAIT));
    let size = Args::of_document("getMore", op.body())?.optional::<NonNegative>("batchSize")?;
    let limit = size.map(|size| size.0 as usize).filter(|size| *size > 0);
    let RouterCursor::Stream(stream) = pinned.cursor() else { bail!(Code::INTERNAL_ERROR, "no such cursor") };
    let go_on = || op.check_interrupt();
    let inputs = stream.inputs.clone();
    op.blocking(|| inputs.lock().receive(parked.is_some(), &go_on))?;
    let mut reply = Reply::with_capacity(4096);
    let (mut filled, mut returned) = (Ok(true), 0);
    reply.fill(|out| {
        let mut body = out.document("cursor");
        let mut batch = Batch::new(body.array("nextBatch"), limit);
        filled = fill(op, stream, &mut batch);
        returned = batch.count();
        drop(batch);
        body.append("postBatchResumeToken", &stream.token);
        let is_open = matches!(filled, Ok(true)) && !info.is_killed();
        body.append("id", if is_open { id } else { 0 }).append("ns", namespace);
    });
    let more = filled.map_err(|error| error.context("Executor error during getMore"))?;
    if info.is_killed() && returned == 0 {
        bail!(Code::CURSOR_KILLED, "cursor was killed");
    }
    if more {
        // While the client looks at these, shards look for the next ones.
        let wait = patience.unwrap_or(DEFAULT_WAIT).as_millis() as u64;
        op.blocking(|| inputs.lock().ask(wait, &go_on))?;
        if returned == 0 && Instant::now() < until {
            let (sockets, look) = {
                let inputs = inputs.lock();
                (inputs.sockets().map_err(no_room)?, inputs.look_at().map_or(until, |look| look.min(until)))
            };
            *info.await_until.lock() = Some(until);
            pinned.release(0);
            let cause = Answers { router: op.router.clone(), info, sockets: Mutex::new(sockets) };
            op.parked.replace(Some(Parked { until: Some(look), cause: Box::new(cause) }));
            return Ok(reply);
        }
    }
    op.metrics().returned.set(Some(returned as u64));
    op.metrics().cursor_id.set(Some(id));
    op.metrics().cursor_exhausted.set(!more);
    if more {
        pinned.release(returned);
    }
    Ok(reply)
}

fn no_room(error: std::io::Error) -> Error {
    Error::new(Code::INTERNAL_ERROR, format!("a change stream cannot wait: {error}"))
}

/// Answers of shards that a stream waits for.
struct Answers {
    router: Arc<Router>,
    info: Arc<CursorInfo>,
    sockets: Mutex<Vec<std::net::TcpStream>>,
}

impl Cause for Answers {
    fn over(&self) -> Coming<'_, ()> {
        Box::pin(async {
            let sockets = std::mem::take(&mut *self.sockets.lock());
            tokio::select! {
                () = answers(sockets) => {}
                () = self.info.wake.notified() => {}
            }
        })
    }

    fn stopped(&self) -> Option<Error> {
        self.info.is_killed().then(|| Error::new(Code::CURSOR_KILLED, "cursor was killed"))
    }

    fn abandon(&self) {
        self.router.cursors.kill(self.info.id);
    }
}
