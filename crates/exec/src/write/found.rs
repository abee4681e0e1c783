//! What a search has found for an update or delete, some at a time.
//!
//! A search may take long, and so may what is made of each document, while whoever waits for the collection, for a record or for the server's
//! writes to rest must not. So nothing is held while it is searched, and what was found is written in turns of some ten milliseconds.
//! A document that has changed since it was found is looked at again anyway.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sheaf_errors::Result;
use sheaf_meter::Held;
use sheaf_rows::Cx;
use sheaf_storage::Write;

use super::update::next_record;
use crate::run::Executor;

/// Of a search for many, so many documents are taken at a time at first, and at most, to which they double; and about so many bytes.
const FIRST: usize = 16;
const MOST: usize = 1024;
const BYTES: usize = 1 << 20;

/// Of more than this the memory is counted: of each document as it was found, as it is now, what becomes of it, that in a batch whose buffer has
/// grown, and what RocksDB makes of it.
const COUNTED_BYTES: usize = 256 << 10;
const COPIES: u64 = 7;

/// So long others wait for one turn.
const TURN: Duration = Duration::from_millis(10);

/// A record's key and its document, but of the largest: that is read again anyway, and many may wait for memory.
type Record = (Vec<u8>, Option<Vec<u8>>);

/// Documents that were found, in their order.
pub(super) struct Found {
    records: VecDeque<Record>,
    memory: Held,
    most: usize,
    /// When the turn began; none does before the first document is taken.
    since: Option<Instant>,
    /// The document that was given is the first of its turn.
    begins: bool,
    /// The search has come to its end.
    ended: bool,
}

impl Found {
    /// For a search for all, or for the first that still matches when it is written.
    pub fn new(all: bool) -> Found {
        Found {
            records: VecDeque::new(),
            memory: Held::default(),
            most: if all { FIRST } else { 1 },
            since: None,
            begins: false,
            ended: false,
        }
    }

    /// Searches on, with nothing held. False: there is nothing more.
    ///
    /// Errors: those of the search, and of committing what was written.
    pub fn search(&mut self, w: &mut dyn Write, executor: &mut Executor, rows: &mut Cx<'_>) -> Result<bool> {
        if self.ended {
            return Ok(false);
        }
        let holds_nothing = w.set_down()?;
        (self.since, self.memory) = (None, Held::default());
        let mut bytes = 0;
        while self.records.len() < self.most && bytes < BYTES {
            let Some((key, doc)) = next_record(executor, rows)? else {
                self.ended = true;
                break;
            };
            bytes += key.len() + doc.len();
            let doc = (doc.len() <= COUNTED_BYTES).then_some(doc);
            self.records.push_back((key, doc));
        }
        // Who waits with something held would keep that from those who have the memory.
        if bytes > COUNTED_BYTES && holds_nothing {
            self.memory = sheaf_meter::reserve_in_time(COPIES * bytes as u64)?;
        }
        if self.most > 1 {
            self.most = (2 * self.most).min(MOST);
        }
        Ok(!self.records.is_empty())
    }

    /// The next one. Where it begins a turn, the collection is to be taken up before it is written.
    ///
    /// Errors: those of committing what was written.
    pub fn next(&mut self, w: &mut dyn Write) -> Result<Option<Record>> {
        let Some(record) = self.records.pop_front() else { return Ok(None) };
        let over = self.since.is_some_and(|since| since.elapsed() >= TURN);
        if over {
            w.set_down()?;
        }
        self.begins = over || self.since.is_none();
        if self.begins {
            self.since = Some(Instant::now());
        }
        Ok(Some(record))
    }

    /// Whether the document that was given is the first of its turn.
    pub fn begins_turn(&self) -> bool {
        self.begins
    }
}
