//! A bank: transfers between accounts, each one transaction of two reads, two balance updates and one transfer record.
//! However they meet, fail and are tried again, no money may appear or vanish.
//!
//! The total is looked at during the run, by reads of all accounts in one snapshot, and afterwards; then the transfer
//! records must account for every balance, and every transfer that a client was told of must be there, once. The same
//! steps run on MongoDB's protocol ([`mongodb`]) and on PostgreSQL ([`postgresql`]).
//!
//! In a sharded cluster the accounts are spread over the shards ([`vaults`]), and the figures say what shards gain ([`scaling`]).

mod audit;
mod mongodb;
mod postgresql;
mod scaling;
mod vaults;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;

use self::audit::{Books, Watch};
use self::scaling::Scaling;
use self::vaults::Vaults;
use super::{Figure, Workload};
use crate::context::{Context, Group, Worker};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::generate::Random;
use crate::measure::{Arrival, Load, Span};
use crate::results::Check;

/// Settings of the workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    /// Accounts at full scale.
    accounts: u64,
    /// What each account holds at first.
    balance: i64,
    /// The largest amount of a transfer; the smallest is 1.
    largest_transfer: i64,
    clients: u32,
    /// Whether a transfer is acknowledged when it is on disk: `j: true` of the commit, `synchronous_commit` of
    /// PostgreSQL.
    durable: bool,
    /// Of PostgreSQL: "repeatable read", which is snapshot isolation like MongoDB's transactions, or "serializable".
    isolation: String,
    /// Milliseconds between two looks at the total during the run.
    look_every_ms: u64,
    /// Milliseconds from one transfer of a client to its next.
    #[serde(default)]
    pause_ms: u64,
    /// In a sharded cluster: per cent of the transfers that are between accounts on different shards. Without it any two
    /// accounts are taken.
    #[serde(default)]
    crossing: Option<f64>,
    /// In a sharded cluster: after the run comes another one with each server that holds data capped to so many processors.
    #[serde(default)]
    throttle: Option<f64>,
    database: String,
}

/// See the module.
#[derive(Default)]
pub struct Bank {
    own: Option<Own>,
    accounts: u64,
    watch: Watch,
    books: Mutex<Books>,
    /// Where accounts and transfer records are, in MongoDB.
    vaults: Option<Vaults>,
    /// Clients that are still at work.
    busy: AtomicU32,
    /// Counts runs from 0: the second one is that with capped servers.
    round: AtomicU32,
    scaling: Option<Scaling>,
}

/// One transfer as a client wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Transfer {
    /// Of the transfer record: unique, whatever happens.
    id: i64,
    from: i64,
    to: i64,
    amount: i64,
}

impl Transfer {
    /// The two updates, the lower account first: transfers that meet wait for each other at the first one, instead of
    /// each holding what the other wants.
    fn updates(&self) -> [(i64, i64); 2] {
        let (take, give) = ((self.from, -self.amount), (self.to, self.amount));
        if self.from < self.to { [take, give] } else { [give, take] }
    }
}

/// Everything that a bank holds.
struct Holdings {
    /// Each account and its balance.
    accounts: Vec<(i64, i64)>,
    transfers: Vec<Transfer>,
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It was made, after so many more tries.
    Made(u32),
    /// The account had not enough; nothing was changed.
    Refused(u32),
}

/// A database of accounts, by one connection.
trait Teller: Send {
    /// Makes the tables anew, and the accounts 0, 1, 2, ...
    fn open_accounts(&mut self, context: &Context, accounts: u64, balance: i64) -> Result<()>;

    /// Makes a transfer, trying again as often as the database asks for.
    ///
    /// Errors: the transfer may have been made or not.
    fn transfer(&mut self, transfer: Transfer) -> Result<Outcome>;

    /// Makes ready for the next transfer after an error.
    fn recover(&mut self) -> Result<()>;

    /// Reads all balances in one snapshot, by account.
    fn balances(&mut self, each: &mut dyn FnMut(i64, i64)) -> Result<()>;

    /// Reads all balances and all transfer records in one snapshot: what was sent by somebody who has given up may be
    /// done at any later time, also now.
    fn audit(&mut self) -> Result<Holdings>;
}

