//! Cursors: RocksDB's iterator, merged with a transaction's own writes where there are any.

use std::ops::Bound;
use std::sync::Arc;

use rocksdb::ReadOptions;
use sheaf_bson::RawDoc;
use sheaf_bson::key::after_prefix;
use sheaf_errors::{Code, Result, bail};

use crate::catalog::Collection;
use crate::db::{Cf, IterCell, Way};
use crate::index::Index;
use crate::keys::{EntryParts, FullKey, PREFIX, entry_parts, full_key, prefix_range};
use crate::read::overlay::Overlay;
use crate::read::view::View;

/// Which way a cursor goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Backward,
}

/// Record keys from `lower` to `upper`, both possibly open.
#[derive(Clone, Debug)]
pub struct Range {
    /// Where it begins.
    pub lower: Bound<Vec<u8>>,
    /// Where it ends.
    pub upper: Bound<Vec<u8>>,
}

impl Range {
    /// Everything.
    pub const ALL: Range = Range { lower: Bound::Unbounded, upper: Bound::Unbounded };
}

/// Where a cursor stood.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Position {
    /// Bytes of the entry last given; `None`: nothing was given yet.
    pub key: Option<Vec<u8>>,
}

/// A cut between index entries: just before or just after all entries whose key starts with these bytes.
#[derive(Clone, Copy, Debug)]
pub enum Cut<'k> {
    /// Before all of them.
    Before(&'k [u8]),
    /// After all of them.
    After(&'k [u8]),
}

/// Entries of one prefix in a column family, own writes included. Keys are with their prefix.
struct Merged {
    cell: IterCell,
    cf: Cf,
    forward: bool,
    lower: FullKey,
    /// Not included.
    upper: FullKey,
    /// Where the RocksDB iterator stands on an entry.
    below: bool,
    own: Option<Own>,
    /// What was known of stretches without entries before the view's snapshot was taken.
    known: u64,
}

/// The side of the transaction's own writes.
struct Own {
    overlay: Arc<Overlay>,
    /// The next own entry in direction.
    next: Option<Vec<u8>>,
    /// Whether the entry given now is that one.
    current: bool,
}

impl Merged {
    /// Waits for what is prepared between the bounds and not decided, where the view does.
    fn open(
        view: &View,
        mut options: ReadOptions,
        cf: Cf,
        lower: FullKey,
        upper: FullKey,
        direction: Direction,
    ) -> Result<Merged> {
        options.set_iterate_lower_bound(&lower[..]);
        options.set_iterate_upper_bound(&upper[..]);
        options.set_auto_readahead_size(true);
        let own = view.overlay.as_ref().filter(|overlay| {
            lower < upper
                && overlay
                    .of(cf)
                    .range::<[u8], _>((Bound::Included(&lower[..]), Bound::Excluded(&upper[..])))
                    .next()
                    .is_some()
        });
        let own = match &view.past {
            Some(past) => past.over(cf, &lower, &upper, own)?,
            None => own.cloned(),
        };
        let own = own.map(|overlay| Own { overlay, next: None, current: false });
        let pin = view.at.snapshot.pin().clone();
        let cell = IterCell::open(&view.at.published.db, cf, options, pin);
        let (forward, known) = (direction == Direction::Forward, view.at.snapshot.known());
        Ok(Merged { cell, cf, forward, lower, upper, below: false, own, known })
    }

    /// Goes to the first entry at or after `key` going forward, at or before it going backward;
    /// `exclusive` leaves `key` itself out.
    fn seek(&mut self, key: &[u8], exclusive: bool) -> Result<bool> {
        let way = Way {
            cf: self.cf,
            forward: self.forward,
            lower: &self.lower,
            upper: &self.upper,
            known: self.known,
        };
        let mut found = self.cell.seek(&way, key, exclusive)?;
        if found && exclusive && self.cell.key() == Some(key) {
            found = self.step_below()?;
        }
        self.below = found;
        if self.own.is_some() {
            let bound = if exclusive { Bound::Excluded(key) } else { Bound::Included(key) };
            self.own_seek(bound);
            return self.settle();
        }
        Ok(found)
    }

    fn step_below(&mut self) -> Result<bool> {
        self.cell.advance(self.forward)
    }

    /// Moves on from the entry given.
    fn advance(&mut self) -> Result<bool> {
        match &mut self.own {
            None => {
                if self.below {
                    self.below = self.step_below()?;
                }
                Ok(self.below)
            }
            Some(own) if own.current => {
                let key = own.next.take().unwrap_or_default();
                self.own_seek(Bound::Excluded(&key));
                self.settle()
            }
            Some(_) => {
                if self.below {
                    self.below = self.step_below()?;
                }
                self.settle()
            }
        }
    }

    fn own_seek(&mut self, from: Bound<&[u8]>) {
        let (lower, upper) = (&self.lower[..], &self.upper[..]);
        let Some(own) = &mut self.own else { return };
        let map = own.overlay.of(self.cf);
        let at = match from {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        };
        own.next = if self.forward {
            let from = if at < lower { Bound::Included(lower) } else { from };
            if at >= upper { None } else { map.range::<[u8], _>((from, Bound::Excluded(upper))).next() }
        } else {
            let to = if at >= upper { Bound::Excluded(upper) } else { from };
            if at < lower { None } else { map.range::<[u8], _>((Bound::Included(lower), to)).next_back() }
        }
        .map(|(key, _)| key.clone());
    }

    /// Decides which side is next, and steps over what own deletes hide.
    fn settle(&mut self) -> Result<bool> {
        loop {
            let Some(own) = &mut self.own else { return Ok(self.below) };
            let Some(key) = &own.next else {
                own.current = false;
                return Ok(self.below);
            };
            let order = match self.cell.key().filter(|_| self.below) {
                None => std::cmp::Ordering::Less,
                Some(below) if self.forward => key[..].cmp(below),
                Some(below) => below.cmp(&key[..]),
            };
            if order == std::cmp::Ordering::Greater {
                own.current = false;
                return Ok(true);
            }
            let shown = own.overlay.of(self.cf).get(key).is_some_and(Option::is_some);
            if order == std::cmp::Ordering::Equal {
                self.below = self.step_below()?;
            }
            let Some(own) = &mut self.own else { return Ok(self.below) };
            if shown {
                own.current = true;
                return Ok(true);
            }
            let key = own.next.take().unwrap_or_default();
            self.own_seek(Bound::Excluded(&key));
        }
    }

    fn key(&self) -> &[u8] {
        match &self.own {
            Some(own) if own.current => own.next.as_deref().unwrap_or_default(),
            _ => self.cell.key().unwrap_or_default(),
        }
    }

    fn value(&self) -> &[u8] {
        match &self.own {
            Some(own) if own.current => own
                .next
                .as_ref()
                .and_then(|key| own.overlay.of(self.cf).get(key))
                .and_then(|value| value.as_deref())
                .unwrap_or_default(),
            _ => self.cell.value().unwrap_or_default(),
        }
    }
}

/// What the next call of `next` has to do.
#[derive(Clone, Debug, PartialEq)]
enum Next {
    /// Go to where the range begins.
    Start,
    /// Move on from the entry given.
    Advance,
    /// Go behind this key (with prefix).
    After(Vec<u8>),
    /// Nothing more.
    End,
    /// Nothing more now, behind this key: a tailable cursor goes on there.
    EndAt(Vec<u8>),
}

impl View {
    /// A cursor over records in natural order. It stands before the first record.
    pub fn records(
        &self,
        collection: &Collection,
        range: Range,
        direction: Direction,
    ) -> Result<RecordCursor> {
        RecordCursor::open(self, collection, range, direction, self.at.snapshot.read_options())
    }

    /// The same over all records, for who reads them once: the block cache keeps what others read, and no memory is filled for nothing.
    pub(crate) fn all_records_once(&self, collection: &Collection) -> Result<RecordCursor> {
        let mut options = self.at.snapshot.read_options();
        options.fill_cache(false);
        RecordCursor::open(self, collection, Range::ALL, Direction::Forward, options)
    }

    /// A cursor over an index. It stands nowhere until it is sought.
    pub fn index(&self, index: &Index, direction: Direction) -> Result<IndexCursor> {
        IndexCursor::open(self, index, direction)
    }

    /// A cursor over an index that ends with the keys that start with `last`, in its direction.
    pub fn index_to(&self, index: &Index, direction: Direction, last: &[u8]) -> Result<IndexCursor> {
        IndexCursor::open_to(self, index, direction, Some(last))
    }
}

/// Walks records in natural order. Owns everything it needs: it may be kept between commands.
pub struct RecordCursor {
    merged: Merged,
    next: Next,
    tailable: bool,
}

impl RecordCursor {
    fn open(
        view: &View,
        collection: &Collection,
        range: Range,
        direction: Direction,
        options: ReadOptions,
    ) -> Result<Self> {
        let (lower, upper) = prefix_range(collection.ident);
        let lower = match &range.lower {
            Bound::Unbounded => FullKey::from_slice(&lower),
            Bound::Included(key) => full_key(collection.ident, key),
            // The next longer key is the first one above.
            Bound::Excluded(key) => just_above(full_key(collection.ident, key)),
        };
        let upper = match &range.upper {
            Bound::Unbounded => FullKey::from_slice(&upper),
            Bound::Included(key) => just_above(full_key(collection.ident, key)),
            Bound::Excluded(key) => full_key(collection.ident, key),
        };
        let empty = lower >= upper;
        let merged = Merged::open(view, options, Cf::Records, lower, upper, direction)?;
        let tailable = collection.capped.is_some() && direction == Direction::Forward;
        Ok(RecordCursor { merged, next: if empty { Next::End } else { Next::Start }, tailable })
    }

    /// Moves to the next record; false at the end. Then `key` and `doc` may be asked.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<bool> {
        let found = match std::mem::replace(&mut self.next, Next::Advance) {
            Next::Advance => self.merged.advance()?,
            Next::Start => {
                let at =
                    if self.merged.forward { self.merged.lower.clone() } else { self.merged.upper.clone() };
                self.merged.seek(&at, !self.merged.forward)?
            }
            Next::After(key) => {
                let found = self.merged.seek(&key, true)?;
                if !found {
                    self.next = Next::EndAt(key);
                    return Ok(false);
                }
                found
            }
            end @ (Next::End | Next::EndAt(_)) => {
                self.next = end;
                return Ok(false);
            }
        };
        if !found {
            self.next = self.end()?;
        }
        Ok(found)
    }

    /// How the end is remembered: a tailable cursor must go on behind the last record.
    fn end(&mut self) -> Result<Next> {
        if !self.tailable {
            return Ok(Next::End);
        }
        let upper = self.merged.upper.clone();
        let found = self.merged.cell.step(|iter| iter.seek_for_prev(&upper))?;
        let key = self.merged.cell.key().filter(|_| found);
        Ok(key.map_or(Next::End, |key| Next::EndAt(key.to_vec())))
    }

    /// After an error: the key of the record whose document could not be read, if that is why. The cursor can go on behind it.
    pub(crate) fn unreadable(&self) -> Option<&[u8]> {
        let key = self.merged.cell.key().filter(|_| self.merged.cell.refers_in_vain())?;
        key.get(PREFIX..)
    }

    /// Moves to the first record at or after (in direction) `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<bool> {
        let mut at = FullKey::from_slice(&self.merged.lower[..PREFIX]);
        at.extend_from_slice(key);
        let found = self.merged.seek(&at, false)?;
        self.next = if found { Next::Advance } else { Next::End };
        Ok(found)
    }

    /// The record's key, without the collection's prefix.
    pub fn key(&self) -> &[u8] {
        self.merged.key().get(PREFIX..).unwrap_or_default()
    }

    /// The document.
    pub fn doc(&self) -> RawDoc<'_> {
        RawDoc::new(self.merged.value())
    }

    /// The document's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.merged.value()
    }

    /// The position, for [`RecordCursor::restore`]: `next` then gives what follows the record last given.
    pub fn save(&self) -> Position {
        let key = match &self.next {
            Next::Start | Next::End => None,
            Next::After(key) | Next::EndAt(key) => Some(key[PREFIX..].to_vec()),
            Next::Advance => Some(self.key().to_vec()),
        };
        Position { key }
    }

    /// Continues a saved position on another (newer) view. A capped collection's position is lost
    /// (`CappedPositionLost`) when its record is gone.
    pub fn restore(
        view: &View,
        collection: &Collection,
        range: Range,
        direction: Direction,
        position: &Position,
    ) -> Result<Self> {
        let mut cursor = view.records(collection, range, direction)?;
        if let Some(key) = &position.key
            && cursor.next != Next::End
        {
            if collection.capped.is_some() && view.get(collection, key)?.is_none() {
                bail!(
                    Code::CAPPED_POSITION_LOST,
                    "CollectionScan died due to position in capped collection being deleted. Last seen record id: RecordId({})",
                    key.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes))
                );
            }
            cursor.next = Next::After(full_key(collection.ident, key).into_vec());
        }
        Ok(cursor)
    }
}

