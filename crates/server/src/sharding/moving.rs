//! A shard's part in moves of ranges: the donor shows the documents of a range, the recipient makes its own the same, and what a shard has
//! given away is removed later.
//!
//! The recipient takes the range twice: first while others write in it, then once more when the donor is closed, of which only what
//! differs is sent. Both sides go through it in the order of record keys, the donor's side as hashes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use md5::{Digest, Md5};
use sheaf_bson::{Binary, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::placement::{Key, KeyPattern, KeyRange};
use sheaf_storage::{Collection, Direction, Interrupt, Range, RecordCursor, Uuid, View};

use super::participants::{Asked, PLACEMENTS, is_closed, name, uuid_value};
use super::rows;
use crate::node::Node;

/// What one answer of the donor has at most: of hashes, of documents.
const HASHES_BYTES: usize = 2 << 20;
const DOCUMENTS_BYTES: usize = 4 << 20;

/// So many documents are written or removed together.
const TOGETHER: usize = 500;

/// How long one removal works before it answers.
const WORK: Duration = Duration::from_millis(500);

/// A hash, and before it the length of the record key.
const HASH_BYTES: usize = 16;

/// A range of a collection.
struct Part {
    view: View,
    collection: Arc<Collection>,
    pattern: KeyPattern,
    range: KeyRange,
}

impl Part {
    /// The range that a command names, as it is now.
    fn of(node: &Node, body: RawDoc<'_>) -> Result<Part> {
        let (Some(uuid), Some(key)) = (uuid_in(body), document(body, "key")) else {
            bail!(Code::FAILED_TO_PARSE, "an internal command names no collection or no shard key");
        };
        // What is prepared is waited for: it may commit after the range was closed.
        let view = node.engine().decided_view()?;
        let Some(collection) = view.catalog().by_uuid(&uuid).cloned() else {
            bail!(Code::NAMESPACE_NOT_FOUND, "the collection {uuid} is not here");
        };
        let pattern = KeyPattern::parse(key)?;
        let range = range_in(&pattern, body)?;
        Ok(Part { view, collection, pattern, range })
    }

    fn has(&self, document: RawDoc<'_>) -> bool {
        self.pattern.key_of(document).is_ok_and(|key| self.range.contains(&key))
    }

    fn cursor(&self) -> Result<RecordCursor> {
        self.view.records(&self.collection, Range::ALL, Direction::Forward)
    }
}

fn range_in(pattern: &KeyPattern, body: RawDoc<'_>) -> Result<KeyRange> {
    let end = |name: &str| -> Result<Key> { pattern.key(document(body, name).unwrap_or(RawDoc::EMPTY)) };
    let (min, max) = (end("min")?, end("max")?);
    let is_last = max == pattern.max();
    Ok(KeyRange::new(&min, &max, is_last))
}

fn document<'d>(body: RawDoc<'d>, name: &str) -> Option<RawDoc<'d>> {
    body.get(name)?.as_doc()
}

fn uuid_in(body: RawDoc<'_>) -> Option<Uuid> {
    match body.get("uuid")? {
        Value::Binary(Binary { bytes, .. }) => Uuid::from_slice(bytes).ok(),
        _ => None,
    }
}

fn bytes_in<'d>(body: RawDoc<'d>, name: &str) -> Option<&'d [u8]> {
    match body.get(name)? {
        Value::Binary(Binary { bytes, .. }) => Some(bytes),
        _ => None,
    }
}

fn binary(bytes: &[u8]) -> Value<'_> {
    Value::Binary(Binary { subtype: 0, bytes })
}

/// [`name::HASHES`]: record keys and hashes of the range's documents behind `after`; `last` where there may be more.
pub fn hashes(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    let part = Part::of(node, body)?;
    let mut cursor = part.cursor()?;
    let after = bytes_in(body, "after");
    let mut there = match after {
        Some(after) => cursor.seek(after)?,
        None => cursor.next()?,
    };
    if there && after == Some(cursor.key()) {
        there = cursor.next()?;
    }
    let (mut out, mut seen) = (Vec::new(), 0usize);
    while there {
        seen += 1;
        if seen.is_multiple_of(1000) {
            go_on()?;
        }
        if part.has(cursor.doc()) {
            let key = cursor.key();
            out.extend_from_slice(&(key.len() as u32).to_le_bytes());
            out.extend_from_slice(key);
            out.extend_from_slice(&Md5::digest(cursor.bytes()));
        }
        if out.len() >= HASHES_BYTES {
            return Ok(doc! { "hashes": binary(&out), "last": binary(cursor.key()) });
        }
        there = cursor.next()?;
    }
    Ok(doc! { "hashes": binary(&out) })
}

