//! Documents in the order of their distances, by a geometric index.
//!
//! The index is read in rings around the centre, each wider than the one before. What a ring brings may be nearer than the next
//! ring only, so that documents wait until the ring that holds their distance has been read.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use ahash::AHashSet;
use sheaf_bson::key::Decoder;
use sheaf_bson::{Bump, DocBuf, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_meter::Held;
use sheaf_rows::{Cx, Figures, Operator, Row, Step};
use sheaf_storage::Collection;

use super::Reads;
use super::reads::Reader;
use super::scan::IndexScan;
use crate::bounds::{Interval, Intervals};
use crate::plan::near::NearScan;

/// A ring with fewer documents has a wider one behind it, one with more a narrower.
const FEW: usize = 300;
const MANY: usize = 600;
/// The first ring has this part of the reach.
const FIRST: f64 = 1.0 / (1 << 18) as f64;
/// From so much on what waits is counted as the operation's memory.
const COUNTED_BYTES: u64 = 1 << 20;

/// A document whose distance is known.
struct Found {
    distance: f64,
    /// Of equal distances, who was found first.
    order: u64,
    record: Box<[u8]>,
    doc: Box<[u8]>,
    /// `$meta` of it.
    metadata: DocBuf,
}

impl PartialEq for Found {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Found {}
impl PartialOrd for Found {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Found {
    /// The nearest is the greatest, as heaps have it.
    fn cmp(&self, other: &Self) -> Ordering {
        other.distance.total_cmp(&self.distance).then(other.order.cmp(&self.order))
    }
}

/// Reads documents in the order of their distances.
pub struct GeoNear {
    collection: Arc<Collection>,
    reads: Reads,
    reader: Reader,
    scan: NearScan,
    arena: Bump,
    ring: Option<IndexScan>,
    /// The present ring, and the width of the next.
    inner: f64,
    outer: f64,
    step: f64,
    /// All that is not farther has been found.
    covered: Option<f64>,
    reach: f64,
    exhausted: bool,
    found_in_ring: usize,
    seen: AHashSet<Box<[u8]>>,
    seen_bytes: u64,
    waiting: BinaryHeap<Found>,
    waiting_bytes: u64,
    order: u64,
    held: Held,
    current: Option<Found>,
    figures: Figures,
}

impl GeoNear {
    pub fn new(reads: &Reads, collection: &Arc<Collection>, scan: NearScan) -> Self {
        let (near, indexing) = (&scan.near, scan.indexing());
        let reach = indexing.reach(near).min(near.max);
        let step = indexing.reach(near) * FIRST;
        let inner = near.min;
        GeoNear {
            collection: collection.clone(),
            reads: reads.clone(),
            reader: Reader::new(reads),
            arena: Bump::new(),
            ring: None,
            inner,
            outer: inner,
            step,
            covered: None,
            reach,
            exhausted: inner > reach,
            found_in_ring: 0,
            seen: AHashSet::new(),
            seen_bytes: 0,
            waiting: BinaryHeap::new(),
            waiting_bytes: 0,
            order: 0,
            held: Held::default(),
            current: None,
            figures: Figures::default(),
            scan,
        }
    }

    /// The width of the first ring: by the keys next to the centre's, in both directions.
    fn guess_step(&mut self, cx: &mut Cx<'_>) -> Result<()> {
        let (near, indexing) = (self.scan.near.clone(), self.scan.indexing().clone());
        let center = match indexing.key_of_center(&near) {
            Some(key) if self.scan.field == 0 && near.min == 0.0 => Value::Int64(key),
            _ => return Ok(()),
        };
        let mut best: Option<f64> = None;
        for backward in [false, true] {
            let interval = if backward {
                Interval::new(Value::Int64(i64::MIN), true, center, true)
            } else {
                Interval::new(center, true, Value::Int64(i64::MAX), true)
            };
            let mut scan = self.scan.scan.clone();
            scan.bounds.fields[0].intervals = Intervals::from_unsorted(vec![interval]);
            scan.backward = backward;
            let mut neighbour = IndexScan::new(&self.reads, &self.collection, scan);
            if neighbour.work(cx)? == Step::Row
                && let Some((key, bits)) = neighbour.row().key
                && let Some(value) = Decoder::new(key, bits).next_value(false)
                && let Some(guess) =
                    value.as_value().as_exact_i64().and_then(|key| indexing.guess(&near, key))
            {
                best = Some(best.map_or(guess, |least| least.min(guess)));
            }
            self.figures.seeks += 1;
            self.figures.keys_examined += 1;
        }
        if let Some(guess) = best {
            self.step = self.step.max(guess);
        }
        Ok(())
    }

    /// Begins the next ring.
    fn open_ring(&mut self) {
        self.outer = (self.inner + self.step).min(self.reach);
        let ranges = self.scan.indexing().ring(&self.scan.near, self.inner, self.outer);
        let ranges = ranges
            .into_iter()
            .map(|(low, high)| Interval::new(Value::Int64(low), true, Value::Int64(high), true));
        let mut scan = self.scan.scan.clone();
        scan.bounds.fields[self.scan.field].intervals = Intervals::from_unsorted(ranges.collect());
        self.found_in_ring = 0;
        self.ring = Some(IndexScan::new(&self.reads, &self.collection, scan));
    }

    fn end_ring(&mut self) {
        if let Some(mut ring) = self.ring.take()
            && let Some(figures) = ring.figures()
        {
            self.figures.keys_examined += figures.keys_examined;
            self.figures.seeks += figures.seeks;
        }
        self.covered = Some(self.outer);
        self.exhausted = self.outer >= self.reach;
        self.inner = self.outer;
        match self.found_in_ring {
            n if n < FEW => self.step *= 2.0,
            n if n > MANY => self.step /= 2.0,
            _ => {}
        }
    }

    /// Looks at the record that the ring stands on.
    fn consider(&mut self, cx: &mut Cx<'_>) -> Result<()> {
        let Some(ring) = &self.ring else { return Ok(()) };
        let record = ring.row().record;
        if self.seen.contains(record) {
            self.figures.dups_dropped += 1;
            return Ok(());
        }
        let record: Box<[u8]> = record.into();
        self.seen_bytes += record.len() as u64 + 32;
        self.seen.insert(record.clone());
        let Some(doc) = self.reader.view().get(&self.collection, &record)? else { return Ok(()) };
        self.figures.docs_examined += 1;
        if let Some(filter) = &self.scan.filter
            && !filter.passes(doc.as_raw(), cx, &mut self.arena)?
        {
            return Ok(());
        }
        let Some((distance, point)) = self.scan.nearest(doc.as_raw())? else { return Ok(()) };
        self.found_in_ring += 1;
        if !self.scan.near.allows(distance) {
            return Ok(());
        }
        let metadata = DocBuf::build(|out| {
            out.append("geoNearDistance", distance).append("geoNearPoint", point);
        });
        let copy: Box<[u8]> = doc.as_raw().as_bytes().into();
        drop(doc);
        let doc = copy;
        self.waiting_bytes += (doc.len() + record.len() + metadata.as_bytes().len()) as u64 + 64;
        self.order += 1;
        self.waiting.push(Found { distance, order: self.order, record, doc, metadata });
        self.count()
    }

    /// Counts what is kept with the operation's memory.
    fn count(&mut self) -> Result<()> {
        let bytes = self.waiting_bytes + self.seen_bytes;
        if bytes >= COUNTED_BYTES && self.held.bytes() == 0 {
            self.held = sheaf_meter::reserve(bytes)?;
        }
        if self.held.bytes() > 0 {
            self.held.set(bytes)?;
        }
        Ok(())
    }

    /// Takes the nearest of those that wait, if nothing can be nearer.
    fn take(&mut self) -> bool {
        let due = self.waiting.peek().is_some_and(|nearest| {
            self.exhausted || self.covered.is_some_and(|covered| nearest.distance <= covered)
        });
        self.current = if due { self.waiting.pop() } else { None };
        if let Some(found) = &self.current {
            let bytes = found.doc.len() + found.record.len() + found.metadata.as_bytes().len();
            self.waiting_bytes -= bytes as u64 + 64;
        }
        due
    }
}

impl Operator for GeoNear {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if self.take() {
            return Ok(self.figures.count(Step::Row));
        }
        if self.exhausted {
            return Ok(self.figures.count(Step::Eof));
        }
        if self.ring.is_none() {
            if self.covered.is_none() {
                self.guess_step(cx)?;
            }
            self.open_ring();
        }
        let step = match &mut self.ring {
            Some(ring) => ring.work(cx)?,
            None => Step::Eof,
        };
        match step {
            Step::Row => self.consider(cx)?,
            Step::More => {}
            Step::Eof => self.end_ring(),
        }
        Ok(self.figures.count(Step::More))
    }

    fn row(&self) -> Row<'_> {
        match &self.current {
            Some(found) => Row { doc: Some(RawDoc::new(&found.doc)), record: &found.record, key: None },
            None => Row::default(),
        }
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.current.as_ref().map(|found| found.metadata.as_raw())
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}

    fn is_eof(&self) -> bool {
        self.exhausted && self.waiting.is_empty()
    }

    fn suspend(&mut self) {
        self.figures.saves += 1;
        self.reader.suspend();
        if let Some(ring) = &mut self.ring {
            ring.suspend();
        }
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        self.figures.indexes_used.insert(self.scan.scan.index.name.clone());
        Some(&mut self.figures)
    }
}
