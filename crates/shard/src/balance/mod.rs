//! Which ranges to cut, and which to move where: decided from figures, a round at a time.
//!
//! A round looks at one collection. What it decides is done before the next one looks: cuts first, for they move nothing and make
//! what is to be moved smaller; then moves, each shard taking part in one at most. If it decides nothing, nothing is to be done.

mod even;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use crate::placement::{Key, KeyRange, RoutingTable};
use crate::types::ShardId;

use even::Weights;

/// More than this being written a second is loading.
pub const LOADING_BYTES: u64 = 8 << 20;
/// More than this being written a second to a collection that has little is its first load.
pub const FILLING_BYTES: u64 = 2 << 20;
/// A collection with less is in its first load.
pub const FIRST_BYTES: u64 = 256 << 20;
/// Into how many pieces for each shard a first load is cut.
const PIECES: usize = 4;
/// How many recent keys there must be for each piece.
const SAMPLES: usize = 8;
/// By how many chunks' sizes shards may differ.
const UNEVEN_CHUNKS: u64 = 3;

/// A shard that may own ranges.
#[derive(Clone, Debug)]
pub struct ShardState {
    /// Its name.
    pub id: ShardId,
    /// Whether it is to own nothing any more.
    pub draining: bool,
    /// The zones that it belongs to.
    pub zones: BTreeSet<String>,
    /// Whether a move to or from it is under way.
    pub busy: bool,
}

/// What a shard has said about a chunk.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Bytes in it.
    pub bytes: u64,
    /// Bytes written to it a second, of late.
    pub written: u64,
    /// A key with as many bytes before it as behind it.
    pub middle: Option<Key>,
}

/// A range of keys that belong to the shards of a zone.
#[derive(Clone, Debug)]
pub struct Zone {
    /// The lowest key.
    pub min: Key,
    /// Before what it ends.
    pub max: Key,
    /// The zone.
    pub name: String,
}

/// What is known of a collection.
#[derive(Clone, Debug)]
pub struct Figures<'a> {
    /// Its chunks.
    pub table: &'a RoutingTable,
    /// What is in them: as many, in the same order.
    pub loads: &'a [Load],
    /// Keys that were written lately, a sample of all shards'.
    pub recent: &'a [Key],
    /// Its zones, which do not overlap.
    pub zones: &'a [Zone],
    /// The shards of the cluster.
    pub shards: &'a [ShardState],
    /// How large a chunk is to be: what is moved at once.
    pub chunk_bytes: u64,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Cut the chunks at these keys.
    Split {
        /// Where.
        cuts: Vec<Key>,
    },
    /// Move the keys from `min` on and before `max`, which are of one chunk.
    Move {
        /// The lowest key.
        min: Key,
        /// Before what it ends.
        max: Key,
        /// To where.
        to: ShardId,
    },
}