/// [`name::DOCUMENTS`]: the documents of these record keys, as many of the first ones as fit; what is gone or lies elsewhere is left out.
pub fn documents(node: &Arc<Node>, body: RawDoc<'_>, _: Interrupt<'_>) -> Result<DocBuf> {
    let part = Part::of(node, body)?;
    let keys = body.get("keys").and_then(|keys| keys.as_array()).unwrap_or(RawDoc::EMPTY);
    let (mut asked, mut size) = (0i64, 0);
    let mut found = Vec::new();
    for key in keys.values() {
        let Value::Binary(Binary { bytes: key, .. }) = key else { continue };
        if size >= DOCUMENTS_BYTES {
            break;
        }
        asked += 1;
        if let Some(document) = part.view.get(&part.collection, key)?
            && part.has(document.as_raw())
        {
            size += document.len();
            found.push(DocBuf::from(document.as_raw()));
        }
    }
    let list = sheaf_bson::ArrayBuf::build(|list| {
        found.iter().for_each(|document| _ = list.push(document.as_raw()))
    });
    Ok(doc! { "asked": asked, "documents": Value::Array(list.as_raw()) })
}

/// [`name::RECEIVE`]: the collection is there, and the range marked as being received.
///
/// Errors: `ChunkRangeCleanupPending`, while what was here before is not removed.
pub fn receive(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let uuid = asked.uuid("uuid")?;
        let pattern = KeyPattern::parse(asked.document("key"))?;
        let range = range_in(&pattern, body)?;
        asked.make(uuid)?;
        rows::change(asked.engine, go_on, |change| {
            let known = change.get(PLACEMENTS, uuid_value(uuid.as_bytes()))?;
            let known = known.unwrap_or_else(|| DocBuf::from(asked.document("placement")));
            for mark in ranges_of(&known, "leaving") {
                if range_in(&pattern, mark)?.overlaps(&range) {
                    bail!(
                        Code::CHUNK_RANGE_CLEANUP_PENDING,
                        "the range was this shard's before, and its documents are not removed yet"
                    );
                }
            }
            let mark = doc! { "min": asked.document("min"), "max": asked.document("max") };
            change.put(PLACEMENTS, with_list(&known, "receiving", &[mark]).as_raw())
        })?;
        Ok(doc! {})
    })
}

/// [`name::SYNC`]: the recipient's range is made what the donor's is.
///
/// Errors: those of asking the donor; `DuplicateKey`, where a document of another range is in the way.
pub fn sync(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let Some(sharding) = node.sharding() else { return Ok(doc! {}) };
        let from = body.get("from").and_then(|from| from.as_str()).unwrap_or_default();
        let part = Part::of(node, body)?;
        let ask = |command: &str, more: RawDoc<'_>| {
            let command = DocBuf::build(|out| {
                out.append(command, asked.namespace);
                for name in ["uuid", "key", "min", "max"] {
                    out.append(name, body.get_or_missing(name));
                }
                out.append_all(more);
            });
            sharding.ask_shard(from, &command, go_on)
        };
        let mut own = Own::new(&part)?;
        let mut after: Option<Vec<u8>> = None;
        let (mut changed, mut removed) = (0u64, 0u64);
        loop {
            let more = after.as_ref().map_or_else(DocBuf::new, |after| doc! { "after": binary(after) });
            let told = ask(name::HASHES, more.as_raw())?;
            let told = told.as_raw();
            let mut wanted = Vec::new();
            let mut extra = Vec::new();
            for (key, hash) in entries(bytes_in(told, "hashes").unwrap_or(&[])) {
                own.pass(key, |old| extra.push(old))?;
                if own.take(key)?.is_none_or(|own| own != hash) {
                    wanted.push(key);
                }
            }
            let last = bytes_in(told, "last");
            if last.is_none() {
                own.rest(|old| extra.push(old))?;
            }
            removed += remove(asked, &part, &extra)?;
            let mut left = &wanted[..];
            while !left.is_empty() {
                let keys = sheaf_bson::ArrayBuf::of(left.iter().take(100_000).map(|key| binary(key)));
                let told = ask(name::DOCUMENTS, doc! { "keys": Value::Array(keys.as_raw()) }.as_raw())?;
                let told = told.as_raw();
                let list = told.get("documents").and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
                let list: Vec<RawDoc<'_>> = list.values().filter_map(|document| document.as_doc()).collect();
                changed += write(asked, &part, &list)?;
                let count = told.get("asked").and_then(|asked| asked.as_exact_i64()).unwrap_or(0).max(1);
                left = &left[(count as usize).min(left.len())..];
            }
            match last {
                Some(last) => after = Some(last.to_vec()),
                None => return Ok(doc! { "changed": changed as i64, "removed": removed as i64 }),
            }
        }
    })
}

