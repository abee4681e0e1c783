//! The documents of a range of shard keys, in an order in which a scan can be continued on a later state.

use std::sync::Arc;

use sheaf_bson::{RawDoc, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::moves::Move;
use sheaf_shard::placement::{KeyPattern, KeyRange};
use sheaf_storage::{Collection, Cut, Direction, Doc, Engine, Index, Range, Uuid, View};

use crate::sharding::key_index::is_index_of;

/// A range of a collection in a state.
pub(super) struct Part {
    view: View,
    pub collection: Arc<Collection>,
    pattern: KeyPattern,
    range: KeyRange,
}

/// Takes a record's key and document; false: that is for another time.
type Take<'t> = dyn FnMut(&[u8], RawDoc<'_>) -> Result<bool> + 't;

impl Part {
    /// The moved range as it is now.
    ///
    /// Errors: `NamespaceNotFound`.
    pub fn of(engine: &Engine, the_move: &Move) -> Result<Part> {
        Part::new(engine, Uuid::from_bytes(the_move.uuid), the_move.pattern.clone(), the_move.range())
    }

    /// A range as it is now.
    ///
    /// Errors: `NamespaceNotFound`.
    pub fn new(engine: &Engine, uuid: Uuid, pattern: KeyPattern, range: KeyRange) -> Result<Part> {
        let view = engine.view()?;
        let Some(collection) = view.catalog().by_uuid(&uuid).cloned() else {
            bail!(Code::NAMESPACE_NOT_FOUND, "the collection {uuid} is not here");
        };
        Ok(Part { view, collection, pattern, range })
    }

    /// Whether a document is in the range.
    pub fn has(&self, document: RawDoc<'_>) -> bool {
        self.pattern.key_of(document).is_ok_and(|key| self.range.contains(&key))
    }

    /// The document of a record, if it is in the range.
    pub fn get(&self, key: &[u8]) -> Result<Option<Doc<'_>>> {
        let found = self.view.get(&self.collection, key)?;
        Ok(found.filter(|document| self.has(document.as_raw())))
    }

    /// Goes through the range behind where an earlier scan ended, by the shard key where there is an index for it. Gives where it
    /// has ended; `None`: there is no more.
    pub fn scan(&self, after: Option<&[u8]>, take: &mut Take<'_>) -> Result<Option<Vec<u8>>> {
        let index = self.collection.indexes.iter().find(|index| is_index_of(index, self.pattern.document()));
        match (after.and_then(<[u8]>::split_first), index) {
            (None | Some((b'i', _)), Some(index)) => {
                self.by_index(index, after.map(|after| &after[1..]), take)
            }
            (None | Some((b'r', _)), _) => self.by_record(after.map(|after| &after[1..]), take),
            _ => bail!(
                Code::INDEX_NOT_FOUND,
                "the index of the shard key was dropped while a range was copied"
            ),
        }
    }

    fn by_index(&self, index: &Index, after: Option<&[u8]>, take: &mut Take<'_>) -> Result<Option<Vec<u8>>> {
        let mut cursor = self.view.index(index, Direction::Forward)?;
        let place = after.and_then(Place::parse);
        let from = place.as_ref().map_or(self.range.low(), |place| place.key.max(self.range.low()));
        let mut found = cursor.seek(Cut::Before(from))?;
        let mut last = Place { key: &[], record: &[] }.bytes();
        while found && self.range.high().is_none_or(|high| cursor.key() < high) {
            sheaf_meter::tick(1)?;
            let now = Place { key: cursor.key(), record: cursor.record_key() };
            if place.as_ref().is_none_or(|place| (place.key, place.record) < (now.key, now.record)) {
                let now = now.bytes();
                if let Some(document) = self.get(cursor.record_key())?
                    && !take(cursor.record_key(), document.as_raw())?
                {
                    return Ok(Some(last));
                }
                last = now;
            }
            found = cursor.next()?;
        }
        Ok(None)
    }

    fn by_record(&self, after: Option<&[u8]>, take: &mut Take<'_>) -> Result<Option<Vec<u8>>> {
        let mut cursor = self.view.records(&self.collection, Range::ALL, Direction::Forward)?;
        // Record keys are made of `_id` as shard keys are.
        let by_id = sheaf_bson::compare_docs(self.pattern.document(), doc! { "_id": 1 }.as_raw()).is_eq();
        let low = if by_id { self.range.low() } else { &[] };
        let mut found = cursor.seek(after.unwrap_or(&[]).max(low))?;
        if found && after == Some(cursor.key()) {
            found = cursor.next()?;
        }
        let mut last = vec![b'r'];
        while found && !(by_id && self.range.high().is_some_and(|high| cursor.key() >= high)) {
            sheaf_meter::tick(1)?;
            if self.has(cursor.doc()) && !take(cursor.key(), cursor.doc())? {
                return Ok(Some(last));
            }
            last.truncate(1);
            last.extend_from_slice(cursor.key());
            found = cursor.next()?;
        }
        Ok(None)
    }
}

/// Where a scan by an index has ended.
struct Place<'p> {
    key: &'p [u8],
    record: &'p [u8],
}

impl<'p> Place<'p> {
    fn bytes(&self) -> Vec<u8> {
        let length = (self.key.len() as u32).to_le_bytes();
        [b"i", &length[..], self.key, self.record].concat()
    }

    fn parse(bytes: &'p [u8]) -> Option<Place<'p>> {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (key, record) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        Some(Place { key, record })
    }
}
