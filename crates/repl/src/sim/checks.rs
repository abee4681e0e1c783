//! What must hold at any moment.

use std::collections::BTreeMap;

use crate::types::{Entry, LogPosition};
use crate::write_concern::{W, WriteConcern};

use super::model::{link, operation};

/// A client's write.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub at: LogPosition,
    pub concern: WriteConcern,
    pub acknowledged: bool,
}

/// What is known of the set as a whole.
#[derive(Default)]
pub(super) struct Checker {
    /// The committed log: hash up to each entry, first for none.
    chains: Vec<u64>,
    committed: Vec<LogPosition>,
    /// In which term of the member that first knew each was committed.
    committed_in: Vec<u64>,
    primaries: BTreeMap<u64, usize>,
    /// By number.
    pub writes: BTreeMap<u64, Write>,
    /// By number, which machines have ever applied it, and had it durable, as bits.
    applied: BTreeMap<u64, u64>,
    durable: BTreeMap<u64, u64>,
    pub acknowledged: u64,
}

impl Checker {
    pub fn new() -> Self {
        Checker { chains: vec![0], ..Checker::default() }
    }

    pub fn committed(&self) -> u64 {
        self.committed.len() as u64
    }

    pub fn primaries(&self) -> u64 {
        self.primaries.len() as u64
    }

    /// Hash of the committed log up to `index`.
    pub fn chain(&self, index: u64) -> Option<u64> {
        self.chains.get(index as usize).copied()
    }

    /// At most one primary per term.
    pub fn primary(&mut self, term: u64, node: usize) -> Result<(), String> {
        match *self.primaries.entry(term).or_insert(node) {
            first if first == node => Ok(()),
            first => Err(format!("two primaries in term {term}: machines {first} and {node}")),
        }
    }

    /// A member takes `entry` for committed: nobody may ever have taken another for it.
    pub fn commit(&mut self, node: usize, term: u64, entry: &Entry) -> Result<(), String> {
        let index = entry.at.index as usize;
        if index > self.chains.len() {
            return Err(format!("machine {node} commits {:?} before {}", entry.at, self.chains.len()));
        }
        let chain = link(self.chains[index - 1], entry);
        if index == self.chains.len() {
            self.chains.push(chain);
            self.committed.push(entry.at);
            self.committed_in.push(term);
        } else if self.chains[index] != chain {
            let known = self.committed[index - 1];
            return Err(format!("machine {node} commits {:?} where {known:?} was committed", entry.at));
        }
        Ok(())
    }

    /// Whether a committed entry would be lost with `entry`, which a member takes back in `term`.
    ///
    /// Nothing is lost where the term is earlier than the one in which the entry was committed: a member that slept
    /// hears first of a primary that has been replaced meanwhile, and may follow it. The set has committed the
    /// entry without that member's copy, and gives it back.
    pub fn rolled_back(&self, node: usize, term: u64, entry: &Entry) -> Result<(), String> {
        let index = entry.at.index as usize - 1;
        let known = self.committed.get(index);
        if known == Some(&entry.at) && self.committed_in.get(index).is_some_and(|then| term < *then) {
            return Ok(());
        }
        if known == Some(&entry.at) {
            return Err(format!("machine {node} rolls back {:?}, which is committed", entry.at));
        }
        let Some((uid, _)) = operation(entry) else { return Ok(()) };
        match self.writes.get(&uid) {
            Some(write) if write.acknowledged && write.concern.w == W::Majority => {
                Err(format!("machine {node} rolls back write {uid}, acknowledged by a majority"))
            }
            _ => Ok(()),
        }
    }

    pub fn applied(&mut self, node: usize, entry: &Entry) {
        if let Some((uid, _)) = operation(entry) {
            *self.applied.entry(uid).or_default() |= 1 << node;
        }
    }

    pub fn durable(&mut self, node: usize, entry: &Entry) {
        if let Some((uid, _)) = operation(entry) {
            *self.durable.entry(uid).or_default() |= 1 << node;
        }
    }

    /// A machine has this write, by whatever way.
    pub fn mark(&mut self, node: usize, uid: u64) {
        *self.applied.entry(uid).or_default() |= 1 << node;
        *self.durable.entry(uid).or_default() |= 1 << node;
    }

    /// A client is told that its write concern is met.
    pub fn acknowledge(
        &mut self,
        uid: u64,
        tags: &dyn Fn(usize, &str) -> Option<String>,
    ) -> Result<(), String> {
        let Some(write) = self.writes.get_mut(&uid) else { return Ok(()) };
        write.acknowledged = true;
        self.acknowledged += 1;
        let write = write.clone();
        let mut have = self.applied.get(&uid).copied().unwrap_or(0);
        if write.concern.journal {
            have &= self.durable.get(&uid).copied().unwrap_or(0);
        }
        let values = |tag: &str| {
            let mut values: Vec<String> =
                (0..64).filter(|node| have >> node & 1 == 1).filter_map(|node| tags(node, tag)).collect();
            values.sort();
            values.dedup();
            values.len() as i64
        };
        let met = match &write.concern.w {
            W::Nodes(n) => u64::from(have.count_ones()) >= *n,
            W::Majority => self.committed.get(write.at.index as usize - 1) == Some(&write.at),
            W::Mode(mode) if mode == "twoCenters" => values("dc") >= 2,
            W::Mode(_) => values("rack") >= 1,
            W::Tags(tags) => tags.iter().all(|(tag, count)| values(tag) >= *count),
        };
        if met {
            return Ok(());
        }
        Err(format!(
            "write {uid} at {:?} acknowledged as {:?}, but machines {have:b} have it",
            write.at, write.concern
        ))
    }

    /// At the end: what a majority has acknowledged is there.
    pub fn finish(&self) -> Result<(), String> {
        for (uid, write) in &self.writes {
            let there = self.committed.get(write.at.index as usize - 1) == Some(&write.at);
            if write.acknowledged && write.concern.w == W::Majority && !there {
                return Err(format!("write {uid}, acknowledged by a majority, is not there"));
            }
        }
        Ok(())
    }
}