/// What this round has to do for a collection. Nothing of it is to be done while balancing is off, for all or for the collection.
pub fn decide(figures: &Figures<'_>) -> Vec<Step> {
    let rules: [fn(&Figures<'_>) -> Vec<Step>; 6] =
        [at_zones, out_of_place, first_load, ascending, drift, by_size];
    rules.iter().map(|rule| rule(figures)).find(|steps| !steps.is_empty()).unwrap_or_default()
}

/// Chunks end where zones do.
fn at_zones(figures: &Figures<'_>) -> Vec<Step> {
    let ends = figures.zones.iter().flat_map(|zone| [&zone.min, &zone.max]);
    let cuts: Vec<Key> = ends.filter(|end| figures.cuts(end)).cloned().collect();
    split(cuts)
}

/// What is in the wrong zone, or on a shard that is to own nothing, goes where it may be and least is.
fn out_of_place(figures: &Figures<'_>) -> Vec<Step> {
    let mut weights = Weights::new(figures, |load| load.bytes);
    let mut steps = Vec::new();
    for (chunk, load) in figures.table.chunks().iter().zip(figures.loads) {
        let Some(owner) = figures.shard(chunk.shard()) else { continue };
        let zone = figures.zone_of(&chunk.min);
        if figures.may_own(owner, zone) || !weights.is_free(&owner.id) {
            continue;
        }
        let Some(to) = weights.lightest(|shard| figures.may_own(shard, zone)) else { continue };
        weights.move_to(&owner.id, &to, load.bytes);
        steps.push(Step::Move { min: chunk.min.clone(), max: chunk.max.clone(), to });
    }
    steps
}

/// While there is little and much is coming, ranges are spread by what comes.
fn first_load(figures: &Figures<'_>) -> Vec<Step> {
    let (bytes, written) = figures.total();
    let shards = figures.shards.iter().filter(|shard| !shard.draining).count();
    let pieces = PIECES * shards;
    if bytes >= FIRST_BYTES
        || written <= FILLING_BYTES
        || shards < 2
        || figures.recent.len() < pieces * SAMPLES
    {
        return Vec::new();
    }
    let mut recent: Vec<&Key> = figures.recent.iter().collect();
    recent.sort_unstable();
    if figures.table.chunks().len() < pieces {
        let quantile = |piece: usize| recent[piece * recent.len() / pieces].clone();
        let mut cuts: Vec<Key> = (1..pieces).map(quantile).filter(|key| figures.cuts(key)).collect();
        cuts.dedup();
        if !cuts.is_empty() {
            return split(cuts);
        }
    }
    let counts: Vec<u64> =
        figures.table.chunks().iter().map(|chunk| figures.recent_in(chunk).count() as u64).collect();
    let mean = recent.len() as u64 / shards as u64;
    Weights::of(figures, counts).even_out(figures, mean / 4)
}

/// New keys behind all others: what will come goes to the shard that has least, each time that a chunk is full.
fn ascending(figures: &Figures<'_>) -> Vec<Step> {
    let (Some(last), Some(load)) = (figures.table.chunks().last(), figures.loads.last()) else {
        return Vec::new();
    };
    let here = figures.recent_in(last).count();
    let Some(highest) = figures.recent.iter().max() else { return Vec::new() };
    let is_full = load.bytes >= figures.chunk_bytes && load.written > 0;
    let is_behind = load.middle.as_ref().is_some_and(|middle| {
        figures.recent.iter().filter(|key| *key >= middle).count() * 10 >= figures.recent.len() * 9
    });
    if !is_full || !is_behind || here * 10 < figures.recent.len() * 9 || *highest <= last.min {
        return Vec::new();
    }
    let weights = Weights::new(figures, |load| load.bytes);
    let zone = figures.zone_of(&last.min);
    if !weights.is_free(last.shard()) {
        return Vec::new();
    }
    match weights.lightest(|shard| figures.may_own(shard, zone)) {
        Some(to) if to != *last.shard() => {
            vec![Step::Move { min: highest.clone(), max: last.max.clone(), to }]
        }
        _ => Vec::new(),
    }
}

/// One shard takes much more than the others: it gives away, or its hottest range is cut.
fn drift(figures: &Figures<'_>) -> Vec<Step> {
    let (_, written) = figures.total();
    let shards = figures.shards.iter().filter(|shard| !shard.draining).count() as u64;
    if written <= LOADING_BYTES || shards < 2 {
        return Vec::new();
    }
    let mut weights = Weights::new(figures, |load| load.written);
    let mean = written / shards;
    if weights.heaviest() <= mean + mean / 2 {
        return Vec::new();
    }
    let moves = weights.even_out(figures, mean / 2);
    if !moves.is_empty() {
        return moves;
    }
    let Some(heaviest) = weights.heaviest_shard() else { return Vec::new() };
    let own =
        figures.table.chunks().iter().zip(figures.loads).filter(|(chunk, _)| *chunk.shard() == heaviest);
    let Some((hottest, _)) = own.max_by_key(|(_, load)| load.written) else { return Vec::new() };
    let mut recent: Vec<&Key> = figures.recent_in(hottest).collect();
    recent.sort_unstable();
    let middle = recent.get(recent.len() / 2).map(|key| (*key).clone());
    split(middle.filter(|key| figures.cuts(key)).into_iter().collect())
}

/// When little is being written, shards are made even by what they have.
fn by_size(figures: &Figures<'_>) -> Vec<Step> {
    let (_, written) = figures.total();
    if written > LOADING_BYTES {
        return Vec::new();
    }
    let threshold = UNEVEN_CHUNKS * figures.chunk_bytes;
    let mut weights = Weights::new(figures, |load| load.bytes);
    let uneven = weights.uneven(figures);
    if uneven <= threshold {
        return Vec::new();
    }
    // What is moved at once is a chunk's size.
    let is_large = |load: &Load| load.bytes > figures.chunk_bytes;
    let Some(heaviest) = weights.heaviest_shard() else { return Vec::new() };
    let large = figures.table.chunks().iter().zip(figures.loads);
    let large = large.filter(|(chunk, load)| *chunk.shard() == heaviest && is_large(load));
    let cuts: Vec<Key> =
        large.filter_map(|(_, load)| load.middle.clone()).filter(|key| figures.cuts(key)).collect();
    if cuts.is_empty() { weights.even_out(figures, threshold) } else { split(cuts) }
}

fn split(cuts: Vec<Key>) -> Vec<Step> {
    if cuts.is_empty() { Vec::new() } else { vec![Step::Split { cuts }] }
}

impl<'a> Figures<'a> {
    fn shard(&self, id: &ShardId) -> Option<&'a ShardState> {
        self.shards.iter().find(|shard| shard.id == *id)
    }

    /// The zone that a key is in.
    fn zone_of(&self, key: &Key) -> Option<&'a str> {
        let of = |zone: &&Zone| zone.min <= *key && *key < zone.max;
        self.zones.iter().find(of).map(|zone| zone.name.as_str())
    }

    fn may_own(&self, shard: &ShardState, zone: Option<&str>) -> bool {
        !shard.draining && zone.is_none_or(|zone| shard.zones.contains(zone))
    }

    /// Whether a key is inside a chunk, not an end of one.
    fn cuts(&self, key: &Key) -> bool {
        let chunk = self.table.chunk_of(key);
        chunk.min < *key && *key < chunk.max
    }

    fn total(&self) -> (u64, u64) {
        let sum = |of: fn(&Load) -> u64| self.loads.iter().map(of).sum();
        (sum(|load| load.bytes), sum(|load| load.written))
    }

    fn recent_in(&self, chunk: &crate::placement::Chunk) -> impl Iterator<Item = &'a Key> {
        let range: KeyRange = self.table.range(chunk);
        self.recent.iter().filter(move |key| range.contains(key))
    }
}
