//! A shard's part in `movePrimary`, and in the first copy of a collection that gets another key or place: one shard shows the documents of
//! a collection, another makes its own the same.
//!
//! It takes them twice: first while others write, then once more when the first shard is closed, of which only what differs is sent. Both
//! sides go through them in the order of record keys, the first shard's side as hashes.

use std::sync::Arc;

use md5::{Digest, Md5};
use sheaf_bson::{Binary, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::placement::{Key, KeyPattern, KeyRange, Ranges};
use sheaf_storage::{Collection, Direction, Interrupt, Range, RecordCursor, Uuid, View};

use super::participants::{Asked, name};
use super::rows;
use crate::node::Node;

/// What one answer of the donor has at most: of hashes, of documents.
const HASHES_BYTES: usize = 2 << 20;
const DOCUMENTS_BYTES: usize = 4 << 20;

/// So many documents are written or removed together.
const TOGETHER: usize = 500;

/// A hash, and before it the length of the record key.
const HASH_BYTES: usize = 16;

/// Documents whose keys by some pattern are in some ranges.
pub(super) struct Keys {
    pattern: KeyPattern,
    ranges: Ranges,
}

impl Keys {
    /// Those of `{key: {a: 1}, ranges: [{min, max}]}`.
    ///
    /// Errors: `BadValue`, if they are none.
    pub fn parse(document: RawDoc<'_>) -> Result<Keys> {
        let pattern = KeyPattern::parse(self::document(document, "key").unwrap_or(RawDoc::EMPTY))?;
        let list = document.get("ranges").and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
        let ranges: Result<Vec<KeyRange>> =
            list.values().filter_map(|range| range.as_doc()).map(|range| range_in(&pattern, range)).collect();
        Ok(Keys { pattern, ranges: Ranges::new(ranges?) })
    }

    /// Those of a list of them, in which each document has to be.
    ///
    /// Errors: as [`Keys::parse`].
    pub fn list(body: RawDoc<'_>, name: &str) -> Result<Vec<Keys>> {
        let list = body.get(name).and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
        list.values().filter_map(|keys| keys.as_doc()).map(Keys::parse).collect()
    }

    /// Whether a document is among them.
    ///
    /// Errors: `ShardKeyNotFound` and the like, where it cannot have such a key.
    pub fn hold(&self, document: RawDoc<'_>) -> Result<bool> {
        Ok(self.ranges.contains(&self.pattern.key_of(document)?))
    }
}

/// A part of a collection.
pub(super) struct Part {
    pub view: View,
    pub collection: Arc<Collection>,
    keys: Vec<Keys>,
}

impl Part {
    /// The part that a command names, as it is now.
    pub fn of(node: &Node, body: RawDoc<'_>) -> Result<Part> {
        let keys = match document(body, "key") {
            Some(key) => {
                let pattern = KeyPattern::parse(key)?;
                let ranges = Ranges::new([range_in(&pattern, body)?]);
                vec![Keys { pattern, ranges }]
            }
            None => Keys::list(body, "keys")?,
        };
        Part::new(node, body, keys)
    }

    /// What has these keys of the collection that a command names, as it is now.
    pub fn new(node: &Node, body: RawDoc<'_>, keys: Vec<Keys>) -> Result<Part> {
        let Some(uuid) = uuid_in(body) else {
            bail!(Code::FAILED_TO_PARSE, "an internal command names no collection");
        };
        // What is prepared is waited for: it may commit after the range was closed.
        let view = node.engine().decided_view()?;
        let Some(collection) = view.catalog().by_uuid(&uuid).cloned() else {
            bail!(Code::NAMESPACE_NOT_FOUND, "the collection {uuid} is not here");
        };
        Ok(Part { view, collection, keys })
    }

    /// Whether a document is in it.
    ///
    /// Errors: it cannot have such a key.
    pub fn holds(&self, document: RawDoc<'_>) -> Result<bool> {
        // A document that another shard owns may be anything.
        for keys in &self.keys {
            if !keys.hold(document)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a document that was copied is in it.
    pub fn has(&self, document: RawDoc<'_>) -> bool {
        self.holds(document).unwrap_or(false)
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

pub(super) fn bytes_in<'d>(body: RawDoc<'d>, name: &str) -> Option<&'d [u8]> {
    match body.get(name)? {
        Value::Binary(Binary { bytes, .. }) => Some(bytes),
        _ => None,
    }
}

pub(super) fn binary(bytes: &[u8]) -> Value<'_> {
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
        if part.holds(cursor.doc())? {
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
    let keys = body.get("records").and_then(|keys| keys.as_array()).unwrap_or(RawDoc::EMPTY);
    let (mut asked, mut size) = (0i64, 0);
    let mut found = Vec::new();
    for key in keys.values() {
        let Value::Binary(Binary { bytes: key, .. }) = key else { continue };
        if size >= DOCUMENTS_BYTES {
            break;
        }
        asked += 1;
        if let Some(document) = part.view.get(&part.collection, key)?
            && part.holds(document.as_raw())?
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
        let mut put = |documents: &[RawDoc<'_>]| write(asked, &part, documents);
        let (changed, removed) = take_over(asked, &part, &ask, &mut put)?;
        Ok(doc! { "changed": changed as i64, "removed": removed as i64 })
    })
}

/// Asks the other shard: a command's name, and what it says besides what is asked about.
pub(super) type Ask<'a> = dyn Fn(&str, RawDoc<'_>) -> Result<DocBuf> + 'a;

/// Writes documents, and tells how many.
pub(super) type Put<'a> = dyn FnMut(&[RawDoc<'_>]) -> Result<u64> + 'a;

