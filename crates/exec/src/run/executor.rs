//! A plan being run, over one batch or many.

use std::collections::VecDeque;
use std::sync::Arc;

use sheaf_bson::{OwnedValue, RawDoc};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::Slot;
use sheaf_meter::Held;
use sheaf_storage::{Collection, View};

use super::{Cx, Row, Stage, Stats, Step};
use crate::plan::Node;

/// What a command brings to a run: the state to read and its limits.
#[derive(Clone, Copy)]
pub struct ReadCx<'c> {
    /// The state that is read.
    pub view: &'c View,
    /// The error to end with, if the operation was killed or is out of time.
    pub interrupt: &'c dyn Fn() -> Result<()>,
    /// Values of variables that change while a pipeline runs.
    pub variables: &'c [(Slot, OwnedValue)],
    /// `$$NOW`, milliseconds since the epoch.
    pub now_millis: i64,
    /// Memory that a blocking sort may take.
    pub sort_memory_bytes: usize,
    /// Whether a blocking sort may go on past that (`allowDiskUse`).
    pub allow_disk_use: bool,
}

impl<'c> ReadCx<'c> {
    /// With MongoDB's limits.
    pub fn new(view: &'c View, interrupt: &'c dyn Fn() -> Result<()>, now_millis: i64) -> Self {
        ReadCx {
            view,
            interrupt,
            variables: &[],
            now_millis,
            sort_memory_bytes: sheaf_meter::spill_bytes(100 << 20),
            allow_disk_use: true,
        }
    }
}

/// Where a batch of documents goes.
pub trait Batch {
    /// Whether no more is wanted now.
    fn is_full(&self) -> bool;
    /// Whether a document of this size may be added.
    fn fits(&mut self, bytes: usize) -> bool;
    /// Adds a document.
    fn push(&mut self, document: &[u8]);
}

/// A row that outlived the operators' next piece of work.
struct Kept {
    doc: Option<Vec<u8>>,
    record: Vec<u8>,
    key: Option<(Vec<u8>, Vec<u8>)>,
}

impl Kept {
    fn of(row: Row<'_>) -> Self {
        Kept {
            doc: row.doc.map(|doc| doc.as_bytes().to_vec()),
            record: row.record.to_vec(),
            key: row.key.map(|(key, bits)| (key.to_vec(), bits.to_vec())),
        }
    }

    fn bytes(&self) -> u64 {
        let key = self.key.as_ref().map_or(0, |(key, bits)| key.len() + bits.len());
        (self.doc.as_ref().map_or(0, Vec::len) + self.record.len() + key) as u64
    }

    fn row(&self) -> Row<'_> {
        Row {
            doc: self.doc.as_deref().map(RawDoc::new),
            record: &self.record,
            key: self.key.as_ref().map(|(key, bits)| (&key[..], &bits[..])),
        }
    }
}

/// From so much on rows that are kept are counted as the operation's memory.
const COUNTED_BYTES: u64 = 1 << 20;

/// Rows between two checks for an interrupt.
const CHECK_EVERY: u64 = 128;

/// A plan being run. Between batches it holds positions only, and may be kept for as long as a cursor lives.
pub struct Executor {
    root: Box<dyn Stage>,
    plan: Arc<Node>,
    stats: Vec<Stats>,
    collection: Arc<Collection>,
    /// Rows that were produced and not yet taken: results of a trial, or one that did not fit a batch.
    stash: VecDeque<Kept>,
    /// The bytes of the rows in the stash.
    stash_bytes: u64,
    /// Their account, if they are many.
    held: Held,
    /// The row that came from the stash last.
    current: Option<Kept>,
    done: bool,
    tailable: bool,
    /// Pieces of work done.
    works: u64,
    /// The fields of rows that are keys, for plans that need no documents.
    key_fields: Option<Vec<(String, bool)>>,
}

impl Executor {
    /// Readies a plan on a collection.
    pub fn new(plan: Arc<Node>, collection: Arc<Collection>, tailable: bool) -> Result<Self> {
        Self::build(plan, collection, tailable, false)
    }

    /// Like [`Executor::new`], with operators that measure their time: for explain.
    pub fn timed(plan: Arc<Node>, collection: Arc<Collection>) -> Result<Self> {
        Self::build(plan, collection, false, true)
    }

