//! What the balancer knows of sharded collections: figures of their shards, put together.
//!
//! Shards tell what is written with recent keys, evenly by bytes. While much is written these, added up, tell where the bytes of a collection
//! are; when little is, the shards that have more than others are gone through once.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use sheaf_bson::{RawDoc, Value};
use sheaf_shard::ShardId;
use sheaf_shard::balance::{FILLING_BYTES, FIRST_BYTES, LOADING_BYTES, Load};
use sheaf_shard::placement::{Key, KeyPattern, RoutingTable};

/// Over so long a rate is taken.
const WINDOW: Duration = Duration::from_millis(1500);

/// For so long after a move rates and recent keys may be those of before: the moved range's are with its donor.
const BEHIND: Duration = Duration::from_secs(3);

/// So many recent keys of all shards are given to the rules.
const RECENT: usize = 1024;

/// So many keys of what was written are remembered; of more, every second one goes.
const LEARNED: usize = 8192;

/// Keys, each with the bytes that it stands for.
pub(super) type Weighted = Vec<(Key, u64)>;

/// A sharded collection as its shards have told of it.
#[derive(Default)]
pub(super) struct Watch {
    shards: BTreeMap<String, Seen>,
    /// Keys of what was written since the first look.
    learned: Weighted,
    scan: Option<Scan>,
    /// Until then it is left alone: nothing was to be done.
    pub idle: Option<Instant>,
    /// What the shards had when nothing was to be done.
    pub idle_bytes: u64,
    /// Until then nothing is tried: it failed.
    pub failed: Option<Instant>,
    /// Until then what was written lately is not where it will be written.
    behind: Option<Instant>,
}

/// What the shards have found when they went through what they own. Moves leave it as it is.
struct Scan {
    keys: Weighted,
    /// What they had, and what had ever been written.
    bytes: u64,
    written: u64,
}

/// What a shard has told.
struct Seen {
    bytes: u64,
    /// Bytes ever written, at times of the last seconds.
    written: VecDeque<(Instant, u64)>,
    kept: i64,
    recent: Vec<Key>,
}

impl Seen {
    fn rate(&self) -> u64 {
        let (Some((first, before)), Some((last, after))) = (self.written.front(), self.written.back()) else {
            return 0;
        };
        let millis = last.duration_since(*first).as_millis() as u64;
        after.saturating_sub(*before).saturating_mul(1000).checked_div(millis).unwrap_or(0)
    }
}

impl Watch {
    /// A shard has told its figures of the collection.
    pub fn tell(&mut self, shard: &str, told: RawDoc<'_>, pattern: &KeyPattern, now: Instant) {
        let number = |name: &str| told.get(name).and_then(|value| value.as_exact_i64()).unwrap_or(0).max(0);
        let (bytes, written, kept) = (number("bytes") as u64, number("written") as u64, number("kept"));
        let known = self.shards.get_mut(shard);
        // Its primary is another one, or has begun anew.
        let is_other =
            known.as_ref().is_some_and(|known| known.written.back().is_some_and(|(_, last)| *last > written));
        if is_other {
            self.shards.remove(shard);
        }
        let seen = self.shards.entry(shard.to_owned()).or_insert_with(|| Seen {
            bytes,
            written: VecDeque::new(),
            kept: 0,
            recent: Vec::new(),
        });
        seen.bytes = bytes;
        let before = seen.written.back().map_or(0, |(_, written)| *written);
        seen.written.push_back((now, written));
        while seen.written.len() > 2 && now.duration_since(seen.written[1].0) >= WINDOW {
            seen.written.pop_front();
        }
        if seen.kept == kept {
            return;
        }
        let list = told.get("recent").and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
        seen.recent = list.values().filter_map(|key| pattern.key(key.as_doc()?).ok()).collect();
        let new = ((kept - seen.kept).max(0) as usize).min(seen.recent.len());
        seen.kept = kept;
        let weight = (written - before) / new.max(1) as u64;
        let newest = seen.recent[seen.recent.len() - new..].iter();
        self.learned.extend(newest.map(|key| (key.clone(), weight)));
        while self.learned.len() > LEARNED {
            let pairs =
                self.learned.chunks(2).map(|pair| (pair[0].0.clone(), pair.iter().map(|(_, of)| of).sum()));
            self.learned = pairs.collect();
        }
    }

