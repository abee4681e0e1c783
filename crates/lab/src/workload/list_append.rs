//! Transactions that append to lists and read them: what they saw tells whether each of them had a snapshot of its own,
//! and whether what was committed stayed ([`crate::check::list_append`]).
//!
//! Each attempt counts as a transaction of its own, with elements of its own: one that is tried again after an error must
//! leave nothing behind from before. A read of several lists at once, with readConcern snapshot and outside of
//! transactions, is a transaction too: from any member, all lists must be of one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use sheaf_bson::{ArrayBuf, RawDoc, doc};

use super::endure::{self, pause};
use super::load;
use super::placing::{By, Places};
use super::slots::Slots;
use super::{Figure, Workload};
use crate::check::list_append::{Op, Outcome, Transaction, judge};
use crate::check::{self};
use crate::client::{Client, Collection, ReadPreference, TransactionOptions, commit_is_unknown};
use crate::context::{Context, Group, Worker};
use crate::error::{Error, Result, TRANSIENT_TRANSACTION_ERROR};
use crate::experiment::Settings;
use crate::measure::Ticket;
use crate::results::Check;

/// Settings of the workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    clients: u32,
    /// Lists that are in use at a time: the fewer, the more transactions meet.
    lists: u32,
    /// After about so many operations a list is left alone, and another one taken.
    uses: u64,
    /// Lists that are made beforehand.
    lists_in_all: i64,
    /// Most operations of a transaction.
    operations: u64,
    /// Part of the operations that read.
    read_part: f64,
    /// Part of the turns in which all lists in use are read at once, without a transaction, from any member.
    snapshot_part: f64,
    /// Milliseconds from one transaction of a client to its next.
    pause_ms: u64,
    /// Whether the clients' sessions are causally consistent; then each must see its own transactions.
    causal: bool,
    database: String,
    /// What counts as safe; see [`endure::safest`].
    #[serde(default)]
    concern: Option<String>,
}

/// See the module.
#[derive(Default)]
pub struct ListAppend {
    own: Option<Own>,
    slots: Slots,
    /// Where the lists are.
    places: Option<Places>,
    history: Mutex<Vec<Transaction>>,
    /// By a value that a transaction appended, what was said when it was not committed.
    refusals: Mutex<BTreeMap<i64, String>>,
}

const COLLECTION: &str = "lists";
/// Of the transactions in the table.
const TRANSACTION: &str = "list-append";
const SNAPSHOT: &str = "snapshot read";

impl ListAppend {
    fn own(&self) -> Result<&Own> {
        self.own.as_ref().ok_or_else(|| Error::failed("the workload has no settings"))
    }

    fn places(&self) -> Result<&Places> {
        self.places.as_ref().ok_or_else(|| Error::failed("the lists were not set up"))
    }

    fn serve(&self, worker: &mut Worker<'_>, own: &Own) -> Result<()> {
        let to = worker.context().mongodb()?.enduring();
        let mut clients = [Client::connect(&to)?, Client::connect(&to.reading(ReadPreference::Nearest))?];
        if own.causal {
            clients = clients.map(Client::causal);
        }
        let [mut client, mut reader] = clients;
        let options = TransactionOptions {
            read_concern: Some("snapshot".to_owned()),
            write_concern: endure::safest(worker.context(), own.concern.as_deref())?,
        };
        let lists = self.places()?;
        let mut number = 0i64;
        // A server that is alone has no snapshots outside of transactions, and one command reads one collection.
        let at_once = to.is_replicated() && lists.each().len() == 1;
        let snapshot_part = if at_once { own.snapshot_part } else { 0.0 };
        while let Some(ticket) = worker.next() {
            if worker.random.unit() < snapshot_part {
                self.read_at_once(worker, own, &mut reader, ticket)?;
                pause(worker, own.pause_ms);
                continue;
            }
            let mut ops = Vec::new();
            client.start_transaction(&options);
            let outcome = self.attempt(worker, own, &mut client, lists, &mut ops, &mut number);
            let (outcome, error) = match outcome {
                // Without a commit, nothing of it can ever be seen.
                Err(error) => {
                    client.abort_transaction();
                    (Outcome::Aborted, Some(error))
                }
                Ok(()) => match client.commit_transaction() {
                    Ok(()) => (Outcome::Committed, None),
                    Err(error) if commit_is_unknown(&error) => (Outcome::Unknown, Some(error)),
                    Err(error) => (Outcome::Aborted, Some(error)),
                },
            };
            if let (Outcome::Aborted, Some(error)) = (outcome, &error) {
                self.note_refusal(&ops, error);
            }
            if outcome == Outcome::Aborted {
                ops.retain(|op| matches!(op, Op::Append { .. }));
            }
            let transaction = Transaction { client: worker.index, ops, outcome };
            self.history.lock().unwrap_or_else(PoisonError::into_inner).push(transaction);
            match error {
                None => worker.done(TRANSACTION, ticket),
                // Two met, and one of them had to give way.
                Some(Error::Server(error))
                    if error.labels.iter().any(|l| l == TRANSIENT_TRANSACTION_ERROR) =>
                {
                    worker.retried(TRANSACTION, ticket, 1);
                }
                Some(error) => worker.endured(TRANSACTION, ticket, error)?,
            }
            pause(worker, own.pause_ms);
        }
        Ok(())
    }

