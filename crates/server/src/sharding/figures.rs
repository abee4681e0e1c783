//! What shards tell the balancer of sharded collections.

use std::sync::Arc;

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::placement::{Key, KeyPattern};
use sheaf_storage::{Direction, Interrupt, Range};

use super::marks::{PLACEMENTS, uuid_value};
use super::placements::Placed;
use super::rows;
use crate::node::Node;

/// A scan keeps at most so many keys; of more, every second one goes.
const SAMPLE_MAX: usize = 4_000;

/// `_shardsvrBalancerFigures`: of each sharded collection that has something here, bytes, bytes ever written, and recent keys.
pub fn figures(node: &Arc<Node>, _: RawDoc<'_>, _: Interrupt<'_>) -> Result<DocBuf> {
    let Some(sharding) = node.sharding() else { return Ok(doc! {}) };
    let view = node.engine().view()?;
    let catalog = node.engine().catalog();
    let mut list = Vec::new();
    for placement in rows::find(&view, PLACEMENTS, |_| true)? {
        let Some(Value::Binary(id)) = placement.as_raw().get("_id") else { continue };
        let Ok(uuid) = sheaf_storage::Uuid::from_slice(id.bytes) else { continue };
        let Some(collection) = catalog.by_uuid(&uuid) else { continue };
        let Some(placed) = sharding.placements().in_view(&view, &uuid)? else { continue };
        list.push(figures_of(&uuid_bytes(&uuid), collection.data_bytes(), &placed));
    }
    let list = ArrayBuf::of(list.iter().map(DocBuf::as_raw));
    Ok(doc! { "collections": Value::Array(list.as_raw()) })
}

fn uuid_bytes(uuid: &sheaf_storage::Uuid) -> [u8; 16] {
    *uuid.as_bytes()
}

fn figures_of(uuid: &[u8; 16], bytes: u64, placed: &Placed) -> DocBuf {
    let (written, kept, recent) = placed.traffic.told();
    let keys = ArrayBuf::of(recent.iter().map(Key::document));
    doc! {
        "uuid": uuid_value(uuid), "bytes": bytes as i64, "written": written as i64,
        "kept": kept as i64, "recent": Value::Array(keys.as_raw())
    }
}

/// `_shardsvrSampleKeys`: goes through a collection, and gives keys that it owns of it, each with the bytes from the one before it on.
pub fn sample(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    let Some(Value::Binary(id)) = body.get("uuid") else {
        bail!(Code::FAILED_TO_PARSE, "an internal command names no collection");
    };
    let uuid = sheaf_storage::Uuid::from_slice(id.bytes).unwrap_or_default();
    let (Some(sharding), view) = (node.sharding(), node.engine().view()?) else { return Ok(doc! {}) };
    let placed = sharding.placements().in_view(&view, &uuid)?;
    let (Some(placed), Some(collection)) = (placed, view.catalog().by_uuid(&uuid).cloned()) else {
        return Ok(doc! {});
    };
    let mut sample = Sample::default();
    let mut order = Vec::new();
    let mut seen = 0u64;
    let mut cursor = view.records(&collection, Range::ALL, Direction::Forward)?;
    while cursor.next()? {
        seen += 1;
        if seen.is_multiple_of(1000) {
            go_on()?;
        }
        if placed.owns(cursor.doc(), &mut order).unwrap_or(false) {
            sample.add(&placed.pattern, cursor.doc());
        }
    }
    Ok(sample.reply())
}

/// Keys of a scan, evenly spaced.
struct Sample {
    keys: Vec<(Key, u64)>,
    every: u64,
    seen: u64,
    bytes: u64,
    total: u64,
}

impl Default for Sample {
    fn default() -> Self {
        Sample { keys: Vec::new(), every: 1, seen: 0, bytes: 0, total: 0 }
    }
}

impl Sample {
    fn add(&mut self, pattern: &KeyPattern, document: RawDoc<'_>) {
        self.seen += 1;
        self.bytes += document.as_bytes().len() as u64;
        self.total += document.as_bytes().len() as u64;
        if !self.seen.is_multiple_of(self.every) {
            return;
        }
        if let Ok(key) = pattern.key_of(document) {
            self.keys.push((key, std::mem::take(&mut self.bytes)));
        }
        if self.keys.len() >= SAMPLE_MAX {
            self.thin();
        }
    }

    /// Every second key stands for its neighbour, too.
    fn thin(&mut self) {
        self.every *= 2;
        let pairs = self.keys.chunks(2).filter_map(|pair| {
            let bytes = pair.iter().map(|(_, bytes)| bytes).sum();
            pair.last().map(|(key, _)| (key.clone(), bytes))
        });
        self.keys = pairs.collect();
    }

    fn reply(mut self) -> DocBuf {
        if let Some((_, last)) = self.keys.last_mut() {
            *last += self.bytes;
        }
        let keys = ArrayBuf::of(self.keys.iter().map(|(key, _)| key.document()));
        let weights = ArrayBuf::of(self.keys.iter().map(|(_, bytes)| *bytes as i64));
        doc! {
            "keys": Value::Array(keys.as_raw()), "weights": Value::Array(weights.as_raw()), "bytes": self.total as i64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern() -> KeyPattern {
        KeyPattern::parse(doc! { "a": 1 }.as_raw()).unwrap()
    }

    #[test]
    fn a_sample_keeps_the_bytes_of_what_it_leaves_out() {
        let mut sample = Sample::default();
        let mut bytes = 0;
        for n in 0..50_001i32 {
            let document = doc! { "a": n };
            bytes += document.as_raw().as_bytes().len() as u64;
            sample.add(&pattern(), document.as_raw());
        }
        assert!(sample.keys.len() < SAMPLE_MAX && sample.keys.len() >= SAMPLE_MAX / 4);
        let told = sample.reply();
        let weights = told.as_raw().get("weights").unwrap().as_array().unwrap();
        let sum: i64 = weights.values().filter_map(|weight| weight.as_exact_i64()).sum();
        assert_eq!(sum as u64, bytes);
    }
}
