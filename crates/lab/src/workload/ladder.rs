//! Single inserts, some acknowledged by the primary alone and some by a majority: where each of them is at the end, says
//! whether the acknowledgement was true ([`crate::check::durability`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use sheaf_bson::doc;

use super::endure::{self, pause};
use super::{Figure, Workload};
use crate::check::durability::{Answer, judge, read_rollback_files};
use crate::check::{self};
use crate::client::{Collection, WriteConcern};
use crate::context::{Context, Group, Worker};
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::results::Check;

/// Settings of the workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    clients: u32,
    /// Part of the inserts that a majority acknowledges.
    majority_part: f64,
    /// Milliseconds from one insert of a client to its next.
    pause_ms: u64,
    database: String,
}

/// See the module.
#[derive(Default)]
pub struct Ladder {
    own: Option<Own>,
    answers: Mutex<BTreeMap<i64, Answer>>,
}

const COLLECTION: &str = "ladder";

impl Ladder {
    fn own(&self) -> Result<&Own> {
        self.own.as_ref().ok_or_else(|| Error::failed("the workload has no settings"))
    }

    fn serve(&self, worker: &mut Worker<'_>, own: &Own) -> Result<()> {
        let mut client = endure::connect(worker.context())?;
        let collection = Collection::new(&own.database, COLLECTION);
        let rungs = [
            ("insert w:1", Answer::Primary, collection.clone().with_concern(&WriteConcern::nodes(1))),
            (
                "insert majority",
                Answer::Majority,
                collection.with_concern(&endure::safest(worker.context())?),
            ),
        ];
        let mut number = 0i64;
        while let Some(ticket) = worker.next() {
            let (name, answer, collection) = &rungs[usize::from(worker.random.unit() < own.majority_part)];
            number += 1;
            let id = i64::from(worker.index + 1) << 40 | number;
            let mut insert = client.insert(collection);
            insert.push(|document| {
                document.append("_id", id).append("rung", *name);
            });
            let outcome = insert.send();
            let answer = if outcome.is_ok() { *answer } else { Answer::None };
            self.answers.lock().unwrap_or_else(PoisonError::into_inner).insert(id, answer);
            match outcome {
                Ok(_) => worker.done(name, ticket),
                Err(error) => worker.endured(name, ticket, error)?,
            }
            pause(worker, own.pause_ms);
        }
        Ok(())
    }
}

impl Workload for Ladder {
    fn configure(&mut self, settings: &Settings) -> Result<()> {
        let own: Own = settings.parse()?;
        if own.clients == 0 || !(0.0..=1.0).contains(&own.majority_part) {
            return Err(Error::usage("ladder needs clients, and a majority_part of 0 to 1"));
        }
        self.own = Some(own);
        Ok(())
    }

    fn setup(&mut self, context: &Context) -> Result<()> {
        let collection = Collection::new(&self.own()?.database, COLLECTION);
        endure::create(context, &mut endure::connect(context)?, &collection)
    }

    fn groups<'a>(&'a self, _: &Context) -> Result<Vec<Group<'a>>> {
        let own = self.own()?;
        Ok(vec![Group::new("ladder", own.clients, move |worker| self.serve(worker, own)).without_client()])
    }

    fn run(&mut self, context: &Context) -> Result<()> {
        context.run(&self.groups(context)?).map(drop)
    }

    fn check(&mut self, context: &Context) -> Result<Vec<Check>> {
        let mut checks = self.check_own(context)?;
        checks.extend(endure::members_hold_the_same(context, &self.own()?.database)?);
        Ok(checks)
    }

    fn check_own(&mut self, context: &Context) -> Result<Vec<Check>> {
        let own = self.own()?;
        let mut client = endure::connect(context)?;
        let mut there = BTreeSet::new();
        let find = doc! { "find": COLLECTION, "readConcern": { "level": "majority" } };
        client.for_each(&own.database, &find, |document| {
            there.extend(document.get("_id").and_then(|id| id.as_exact_i64()));
            Ok(())
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
        if folders.is_empty() && context.mongodb()?.replica_set.is_some() {
            context.warn("the members' rollback files cannot be seen: missing w:1 writes are not looked for");
            answers.values_mut().filter(|answer| **answer == Answer::Primary).for_each(|a| *a = Answer::None);
        }
        let verdict = judge(&answers, &there, &rolled_back);
        let fine = format!(
            "{} majority writes are there; {} w:1 writes are there but for {}, which are in rollback files",
            verdict.majority, verdict.primary, verdict.rolled_back
        );
        Ok(vec![check::check("acknowledged writes", &verdict.anomalies, fine)])
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