/// Record keys with hashes, as [`hashes`] writes them.
fn entries(mut bytes: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (key, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let (hash, rest) = rest.split_at_checked(HASH_BYTES)?;
        bytes = rest;
        Some((key, hash))
    })
}

/// The recipient's own documents of the range, in order.
struct Own<'p> {
    part: &'p Part,
    cursor: RecordCursor,
    there: bool,
}

impl<'p> Own<'p> {
    fn new(part: &'p Part) -> Result<Self> {
        let mut cursor = part.cursor()?;
        let there = cursor.next()?;
        let mut own = Own { part, cursor, there };
        own.skip()?;
        Ok(own)
    }

    /// Goes to the next one of the range.
    fn skip(&mut self) -> Result<()> {
        while self.there && !self.part.has(self.cursor.doc()) {
            self.there = self.cursor.next()?;
        }
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.there = self.cursor.next()?;
        self.skip()
    }

    /// Passes by all that come before a key: the donor has none of them.
    fn pass(&mut self, key: &[u8], mut gone: impl FnMut(Vec<u8>)) -> Result<()> {
        while self.there && self.cursor.key() < key {
            gone(self.cursor.key().to_vec());
            self.next()?;
        }
        Ok(())
    }

    /// The hash of the one with this key, which is passed by.
    fn take(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if !self.there || self.cursor.key() != key {
            return Ok(None);
        }
        let hash = Md5::digest(self.cursor.bytes()).to_vec();
        self.next()?;
        Ok(Some(hash))
    }

    fn rest(&mut self, mut gone: impl FnMut(Vec<u8>)) -> Result<()> {
        while self.there {
            gone(self.cursor.key().to_vec());
            self.next()?;
        }
        Ok(())
    }
}

/// Removes records of the range.
fn remove(asked: &Asked<'_>, part: &Part, keys: &[Vec<u8>]) -> Result<u64> {
    let mut removed = 0;
    for keys in keys.chunks(TOGETHER) {
        let ((), _) = rows::change(asked.engine, asked.go_on, |change| {
            keys.iter().try_for_each(|key| change.remove_record(&part.collection, key, |old| part.has(old)))
        })?;
        removed += keys.len() as u64;
    }
    Ok(removed)
}

/// Writes documents of the range.
fn write(asked: &Asked<'_>, part: &Part, documents: &[RawDoc<'_>]) -> Result<u64> {
    for documents in documents.chunks(TOGETHER) {
        rows::change(asked.engine, asked.go_on, |change| {
            documents
                .iter()
                .try_for_each(|document| change.put_record(&part.collection, *document, |old| part.has(old)))
        })?;
    }
    Ok(documents.len() as u64)
}

/// [`name::SET`]: the placement is this one, with what is leaving besides; a range that leaves now (`leaves`) is added to that.
pub fn set(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let uuid = asked.uuid("uuid")?;
        rows::change(asked.engine, go_on, |change| {
            let known = change.get(PLACEMENTS, uuid_value(uuid.as_bytes()))?;
            let mut leaving = known.as_ref().map(leaving_of).unwrap_or_default();
            if let Some(leaves) = document(body, "leaves") {
                let is_new = leaving.iter().all(|mark| {
                    sheaf_bson::compare(mark.as_raw().get_or_missing("min"), leaves.get_or_missing("min"))
                        .is_ne()
                });
                if is_new {
                    let since = Value::DateTime(node.clock.now_millis());
                    leaving.push(DocBuf::from(leaves).with("since", since));
                }
            }
            let placement = DocBuf::from(asked.document("placement"));
            change.put(PLACEMENTS, with_list(&placement, "leaving", &leaving).as_raw())
        })?;
        Ok(doc! {})
    })
}

