//! The log as MongoDB's oplog: a stream of operations found by their cluster time.
//!
//! An entry of the log is one commit group, its payload the group's oplog documents one after another. A
//! cursor here walks those documents; it borrows each from the entry that was read, and shows none that is
//! not visible yet. Two readers share nothing but the log's files.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sheaf_bson::{DocBuf, RawDoc, Timestamp};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_log::{Log, Reader};
use sheaf_meter::Held;

use crate::oplog::{self, Operation, log_error};
use crate::options::OpTime;
use crate::read::oplog_collection::OplogCollection;
use crate::read::published::Published;
use crate::read::view::View;

/// Entries that a backward cursor reads at first, and at most, in one go.
const BLOCK_ENTRIES: (u64, u64) = (16, 4096);

/// The largest entry that a cursor keeps which has come to the end.
const RESTING_BYTES: usize = 64 << 10;

/// An entry of this size counts as the operation's memory while it is walked.
const COUNTED_BYTES: usize = 1 << 20;

/// Bytes that a backward cursor holds; of a larger block only the newer part is kept.
const BLOCK_BYTES: usize = 32 << 20;

/// Entries that are counted together.
const COUNTED_ENTRIES: u64 = 1024;

impl View {
    /// The log; `None` without a journal.
    pub fn oplog(&self) -> Option<Oplog> {
        self.at.published.oplog.as_ref()?;
        Some(Oplog { published: self.at.published.clone() })
    }
}

/// The log, to be read. Cheap to clone.
#[derive(Clone)]
pub struct Oplog {
    /// It has an [`OplogCollection`].
    published: Arc<Published>,
}

impl Oplog {
    fn of(&self) -> &OplogCollection {
        self.published.oplog.as_ref().expect("the log is read only where there is one")
    }

    fn log(&self) -> &Log {
        &self.of().log
    }

    /// Position of the newest commit.
    pub fn last(&self) -> OpTime {
        self.published.last()
    }

    /// Counts the operations; the log's collection gives the figures afterwards. The first call reads the log.
    pub fn count(&self) -> Result<()> {
        let oplog = self.of();
        let mut counts = oplog.counts.lock();
        let first = self.log().stats().first_index.max(1);
        let last = self.last().index;
        counts.next = counts.next.max(first);
        let mut reader = self.log().read_from(counts.next).map_err(|error| self.error(0, error))?;
        while counts.next <= last {
            let Some(entry) = reader.next().map_err(|error| self.error(counts.next, error))? else { break };
            if counts.runs.back().is_none_or(|(start, ..)| counts.next - start >= COUNTED_ENTRIES) {
                let start = counts.next;
                counts.runs.push_back((start, 0, 0));
            }
            if let Some((_, docs, bytes)) = counts.runs.back_mut() {
                *docs += oplog::documents(&entry.payload).count() as i64;
                *bytes += entry.payload.len() as i64;
            }
            counts.next += 1;
        }
        while counts.runs.get(1).is_some_and(|(start, ..)| *start <= first) {
            counts.runs.pop_front();
        }
        let (docs, bytes) = counts.runs.iter().fold((0, 0), |(d, b), (_, docs, bytes)| (d + docs, b + bytes));
        let state = &oplog.collection.state;
        state.docs.store(docs, Ordering::Release);
        state.bytes.store(bytes, Ordering::Release);
        Ok(())
    }

    /// A cursor that stands before the first operation at or after `time`.
    pub fn from_time(&self, time: Timestamp) -> Result<OplogCursor> {
        let reader = self.log().read_from_time(time.0).map_err(|error| self.error(0, error))?;
        Ok(OplogCursor {
            oplog: self.clone(),
            reader,
            payload: Vec::new(),
            held: Held::default(),
            start: 0,
            offset: 0,
            from: time.0,
        })
    }

    /// A cursor that goes back from the last operation at or before `time`.
    pub fn backward(&self, time: Timestamp) -> BackwardOplogCursor {
        let last = self.last();
        BackwardOplogCursor {
            oplog: self.clone(),
            before: last.index + 1,
            entries: BLOCK_ENTRIES.0,
            block: VecDeque::new(),
            found: Vec::new(),
            starts: Vec::new(),
            at: 0,
            until: time.0.min(last.time),
        }
    }