    /// Bytes of all shards, those that have left them included.
    pub fn bytes(&self) -> u64 {
        self.shards.values().map(|seen| seen.bytes).sum()
    }

    /// Bytes written a second.
    pub fn rate(&self) -> u64 {
        self.shards.values().map(Seen::rate).sum()
    }

    /// Whether much is being written.
    pub fn is_loading(&self) -> bool {
        self.rate() > LOADING_BYTES
    }

    /// Whether it has little, and is being filled.
    pub fn is_filling(&self) -> bool {
        self.rate() > FILLING_BYTES && self.bytes() < FIRST_BYTES
    }

    /// Ranges have been moved.
    pub fn moved(&mut self, now: Instant) {
        self.behind = (self.is_loading() || self.is_filling()).then(|| now + BEHIND);
    }

    /// Whether what is known of writers is still of the time before ranges were moved.
    pub fn is_behind(&self, now: Instant) -> bool {
        self.behind.is_some_and(|until| now < until)
    }

    /// By how much the shards differ of these.
    pub fn uneven<'s>(&self, shards: impl Iterator<Item = &'s str>) -> u64 {
        let of = |shard: &str| self.shards.get(shard).map_or(0, |seen| seen.bytes);
        let (low, high) = shards.map(of).fold((u64::MAX, 0), |(low, high), of| (low.min(of), high.max(of)));
        high.saturating_sub(low)
    }

    /// The shards that have something, if so much has changed that they have to be gone through.
    pub fn to_scan(&self, chunk_bytes: u64) -> Vec<String> {
        let is_near = |scan: &Scan| {
            let much = chunk_bytes.max(scan.bytes / 8);
            self.written().abs_diff(scan.written) < much && self.bytes().abs_diff(scan.bytes) < much
        };
        if self.scan.as_ref().is_some_and(is_near) {
            return Vec::new();
        }
        let with_some = self.shards.iter().filter(|(_, seen)| seen.bytes > 0);
        with_some.map(|(shard, _)| shard.clone()).collect()
    }

    /// The shards were gone through.
    pub fn scanned(&mut self, keys: Weighted) {
        self.scan = Some(Scan { keys, bytes: self.bytes(), written: self.written() });
    }

    fn written(&self) -> u64 {
        self.shards.values().filter_map(|seen| seen.written.back()).map(|(_, written)| written).sum()
    }

    /// Recent keys of all shards, as many of each as it takes of what is written.
    pub fn recent(&self) -> Vec<Key> {
        let rate = self.rate().max(1);
        let of = |seen: &Seen| -> Vec<Key> {
            let share = (RECENT as u64 * seen.rate() / rate) as usize;
            seen.recent.iter().rev().take(share).cloned().collect()
        };
        self.shards.values().flat_map(of).collect()
    }

    /// What is in each chunk.
    pub fn loads(&self, table: &RoutingTable) -> Vec<Load> {
        let known = match &self.scan {
            Some(scan) if !self.is_loading() => &scan.keys,
            _ => &self.learned,
        };
        let mut keys: Vec<(&Key, u64)> = known.iter().map(|(key, weight)| (key, *weight)).collect();
        keys.sort_unstable();
        table.chunks().iter().map(|chunk| self.load(table, chunk, &keys)).collect()
    }

    fn load(
        &self,
        table: &RoutingTable,
        chunk: &sheaf_shard::placement::Chunk,
        keys: &[(&Key, u64)],
    ) -> Load {
        let range = table.range(chunk);
        let first = keys.partition_point(|(key, _)| **key < chunk.min);
        let own: Vec<&(&Key, u64)> =
            keys[first..].iter().take_while(|(key, _)| range.contains(key)).collect();
        let bytes = own.iter().map(|(_, weight)| weight).sum();
        let mut before = 0;
        let middle = own.iter().find(|(key, weight)| {
            before += weight;
            before * 2 > bytes && **key > chunk.min
        });
        let ShardRate { rate, all, here } = self.rate_in(chunk.shard(), |key| range.contains(key));
        let written = (rate * here).checked_div(all).unwrap_or(0);
        Load { bytes, written, middle: middle.map(|(key, _)| (*key).clone()) }
    }

    fn rate_in(&self, shard: &ShardId, is_in: impl Fn(&Key) -> bool) -> ShardRate {
        let Some(seen) = self.shards.get(shard.as_str()) else {
            return ShardRate { rate: 0, all: 0, here: 0 };
        };
        let here = seen.recent.iter().filter(|key| is_in(key)).count() as u64;
        ShardRate { rate: seen.rate(), all: seen.recent.len() as u64, here }
    }
}

