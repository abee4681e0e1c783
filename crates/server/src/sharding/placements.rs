//! What this shard owns of sharded collections: documents of `config.placements`, read in the state that an operation works on.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::{Arc, Weak};

use ahash::AHashMap;
use parking_lot::{Mutex, RwLock};
use sheaf_bson::{ArrayWriter, Binary, RawDoc, Timestamp, Value};
use sheaf_errors::Result;
use sheaf_exec::run::{Owned, Ownership, Part};
use sheaf_shard::placement::{CLOSED, CollectionPlacement, KeyPattern, KeyRange, Ranges};
use sheaf_storage::{Catalog, Collection, DocumentKey, Engine, Uuid, View};

use super::traffic::Traffic;

/// Where placements are kept. Each is an ordinary document: commits, snapshots, copies and rollbacks treat it as any other.
pub const NAMESPACE: &str = "config.placements";

/// So many records in the way are noted.
const MET_MAX: usize = 10_000;

/// So many are kept parsed.
const PARSED_MAX: usize = 10_000;

/// What this shard has of a sharded collection, as of some state.
#[derive(Debug)]
pub struct Placed {
    /// The document that says so.
    document: Box<[u8]>,
    parsed: CollectionPlacement,
    /// What is written to the collection.
    pub traffic: Arc<Traffic>,
    document_key: Arc<DocumentKey>,
}

impl Deref for Placed {
    type Target = CollectionPlacement;

    fn deref(&self) -> &CollectionPlacement {
        &self.parsed
    }
}

impl Placed {
    /// How its documents are named in the log.
    pub fn document_key(&self) -> &Arc<DocumentKey> {
        &self.document_key
    }

    /// Whether the shard owns the document, which it may have: what it receives and what it has given away is there, too.
    ///
    /// Errors: `ShardKeyNotFound`, where the document has an array in its shard key.
    pub fn owns(&self, document: RawDoc<'_>, order: &mut Vec<u8>) -> Result<bool> {
        order.clear();
        self.pattern.put_order(document, order)?;
        Ok(self.placement.owned.holds(order))
    }

    /// Adds each range that the shard owns as an array of its two ends.
    pub fn put_owned(&self, list: &mut ArrayWriter<'_, Vec<u8>>) {
        let owned = RawDoc::new(&self.document).get("owned").and_then(|owned| owned.as_array());
        for range in owned.into_iter().flat_map(|owned| owned.values()).filter_map(|range| range.as_doc()) {
            let mut ends = list.array();
            ends.push(range.get_or_missing("min"));
            ends.push(range.get_or_missing("max"));
        }
    }
}

/// The placements that were read before, by collection: a document is parsed once for as long as it stays the same.
#[derive(Default)]
pub struct Placements {
    parsed: RwLock<AHashMap<Uuid, Arc<Placed>>>,
    /// All that were given out and may be in use, by collection: cursors keep the one with which they began.
    given: Mutex<AHashMap<Uuid, Vec<Weak<Placed>>>>,
    /// Records that inserts have met which may be none of the shard's own any more.
    met: Mutex<BTreeSet<(Uuid, Vec<u8>)>>,
    /// By collection, across changes of its placement.
    traffic: RwLock<AHashMap<Uuid, Arc<Traffic>>>,
}

impl Placements {
    /// Where placements are, if any collection was ever sharded here.
    pub fn home(catalog: &Catalog) -> Option<&Arc<Collection>> {
        catalog.collection(NAMESPACE)
    }

    /// The collections that are sharded in this state, in order, and the versions of what the shard has of them.
    ///
    /// Errors: those of reading.
    pub fn versions(view: &View) -> Result<BTreeMap<String, Timestamp>> {
        let version = |placement: RawDoc<'_>| {
            let ns = placement.get("ns")?.as_str()?.to_owned();
            match placement.get("lastmod") {
                Some(Value::Timestamp(version)) => Some((ns, version)),
                _ => None,
            }
        };
        let found = super::rows::find(view, NAMESPACE, |_| true)?;
        Ok(found.iter().filter_map(|placement| version(placement.as_raw())).collect())
    }

    /// The placement of a collection in this state; `None`: it is not sharded.
    ///
    /// Errors: `BadValue`, where the document cannot be read.
    pub fn in_view(&self, view: &View, uuid: &Uuid) -> Result<Option<Arc<Placed>>> {
        let Some(home) = Self::home(view.catalog()) else { return Ok(None) };
        let found = view.get(home, &key_of(home, uuid)?)?;
        found.map(|document| self.parse(uuid, &document)).transpose()
    }

    /// The placement now. Whoever writes to the collection keeps it from changing.
    ///
    /// Errors: as [`Placements::in_view`].
    pub fn now(&self, engine: &Engine, catalog: &Catalog, uuid: &Uuid) -> Result<Option<Arc<Placed>>> {
        let Some(home) = Self::home(catalog) else { return Ok(None) };
        let found = engine.get(home, &key_of(home, uuid)?)?;
        found.map(|document| self.parse(uuid, &document)).transpose()
    }

    fn parse(&self, uuid: &Uuid, document: &[u8]) -> Result<Arc<Placed>> {
        if let Some(known) = self.parsed.read().get(uuid).filter(|known| *known.document == *document) {
            return Ok(known.clone());
        }
        let parsed = CollectionPlacement::parse(RawDoc::new(document))?;
        let traffic = self.traffic.write().entry(*uuid).or_default().clone();
        let fields = parsed.pattern.fields().iter().map(|field| field.path.dotted().to_owned()).collect();
        let document_key = Arc::new(DocumentKey { collection: *uuid, fields });
        let placed = Arc::new(Placed { document: document.into(), parsed, traffic, document_key });
        let mut given = self.given.lock();
        let of = given.entry(*uuid).or_default();
        of.retain(|known| known.strong_count() > 0);
        of.push(Arc::downgrade(&placed));
        drop(given);
        let mut all = self.parsed.write();
        if all.len() >= PARSED_MAX {
            all.clear();
            self.traffic.write().retain(|known, _| known == uuid);
        }
        all.insert(*uuid, placed.clone());
        Ok(placed)
    }
}