    /// For people who wonder why something is seen of a transaction that was not committed.
    fn note_refusal(&self, ops: &[Op], error: &Error) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        for op in ops {
            if let Op::Append { value, .. } = op {
                refusals.insert(*value, error.to_string());
            }
        }
    }

    /// What was said to those of these anomalies' transactions that did not commit.
    fn explain(&self, anomalies: &mut [check::Anomaly]) {
        let refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        for anomaly in anomalies.iter_mut().filter(|anomaly| anomaly.kind == "G1a") {
            let value = anomaly.text.split(' ').next().and_then(|value| value.parse::<i64>().ok());
            if let Some(said) = value.and_then(|value| refusals.get(&value)) {
                anomaly.text = format!("{} (it was told: {said})", anomaly.text);
            }
        }
    }

    /// Reads several lists with readConcern snapshot.
    fn read_at_once(
        &self,
        worker: &mut Worker<'_>,
        own: &Own,
        reader: &mut Client,
        ticket: Ticket,
    ) -> Result<()> {
        let keys: BTreeSet<i64> = (0..own.lists).map(|_| self.slots.choose(&mut worker.random)).collect();
        let find = doc! {
            "find": COLLECTION,
            "filter": { "_id": { "$in": (sheaf_bson::Value::Array(ArrayBuf::of(keys).as_raw())) } }
        };
        let mut ops = Vec::new();
        let read = reader.for_each_at(&own.database, &find, "snapshot", |list| {
            let key = list.get("_id").and_then(|key| key.as_exact_i64());
            let key = key.ok_or_else(|| Error::failed("a list without a number"))?;
            ops.push(Op::Read { key, list: elements(list)? });
            Ok(())
        });
        match read {
            Ok(_) => {
                // A session of its own: that of the client's transactions is another one.
                let client = worker.index + own.clients;
                let transaction = Transaction { client, ops, outcome: Outcome::Committed };
                self.history.lock().unwrap_or_else(PoisonError::into_inner).push(transaction);
                worker.done(SNAPSHOT, ticket);
                Ok(())
            }
            Err(error) => worker.endured(SNAPSHOT, ticket, error),
        }
    }

    /// All lists that were used, in one snapshot: what was sent by a client that gave up may be done at any later time.
    fn last(&self, client: &mut Client, own: &Own) -> Result<BTreeMap<i64, Vec<i64>>> {
        let find = doc! { "find": COLLECTION, "filter": { "_id": { "$lt": (self.slots.used().end) } } };
        let take = |last: &mut BTreeMap<i64, Vec<i64>>, document: RawDoc<'_>| {
            let key = document.get("_id").and_then(|key| key.as_exact_i64());
            last.insert(key.ok_or_else(|| Error::failed("a list without a number"))?, elements(document)?);
            Ok(())
        };
        let lists = self.places()?.each();
        if client.connection_string().is_replicated() && lists.len() == 1 {
            let mut last = BTreeMap::new();
            client.for_each_at(&own.database, &find, "snapshot", |document| take(&mut last, document))?;
            return Ok(last);
        }
        // A server that is alone has no snapshots outside of transactions.
        let snapshot = TransactionOptions { read_concern: Some("snapshot".to_owned()), ..Default::default() };
        let read = |client: &mut Client| {
            let mut last = BTreeMap::new();
            for each in lists {
                client.for_each(&each.db, &find, |document| take(&mut last, document))?;
            }
            Ok(last)
        };
        client.transaction(&snapshot, read).map(|(last, _)| last)
    }

    fn attempt(
        &self,
        worker: &mut Worker<'_>,
        own: &Own,
        client: &mut Client,
        lists: &Places,
        ops: &mut Vec<Op>,
        number: &mut i64,
    ) -> Result<()> {
        for _ in 0..=worker.random.below(own.operations) {
            let key = self.slots.choose(&mut worker.random);
            // Without new lists the last ones are only read: they would grow, and with them what each read keeps.
            if worker.random.unit() < own.read_part || self.slots.are_used_up() {
                let list = client.find_by_id(lists.of(key), key)?;
                let list = list.ok_or_else(|| Error::failed(format!("list {key} is not there")))?;
                ops.push(Op::Read { key, list: elements(list)? });
            } else {
                *number += 1;
                let value = i64::from(worker.index + 1) << 40 | *number;
                // Noted first: also without an answer it may have happened.
                ops.push(Op::Append { key, value });
                let mut update = client.update(lists.of(key));
                update.push(|statement| {
                    statement.document("q").append("_id", key);
                    statement.document("u").document("$push").append("list", value);
                });
                let n = update.send()?.n;
                if n != 1 {
                    return Err(Error::failed(format!("an update of list {key} matched {n} documents")));
                }
            }
        }
        Ok(())
    }
}