    fn build(plan: Arc<Node>, collection: Arc<Collection>, tailable: bool, timed: bool) -> Result<Self> {
        let mut stats = Vec::new();
        let root = super::build::build(&plan, &collection, tailable, timed, &mut stats)?;
        let key_fields = plan.gives_keys().then(|| super::build::key_fields(&plan));
        Ok(Executor {
            root,
            plan,
            stats,
            collection,
            stash: VecDeque::new(),
            stash_bytes: 0,
            held: Held::default(),
            current: None,
            done: false,
            tailable,
            works: 0,
            key_fields,
        })
    }

    /// The plan.
    pub fn plan(&self) -> &Arc<Node> {
        &self.plan
    }

    /// The collection as it was when the plan was made.
    pub fn collection(&self) -> &Arc<Collection> {
        &self.collection
    }

    /// The operators' figures, in the plan's order (an operator before its inputs).
    pub fn stats(&self) -> &[Stats] {
        &self.stats
    }

    /// Sum of keys and documents looked at.
    pub fn examined(&self) -> (u64, u64) {
        self.stats.iter().fold((0, 0), |(keys, docs), s| (keys + s.keys_examined, docs + s.docs_examined))
    }

    /// Whether the end was reached.
    pub fn is_done(&self) -> bool {
        (self.done || (self.root.is_eof() && !self.tailable)) && self.stash.is_empty()
    }

    /// Does one piece of work; used by trials. A row's document goes to the stash.
    pub fn trial_step(&mut self, cx: &ReadCx<'_>) -> Result<Step> {
        let step = self.step(cx)?;
        if step == Step::Row {
            let kept = Kept::of(self.root.row());
            self.count_kept(self.stash_bytes + kept.bytes())?;
            self.stash.push_back(kept);
        }
        Ok(step)
    }

    /// How many bytes the rows have that a trial has found.
    pub fn stash_bytes(&self) -> u64 {
        self.stash_bytes
    }

    /// Counts the rows in the stash with the operation's memory.
    fn count_kept(&mut self, bytes: u64) -> Result<()> {
        self.stash_bytes = bytes;
        if bytes >= COUNTED_BYTES && self.held.bytes() == 0 {
            self.held = sheaf_meter::reserve(bytes)?;
        }
        if self.held.bytes() > 0 {
            self.held.set(bytes)?;
        }
        Ok(())
    }

    /// The next row of the stash.
    fn take_kept(&mut self) -> Option<Kept> {
        let kept = self.stash.pop_front()?;
        self.stash_bytes -= kept.bytes();
        if self.held.bytes() > 0 {
            self.held.shrink(kept.bytes());
        }
        Some(kept)
    }

    fn step(&mut self, read: &ReadCx<'_>) -> Result<Step> {
        if self.done {
            return Ok(Step::Eof);
        }
        self.works += 1;
        if self.works.is_multiple_of(CHECK_EVERY) {
            (read.interrupt)()?;
        }
        let mut cx = Cx {
            view: read.view,
            collection: &self.collection,
            interrupt: read.interrupt,
            variables: read.variables,
            now_millis: read.now_millis,
            sort_memory_bytes: read.sort_memory_bytes,
            allow_disk_use: read.allow_disk_use,
            stats: &mut self.stats,
        };
        let step = self.root.work(&mut cx)?;
        if step == Step::Eof && !self.tailable {
            self.done = true;
        }
        Ok(step)
    }

    /// Runs to the end and counts the rows.
    pub fn count(&mut self, cx: &ReadCx<'_>) -> Result<u64> {
        let mut n = self.stash.len() as u64;
        self.stash.clear();
        self.stash_bytes = 0;
        self.held = Held::default();
        while self.advance(cx)? {
            n += 1;
        }
        Ok(n)
    }

    /// Moves to the next row; [`Executor::row`] then gives it.
    pub fn advance(&mut self, cx: &ReadCx<'_>) -> Result<bool> {
        Ok(self.advance_until(cx, u64::MAX)? == Step::Row)
    }

    /// Moves to the next row, unless `until` pieces of work are done before.
    fn advance_until(&mut self, cx: &ReadCx<'_>, until: u64) -> Result<Step> {
        self.current = self.take_kept();
        if self.current.is_some() {
            return Ok(Step::Row);
        }
        loop {
            match self.step(cx)? {
                Step::More if self.works < until => {}
                step => return Ok(step),
            }
        }
    }