impl Placements {
    /// An insert has met a record with its `_id`. If that lies in a range which has left it is removed soon, and not when its range is: nobody sees
    /// what is in the way there.
    pub fn has_met(&self, placed: &Placed, uuid: Uuid, record: Vec<u8>) {
        let mut met = self.met.lock();
        if !placed.placement.leaving.is_empty() && met.len() < MET_MAX {
            met.insert((uuid, record));
        }
    }

    /// What was met, by collection; it is forgotten here.
    pub fn take_met(&self) -> BTreeMap<Uuid, Vec<Vec<u8>>> {
        let mut by_collection: BTreeMap<Uuid, Vec<Vec<u8>>> = BTreeMap::new();
        for (uuid, record) in std::mem::take(&mut *self.met.lock()) {
            by_collection.entry(uuid).or_default().push(record);
        }
        by_collection
    }

    /// Whether a cursor or a command reads the collection by a placement that had a part of this range: it may come to documents of it yet.
    pub fn has_readers(&self, uuid: &Uuid, range: &KeyRange) -> bool {
        let parsed = self.parsed.read();
        let known = parsed.get(uuid);
        let given = self.given.lock();
        given.get(uuid).into_iter().flatten().any(|given| {
            let kept = usize::from(known.is_some_and(|known| Arc::as_ptr(known) == given.as_ptr()));
            given.strong_count() > kept
                && given.upgrade().is_some_and(|placed| {
                    placed.placement.owned.as_slice().iter().any(|own| own.overlaps(range))
                })
        })
    }
}

impl Placed {
    /// The owned ranges by a key that has been refined since.
    fn owned_by(&self, newer: &KeyPattern) -> Result<Ranges> {
        if newer.fields().len() == self.pattern.fields().len() {
            return Ok(self.placement.owned.clone());
        }
        let owned = RawDoc::new(&self.document).get("owned").and_then(|owned| owned.as_array());
        let ranges = owned.into_iter().flat_map(|owned| owned.values()).filter_map(|range| range.as_doc());
        let end = |range: RawDoc<'_>, name: &str| {
            let end = range.get(name).and_then(|end| end.as_doc()).unwrap_or(RawDoc::EMPTY);
            self.pattern.key(end)?.refined(&self.pattern, newer)
        };
        let ranges = ranges.map(|range| {
            let (min, max) = (end(range, "min")?, end(range, "max")?);
            Ok(KeyRange::new(&min, &max, max == newer.max()))
        });
        Ok(Ranges::new(ranges.collect::<Result<Vec<_>>>()?))
    }
}

impl Ownership for Placements {
    fn of(&self, view: &View, collection: &Collection) -> Result<Option<Part>> {
        let placed = self.in_view(view, &collection.uuid)?;
        Ok(placed.map(|placed| Part { mixed: placed.placement.filters(), owned: placed }))
    }

    fn keeps(&self, view: &View, collection: &Uuid, part: Option<&Part>) -> Result<bool> {
        // What was dropped says so by itself, and while it is closed nothing is removed.
        let Some(now) = self.in_view(view, collection)? else { return Ok(true) };
        if now.placement.version.lastmod == CLOSED {
            return Ok(true);
        }
        let Some(part) = part else {
            return Ok(now.placement.keeps(&Ranges::new([KeyRange::all()])));
        };
        let owned: &dyn Any = &*part.owned;
        let Some(then) = owned.downcast_ref::<Placed>() else {
            unreachable!("a part of {collection} is not of these placements")
        };
        Ok(std::ptr::eq(then, &*now) || now.placement.keeps(&then.owned_by(&now.pattern)?))
    }
}

impl Owned for Placed {
    fn owns(&self, document: RawDoc<'_>, buffer: &mut Vec<u8>) -> Result<bool> {
        Placed::owns(self, document, buffer)
    }
}

fn key_of(home: &Collection, uuid: &Uuid) -> Result<Vec<u8>> {
    home.record_key(Value::Binary(Binary { subtype: 4, bytes: uuid.as_bytes() }))
}