impl Own {
    fn teller(&self, context: &Context, vaults: Option<&Vaults>) -> Result<Box<dyn Teller>> {
        Ok(match &context.database {
            Database::MongoDb(to) => {
                let vaults = vaults.cloned().unwrap_or_else(|| Vaults::alone(&self.database));
                Box::new(mongodb::MongoTeller::connect(&to.enduring(), self, vaults)?)
            }
            Database::PostgreSql(to) => Box::new(postgresql::PostgresTeller::connect(to, self)?),
        })
    }
}

/// Identifiers of transfers: the client in the upper half, its own count in the lower.
fn transfer_id(client: u32, number: u32) -> i64 {
    i64::from(client) << 32 | i64::from(number)
}

fn choose(random: &mut Random, id: i64, accounts: u64, largest: i64) -> Transfer {
    let from = random.below(accounts);
    // Any account but the same.
    let to = (from + 1 + random.below(accounts - 1)) % accounts;
    let amount = 1 + random.below(largest as u64) as i64;
    Transfer { id, from: from as i64, to: to as i64, amount }
}

impl Bank {
    fn own(&self) -> Result<&Own> {
        self.own.as_ref().ok_or_else(|| Error::failed("the workload has no settings"))
    }
}

impl Workload for Bank {
    fn configure(&mut self, settings: &Settings) -> Result<()> {
        let own: Own = settings.parse()?;
        if own.clients == 0 || own.balance < 0 || own.largest_transfer < 1 {
            return Err(Error::usage(
                "bank needs clients, a balance of 0 or more and transfers of 1 or more",
            ));
        }
        if own.crossing.is_some_and(|percent| !(0.0..=100.0).contains(&percent))
            || own.throttle.is_some_and(|processors| !(processors > 0.0 && processors <= 64.0))
        {
            return Err(Error::usage("crossing is a percentage, throttle a number of processors"));
        }
        if !["repeatable read", "serializable"].contains(&own.isolation.as_str()) {
            return Err(Error::usage("isolation is \"repeatable read\" or \"serializable\""));
        }
        self.own = Some(own);
        Ok(())
    }

    fn setup(&mut self, context: &Context) -> Result<()> {
        let own = self.own()?.clone();
        // Fewer than two cannot transfer anything.
        self.accounts = context.scaled(own.accounts).max(2);
        if let Database::MongoDb(_) = &context.database {
            self.vaults = Some(Vaults::open(context, &own.database, self.accounts)?);
        }
        own.teller(context, self.vaults.as_ref())?.open_accounts(context, self.accounts, own.balance)
    }

    fn run(&mut self, context: &Context) -> Result<()> {
        let measured = context.run(&self.groups(context)?)?;
        if !context.mongodb().is_ok_and(|to| to.routed) {
            return Ok(());
        }
        let mut scaling = Scaling::of(context, &measured);
        if let Some(processors) = self.own()?.throttle {
            match scaling::cap(context, processors) {
                Ok(caps) => {
                    self.round.store(1, Ordering::Relaxed);
                    scaling.throttled = Some(context.run(&self.groups(context)?)?.rate(self.operation()));
                    drop(caps);
                }
                Err(error) => context.warn(format!("no servers were capped: {error}")),
            }
        }
        self.scaling = Some(scaling);
        Ok(())
    }

    fn groups<'a>(&'a self, context: &Context) -> Result<Vec<Group<'a>>> {
        let own = self.own()?;
        self.busy.store(own.clients, Ordering::Relaxed);
        let clients = Group::new("client", own.clients, move |worker| {
            let outcome = self.serve(worker, own);
            self.busy.fetch_sub(1, Ordering::Relaxed);
            outcome
        });
        let auditor = Group::new("auditor", 1, move |worker| self.look_on(worker, own));
        // It ends with the clients, and is measured from where they are.
        let load = Load { arrival: Arrival::Closed, measure: Span::Unbounded, ..context.load };
        Ok(vec![clients.without_client(), auditor.load(load).without_client()])
    }

    fn databases(&self) -> Vec<String> {
        match (&self.vaults, &self.own) {
            (Some(vaults), _) => vaults.accounts.databases(),
            (None, own) => own.iter().map(|own| own.database.clone()).collect(),
        }
    }

    fn check_own(&mut self, context: &Context) -> Result<Vec<Check>> {
        let own = self.own()?;
        let mut teller = own.teller(context, self.vaults.as_ref())?;
        let mut ledger = audit::Ledger::new(self.accounts, own.balance);
        let Holdings { accounts, transfers } = teller.audit()?;
        let books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.into_iter().for_each(|(account, balance)| ledger.balance(account, balance));
        transfers.into_iter().for_each(|transfer| ledger.transfer(&books, transfer));
        let mut checks = vec![self.watch.check()];
        checks.extend(ledger.checks(&books));
        drop(books);
        Ok(checks)
    }

    fn metrics(&self, context: &Context) -> Vec<Figure> {
        let measured = context.measured();
        let transfer = measured.operation("transfer");
        if let Some(scaling) = &self.scaling {
            return scaling.figures(&transfer);
        }
        vec![
            Figure::higher("transactions/s", "1/s", measured.rate("transfer")),
            Figure::lower("median", "us", transfer.percentile_us(50.0)),
            Figure::lower("p99", "us", transfer.percentile_us(99.0)),
            Figure::lower("max", "us", transfer.max_us()),
            Figure::plain("retries", "", transfer.retries as f64),
        ]
    }

    fn knows_postgresql(&self) -> bool {
        true
    }
}