    /// The entries of a transaction before this one of its entries, oldest first; none, if it has no others.
    ///
    /// Errors: `CappedPositionLost` if the log has been removed up to behind their place.
    pub fn transaction_before(&self, doc: RawDoc<'_>) -> Result<Vec<DocBuf>> {
        let mut entries = Vec::new();
        let mut previous = oplog::link_of(doc).and_then(|link| link.previous);
        while let Some(time) = previous {
            let mut cursor = self.from_time(Timestamp(time))?;
            match cursor.next(Timestamp(time))? {
                Some(found) if time_of(found) == time => {
                    previous = oplog::link_of(found).and_then(|link| link.previous);
                    entries.push(DocBuf::from(found));
                }
                _ => {
                    let text = "CollectionScan died due to position in capped collection being deleted.";
                    bail!(Code::CAPPED_POSITION_LOST, "{text}");
                }
            }
        }
        entries.reverse();
        Ok(entries)
    }

    /// The entries of the prepare whose operations happen with this entry, oldest first; `None` if it is no commit of a prepared
    /// transaction.
    ///
    /// Errors: `CappedPositionLost` if the log has been removed up to behind their place. It has them until the commit is
    /// settled.
    pub fn prepared(&self, commit: RawDoc<'_>) -> Result<Option<Vec<DocBuf>>> {
        let Some((prepared, _)) = Operation::read(commit).committed() else { return Ok(None) };
        let mut cursor = self.from_time(prepared)?;
        let found = cursor.next(prepared)?.filter(|found| time_of(*found) == prepared.0).map(DocBuf::from);
        let Some(last) = found else {
            let text = "CollectionScan died due to position in capped collection being deleted.";
            bail!(Code::CAPPED_POSITION_LOST, "{text}");
        };
        let mut entries = self.transaction_before(last.as_raw())?;
        entries.push(last);
        Ok(Some(entries))
    }

    /// Time of the oldest operation that is left. `None`: nothing was ever removed.
    pub fn oldest(&self) -> Result<Option<Timestamp>> {
        let log = self.log();
        let first = log.stats().first_index;
        if first <= 1 {
            return Ok(None);
        }
        let mut reader = log.read_from(first).map_err(|error| self.error(first, error))?;
        let entry = reader.next().map_err(|error| self.error(first, error))?;
        let time = entry.as_ref().and_then(|entry| oplog::documents(&entry.payload).next().map(time_of));
        // An empty log knows nothing of what was before it.
        Ok(Some(Timestamp(time.unwrap_or(self.last().time + 1))))
    }

    /// The error of a reader that stood at this entry.
    fn error(&self, index: u64, error: sheaf_log::Error) -> Error {
        let first = self.log().stats().first_index;
        let gone = matches!(error, sheaf_log::Error::Gone { .. }) || (index > 0 && index < first);
        if gone {
            return Error::new(
                Code::CAPPED_POSITION_LOST,
                "CollectionScan died due to position in capped collection being deleted.",
            );
        }
        log_error(error)
    }
}

/// Cluster time of an oplog document that storage wrote.
fn time_of(doc: RawDoc<'_>) -> u64 {
    oplog::time(doc.as_bytes())
}

/// An entry's documents. The one with which a new primary begins its term has none in the log.
fn shown(entry: sheaf_log::Entry) -> Vec<u8> {
    let mut payload = entry.payload;
    if payload.is_empty() {
        oplog::write(&mut payload, "n", "", None, None, |doc| {
            doc.append("o", &sheaf_bson::doc! { "msg": "new primary" });
        });
        let wall = (entry.at.time >> 32) as i64 * 1000;
        oplog::stamp(&mut payload, entry.at.term, wall, || entry.at.time);
    }
    payload
}

/// Walks the log forward. It may be kept between commands, and then gives what was committed since.
pub struct OplogCursor {
    oplog: Oplog,
    reader: Reader,
    /// The entry being walked, and its memory if it is large.
    payload: Vec<u8>,
    held: Held,
    /// Where the document given last starts in it, and the next one.
    start: usize,
    offset: usize,
    /// Operations before this time are passed over.
    from: u64,
}

impl OplogCursor {
    /// The same cursor, standing at the start of the log's entry: before operations of earlier times, too,
    /// that were committed together with those asked for.
    #[must_use]
    pub fn whole_entries(mut self) -> Self {
        self.from = 0;
        self
    }

