//! A plan being run, over one batch or many.

use std::collections::VecDeque;
use std::sync::Arc;

use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Result, bail};
use sheaf_meter::Held;
use sheaf_rows::{BoxOperator, Cx, Figures, Operator, Row, Sorted, Step, report};
use sheaf_storage::Collection;

use super::Reads;
use super::build::{Building, key_fields};
use crate::plan::PlanNode;

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
    metadata: Option<Vec<u8>>,
}

impl Kept {
    fn of(row: Row<'_>, metadata: Option<RawDoc<'_>>) -> Self {
        Kept {
            doc: row.doc.map(|doc| doc.as_bytes().to_vec()),
            record: row.record.to_vec(),
            key: row.key.map(|(key, bits)| (key.to_vec(), bits.to_vec())),
            metadata: metadata.map(|metadata| metadata.as_bytes().to_vec()),
        }
    }

    fn bytes(&self) -> u64 {
        let key = self.key.as_ref().map_or(0, |(key, bits)| key.len() + bits.len());
        let metadata = self.metadata.as_ref().map_or(0, Vec::len);
        (self.doc.as_ref().map_or(0, Vec::len) + self.record.len() + key + metadata) as u64
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

/// Pieces of the plan's work that are one for the operators of a pipeline: a filter that lets few rows through does not come
/// back through all of them for each row that it drops.
const WORKS_AT_ONCE: u64 = 32;

/// A plan being run. Between batches it holds positions only, and may be kept for as long as a cursor lives.
///
/// As an operator it gives documents: of a row that is a key, what the key says.
pub struct Executor {
    root: BoxOperator,
    plan: Arc<PlanNode>,
    collection: Arc<Collection>,
    reads: Reads,
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
    /// A batch has ended: before the next one it is looked whether everything is still there.
    suspended: bool,
    /// The fields of rows that are keys, for plans that need no documents, and the document made of a key.
    key_fields: Option<Vec<(String, bool)>>,
    made: Option<Vec<u8>>,
    /// The key of the record that was given last, if somebody wants to know it.
    last: Option<Vec<u8>>,
    resumable: bool,
    /// How the plan was found.
    chosen: Chosen,
}

/// How a plan was found.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Chosen {
    /// There was no other.
    #[default]
    Only,
    /// It was remembered.
    Remembered,
    /// Several were tried.
    Tried,
}

impl Executor {
    /// Readies a plan on a collection.
    pub fn new(
        plan: Arc<PlanNode>,
        collection: Arc<Collection>,
        reads: &Reads,
        tailable: bool,
    ) -> Result<Self> {
        Self::build(plan, collection, reads, tailable, false)
    }

    /// Like [`Executor::new`], with operators that measure their time: for explain.
    pub fn timed(plan: Arc<PlanNode>, collection: Arc<Collection>, reads: &Reads) -> Result<Self> {
        Self::build(plan, collection, reads, false, true)
    }

    fn build(
        plan: Arc<PlanNode>,
        collection: Arc<Collection>,
        reads: &Reads,
        tailable: bool,
        timed: bool,
    ) -> Result<Self> {
        let root = Building { collection: &collection, reads, tailable, timed }.build(&plan)?;
        let key_fields = plan.gives_keys().then(|| key_fields(&plan));
        Ok(Executor {
            root,
            plan,
            collection,
            reads: reads.clone(),
            stash: VecDeque::new(),
            stash_bytes: 0,
            held: Held::default(),
            current: None,
            done: false,
            tailable,
            suspended: false,
            key_fields,
            made: None,
            last: None,
            resumable: false,
            chosen: Chosen::Only,
        })
    }

    /// Notes how the plan was found.
    #[must_use]
    pub fn chosen_as(self, chosen: Chosen) -> Self {
        Executor { chosen, ..self }
    }

    /// How the plan was found.
    pub fn chosen(&self) -> Chosen {
        self.chosen
    }

    /// Keeps the key of the record that is given last.
    pub fn keep_last(&mut self) {
        self.resumable = true;
    }

    /// The key of the record that was given last.
    pub fn last(&self) -> Option<&[u8]> {
        self.last.as_deref()
    }

    /// The plan.
    pub fn plan(&self) -> &Arc<PlanNode> {
        &self.plan
    }

    /// The collection as it was when the plan was made.
    pub fn collection(&self) -> &Arc<Collection> {
        &self.collection
    }

    /// The operators' figures, in the plan's order (an operator before its inputs).
    pub fn figures(&mut self) -> Vec<Figures> {
        let mut all = Vec::new();
        report(&mut self.root, &mut |figures| all.push(figures.clone()));
        all
    }

    /// Sum of keys and documents looked at.
    pub fn examined(&mut self) -> (u64, u64) {
        sheaf_rows::examined(&mut self.root)
    }

    /// What its plan has sorted.
    pub fn sorted(&mut self) -> Sorted {
        sheaf_rows::sorted(&mut self.root).unwrap_or_default()
    }

    /// Whether the end was reached.
    pub fn is_done(&self) -> bool {
        (self.done || (self.root.is_eof() && !self.tailable)) && self.stash.is_empty()
    }