/// The smallest key above `key`.
fn just_above(mut key: FullKey) -> FullKey {
    key.push(0);
    key
}

/// Walks index entries, by key and then by record key.
pub struct IndexCursor {
    merged: Merged,
    unique: bool,
    next: Next,
}

impl IndexCursor {
    pub(crate) fn open(view: &View, index: &Index, direction: Direction) -> Result<Self> {
        Self::open_to(view, index, direction, None)
    }

    /// Opens one that does not go beyond the keys that start with `last`. It stops there even where the entries behind
    /// are deleted ones, which RocksDB would otherwise walk over in search of one that lives.
    pub(crate) fn open_to(
        view: &View,
        index: &Index,
        direction: Direction,
        last: Option<&[u8]>,
    ) -> Result<Self> {
        let (lower, upper) = prefix_range(index.ident);
        let (mut lower, mut upper) = (FullKey::from_slice(&lower), FullKey::from_slice(&upper));
        match (last, direction) {
            (None, _) => {}
            (Some(last), Direction::Forward) => {
                upper = after_prefix(&full_key(index.ident, last)).map_or(upper, FullKey::from_vec);
            }
            (Some(last), Direction::Backward) => lower.extend_from_slice(last),
        }
        let options = view.at.snapshot.read_options();
        let merged = Merged::open(view, options, Cf::Indexes, lower, upper, direction)?;
        Ok(IndexCursor { merged, unique: index.unique, next: Next::Start })
    }

