//! RocksDB's iterators, and the documents that their values refer to.

use std::sync::Arc;

use rocksdb::{DBRawIterator, ReadOptions};
use self_cell::self_cell;
use sheaf_errors::Result;

use super::gaps::{Gaps, Way};
use super::values::{Ahead, Next, Pin, Reference};
use super::{Cf, Db, io_error};

self_cell!(
    struct Iter {
        owner: Arc<Db>,
        #[covariant]
        dependent: DBRawIterator,
    }
);

/// A RocksDB iterator that keeps its database open. It stays valid after the snapshot that it was made from has gone.
pub(crate) struct IterCell {
    iter: Iter,
    cf: Cf,
    /// The document that the iterator's value refers to, if `refers`.
    document: Vec<u8>,
    refers: bool,
    /// So many documents in a row were read from files, one by one.
    one_by_one: u32,
    /// Documents that are read ahead: then the iterator is ahead, too, of where the cell stands.
    ahead: Option<Box<Ahead>>,
    pin: Pin,
}

/// After so many documents that were read one by one, those behind them are read ahead.
const AHEAD_AFTER: u32 = 32;

impl IterCell {
    /// `pin` is that of the snapshot in the options; without one, it was taken before.
    pub fn open(db: &Arc<Db>, cf: Cf, options: ReadOptions, pin: Pin) -> IterCell {
        let iter = Iter::new(db.clone(), |db| db.db.raw_iterator_cf_opt(db.cf(cf), options));
        IterCell { iter, cf, document: Vec::new(), refers: false, one_by_one: 0, ahead: None, pin }
    }

    /// The key on which it stands.
    pub fn key(&self) -> Option<&[u8]> {
        match &self.ahead {
            Some(ahead) => Some(ahead.key()),
            None => self.iter.borrow_dependent().key(),
        }
    }

    /// The value on which it stands: of a record, the document, wherever it is.
    pub fn value(&self) -> Option<&[u8]> {
        match &self.ahead {
            Some(ahead) => Some(ahead.value()),
            None if self.refers => Some(&self.document),
            None => self.iter.borrow_dependent().value(),
        }
    }

    /// Whether it stands on a record whose document is elsewhere, and cannot be read there.
    pub fn refers_in_vain(&self) -> bool {
        !self.refers
            && self.ahead.is_none()
            && self.cf == Cf::Records
            && self.value().and_then(Reference::read).is_some()
    }

    /// Goes to the first entry of the way at or behind `key`, but not through [`gaps`](super::gaps); `exclusive`: the key itself is not wanted, and
    /// may be found all the same. False when there is none, an error when a read failed.
    pub fn seek(&mut self, way: &Way<'_>, key: &[u8], exclusive: bool) -> Result<bool> {
        let beyond = self.iter.borrow_owner().gaps.beyond(way, key, exclusive);
        let from = beyond.as_deref().unwrap_or(key);
        let began = Gaps::look();
        let found = self.step(|iter| if way.forward { iter.seek(from) } else { iter.seek_for_prev(from) })?;
        let db = self.iter.borrow_owner();
        if began.is_some_and(|began| db.gaps.is_to_learn(began.elapsed())) {
            db.gaps.learn(db, way, from, exclusive || beyond.is_some());
        }
        Ok(found)
    }

    /// Goes to the next entry, or the one before; where a scan comes to many documents that are in files, these are read ahead. False and errors
    /// as those of [`IterCell::step`].
    pub fn advance(&mut self, forward: bool) -> Result<bool> {
        if self.ahead.is_none() && forward && self.one_by_one >= AHEAD_AFTER {
            self.one_by_one = 0;
            self.ahead = Ahead::begin(self.iter.borrow_owner(), &self.pin);
        }
        if let Some(ahead) = &mut self.ahead {
            match self.iter.with_dependent_mut(|_, iter| ahead.next(iter)) {
                Next::Entry => return Ok(true),
                // The iterator is not ahead any more.
                Next::Plain => self.ahead = None,
                Next::Again(key) => return self.step(|iter| iter.seek(key)),
            }
        }
        let found = self.step(|iter| if forward { iter.next() } else { iter.prev() })?;
        self.one_by_one = if found && self.refers { self.one_by_one + 1 } else { 0 };
        Ok(found)
    }

    /// Moves the iterator; false when it left its range, an error when a read failed. From where the cell stands only before it was
    /// [advanced](IterCell::advance).
    pub fn step(&mut self, step: impl FnOnce(&mut DBRawIterator<'_>)) -> Result<bool> {
        self.ahead = None;
        let (cf, document) = (self.cf, &mut self.document);
        self.refers = false;
        let refers = &mut self.refers;
        self.iter.with_dependent_mut(|db, iter| {
            step(iter);
            if !iter.valid() {
                return iter.status().map(|()| false).map_err(io_error);
            }
            if cf == Cf::Records
                && db.values.any()
                && let Some(reference) = iter.value().and_then(Reference::read)
            {
                db.values.read(&reference, document)?;
                *refers = true;
            }
            Ok(true)
        })
    }
}
