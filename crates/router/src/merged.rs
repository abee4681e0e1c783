//! Rows of several shards as a command gives them: batches, and opening what they come from.

use std::sync::Arc;

use sheaf_bson::{DocBuf, Timestamp, Value};
use sheaf_errors::Result;
use sheaf_front::cursors::Batch;
use sheaf_front::reply::Reply;
use sheaf_rows::{Cx, Operator, Step};

use crate::addressed::Addressed;
use crate::cursor::{Merged, RouterCursor};
use crate::forward::{self, Body};
use crate::gather::{self, Cluster, Current, Link, Reads, Remote};
use crate::op::Operation;
use crate::partial::last_moment;

/// The way to the shards for what outlives this command.
pub fn link(op: &Operation<'_>) -> Arc<Link> {
    let to = Cluster {
        directory: op.router.directory.clone(),
        clock: op.router.clock.clone(),
        abandoned: op.router.abandoned.clone(),
        rights: op.rights.clone(),
        local_threshold: op.router.local_threshold(),
    };
    let reads = Reads {
        at: op.read_at(),
        in_transaction: op.in_transaction(),
        writes: op.writes(),
        settings: op.settings.borrow().clone(),
    };
    Link::new(to, op.body(), reads)
}

/// Opens a cursor on each of these by the same command.
///
/// Errors: those of [`gather::opened`]; those of the way there.
pub fn open(op: &Operation<'_>, all: &[Addressed], body: &Body<'_>) -> Result<Vec<Remote>> {
    gather::opened(&op.router.abandoned, all, forward::ask_each(op, all, body)?)
}

/// Documents of a first batch when no size is asked for.
const DEFAULT_BATCH: usize = 101;

impl Merged {
    /// Adds documents to a batch until it is full; whether there may be more.
    ///
    /// Errors: those of the operators.
    pub fn fill(&mut self, op: &Operation<'_>, batch: &mut Batch<'_>, size: Option<usize>) -> Result<bool> {
        let link = self.link.clone();
        let lent = Current {
            cluster_time: op.generic.cluster_time,
            transaction: op.transaction.take(),
            time: 0,
            batch_size: size,
            until: self.may_be_partial().then(|| last_moment(op.time_left())).flatten(),
        };
        let (filled, back) = op.blocking(|| link.during(lent, || self.fill_here(op, batch)));
        op.transaction.replace(back.transaction);
        op.note_time(Timestamp(back.time));
        filled
    }

    fn fill_here(&mut self, op: &Operation<'_>, batch: &mut Batch<'_>) -> Result<bool> {
        let stop = op.interrupter();
        let interrupt = || stop.check();
        let mut cx = Cx::new(self.limits, &interrupt);
        let filled = self.fill_with(&mut cx, batch);
        self.run.suspend();
        filled
    }

    fn fill_with(&mut self, cx: &mut Cx<'_>, batch: &mut Batch<'_>) -> Result<bool> {
        loop {
            if batch.is_full() {
                return Ok(!(self.waiting.is_none() && self.run.is_eof()));
            }
            if self.waiting.is_none() {
                cx.check_interrupt()?;
                match self.run.work(cx)? {
                    Step::Row => {}
                    Step::More => continue,
                    Step::Eof => return Ok(false),
                }
            }
            let document = match &self.waiting {
                Some(waiting) => waiting.as_raw(),
                None => self.run.row().document(),
            };
            sheaf_aggregate::check_output_size(document)?;
            if !batch.fits(document.len()) {
                self.waiting = Some(DocBuf::from(document));
                return Ok(true);
            }
            batch.push(document.as_bytes());
            self.waiting = None;
            self.run.release();
        }
    }
}

/// How a command wants its first batch.
#[derive(Clone, Copy, Default)]
pub struct First {
    /// How many documents; 101 where it names none.
    pub size: Option<usize>,
    /// Whether no other follows.
    pub single: bool,
    /// Whether the cursor is never closed for being idle.
    pub no_timeout: bool,
}

/// Answers with a new cursor's first batch; keeps the cursor if there is more.
///
/// Errors: those of the operators; that there is no memory for a batch which no other follows.
pub fn first_batch(op: &Operation<'_>, namespace: &str, cursor: Merged, first: First) -> Result<Reply> {
    let mut cursor = cursor;
    let size = first.size.unwrap_or(DEFAULT_BATCH);
    let mut reply = Reply::with_capacity(1024);
    let mut filled = Ok(true);
    let mut returned = 0;
    reply.fill(|out| {
        let mut body = out.document("cursor");
        let mut batch = Batch::new(body.array("firstBatch"), Some(size));
        filled = cursor.fill(op, &mut batch, first.size.filter(|size| *size > 0));
        returned = batch.count();
        if let Some(error) = batch.cut().filter(|_| first.single) {
            filled = Err(error);
        }
        drop(batch);
        if cursor.is_partial() {
            body.append("partialResultsReturned", true);
        }
        let id = match filled {
            Ok(true) if !first.single => {
                let cursor = RouterCursor::Merged(Box::new(cursor));
                op.router.cursors.register(op, namespace, first.no_timeout, cursor)
            }
            _ => 0,
        };
        op.metrics().cursor_id.set((id != 0).then_some(id));
        op.metrics().cursor_exhausted.set(id == 0);
        body.append("id", id).append("ns", namespace);
        if let Some(at) = op.read_at() {
            body.append("atClusterTime", Value::Timestamp(at));
        }
    });
    filled?;
    op.metrics().returned.set(Some(returned as u64));
    if let Some(transaction) = &*op.transaction.borrow() {
        transaction.append_token(&mut reply);
    }
    Ok(reply)
}
