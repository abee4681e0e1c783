//! `getMore`.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sheaf_bson::Timestamp;
use sheaf_errors::{Code, Result, bail};

use super::change_stream;
use super::query::{METRICS, batch_room};
use crate::args::{Args, NonNegative};
use crate::command::*;
use crate::cursors::{Batch, Filled, OpenCursors};
use crate::op::Operation;
use crate::parked::Waits;
use crate::read;
use crate::reply::Reply;

/// How long an awaitData cursor waits when the client names no time.
const DEFAULT_WAIT: Duration = Duration::from_secs(1);

/// `{getMore: <id>, collection: "users", batchSize: 100}`
pub struct GetMore<'a> {
    id: i64,
    collection: &'a str,
    batch_size: Option<u64>,
    /// A router has come as far with other shards' streams: the answer comes when this one has, too.
    up_to: Option<Timestamp>,
    /// Whether the reply is to have figures.
    tells: bool,
    /// Whether a term of elections is given, as members do.
    has_term: bool,
}

impl<'a> Command<'a, Operation<'a>> for GetMore<'a> {
    const NAME: &'static str = "getMore";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "returns the next documents of a cursor",
        access: Access::Read,
        transaction: Transaction::Allowed,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::READ,
        privileges: Privileges::ByCommand(
            "those of the command that opened the cursor, of the user who opened it",
            // The cursor knows whose it is.
            |_, _| true,
        ),
        spread: Spread::CursorOwners,
        counter: Counter::GetMore,
        threads: Threads::Data,
        ends_with_client: true,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let id = match args.own_value() {
            sheaf_bson::Value::Int64(id) => id,
            sheaf_bson::Value::Null => {
                bail!(40414, "BSON field 'getMore.getMore' is missing but a required field")
            }
            other => bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'getMore.getMore' is the wrong type '{}', expected type 'long'",
                other.type_name()
            ),
        };
        let collection: &str = args.required("collection")?;
        if collection.is_empty() {
            bail!(Code::INVALID_NAMESPACE, "Collection names cannot be empty");
        }
        let batch_size = args.optional::<NonNegative>("batchSize")?.map(|n| n.0 as u64);
        let up_to = match args.value("upTo") {
            sheaf_bson::Value::Timestamp(time) => Some(time),
            _ => None,
        };
        let has_term = match args.value("term") {
            sheaf_bson::Value::Missing | sheaf_bson::Value::Null => false,
            sheaf_bson::Value::Int64(_) => true,
            other => bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'getMore.term' is the wrong type '{}', expected type 'long'",
                other.type_name()
            ),
        };
        args.optional::<sheaf_bson::RawDoc<'a>>("lastKnownCommittedOpTime")?;
        let tells = args.optional::<bool>(METRICS)?.unwrap_or(false);
        Ok(GetMore { id, collection, batch_size, up_to, has_term, tells })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        op.metrics().tells.set(self.tells);
        super::query::check_term(op, self.has_term)?;
        let opened = op.node().cursors.info(self.id);
        let is_stream = opened.is_some_and(|info| change_stream::is_opened_by(info.command.as_raw()));
        let result = self.next_batch(op);
        if is_stream { result.map_err(change_stream::labelled) } else { result }
    }
}

