//! Single inserts, some acknowledged by the primary alone and some by a majority: where each of them is at the end, says
//! whether the acknowledgement was true ([`crate::check::durability`]).
//!
//! Clients that insert with majority write concern are causally consistent, and read some of it back from any member with
//! readConcern majority: each must find its own. Another client reads what was inserted with readConcern majority: what it
//! finds must stay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Deserialize;
use sheaf_bson::doc;

use super::endure::{self, pause};
use super::findings::Findings;
use super::{Figure, Workload};
use crate::check::durability::{Answer, judge, read_rollback_files};
use crate::check::{self};
use crate::client::{Client, Collection, ReadPreference, WriteConcern};
use crate::context::{Context, Group, Worker};
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::measure::{Arrival, Load, Span, Ticket};
use crate::results::Check;

/// Settings of the workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    clients: u32,
    /// Part of the inserts that a majority acknowledges.
    majority_part: f64,
    /// Part of these that are read back at once, from any member.
    read_own_part: f64,
    /// Milliseconds from one insert of a client to its next.
    pause_ms: u64,
    database: String,
    /// What counts as safe; see [`endure::safest`].
    #[serde(default)]
    concern: Option<String>,
}

/// See the module.
#[derive(Default)]
pub struct Ladder {
    settings: Option<Own>,
    answers: Mutex<BTreeMap<i64, Answer>>,
    /// The last that was inserted.
    last: AtomicI64,
    /// Found with readConcern majority.
    seen: Mutex<BTreeSet<i64>>,
    own: Findings,
    own_found: AtomicU64,
    /// Clients that are still at work.
    busy: AtomicU32,
}

const COLLECTION: &str = "ladder";

impl Ladder {
    fn settings(&self) -> Result<&Own> {
        self.settings.as_ref().ok_or_else(|| Error::failed("the workload has no settings"))
    }

    fn serve(&self, worker: &mut Worker<'_>, own: &Own) -> Result<()> {
        let to = worker.context().mongodb()?.enduring().reading(ReadPreference::Nearest);
        // Whoever has seen the time of a write that is lost would wait for it: that is not for the causal one.
        let mut clients = [Client::connect(&to)?, Client::connect(&to)?.causal()];
        let mut collection = Collection::new(&own.database, COLLECTION);
        // Whoever reads its own writes must read what a majority has. With readConcern "local", a primary that was replaced
        // and goes on by itself may answer: its own writes have come as far in time, and nothing more is asked of it.
        collection.read_concern = Some("majority".to_owned());
        let rungs = [
            ("insert w:1", Answer::Primary, collection.clone().with_concern(&WriteConcern::nodes(1))),
            (
                "insert majority",
                Answer::Majority,
                collection.with_concern(&endure::safest(worker.context(), own.concern.as_deref())?),
            ),
        ];
        let mut number = 0i64;
        while let Some(ticket) = worker.next() {
            let majority = worker.random.unit() < own.majority_part;
            let (name, answer, collection) = &rungs[usize::from(majority)];
            let client = &mut clients[usize::from(majority)];
            number += 1;
            let id = i64::from(worker.index + 1) << 40 | number;
            let mut insert = client.insert(collection);
            insert.push(|document| {
                document.append("_id", id).append("rung", *name);
            });
            let outcome = insert.send();
            let answer = if outcome.is_ok() { *answer } else { Answer::None };
            self.answers.lock().unwrap_or_else(PoisonError::into_inner).insert(id, answer);
            self.last.store(id, Ordering::Relaxed);
            match outcome {
                Ok(_) => worker.done(name, ticket),
                Err(error) => worker.endured(name, ticket, error)?,
            }
            if answer == Answer::Majority && worker.random.unit() < own.read_own_part {
                let ticket = Ticket { due: Instant::now(), ..ticket };
                match client.find_by_id(collection, id).map(|found| found.is_some()) {
                    Ok(found) => {
                        if !found {
                            self.own.add(format!(
                                "document {id} was not found by the client that had written it"
                            ));
                        }
                        self.own_found.fetch_add(1, Ordering::Relaxed);
                        worker.done("read of its own", ticket);
                    }
                    Err(error) => worker.endured("read of its own", ticket, error)?,
                }
            }
            pause(worker, own.pause_ms);
        }
        Ok(())
    }