/// [`name::CLEAN`]: removes what has been leaving for `orphanCleanupDelaySecs`, for half a second. Gives whether there is more.
pub fn clean(node: &Arc<Node>, _: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    let (engine, began) = (node.engine(), Instant::now());
    let until = node.clock.now_millis() - node.parameters.int("orphanCleanupDelaySecs") * 1000;
    let has_marks = |placement: RawDoc<'_>| {
        placement.get("leaving").and_then(|list| list.as_array()).is_some_and(|list| !list.is_empty())
    };
    for placement in rows::find(&engine.view()?, PLACEMENTS, has_marks)? {
        if is_closed(&placement) {
            continue;
        }
        for mark in ranges_of(&placement, "leaving") {
            let since = match mark.get("since") {
                Some(Value::DateTime(since)) => since,
                _ => i64::MIN,
            };
            if since > until {
                continue;
            }
            let named = DocBuf::build(|out| {
                out.append("uuid", placement.as_raw().get_or_missing("_id"));
                out.append("key", placement.as_raw().get_or_missing("key"));
                out.append("min", mark.get_or_missing("min")).append("max", mark.get_or_missing("max"));
            });
            if !clean_range(node, named.as_raw(), began, go_on)? {
                return Ok(doc! { "more": true });
            }
        }
    }
    Ok(doc! { "more": false })
}

/// Removes a range that has left, and its mark; false: there was no time for all of it.
fn clean_range(node: &Arc<Node>, named: RawDoc<'_>, began: Instant, go_on: Interrupt<'_>) -> Result<bool> {
    let engine = node.engine();
    match Part::of(node, named) {
        // It was dropped, or never made.
        Err(error) if error.code() == Code::NAMESPACE_NOT_FOUND => {}
        Err(error) => return Err(error),
        Ok(part) if !empty(node, &part, began, go_on)? => return Ok(false),
        Ok(_) => {}
    }
    rows::change(engine, go_on, |change| {
        let Some(known) = change.get(PLACEMENTS, named.get_or_missing("uuid"))? else { return Ok(()) };
        let stays = |mark: &RawDoc<'_>| {
            sheaf_bson::compare(mark.get_or_missing("min"), named.get_or_missing("min")).is_ne()
        };
        let leaving: Vec<DocBuf> = ranges_of(&known, "leaving").filter(stays).map(DocBuf::from).collect();
        change.put(PLACEMENTS, with_list(&known, "leaving", &leaving).as_raw())
    })?;
    Ok(true)
}

/// Removes the documents of a range; false: there was no time for all of them.
fn empty(node: &Arc<Node>, part: &Part, began: Instant, go_on: Interrupt<'_>) -> Result<bool> {
    let mut cursor = part.cursor()?;
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let flush = |keys: &mut Vec<Vec<u8>>| -> Result<()> {
        rows::change(node.engine(), go_on, |change| {
            keys.iter().try_for_each(|key| change.remove_record(&part.collection, key, |old| part.has(old)))
        })?;
        keys.clear();
        Ok(())
    };
    while cursor.next()? {
        if part.has(cursor.doc()) {
            keys.push(cursor.key().to_vec());
        }
        if keys.len() >= TOGETHER {
            flush(&mut keys)?;
            if began.elapsed() >= WORK {
                return Ok(false);
            }
        }
    }
    flush(&mut keys)?;
    Ok(true)
}

/// The ranges of one of a placement's lists.
fn ranges_of<'d>(placement: &'d DocBuf, name: &str) -> impl Iterator<Item = RawDoc<'d>> {
    let list = placement.as_raw().get(name).and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
    list.values().filter_map(|range| range.as_doc())
}

/// What is leaving, as a placement has it.
pub(super) fn leaving_of(placement: &DocBuf) -> Vec<DocBuf> {
    ranges_of(placement, "leaving").map(DocBuf::from).collect()
}

/// The placement with another list of this name.
pub(super) fn with_list(placement: &DocBuf, name: &str, list: &[DocBuf]) -> DocBuf {
    DocBuf::build(|out| {
        for field in placement.as_raw().iter() {
            if field.key() != name {
                out.append_element(field);
                continue;
            }
            let mut array = out.array(name);
            list.iter().for_each(|range| _ = array.push(range.as_raw()));
        }
    })
}
