//! What a round sends: which of the statements that are left, and where they go.

use std::collections::BTreeMap;

use sheaf_cluster::Sharded;
use sheaf_errors::Result;
use sheaf_shard::ShardId;

use super::super::{Aim, outcome::Answers};
use super::{Goes, Lot, Planned, Rounds};
use crate::addressed::{Addressed, Placed};

impl<A: Answers> Rounds<'_, '_, '_, A> {
    pub(super) fn goes<'s>(&mut self, at: u32, placed: &'s [Placed]) -> Result<Goes<'s>> {
        match &placed[self.batch.namespace_of(at)] {
            Placed::Whole(to) => Ok(Goes::Whole(to)),
            Placed::Spread(sharded) => {
                let measured = self.batch.is_measured(at);
                let aim = match self.aiming.aim(self.batch.statements[at as usize], measured, sharded)? {
                    // Who has executed it answers.
                    Aim::Each(shards) if self.asked.was_executed(at) || self.looks_first(at) => {
                        Aim::Anywhere(shards)
                    }
                    aim => aim,
                };
                Ok(Goes::Spread(aim, sharded))
            }
        }
    }

    /// The statements at the beginning that one shard has in a row, or the one that concerns several.
    pub(super) fn next_run<'s>(&mut self, placed: &'s [Placed]) -> Result<Planned<'s>> {
        let mut planned = Planned::default();
        let mut run: Option<(usize, Addressed)> = None;
        let mut taken = 0;
        while let Some(at) = self.left.get(taken).copied() {
            let namespace = self.batch.namespace_of(at);
            let goes = self.goes(at, placed);
            let to = match &goes {
                Ok(Goes::Whole(to)) => Some((*to).clone()),
                Ok(Goes::Spread(Aim::One(shard), sharded)) => match &run {
                    Some((of, to)) if *of == namespace && to.target.name() == shard.as_str() => {
                        Some(to.clone())
                    }
                    _ => Some(self.op.addressed(sharded, shard)?),
                },
                _ => None,
            };
            match (&run, to) {
                (None, Some(to)) => run = Some((namespace, to)),
                (Some((of, before)), Some(to))
                    if *of == namespace && before.target.name() == to.target.name() => {}
                (Some(_), _) => break,
                (None, None) => {
                    taken = 1;
                    self.alone(at, goes, &mut planned)?;
                    break;
                }
            }
            taken += 1;
        }
        let places: Vec<u32> = self.left.drain(..taken).collect();
        if let Some((_, to)) = run {
            planned.lots.push(Lot { to, places, asked: false });
        }
        Ok(planned)
    }

    /// The measurements up to the first that cannot be inserted. Shards find nothing wrong with single ones that has not been found here, so
    /// that those of an ordered batch can go to all shards at once.
    pub(super) fn measurements<'s>(&mut self, placed: &'s [Placed]) -> Result<Planned<'s>> {
        let mut fit = 0;
        if let Placed::Spread(sharded) = &placed[0] {
            let statements = &self.batch.statements;
            let mut fits = |at: &u32| self.aiming.fits(statements[*at as usize], sharded);
            fit = self.left.iter().take_while(|at| fits(at)).count();
        }
        if fit == 0 {
            return self.next_run(placed);
        }
        let rest = self.left.split_off(fit);
        let planned = self.all_at_once(placed);
        self.left = rest;
        planned
    }

    /// Plans a statement that has a round for itself.
    fn alone<'s>(&mut self, at: u32, goes: Result<Goes<'s>>, planned: &mut Planned<'s>) -> Result<()> {
        match goes {
            Ok(Goes::Spread(Aim::Each(shards), sharded)) => {
                for shard in self.multis.left_on(at, sharded, shards) {
                    let to = self.op.addressed(sharded, shard)?;
                    planned.lots.push(Lot { to, places: vec![at], asked: self.is_asked(at) });
                }
            }
            Ok(Goes::Spread(Aim::Anywhere(shards), sharded)) => planned.anywhere.push((at, sharded, shards)),
            Ok(Goes::Spread(Aim::One(_), _) | Goes::Whole(_)) => unreachable!("it is part of a run"),
            Err(error) => self.answers.fail(at, &error),
        }
        Ok(())
    }

    /// All that is left, by namespace and shard.
    pub(super) fn all_at_once<'s>(&mut self, placed: &'s [Placed]) -> Result<Planned<'s>> {
        let mut planned = Planned::default();
        let mut lots: BTreeMap<(usize, &str), Lot> = BTreeMap::new();
        for at in std::mem::take(&mut self.left) {
            let namespace = self.batch.namespace_of(at);
            match self.goes(at, placed) {
                Ok(Goes::Whole(to)) => {
                    let lot = lots.entry((namespace, to.target.name()));
                    let lot = lot.or_insert_with(|| Lot { to: to.clone(), places: Vec::new(), asked: false });
                    lot.places.push(at);
                }
                Ok(Goes::Spread(Aim::One(shard), sharded)) => {
                    self.add(&mut lots, (namespace, shard), sharded, at, false)?;
                }
                Ok(Goes::Spread(Aim::Each(shards), sharded)) => {
                    for shard in self.multis.left_on(at, sharded, shards) {
                        self.add(&mut lots, (namespace, shard), sharded, at, self.is_asked(at))?;
                    }
                }
                Ok(Goes::Spread(Aim::Anywhere(shards), sharded)) => {
                    planned.anywhere.push((at, sharded, shards))
                }
                Err(error) => self.answers.fail(at, &error),
            }
        }
        planned.lots = lots.into_values().collect();
        Ok(planned)
    }

    fn add<'s>(
        &self,
        lots: &mut BTreeMap<(usize, &'s str), Lot>,
        (namespace, shard): (usize, &'s ShardId),
        sharded: &Sharded,
        at: u32,
        asked: bool,
    ) -> Result<()> {
        match lots.get_mut(&(namespace, shard.as_str())) {
            Some(lot) => {
                lot.places.push(at);
                lot.asked |= asked;
            }
            None => {
                let lot = Lot { to: self.op.addressed(sharded, shard)?, places: vec![at], asked };
                lots.insert((namespace, shard.as_str()), lot);
            }
        }
        Ok(())
    }
}