fn elements(document: RawDoc<'_>) -> Result<Vec<i64>> {
    let bad = || Error::failed(format!("no list of whole numbers: {document:?}"));
    let list = document.get("list").and_then(|list| list.as_array()).ok_or_else(bad)?;
    list.values().map(|value| value.as_exact_i64().ok_or_else(bad)).collect()
}

impl Workload for ListAppend {
    fn configure(&mut self, settings: &Settings) -> Result<()> {
        let own: Own = settings.parse()?;
        if own.clients == 0 || own.lists == 0 || own.lists_in_all < 1 || own.operations == 0 {
            return Err(Error::usage("list-append needs clients, lists and operations"));
        }
        self.own = Some(own);
        Ok(())
    }

    fn setup(&mut self, context: &Context) -> Result<()> {
        let own = self.own()?.clone();
        let mut client = endure::connect(context)?;
        let all = Collection::new(&own.database, COLLECTION).with_concern(&endure::safest(context, None)?);
        let places = Places::place(context, &mut client, &all, "_id", By::Hash)?;
        load::fill(context, &places, 0..own.lists_in_all, || {
            |bytes: &mut Vec<u8>, key| {
                let none = sheaf_bson::array![];
                let mut document = doc! { "_id": key };
                document.append("list", sheaf_bson::Value::Array(none.as_raw()));
                bytes.extend_from_slice(document.as_bytes());
            }
        })?;
        self.places = Some(places);
        self.slots = Slots::new(own.lists, own.lists_in_all, own.uses);
        Ok(())
    }

    fn groups<'a>(&'a self, _: &Context) -> Result<Vec<Group<'a>>> {
        let own = self.own()?;
        Ok(vec![Group::new(TRANSACTION, own.clients, move |worker| self.serve(worker, own)).without_client()])
    }

    fn databases(&self) -> Vec<String> {
        self.places.as_ref().map_or_else(Vec::new, Places::databases)
    }

    fn check_own(&mut self, context: &Context) -> Result<Vec<Check>> {
        let own = self.own()?;
        let last = endure::look(context, &own.database, |client| self.last(client, own))?;
        let history = std::mem::take(&mut *self.history.lock().unwrap_or_else(PoisonError::into_inner));
        let mut verdict = judge(&history, &last, own.causal);
        self.explain(&mut verdict.anomalies);
        let fine = format!(
            "{} transactions committed, {} unknown ({} of them seen), {} dependencies between them, no anomaly",
            verdict.committed, verdict.unknown, verdict.unknown_seen, verdict.dependencies
        );
        if self.slots.are_used_up() {
            context.warn("all lists were used up before the end: set lists_in_all to more");
        }
        let mut checks = vec![check::check("lists", &verdict.anomalies, fine)];
        if verdict.committed == 0 {
            checks[0] = Check {
                name: "lists".to_owned(),
                passed: false,
                detail: "no transaction committed".to_owned(),
            };
        }
        Ok(checks)
    }

    fn metrics(&self, context: &Context) -> Vec<Figure> {
        let measured = context.measured();
        let totals = measured.operation(TRANSACTION);
        vec![
            Figure::higher("transactions/s", "1/s", measured.rate(TRANSACTION)),
            Figure::lower("median", "us", totals.percentile_us(50.0)),
            Figure::lower("p99", "us", totals.percentile_us(99.0)),
            Figure::lower("max", "us", totals.max_us()),
            Figure::plain("retries", "", totals.retries as f64),
        ]
    }
}