    /// The row that [`Executor::advance`] moved to.
    pub fn row(&self) -> Row<'_> {
        match &self.current {
            Some(kept) => kept.row(),
            None => self.root.row(),
        }
    }

    /// The row's document, copied; of a row that is a key, what the key says of it.
    fn row_document(&self) -> Vec<u8> {
        let row = self.row();
        match (row.doc, row.key, &self.key_fields) {
            (Some(doc), _, _) => doc.as_bytes().to_vec(),
            (None, Some((key, bits)), Some(fields)) => {
                super::scan::key_document(fields, key, bits).into_bytes()
            }
            _ => RawDoc::EMPTY.as_bytes().to_vec(),
        }
    }

    /// The next document, copied.
    pub fn next_document(&mut self, cx: &ReadCx<'_>) -> Result<Option<Vec<u8>>> {
        if !self.advance(cx)? {
            return Ok(None);
        }
        Ok(Some(self.row_document()))
    }

    /// Adds documents to a batch until it is full or there are no more; the result says whether the end
    /// was reached. Holds nothing of the view afterwards.
    pub fn fill(&mut self, cx: &ReadCx<'_>, batch: &mut dyn Batch) -> Result<bool> {
        let result = self.fill_inner(cx, batch);
        self.suspend();
        result
    }

    fn fill_inner(&mut self, cx: &ReadCx<'_>, batch: &mut dyn Batch) -> Result<bool> {
        self.fill_some(cx, batch, u64::MAX).map(|done| done.unwrap_or(true))
    }

    /// Like [`Executor::fill`], but gives up (`None`) after so many pieces of work, so that the caller can go
    /// on where it may take long. Call [`Executor::suspend`] in the end.
    pub fn fill_some(&mut self, cx: &ReadCx<'_>, batch: &mut dyn Batch, works: u64) -> Result<Option<bool>> {
        let until = self.works.saturating_add(works);
        while !batch.is_full() {
            match self.advance_until(cx, until)? {
                Step::Row => {}
                Step::Eof => return Ok(Some(!self.tailable)),
                Step::More => return Ok(None),
            }
            let row = self.row();
            let doc = row.doc.unwrap_or(RawDoc::EMPTY);
            if !batch.fits(doc.len()) {
                let kept = Kept::of(row);
                self.count_kept(self.stash_bytes + kept.bytes())?;
                self.stash.push_front(kept);
                return Ok(Some(false));
            }
            batch.push(doc.as_bytes());
        }
        Ok(Some(self.is_done()))
    }

    /// Lets go of the view; the run can go on with another.
    pub fn suspend(&mut self) {
        self.root.suspend();
        self.stats.iter_mut().for_each(|s| s.saves += 1);
    }

    /// Checks before another batch that collection and indexes are still there, and takes over the
    /// collection's present definition.
    ///
    /// Errors: `QueryPlanKilled`.
    pub fn resume(&mut self, view: &View) -> Result<()> {
        let Some(now) = view.catalog().by_uuid(&self.collection.uuid) else {
            bail!(Code::QUERY_PLAN_KILLED, "collection dropped. UUID {}", self.collection.uuid);
        };
        let mut missing = None;
        each_index(&self.plan, &mut |index| {
            let there =
                now.indexes.iter().any(|other| other.ident == index.ident && other.name == index.name);
            if !there {
                missing = Some(index.name.clone());
            }
        });
        if let Some(name) = missing {
            bail!(Code::QUERY_PLAN_KILLED, "index '{name}' dropped");
        }
        if now.ident != self.collection.ident {
            bail!(Code::QUERY_PLAN_KILLED, "collection dropped. UUID {}", self.collection.uuid);
        }
        self.collection = now.clone();
        Ok(())
    }
}

fn each_index(node: &Node, visit: &mut dyn FnMut(&sheaf_storage::Index)) {
    match node {
        Node::IndexScan(scan) | Node::CountScan(scan) | Node::DistinctScan(scan) => visit(&scan.index),
        other => other.inputs().iter().for_each(|input| each_index(input, visit)),
    }
}