    /// Does one piece of work; used by trials. A row's document goes to the stash.
    pub fn trial_step(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.step(cx)?;
        if step == Step::Row {
            let kept = Kept::of(self.root.row(), self.root.metadata());
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

    /// Makes the next row of the stash the present one.
    fn take_kept(&mut self) -> bool {
        self.current = self.stash.pop_front();
        let Some(kept) = &self.current else { return false };
        let bytes = kept.bytes();
        assert!(bytes <= self.stash_bytes, "rows of {bytes} bytes in a stash of {}", self.stash_bytes);
        self.stash_bytes -= bytes;
        if self.held.bytes() > 0 {
            self.held.shrink(bytes);
        }
        true
    }

    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if self.done {
            return Ok(Step::Eof);
        }
        if self.suspended {
            self.resume()?;
        }
        let step = self.root.work(cx)?;
        if step == Step::Eof && !self.tailable {
            self.done = true;
        }
        Ok(step)
    }

    /// Runs to the end and counts the rows.
    pub fn count(&mut self, cx: &mut Cx<'_>) -> Result<u64> {
        let mut n = self.stash.len() as u64;
        self.stash.clear();
        self.stash_bytes = 0;
        self.held = Held::default();
        while self.advance(cx)? {
            n += 1;
        }
        Ok(n)
    }

    /// Moves to the next row; [`Executor::plan_row`] then gives it.
    pub fn advance(&mut self, cx: &mut Cx<'_>) -> Result<bool> {
        let mut works = u64::MAX;
        Ok(self.advance_within(cx, &mut works)? == Step::Row)
    }

    /// Moves to the next row, unless so many pieces of work are done before.
    fn advance_within(&mut self, cx: &mut Cx<'_>, works: &mut u64) -> Result<Step> {
        if self.take_kept() {
            return Ok(Step::Row);
        }
        loop {
            cx.check_interrupt()?;
            *works = works.saturating_sub(1);
            match self.step(cx)? {
                Step::More if *works > 0 => {}
                step => return Ok(step),
            }
        }
    }

    /// The row that [`Executor::advance`] moved to, as the plan gives it.
    pub fn plan_row(&self) -> Row<'_> {
        match &self.current {
            Some(kept) => kept.row(),
            None => self.root.row(),
        }
    }

    /// Makes a document of a row that is a key.
    fn make_document(&mut self) {
        let row = self.plan_row();
        self.made = match (row.doc, row.key, &self.key_fields) {
            (Some(_), _, _) => None,
            (None, Some((key, bits)), Some(fields)) => {
                Some(super::scan::key_document(fields, key, bits).into_bytes())
            }
            _ => Some(RawDoc::EMPTY.as_bytes().to_vec()),
        };
    }

    /// Adds documents to a batch until it is full or there are no more (the result says whether the end was reached), or
    /// gives up (`None`) after so many pieces of work, so that the caller can go on where it may take long. Call
    /// [`Operator::suspend`] in the end.
    pub fn fill_some(&mut self, cx: &mut Cx<'_>, batch: &mut dyn Batch, works: u64) -> Result<Option<bool>> {
        let mut left = works;
        while !batch.is_full() {
            match self.advance_within(cx, &mut left)? {
                Step::Row => {}
                // A tailable cursor that has come upon nothing at all has no place to go on from.
                Step::Eof => {
                    return Ok(Some(
                        !self.tailable || (!self.collection.is_oplog() && self.examined().1 == 0),
                    ));
                }
                Step::More => return Ok(None),
            }
            let row = self.plan_row();
            let doc = row.document();
            if !batch.fits(doc.len()) {
                let kept = Kept::of(row, Operator::metadata(self));
                self.count_kept(self.stash_bytes + kept.bytes())?;
                self.stash.push_front(kept);
                return Ok(Some(false));
            }
            batch.push(doc.as_bytes());
            if self.resumable {
                self.last = Some(row.record.to_vec());
            }
        }
        Ok(Some(self.is_done()))
    }

    /// Checks before another batch that collection and indexes are still there, and takes over the
    /// collection's present definition.
    ///
    /// Errors: `QueryPlanKilled`.
    fn resume(&mut self) -> Result<()> {
        self.suspended = false;
        let view = self.reads.view();
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
        if now.namespace != self.collection.namespace {
            bail!(
                Code::QUERY_PLAN_KILLED,
                "collection renamed from '{}' to '{}'. UUID {}",
                self.collection.namespace,
                now.namespace,
                now.uuid
            );
        }
        if now.ident != self.collection.ident {
            bail!(Code::QUERY_PLAN_KILLED, "collection dropped. UUID {}", self.collection.uuid);
        }
        self.collection = now.clone();
        Ok(())
    }
}

impl Operator for Executor {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let mut works = WORKS_AT_ONCE;
        let step = self.advance_within(cx, &mut works)?;
        if step == Step::Row {
            self.make_document();
        }
        Ok(step)
    }

    fn row(&self) -> Row<'_> {
        let row = self.plan_row();
        match &self.made {
            Some(made) => Row { doc: Some(RawDoc::new(made)), ..row },
            None => row,
        }
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        match &self.current {
            Some(kept) => kept.metadata.as_deref().map(RawDoc::new),
            None => self.root.metadata(),
        }
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        self.root.inputs(visit);
    }

    fn is_eof(&self) -> bool {
        self.is_done()
    }

    fn release(&mut self) {
        self.current = None;
        self.made = None;
        self.root.release();
    }

    fn suspend(&mut self) {
        self.release();
        self.suspended = true;
        self.root.suspend();
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        self.root.figures()
    }
}

fn each_index(node: &PlanNode, visit: &mut dyn FnMut(&sheaf_storage::Index)) {
    match node {
        PlanNode::IndexScan(scan) | PlanNode::CountScan(scan) | PlanNode::DistinctScan(scan) => {
            visit(&scan.index)
        }
        PlanNode::GeoNear(near) => visit(&near.scan.index),
        other => other.inputs().iter().for_each(|input| each_index(input, visit)),
    }
}
