//! Where accounts and transfer records are: with shards, in ranges of account numbers, one for each.

use crate::client::Collection;
use crate::context::Context;
use crate::error::Result;
use crate::generate::Random;
use crate::workload::placing::{By, Places};

/// Accounts by their number, and transfer records beside the account that they take from.
#[derive(Clone, Debug)]
pub(super) struct Vaults {
    pub accounts: Places,
    pub transfers: Places,
}

impl Vaults {
    /// In one place, made by somebody else.
    pub fn alone(database: &str) -> Vaults {
        let one = |name| Places::one(Collection::new(database, name), By::Range(0));
        Vaults { accounts: one("accounts"), transfers: one("transfers") }
    }

    /// Makes both anew, empty.
    pub fn open(context: &Context, database: &str, accounts: u64) -> Result<Vaults> {
        let mut client = context.connect()?;
        let by = By::Range(accounts as i64);
        let mut place = |name, field| {
            let collection = Collection::new(database, name);
            Places::place(context, &mut client, &collection, field, by)
        };
        Ok(Vaults { accounts: place("accounts", "_id")?, transfers: place("transfers", "from")? })
    }

    /// Two accounts, which are on different shards in so many per cent of all cases.
    pub fn choose(&self, random: &mut Random, percent: f64) -> (i64, i64) {
        let shards = self.accounts.shards() as u64;
        let home = random.below(shards);
        let other = if random.unit() * 100.0 < percent {
            (home + 1 + random.below(shards - 1)) % shards
        } else {
            home
        };
        let mut account = |shard: u64| {
            let keys = self.accounts.keys_of(shard as usize);
            keys.start + random.below((keys.end - keys.start).max(1) as u64) as i64
        };
        let (from, mut to) = (account(home), account(other));
        if from == to {
            let keys = self.accounts.keys_of(home as usize);
            // The next one, and behind the last the first.
            to = if from + 1 < keys.end { from + 1 } else { keys.start };
        }
        (from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_transfers_cross_as_are_asked_for() {
        let each = (0..3).map(|n| Collection::new(&format!("lab{n}"), "accounts")).collect();
        let places = Places::several(each, By::Range(1000));
        let vaults = Vaults { accounts: places.clone(), transfers: places };
        for percent in [0.0, 10.0, 100.0] {
            let mut random = Random::new(1);
            let crossing = (0..10_000)
                .map(|_| vaults.choose(&mut random, percent))
                .inspect(|(from, to)| assert_ne!(from, to))
                .filter(|(from, to)| vaults.accounts.shard_of(*from) != vaults.accounts.shard_of(*to))
                .count();
            let expected = percent * 100.0;
            assert!((crossing as f64 - expected).abs() <= expected * 0.1, "{percent} %: {crossing}");
        }
    }
}