impl Bank {
    /// What a transfer is called in the figures of this run.
    fn operation(&self) -> &'static str {
        if self.round.load(Ordering::Relaxed) == 0 { "transfer" } else { "throttled transfer" }
    }

    fn choose(&self, random: &mut Random, id: i64, own: &Own) -> Transfer {
        match (&self.vaults, own.crossing) {
            (Some(vaults), Some(percent)) if vaults.accounts.shards() > 1 => {
                let (from, to) = vaults.choose(random, percent);
                let amount = 1 + random.below(own.largest_transfer as u64) as i64;
                Transfer { id, from, to, amount }
            }
            _ => choose(random, id, self.accounts, own.largest_transfer),
        }
    }

    fn serve(&self, worker: &mut Worker<'_>, own: &Own) -> Result<()> {
        // Each run has clients of its own in the books.
        let client = worker.index + self.round.load(Ordering::Relaxed) * own.clients;
        let operation = self.operation();
        let mut teller = own.teller(worker.context(), self.vaults.as_ref())?;
        let (mut number, mut warned) = (0, false);
        while let Some(ticket) = worker.next() {
            let id = transfer_id(client, number);
            number += 1;
            let transfer = self.choose(&mut worker.random, id, own);
            let outcome = teller.transfer(transfer);
            let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
            books.note(transfer, outcome.as_ref().ok());
            drop(books);
            match outcome {
                Ok(Outcome::Made(retries)) => {
                    worker.done(operation, ticket);
                    worker.retried(operation, ticket, retries.into());
                }
                Ok(Outcome::Refused(retries)) => {
                    worker.done("refused transfer", ticket);
                    worker.retried("refused transfer", ticket, retries.into());
                }
                // As while a set elects a primary: the bank goes on, and the books keep the transfer as open.
                Err(error @ (Error::Io(_) | Error::Server(_))) => {
                    worker.failed(operation, ticket);
                    if !warned {
                        worker.context().warn(format!("a transfer failed for good: {error}"));
                        warned = true;
                    }
                    teller.recover()?;
                }
                Err(error) => return Err(error),
            }
            super::endure::pause(worker, own.pause_ms);
        }
        Ok(())
    }

    /// Looks at the total again and again while transfers are made.
    fn look_on(&self, worker: &mut Worker<'_>, own: &Own) -> Result<()> {
        let mut teller = own.teller(worker.context(), self.vaults.as_ref())?;
        let pause = Duration::from_millis(own.look_every_ms);
        let expected = self.accounts as i64 * own.balance;
        let running = || self.busy.load(Ordering::Relaxed) > 0;
        while running() && !worker.stopping() {
            let Some(mut ticket) = worker.next() else { break };
            ticket.due = Instant::now();
            let (mut count, mut total) = (0u64, 0i64);
            let look = teller.balances(&mut |_, balance| {
                count += 1;
                total = total.wrapping_add(balance);
            });
            match look {
                Ok(()) => {
                    self.watch.saw(count == self.accounts && total == expected, count, total, expected);
                    worker.done("look at all accounts", ticket);
                }
                Err(error) => worker.endured("look at all accounts", ticket, error)?,
            }
            let wake = Instant::now() + pause;
            while Instant::now() < wake && running() && !worker.stopping() {
                std::thread::sleep(Duration::from_millis(5).min(pause));
            }
        }
        Ok(())
    }
}