    /// The next operation, if there is one at or before `until`.
    ///
    /// Errors: `CappedPositionLost` if the log has been removed up to behind this place.
    pub fn next(&mut self, until: Timestamp) -> Result<Option<RawDoc<'_>>> {
        loop {
            let Some(doc) = oplog::documents(&self.payload[self.offset..]).next() else {
                if !self.next_entry()? {
                    self.rest();
                    return Ok(None);
                }
                continue;
            };
            let time = time_of(doc);
            if time > until.0 {
                return Ok(None);
            }
            self.start = self.offset;
            self.offset += doc.len();
            if time >= self.from {
                return Ok(Some(RawDoc::new(&self.payload[self.start..self.offset])));
            }
        }
    }

    /// The command that reads has ended; another may go on. Memory for reading ahead is given back meanwhile.
    pub fn suspend(&mut self) {
        self.reader.rest();
    }

    /// How many entries of the log are to be read until its end.
    pub fn behind(&self) -> u64 {
        (self.oplog.last().index + 1).saturating_sub(self.reader.index())
    }

    /// The operation that [`OplogCursor::next`] gave last.
    pub fn doc(&self) -> RawDoc<'_> {
        oplog::documents(&self.payload[self.start..]).next().unwrap_or(RawDoc::EMPTY)
    }

    /// A cursor that waits for more holds no large entry meanwhile.
    fn rest(&mut self) {
        if self.payload.capacity() > RESTING_BYTES {
            self.payload = Vec::new();
            self.held = Held::default();
            (self.start, self.offset) = (0, 0);
        }
    }

    fn next_entry(&mut self) -> Result<bool> {
        let index = self.reader.index();
        // What is in the log but not yet applied is nobody's business.
        if index > self.oplog.last().index {
            return Ok(false);
        }
        let entry = self.reader.next().map_err(|error| self.oplog.error(index, error))?;
        let Some(entry) = entry else { return Ok(false) };
        self.payload = shown(entry);
        if self.held.bytes() > 0 {
            self.held = Held::default();
        }
        if self.payload.len() >= COUNTED_BYTES {
            self.held = sheaf_meter::reserve(self.payload.len() as u64)?;
        }
        (self.start, self.offset) = (0, 0);
        Ok(true)
    }
}

/// Walks the log backward.
pub struct BackwardOplogCursor {
    oplog: Oplog,
    /// Entries from this index on have been given.
    before: u64,
    /// How many entries the next block has.
    entries: u64,
    /// Payloads of the block's entries that are not yet walked, oldest first.
    block: VecDeque<Vec<u8>>,
    /// The payload being walked, where its documents begin that are still to come, and the one given last.
    found: Vec<u8>,
    starts: Vec<usize>,
    at: usize,
    until: u64,
}

impl BackwardOplogCursor {
    /// The operation before the one given last.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<RawDoc<'_>>> {
        loop {
            let Some(start) = self.starts.pop() else {
                if !self.next_payload()? {
                    return Ok(None);
                }
                continue;
            };
            let time = oplog::documents(&self.found[start..]).next().map_or(u64::MAX, time_of);
            if time <= self.until {
                self.at = start;
                return Ok(Some(self.doc()));
            }
        }
    }

    /// The operation that [`BackwardOplogCursor::next`] gave last.
    pub fn doc(&self) -> RawDoc<'_> {
        oplog::documents(&self.found[self.at..]).next().unwrap_or(RawDoc::EMPTY)
    }

    fn next_payload(&mut self) -> Result<bool> {
        if self.block.is_empty() {
            self.read_block()?;
        }
        let Some(payload) = self.block.pop_back() else { return Ok(false) };
        self.starts.clear();
        let mut start = 0;
        for doc in oplog::documents(&payload) {
            self.starts.push(start);
            start += doc.len();
        }
        self.found = payload;
        Ok(true)
    }

    /// Reads the entries before those given already, and keeps the newest of them.
    fn read_block(&mut self) -> Result<()> {
        let log = self.oplog.log();
        let first = log.stats().first_index.max(1);
        if self.before <= first {
            return Ok(());
        }
        let start = self.before.saturating_sub(self.entries).max(first);
        let mut reader = log.read_from(start).map_err(|error| self.oplog.error(start, error))?;
        let mut bytes = 0;
        while reader.index() < self.before {
            let index = reader.index();
            let Some(entry) = reader.next().map_err(|error| self.oplog.error(index, error))? else { break };
            bytes += entry.payload.len();
            self.block.push_back(shown(entry));
            while bytes > BLOCK_BYTES && self.block.len() > 1 {
                bytes -= self.block.pop_front().map_or(0, |payload| payload.len());
            }
        }
        self.before -= self.block.len() as u64;
        self.entries = (self.entries * 4).min(BLOCK_ENTRIES.1);
        Ok(())
    }
}
