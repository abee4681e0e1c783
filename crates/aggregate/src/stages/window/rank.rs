//! `$rank`, `$denseRank` and `$documentNumber`.

use std::collections::VecDeque;

use sheaf_bson::{Bump, OwnedValue, Value};
use sheaf_errors::Result;

use super::function::Rank;
use super::removable::narrowest;
use super::running::Running;

/// A rank under way. Its documents come with the keys that they are sorted by.
pub(super) struct Ranking {
    rank: Rank,
    last: Option<OwnedValue>,
    /// The rank of the last document, and how many have that rank.
    current: i64,
    equals: i64,
    /// Ranks of documents that wait.
    ranks: VecDeque<i64>,
}

impl Ranking {
    pub(super) fn new(rank: Rank) -> Ranking {
        Ranking { rank, last: None, current: 0, equals: 1, ranks: VecDeque::new() }
    }
}

impl Running for Ranking {
    fn take(&mut self, _value: Value<'_>, sort: Value<'_>) -> Result<()> {
        let sort = OwnedValue::from(sort);
        let is_equal = self.rank != Rank::DocumentNumber && self.last.as_ref() == Some(&sort);
        if is_equal {
            self.equals += 1;
        } else {
            self.current += if self.rank == Rank::Standard { self.equals } else { 1 };
            if self.rank == Rank::Standard && self.last.is_none() {
                self.current = 1;
            }
            self.equals = 1;
        }
        self.last = Some(sort);
        self.ranks.push_back(self.current);
        Ok(())
    }

    fn is_ready(&mut self, _at: u64, _ended: bool) -> Result<bool> {
        Ok(true)
    }

    fn result<'a>(&mut self, _at: u64, _arena: &'a Bump) -> Result<Value<'a>> {
        let rank = self.ranks.pop_front().expect("a document that is ready has come");
        Ok(narrowest(rank))
    }

    fn memory_bytes(&self) -> usize {
        self.ranks.capacity() * size_of::<i64>() + self.last.as_ref().map_or(0, OwnedValue::memory_bytes)
    }
}