impl GetMore<'_> {
    fn next_batch(self, op: &Operation<'_>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        let mut pinned = op.node().cursors.pin(op, self.id, &namespace)?;
        let awaits = pinned.cursor().cursor.is_await_data();
        // `maxTimeMS` of a getMore is how long an awaitData cursor waits, not a limit on work.
        let patience = op.max_time_ms().filter(|ms| *ms > 0).map(Duration::from_millis);
        if patience.is_some() && !awaits {
            bail!(Code::BAD_VALUE, "cannot set maxTimeMS on getMore command for a non-awaitData cursor");
        }
        let began = Instant::now();
        let info = pinned.info().clone();
        op.metrics().cursor.replace(Some(info.clone()));
        if !op.in_transaction() {
            op.read_concern.set(info.read_concern);
            op.snapshot.replace(pinned.cursor().snapshot.clone());
        }
        // A getMore that was parked goes on waiting where it left off.
        let until = info.await_until.lock().take();
        let until = until.unwrap_or_else(|| began + patience.unwrap_or(DEFAULT_WAIT));
        if !awaits && let Some(left) = *info.time_left.lock() {
            let struck = op.node().fail_points.enter("maxTimeAlwaysTimeOut", |_| true).is_some();
            op.set_deadline(Some(if struck { began } else { began + left }));
            op.check_interrupt()?;
        }
        if let Some(time) = self.up_to {
            info.up_to.fetch_max(time.0, Ordering::AcqRel);
        }
        let mut up_to = info.up_to.load(Ordering::Acquire);
        if up_to > 0 {
            let cursor = &mut pinned.cursor().cursor;
            if cursor.was_answered_up_to(up_to) {
                // What is asked meanwhile stays asked.
                let _ = info.up_to.compare_exchange(up_to, 0, Ordering::AcqRel, Ordering::Relaxed);
                up_to = 0;
            } else if !cursor.is_known_up_to(up_to) && read::promise(op, Timestamp(up_to))? {
                cursor.promise(up_to);
            }
        }
        // A batch size of 0 stands for the default: as many as fit.
        let limit = self.batch_size.filter(|n| *n > 0).map(|n| n as usize);
        let mut reply = Reply::with_capacity(batch_room(op, &namespace, limit));
        let mut result = Ok(Filled::More);
        let (mut returned, mut is_stream) = (0, false);
        reply.fill(|doc| {
            let mut body = doc.document("cursor");
            let mut batch = Batch::new(body.array("nextBatch"), limit);
            result = pinned.cursor().cursor.fill(op, &mut batch);
            returned = batch.count();
            drop(batch);
            if let Some(token) = pinned.cursor().cursor.resume_token() {
                body.append("postBatchResumeToken", &token);
                is_stream = true;
            }
            let open = matches!(result, Ok(Filled::More)) && !pinned.is_killed();
            body.append("id", if open { self.id } else { 0 });
            body.append("ns", &*namespace);
            if let Some(time) = op.at_cluster_time() {
                body.append("atClusterTime", time);
            }
            op.write_metrics(&mut body);
        });
        let filled = result.map_err(|error| error.context("Executor error during getMore"))?;
        if pinned.is_killed() && returned == 0 {
            bail!(Code::CURSOR_KILLED, "cursor was killed");
        }
        let waits = pinned.cursor().cursor.waits(up_to > 0);
        let waits = waits.filter(|_| awaits && returned == 0 && filled == Filled::More);
        let has_come = up_to > 0 && pinned.cursor().cursor.is_known_up_to(up_to);
        let waits = waits.filter(|_| !has_come);
        if let Some(waits) = waits.filter(|_| Instant::now() < until) {
            *info.await_until.lock() = Some(until);
            pinned.release(0);
            if is_stream {
                op.want_majority();
            }
            op.park(until, Waits::Cursor(waits, info));
            return Ok(reply);
        }
        pinned.cursor().cursor.note_answer();
        op.metrics().returned.set(Some(returned as u64));
        let summary = pinned.cursor().cursor.plan_summary();
        op.metrics().plan_summary.replace((!summary.is_empty()).then(|| summary.into()));
        op.metrics().cursor_exhausted.set(filled == Filled::Exhausted);
        op.metrics().cursor_id.set(Some(self.id));
        if filled == Filled::More {
            if !pinned.is_killed() {
                op.set_exhaust_reply();
            }
            if let Some(left) = &mut *info.time_left.lock() {
                *left = left.saturating_sub(began.elapsed());
            }
            pinned.release(returned);
        }
        Ok(reply)
    }
}
