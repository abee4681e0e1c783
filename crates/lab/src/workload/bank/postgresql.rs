//! The bank on PostgreSQL: the tables `accounts` and `transfers`, and the same steps in the same order as on MongoDB's
//! protocol: two selects, two updates, one insert, each prepared once and sent on its own.

use postgres::error::SqlState;
use postgres::{Client, IsolationLevel, NoTls, Row, Statement, Transaction};

use super::{Holdings, Outcome, Own, Teller, Transfer};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::generate::Random;

/// Most times that one transaction is tried.
const TRIES: u32 = 1000;

pub(super) struct PostgresTeller {
    to: String,
    client: Client,
    statements: Option<Statements>,
    isolation: IsolationLevel,
    durable: bool,
    random: Random,
}

struct Statements {
    read: Statement,
    add: Statement,
    record: Statement,
}

impl PostgresTeller {
    pub fn connect(to: &str, own: &Own) -> Result<PostgresTeller> {
        // Snapshot isolation, which is what MongoDB's transactions give, is called REPEATABLE READ here.
        let isolation = match own.isolation.as_str() {
            "serializable" => IsolationLevel::Serializable,
            _ => IsolationLevel::RepeatableRead,
        };
        let mut client = Client::connect(to, NoTls).map_err(wrong)?;
        set_durable(&mut client, own.durable)?;
        Ok(PostgresTeller {
            to: to.to_owned(),
            client,
            statements: None,
            isolation,
            durable: own.durable,
            random: Random::new(std::process::id().into()),
        })
    }

    fn statements(&mut self) -> Result<&Statements> {
        if self.statements.is_none() {
            let mut prepare = |text: &str| self.client.prepare(text).map_err(wrong);
            self.statements = Some(Statements {
                read: prepare("SELECT balance FROM accounts WHERE id = $1")?,
                add: prepare("UPDATE accounts SET balance = balance + $2 WHERE id = $1")?,
                record: prepare(
                    "INSERT INTO transfers (id, source, target, amount) VALUES ($1, $2, $3, $4)",
                )?,
            });
        }
        self.statements.as_ref().ok_or_else(|| Error::failed("no statements"))
    }

    /// One attempt: whether it was made, or refused.
    fn attempt(&mut self, transfer: Transfer) -> Result<bool, postgres::Error> {
        let Some(statements) = &self.statements else { return Ok(false) };
        let mut transaction = self.client.build_transaction().isolation_level(self.isolation).start()?;
        let held = read(&mut transaction, statements, transfer.from)?;
        read(&mut transaction, statements, transfer.to)?;
        if held < transfer.amount {
            transaction.rollback()?;
            return Ok(false);
        }
        for (account, change) in transfer.updates() {
            transaction.execute(&statements.add, &[&account, &change])?;
        }
        let values: [&(dyn postgres::types::ToSql + Sync); 4] =
            [&transfer.id, &transfer.from, &transfer.to, &transfer.amount];
        transaction.execute(&statements.record, &values)?;
        transaction.commit()?;
        Ok(true)
    }
}

impl Teller for PostgresTeller {
    fn open_accounts(&mut self, context: &Context, accounts: u64, balance: i64) -> Result<()> {
        for statement in [
            "DROP TABLE IF EXISTS accounts, transfers",
            "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL)",
            "CREATE TABLE transfers (id bigint PRIMARY KEY, source bigint NOT NULL, target bigint NOT NULL, \
             amount bigint NOT NULL)",
        ] {
            context.journal.note("PostgreSQL", statement);
            self.client.batch_execute(statement).map_err(wrong)?;
        }
        let last = accounts.saturating_sub(1);
        let insert = format!("INSERT INTO accounts SELECT n, {balance} FROM generate_series(0, {last}) AS n");
        context.journal.note("PostgreSQL", insert.as_str());
        self.client.batch_execute(&insert).map_err(wrong)?;
        // Without figures about the new tables the first transfers would be planned as scans.
        self.client.batch_execute("ANALYZE accounts").map_err(wrong)
    }

    fn transfer(&mut self, transfer: Transfer) -> Result<Outcome> {
        self.statements()?;
        let mut retries = 0;
        loop {
            match self.attempt(transfer) {
                Ok(true) => return Ok(Outcome::Made(retries)),
                Ok(false) => return Ok(Outcome::Refused(retries)),
                Err(error) if may_be_tried_again(&error) && retries + 1 < TRIES => {
                    retries += 1;
                    let most_us = 100u64 << retries.min(8);
                    std::thread::sleep(std::time::Duration::from_micros(self.random.below(most_us)));
                }
                Err(error) => return Err(wrong(error)),
            }
        }
    }

    fn recover(&mut self) -> Result<()> {
        if self.client.is_closed() {
            self.statements = None;
            self.client = Client::connect(&self.to, NoTls).map_err(wrong)?;
            set_durable(&mut self.client, self.durable)?;
        }
        Ok(())
    }

    fn balances(&mut self, each: &mut dyn FnMut(i64, i64)) -> Result<()> {
        // One statement sees one snapshot.
        for row in self.client.query("SELECT id, balance FROM accounts", &[]).map_err(wrong)? {
            each(row.get(0), row.get(1));
        }
        Ok(())
    }

    fn audit(&mut self) -> Result<Holdings> {
        let level = IsolationLevel::RepeatableRead;
        let mut snapshot = self.client.build_transaction().isolation_level(level).start().map_err(wrong)?;
        let accounts = snapshot.query("SELECT id, balance FROM accounts", &[]).map_err(wrong)?;
        let transfers =
            snapshot.query("SELECT id, source, target, amount FROM transfers", &[]).map_err(wrong)?;
        let transfer =
            |row: &Row| Transfer { id: row.get(0), from: row.get(1), to: row.get(2), amount: row.get(3) };
        Ok(Holdings {
            accounts: accounts.iter().map(|row| (row.get(0), row.get(1))).collect(),
            transfers: transfers.iter().map(transfer).collect(),
        })
    }
}

fn read(transaction: &mut Transaction<'_>, statements: &Statements, id: i64) -> Result<i64, postgres::Error> {
    Ok(transaction.query_one(&statements.read, &[&id])?.get(0))
}

fn set_durable(client: &mut Client, durable: bool) -> Result<()> {
    let setting = if durable { "SET synchronous_commit = on" } else { "SET synchronous_commit = off" };
    client.batch_execute(setting).map_err(wrong)
}

/// Two transactions met: serialization_failure and deadlock_detected.
fn may_be_tried_again(error: &postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED))
}

/// A connection that broke, or what the server said.
fn wrong(error: postgres::Error) -> Error {
    match error.as_db_error() {
        Some(said) => Error::failed(format!("PostgreSQL: {} ({})", said.message(), said.code().code())),
        None => Error::Io(std::io::Error::other(format!("PostgreSQL: {error}"))),
    }
}
