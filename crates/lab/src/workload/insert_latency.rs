//! Single small inserts by one client, one after another: what each rung of the write concern ladder costs.
//!
//! Each write concern has a collection of its own and runs as often as `rounds` says: the first round creates the
//! collection and meets cold paths, the second shows the steady state. Every call is kept in order.

use std::collections::BTreeMap;

use serde::Deserialize;
use sheaf_bson::doc;

use super::{Figure, Workload};
use crate::client::{Client, Collection, W, WriteConcern};
use crate::context::{Context, Group};
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::measure::{Load, Span};
use crate::results::Check;

/// Settings of the workload.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    /// Inserts per write concern and round. Not scaled below 200: an average of a handful says nothing.
    inserts: u64,
    /// How often the whole ladder is climbed.
    rounds: u32,
    /// "w:0", "w:1", "j:true", ... in the order of the table.
    concerns: Vec<String>,
    /// Further ones for a replica set; those that ask for more members than there are, are left out.
    #[serde(default)]
    replica_set_concerns: Vec<String>,
    /// Bytes of text in each document.
    text_bytes: usize,
    database: String,
}

/// See the module.
#[derive(Default)]
pub struct InsertLatency {
    own: Option<Own>,
    concerns: Vec<WriteConcern>,
    set_concerns: Vec<WriteConcern>,
    /// Documents that each collection must hold.
    expected: BTreeMap<String, i64>,
}

/// The fewest inserts that make a figure.
const FEWEST: u64 = 200;

impl InsertLatency {
    fn own(&self) -> Result<&Own> {
        self.own.as_ref().ok_or_else(|| Error::failed("the workload has no settings"))
    }

    fn collection(&self, own: &Own, concern: &WriteConcern) -> Collection {
        let name: String =
            concern.to_string().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        Collection::new(&own.database, &format!("insert_{name}")).with_concern(concern)
    }

    fn operation(concern: &WriteConcern, round: u32) -> String {
        format!("{concern} run {round}")
    }
}

impl Workload for InsertLatency {
    fn configure(&mut self, settings: &Settings) -> Result<()> {
        let own: Own = settings.parse()?;
        let parse = |texts: &[String]| -> Result<Vec<WriteConcern>> {
            texts.iter().map(|text| WriteConcern::parse(text).map_err(Error::usage)).collect()
        };
        self.concerns = parse(&own.concerns)?;
        self.set_concerns = parse(&own.replica_set_concerns)?;
        if self.concerns.is_empty() || own.rounds == 0 || own.inserts == 0 {
            return Err(Error::usage("insert-latency needs concerns, rounds and inserts"));
        }
        self.own = Some(own);
        Ok(())
    }

    fn setup(&mut self, context: &Context) -> Result<()> {
        let mut client = context.connect()?;
        let members = client.command("admin", &doc! { "hello": 1 })?;
        if members.get("setName").is_some() {
            let members =
                members.get("hosts").and_then(|hosts| hosts.as_array()).map_or(0, |list| list.count());
            let possible = |concern: &WriteConcern| match concern.w {
                Some(W::Nodes(n)) => n as usize <= members,
                _ => true,
            };
            self.concerns.extend(std::mem::take(&mut self.set_concerns).into_iter().filter(possible));
        }
        let own = self.own()?;
        for concern in &self.concerns {
            let drop = doc! { "drop": self.collection(own, concern).name.as_str() };
            match context.admin(&mut client, &own.database, &drop) {
                // NamespaceNotFound: older servers say so.
                Err(error) if error.code() != Some(26) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn run(&mut self, context: &Context) -> Result<()> {
        let mut expected = BTreeMap::new();
        let own = self.own()?;
        let inserts = context.scaled(own.inserts).max(FEWEST.min(own.inserts));
        let text = "x".repeat(own.text_bytes);
        for round in 1..=own.rounds {
            for concern in &self.concerns {
                let collection = self.collection(own, concern);
                let operation = InsertLatency::operation(concern, round);
                let first = i64::from(round - 1) * inserts as i64;
                let work = Group::new("client", 1, |worker| {
                    while let Some(ticket) = worker.next() {
                        let id = first + ticket.number as i64;
                        let mut insert = worker.client().insert(&collection);
                        insert.push(|doc| {
                            doc.append("_id", id).append("number", id).append("text", text.as_str());
                        });
                        insert.send()?;
                        worker.done(&operation, ticket);
                    }
                    // Unacknowledged inserts may still be on their way.
                    worker.client().barrier()
                });
                // Without a warm-up: the first call is part of the picture.
                context.run(&[work.load(Load::closed(Span::Operations(inserts))).keep_calls()])?;
                *expected.entry(collection.name).or_insert(0) += inserts as i64;
            }
        }
        self.expected = expected;
        Ok(())
    }

    fn check(&mut self, context: &Context) -> Result<Vec<Check>> {
        let own = self.own()?;
        let mut client = context.connect()?;
        let mut checks = Vec::new();
        for (name, expected) in &self.expected {
            let (found, problem) = look(&mut client, &own.database, name, *expected, own.text_bytes)?;
            checks.push(Check {
                name: format!("contents of {name}"),
                passed: problem.is_none(),
                detail: problem.unwrap_or_else(|| format!("{found} documents, each as it was written")),
            });
        }
        Ok(checks)
    }

    fn metrics(&self, context: &Context) -> Vec<Figure> {
        let Some(own) = &self.own else { return Vec::new() };
        let measured = context.measured();
        let mut figures = Vec::new();
        for round in 1..=own.rounds {
            for concern in &self.concerns {
                let name = InsertLatency::operation(concern, round);
                let totals = measured.operation(&name);
                for (what, value) in [
                    ("average", totals.mean_us()),
                    ("min", totals.min_us()),
                    ("median", totals.percentile_us(50.0)),
                    ("p99", totals.percentile_us(99.0)),
                    ("max", totals.max_us()),
                ] {
                    figures.push(Figure::lower(format!("{name}: {what}"), "us", value));
                }
            }
        }
        figures
    }
}

/// Reads a whole collection in order: how many documents, and what is wrong with them.
fn look(
    client: &mut Client,
    db: &str,
    name: &str,
    expected: i64,
    text_bytes: usize,
) -> Result<(i64, Option<String>)> {
    let find = doc! { "find": name, "sort": { "_id": 1 } };
    let (mut found, mut problem) = (0, None);
    client.for_each(db, &find, |document| {
        let id = document.get("_id").and_then(|id| id.as_exact_i64());
        let number = document.get("number").and_then(|number| number.as_exact_i64());
        let text = document.get("text").and_then(|text| text.as_str()).unwrap_or("");
        if id != Some(found) || number != id || text.len() != text_bytes || text.bytes().any(|b| b != b'x') {
            problem.get_or_insert(format!("at {found} stands {document:?}"));
        }
        found += 1;
        Ok(())
    })?;
    if found != expected {
        problem.get_or_insert(format!("{found} documents instead of {expected}"));
    }
    Ok((found, problem))
}
