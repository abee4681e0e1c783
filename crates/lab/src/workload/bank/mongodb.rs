//! The bank on MongoDB's protocol: the collections `accounts` and `transfers`, and multi-document transactions.

use sheaf_bson::{DocBuf, RawDoc, doc};

use super::vaults::Vaults;
use super::{Holdings, Outcome, Own, Teller, Transfer};
use crate::client::{Client, Collection, ConnectionString, TransactionOptions, WriteConcern};
use crate::context::Context;
use crate::error::{Error, Result};

/// Accounts per insert when they are opened.
const LOAD_BATCH: i64 = 1000;

pub(super) struct MongoTeller {
    client: Client,
    vaults: Vaults,
    options: TransactionOptions,
}

impl MongoTeller {
    pub fn connect(to: &ConnectionString, own: &Own, vaults: Vaults) -> Result<MongoTeller> {
        let commit = match own.durable {
            false => WriteConcern::nodes(1),
            // What only one member has can be lost with it.
            true if to.is_replicated() => WriteConcern::majority(),
            true => WriteConcern::journaled(),
        };
        Ok(MongoTeller {
            client: Client::connect(to)?,
            vaults,
            options: TransactionOptions {
                read_concern: Some("snapshot".to_owned()),
                write_concern: if to.write_concern.is_default() { commit } else { to.write_concern.clone() },
            },
        })
    }
}

impl Teller for MongoTeller {
    fn open_accounts(&mut self, _: &Context, accounts: u64, balance: i64) -> Result<()> {
        let places = &self.vaults.accounts;
        debug_assert_eq!(places.keys_of(places.shards() - 1).end, accounts as i64);
        for keys in (0..places.shards()).map(|shard| places.keys_of(shard)) {
            for first in keys.clone().step_by(LOAD_BATCH as usize) {
                let mut insert = self.client.insert(places.of(first));
                for id in first..(first + LOAD_BATCH).min(keys.end) {
                    insert.push(|account| {
                        account.append("_id", id).append("balance", balance);
                    });
                }
                insert.send()?;
            }
        }
        Ok(())
    }

    fn transfer(&mut self, transfer: Transfer) -> Result<Outcome> {
        let (from, to) = (self.vaults.accounts.of(transfer.from), self.vaults.accounts.of(transfer.to));
        let transfers = self.vaults.transfers.of(transfer.from);
        let done = self.client.transaction(&self.options, |client| {
            let held = balance(client, from, transfer.from)?;
            balance(client, to, transfer.to)?;
            if held < transfer.amount {
                return Err(Error::failed(INSUFFICIENT));
            }
            for (account, change) in transfer.updates() {
                add(client, if account == transfer.from { from } else { to }, account, change)?;
            }
            let mut insert = client.insert(transfers);
            insert.push(|record| {
                record.append("_id", transfer.id).append("from", transfer.from);
                record.append("to", transfer.to).append("amount", transfer.amount);
            });
            insert.send().map(drop)
        });
        match done {
            Ok(((), retries)) => Ok(Outcome::Made(retries)),
            // The client has aborted the transaction by then.
            Err(Error::Failed(text)) if text == INSUFFICIENT => Ok(Outcome::Refused(0)),
            Err(error) => Err(error),
        }
    }

    fn recover(&mut self) -> Result<()> {
        // The client connects anew by itself.
        Ok(())
    }

    fn balances(&mut self, each: &mut dyn FnMut(i64, i64)) -> Result<()> {
        let accounts = self.vaults.accounts.each();
        // Collected first: a transaction that is tried again begins from the first account.
        let (read, _) = self.client.transaction(&self.options, |client| read_accounts(client, accounts))?;
        read.into_iter().for_each(|(account, balance)| each(account, balance));
        Ok(())
    }

    fn audit(&mut self) -> Result<Holdings> {
        let (accounts, transfers) = (self.vaults.accounts.each(), self.vaults.transfers.each());
        let read = |client: &mut Client| {
            let mut holdings = Holdings { accounts: read_accounts(client, accounts)?, transfers: Vec::new() };
            for each in transfers {
                client.for_each(&each.db, &all_of(each), |record| {
                    holdings.transfers.push(Transfer {
                        id: number(record, "_id")?,
                        from: number(record, "from")?,
                        to: number(record, "to")?,
                        amount: number(record, "amount")?,
                    });
                    Ok(())
                })?;
            }
            Ok(holdings)
        };
        self.client.transaction(&self.options, read).map(|(read, _)| read)
    }
}

fn all_of(collection: &Collection) -> DocBuf {
    doc! { "find": collection.name.as_str(), "batchSize": 10_000 }
}

fn read_accounts(client: &mut Client, accounts: &[Collection]) -> Result<Vec<(i64, i64)>> {
    let mut read = Vec::new();
    for each in accounts {
        client.for_each(&each.db, &all_of(each), |account| {
            read.push((number(account, "_id")?, number(account, "balance")?));
            Ok(())
        })?;
    }
    Ok(read)
}

/// The text by which our own error is known again behind [`Client::transaction`].
const INSUFFICIENT: &str = "insufficient funds";

fn balance(client: &mut Client, accounts: &Collection, id: i64) -> Result<i64> {
    match client.find_by_id(accounts, id)? {
        Some(account) => number(account, "balance"),
        None => Err(Error::failed(format!("account {id} is not there"))),
    }
}

fn add(client: &mut Client, accounts: &Collection, id: i64, amount: i64) -> Result<()> {
    let mut update = client.update(accounts);
    update.push(|statement| {
        statement.document("q").append("_id", id);
        statement.document("u").document("$inc").append("balance", amount);
    });
    match update.send()?.n {
        1 => Ok(()),
        n => Err(Error::failed(format!("an update of account {id} matched {n} documents"))),
    }
}

fn number(document: RawDoc<'_>, name: &str) -> Result<i64> {
    let found = document.get(name).and_then(|n| n.as_exact_i64());
    found.ok_or_else(|| Error::failed(format!("no whole number {name} in {document:?}")))
}