    /// Moves to the first entry in direction from the cut: forward the first after it, backward the last before it.
    pub fn seek(&mut self, cut: Cut<'_>) -> Result<bool> {
        let prefix = &self.merged.lower[..PREFIX];
        let mut at = FullKey::from_slice(prefix);
        let (Cut::Before(key) | Cut::After(key)) = cut;
        at.extend_from_slice(key);
        // All-0xFF prefixes have nothing behind them; numbers are never that high.
        if let (Cut::After(_), Some(after)) = (cut, after_prefix(&at)) {
            at = FullKey::from_vec(after);
        }
        // Going forward the cut's key itself is behind the cut, going backward it is not before it.
        let exclusive = !self.merged.forward;
        let found = self.merged.seek(&at, exclusive)?;
        self.next = if found { Next::Advance } else { Next::End };
        Ok(found)
    }

    /// Moves on by one entry in direction (to the first one, if nothing was sought).
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<bool> {
        let found = match std::mem::replace(&mut self.next, Next::Advance) {
            Next::Advance => self.merged.advance()?,
            Next::Start => {
                let at =
                    if self.merged.forward { self.merged.lower.clone() } else { self.merged.upper.clone() };
                self.merged.seek(&at, !self.merged.forward)?
            }
            Next::After(key) => self.merged.seek(&key, true)?,
            Next::End | Next::EndAt(_) => false,
        };
        if !found {
            self.next = Next::End;
        }
        Ok(found)
    }