    /// Reads what was just inserted, by whomever, with readConcern majority, from any member.
    fn look_on(&self, worker: &mut Worker<'_>, own: &Own) -> Result<()> {
        let to = worker.context().mongodb()?.enduring().reading(ReadPreference::Nearest);
        let mut client = Client::connect(&to)?;
        let mut collection = Collection::new(&own.database, COLLECTION);
        collection.read_concern = Some("majority".to_owned());
        while self.busy.load(Ordering::Relaxed) > 0 && !worker.stopping() {
            let Some(ticket) = worker.next() else { break };
            let id = self.last.load(Ordering::Relaxed);
            match client.find_by_id(&collection, id).map(|found| found.is_some()) {
                Ok(found) => {
                    if found {
                        self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
                    }
                    worker.done("majority read", ticket);
                }
                Err(error) => worker.endured("majority read", ticket, error)?,
            }
            pause(worker, own.pause_ms.max(1));
        }
        Ok(())
    }
}

impl Workload for Ladder {
    fn configure(&mut self, settings: &Settings) -> Result<()> {
        let own: Own = settings.parse()?;
        let parts = [own.majority_part, own.read_own_part];
        if own.clients == 0 || parts.iter().any(|part| !(0.0..=1.0).contains(part)) {
            return Err(Error::usage("ladder needs clients, and parts of 0 to 1"));
        }
        self.settings = Some(own);
        Ok(())
    }

    fn setup(&mut self, context: &Context) -> Result<()> {
        let collection = Collection::new(&self.settings()?.database, COLLECTION);
        endure::create(context, &mut endure::connect(context)?, &collection)
    }

    fn groups<'a>(&'a self, context: &Context) -> Result<Vec<Group<'a>>> {
        let own = self.settings()?;
        self.busy.store(own.clients, Ordering::Relaxed);
        let clients = Group::new("ladder", own.clients, move |worker| {
            let outcome = self.serve(worker, own);
            self.busy.fetch_sub(1, Ordering::Relaxed);
            outcome
        });
        let reader = Group::new("majority reader", 1, move |worker| self.look_on(worker, own));
        // It ends with the clients.
        let load = Load { arrival: Arrival::Closed, measure: Span::Unbounded, ..context.load };
        Ok(vec![clients.without_client(), reader.load(load).without_client()])
    }

    fn databases(&self) -> Vec<String> {
        self.settings.iter().map(|own| own.database.clone()).collect()
    }

    fn check_own(&mut self, context: &Context) -> Result<Vec<Check>> {
        let own = self.settings()?;
        // Whoever was cut off to the last may not yet have written its rollback files.
        endure::come_to_rest(context, &own.database)?;
        let there = endure::look(context, &own.database, |client| {
            let mut there = BTreeSet::new();
            client.for_each_at(&own.database, &doc! { "find": COLLECTION }, "majority", |document| {
                there.extend(document.get("_id").and_then(|id| id.as_exact_i64()));
                Ok(())
            })?;
            Ok(there)
        })?;
        let mut rolled_back = BTreeSet::new();
        let mut answers = std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner));
        let folders: Vec<_> = context.data_members().filter_map(|member| member.data.clone()).collect();
        for folder in &folders {
            read_rollback_files(folder, &mut |document| {
                if document.get("rung").is_some() {
                    rolled_back.extend(document.get("_id").and_then(|id| id.as_exact_i64()));
                }
            })?;
        }
        if folders.is_empty() && context.mongodb()?.is_replicated() {
            context.warn("the members' rollback files cannot be seen: missing w:1 writes are not looked for");
            answers.values_mut().filter(|answer| **answer == Answer::Primary).for_each(|a| *a = Answer::None);
        }
        let seen = std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner));
        let verdict = judge(&answers, &seen, &there, &rolled_back);
        let fine = format!(
            "{} majority writes are there, and {} that were read with majority; {} w:1 writes are there but for {}, \
             which are in rollback files",
            verdict.majority,
            seen.len(),
            verdict.primary,
            verdict.rolled_back
        );
        let own = self.own_found.load(Ordering::Relaxed);
        Ok(vec![
            check::check("acknowledged writes", &verdict.anomalies, fine),
            self.own.check("own writes on any member", format!("each of {own} was found at once")),
        ])
    }

    fn metrics(&self, context: &Context) -> Vec<Figure> {
        let measured = context.measured();
        let mut figures = Vec::new();
        for name in ["insert w:1", "insert majority"] {
            let totals = measured.operation(name);
            figures.push(Figure::higher(format!("{name}/s"), "1/s", measured.rate(name)));
            figures.push(Figure::lower(format!("{name} median"), "us", totals.percentile_us(50.0)));
            figures.push(Figure::lower(format!("{name} max"), "us", totals.max_us()));
        }
        figures
    }
}