/// How much a shard writes, and how many of its recent keys are in a range.
struct ShardRate {
    rate: u64,
    all: u64,
    here: u64,
}

/// What a scan's reply says.
pub(super) fn weighted(told: RawDoc<'_>, pattern: &KeyPattern) -> Weighted {
    let list = |name: &str| told.get(name).and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
    let keys = list("keys");
    let weights = list("weights");
    let pairs = keys.values().zip(weights.values());
    pairs.filter_map(|(key, weight)| pair(key, weight, pattern)).collect()
}

fn pair(key: Value<'_>, weight: Value<'_>, pattern: &KeyPattern) -> Option<(Key, u64)> {
    Some((pattern.key(key.as_doc()?).ok()?, weight.as_exact_i64()?.max(0) as u64))
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{ArrayBuf, doc};
    use sheaf_shard::ClusterTime;

    use super::*;

    #[test]
    fn what_is_written_is_known_without_a_scan() {
        let pattern = KeyPattern::parse(doc! { "a": 1 }.as_raw()).unwrap();
        let key = |n: i32| pattern.key(doc! { "a": n }.as_raw()).unwrap();
        let shards = [ShardId::new("s0"), ShardId::new("s1")];
        let at = ClusterTime::from_bits(1);
        let table = RoutingTable::create(pattern.clone(), [1; 16], &[key(50)], &shards, at).unwrap();
        let mut watch = Watch::default();
        let began = Instant::now();
        let tell = |watch: &mut Watch, seconds: u64, written: i64, keys: std::ops::Range<i32>, kept: i64| {
            let keys: Vec<_> = keys.map(|n| doc! { "a": n }).collect();
            let keys = ArrayBuf::of(keys.iter().map(sheaf_bson::DocBuf::as_raw));
            let told = doc! { "bytes": written, "written": written, "kept": kept, "recent": Value::Array(keys.as_raw()) };
            watch.tell("s0", told.as_raw(), &pattern, began + Duration::from_secs(seconds));
        };
        tell(&mut watch, 0, 0, 0..0, 0);
        tell(&mut watch, 1, 40 << 20, 0..40, 40);
        assert!(watch.is_loading());
        let loads = watch.loads(&table);
        assert_eq!((loads[0].bytes, loads[1].bytes), (40 << 20, 0));
        assert_eq!(loads[0].written, 40 << 20);
        assert_eq!(loads[0].middle, Some(key(20)));
        assert_eq!(watch.recent().len(), 40);
        // What is moved now is not written where these figures say.
        watch.moved(began);
        assert!(watch.is_behind(began) && !watch.is_behind(began + BEHIND));
        // The same keys again are not counted twice.
        tell(&mut watch, 10, 40 << 20, 0..40, 40);
        assert!(!watch.is_loading());
        assert_eq!(watch.loads(&table)[0].bytes, 40 << 20);
        // A scan tells better.
        assert_eq!(watch.to_scan(1), ["s0"]);
        watch.scanned(vec![(key(1), 5), (key(60), 7)]);
        assert!(watch.to_scan(1).is_empty());
        let loads = watch.loads(&table);
        assert_eq!((loads[0].bytes, loads[1].bytes), (5, 7));
        // Another primary begins at nothing.
        tell(&mut watch, 11, 0, 0..0, 0);
        assert_eq!(watch.rate(), 0);
    }
}
