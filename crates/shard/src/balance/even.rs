//! Making shards even.

use std::collections::BTreeMap;

use crate::types::ShardId;

use super::{Figures, Load, ShardState, Step};

/// How much each shard has, by some measure, and which take part in a move.
pub(super) struct Weights<'a> {
    of_chunks: Vec<u64>,
    of_shards: BTreeMap<&'a ShardId, u64>,
    free: Vec<&'a ShardState>,
}

impl<'a> Weights<'a> {
    /// By this measure.
    pub fn new(figures: &Figures<'a>, measure: impl Fn(&Load) -> u64) -> Self {
        Weights::of(figures, figures.loads.iter().map(measure).collect())
    }

    /// Of chunks that weigh so much, in order.
    pub fn of(figures: &Figures<'a>, of_chunks: Vec<u64>) -> Self {
        let mut of_shards: BTreeMap<&ShardId, u64> =
            figures.shards.iter().map(|shard| (&shard.id, 0)).collect();
        for (chunk, weight) in figures.table.chunks().iter().zip(&of_chunks) {
            if let Some(of) = of_shards.get_mut(chunk.shard()) {
                *of += weight;
            }
        }
        let free = figures.shards.iter().filter(|shard| !shard.busy).collect();
        Weights { of_chunks, of_shards, free }
    }

    /// Whether the shard takes part in no move.
    pub fn is_free(&self, shard: &ShardId) -> bool {
        self.free.iter().any(|free| free.id == *shard)
    }

    /// The free shard with least, of those that will do.
    pub fn lightest(&self, will_do: impl Fn(&ShardState) -> bool) -> Option<ShardId> {
        let some = self.free.iter().filter(|shard| will_do(shard));
        some.min_by_key(|shard| self.of_shards[&shard.id]).map(|shard| shard.id.clone())
    }

    /// The most that a shard has.
    pub fn heaviest(&self) -> u64 {
        self.of_shards.values().max().copied().unwrap_or(0)
    }

    /// The shard with the most.
    pub fn heaviest_shard(&self) -> Option<ShardId> {
        self.of_shards.iter().max_by_key(|(_, weight)| **weight).map(|(shard, _)| (*shard).clone())
    }

    /// By how much the shards differ that may own anything.
    pub fn uneven(&self, figures: &Figures<'_>) -> u64 {
        let counted =
            figures.shards.iter().filter(|shard| !shard.draining).map(|shard| self.of_shards[&shard.id]);
        let (low, high) =
            counted.fold((u64::MAX, 0), |(low, high), weight| (low.min(weight), high.max(weight)));
        high.saturating_sub(low)
    }

    /// A move is under way from one shard to another.
    pub fn move_to(&mut self, from: &ShardId, to: &ShardId, weight: u64) {
        for (shard, of) in &mut self.of_shards {
            if *shard == from {
                *of -= weight;
            } else if *shard == to {
                *of += weight;
            }
        }
        self.free.retain(|shard| shard.id != *from && shard.id != *to);
    }

    /// Moves from who has most to who has least, in pairs, as long as they differ by more than this. Each makes them more even.
    pub fn even_out(&mut self, figures: &Figures<'_>, threshold: u64) -> Vec<Step> {
        let mut steps = Vec::new();
        while let Some((chunk, to)) = self.best(figures, threshold) {
            let moved = &figures.table.chunks()[chunk];
            self.move_to(moved.shard(), &to, self.of_chunks[chunk]);
            steps.push(Step::Move { min: moved.min.clone(), max: moved.max.clone(), to });
        }
        steps
    }

    /// The move that evens out the greatest difference: it is of about half of it.
    fn best(&self, figures: &Figures<'_>, threshold: u64) -> Option<(usize, ShardId)> {
        let mut pairs: Vec<(u64, &ShardState, &ShardState)> = Vec::new();
        for from in &self.free {
            for to in self.free.iter().filter(|to| !to.draining) {
                let difference = self.of_shards[&from.id].saturating_sub(self.of_shards[&to.id]);
                if difference > threshold {
                    pairs.push((difference, from, to));
                }
            }
        }
        pairs.sort_by_key(|(difference, _, _)| std::cmp::Reverse(*difference));
        pairs.into_iter().find_map(|(difference, from, to)| {
            let movable = figures.table.chunks().iter().zip(&self.of_chunks).enumerate();
            let movable = movable.filter(|(_, (chunk, weight))| {
                *chunk.shard() == from.id
                    && (1..difference).contains(*weight)
                    && figures.may_own(to, figures.zone_of(&chunk.min))
            });
            let best = movable.min_by_key(|(_, (_, weight))| weight.abs_diff(difference / 2));
            best.map(|(chunk, _)| (chunk, to.id.clone()))
        })
    }
}