/// Makes a part what the other shard's is. Gives how many documents were written, and how many removed.
///
/// Errors: those of asking and of writing.
pub(super) fn take_over(
    asked: &Asked<'_>,
    part: &Part,
    ask: &Ask<'_>,
    put: &mut Put<'_>,
) -> Result<(u64, u64)> {
    let mut own = Own::new(part)?;
    let mut after: Option<Vec<u8>> = None;
    let (mut changed, mut removed) = (0u64, 0u64);
    loop {
        (asked.go_on)()?;
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
        removed += remove(asked, part, &extra)?;
        let mut left = &wanted[..];
        while !left.is_empty() {
            (asked.go_on)()?;
            let keys = sheaf_bson::ArrayBuf::of(left.iter().take(100_000).map(|key| binary(key)));
            let told = ask(name::DOCUMENTS, doc! { "records": Value::Array(keys.as_raw()) }.as_raw())?;
            let told = told.as_raw();
            changed += put(&documents_in(told))?;
            let count = told.get("asked").and_then(|asked| asked.as_exact_i64()).unwrap_or(0).max(1);
            left = &left[(count as usize).min(left.len())..];
        }
        match last {
            Some(last) => after = Some(last.to_vec()),
            None => return Ok((changed, removed)),
        }
    }
}

/// The documents of an answer.
pub(super) fn documents_in(told: RawDoc<'_>) -> Vec<RawDoc<'_>> {
    let list = told.get("documents").and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
    list.values().filter_map(|document| document.as_doc()).collect()
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
pub(super) fn remove(asked: &Asked<'_>, part: &Part, keys: &[Vec<u8>]) -> Result<u64> {
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
pub(super) fn write(asked: &Asked<'_>, part: &Part, documents: &[RawDoc<'_>]) -> Result<u64> {
    for documents in documents.chunks(TOGETHER) {
        rows::change(asked.engine, asked.go_on, |change| {
            documents
                .iter()
                .try_for_each(|document| change.put_record(&part.collection, *document, |old| part.has(old)))
        })?;
    }
    Ok(documents.len() as u64)
}