    /// Key, record key and type bits at once: cheaper than one by one.
    pub fn entry(&self) -> IndexEntry<'_> {
        let EntryParts { key, record_key, type_bits } =
            entry_parts(self.unique, self.merged.key(), self.merged.value());
        IndexEntry { key, record_key, type_bits }
    }

    /// The memcomparable key, without index prefix and record key.
    pub fn key(&self) -> &[u8] {
        self.entry().key
    }

    /// The record key of the document.
    pub fn record_key(&self) -> &[u8] {
        self.entry().record_key
    }

    /// What, with the key, gives back exact values (`sheaf_bson::key::Decoder`).
    pub fn type_bits(&self) -> &[u8] {
        self.entry().type_bits
    }

    /// The position, for [`IndexCursor::restore`].
    pub fn save(&self) -> Position {
        let key = match &self.next {
            Next::Start | Next::End => None,
            Next::After(key) | Next::EndAt(key) => Some(key[PREFIX..].to_vec()),
            Next::Advance => Some(self.merged.key().get(PREFIX..).unwrap_or_default().to_vec()),
        };
        Position { key }
    }

    /// Continues on another view: `next` gives what follows the entry last given.
    pub fn restore(view: &View, index: &Index, direction: Direction, position: &Position) -> Result<Self> {
        let mut cursor = IndexCursor::open(view, index, direction)?;
        if let Some(key) = &position.key {
            cursor.next = Next::After(full_key(index.ident, key).into_vec());
        }
        Ok(cursor)
    }
}

/// One index entry, taken apart.
#[derive(Clone, Copy, Debug)]
pub struct IndexEntry<'c> {
    /// The memcomparable key.
    pub key: &'c [u8],
    /// The document's record key.
    pub record_key: &'c [u8],
    /// Exact types of the key's values.
    pub type_bits: &'c [u8],
}
