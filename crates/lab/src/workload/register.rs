//! Single documents that are written with majority write concern and read linearizably: everything must look as if it had
//! happened one after another ([`crate::check::register`]).

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use serde::Deserialize;
use sheaf_bson::{RawDoc, doc};

use super::endure::{self, pause};
use super::slots::Slots;
use super::{Figure, Workload};
use crate::check::register::{Call, Operation, judge};
use crate::check::{self};
use crate::client::{Client, Collection};
use crate::context::{Context, Group, Worker};
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::results::Check;

/// Settings of the workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    clients: u32,
    /// Documents that are in use at a time.
    registers: u32,
    /// After about so many operations a document is left alone, and another one taken.
    uses: u64,
    /// Documents that are made beforehand.
    registers_in_all: i64,
    /// How many of the operations read, write, and swap (findAndModify).
    weights: Weights,
    /// Milliseconds from one operation of a client to its next.
    pause_ms: u64,
    database: String,
    /// What counts as safe; see [`endure::safest`].
    #[serde(default)]
    concern: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Weights {
    read: u32,
    write: u32,
    swap: u32,
}

/// See the module.
#[derive(Default)]
pub struct Register {
    own: Option<Own>,
    slots: Slots,
    began: OnceLock<Instant>,
    history: Mutex<Vec<Operation>>,
}

const COLLECTION: &str = "registers";

impl Register {
    fn own(&self) -> Result<&Own> {
        self.own.as_ref().ok_or_else(|| Error::failed("the workload has no settings"))
    }

    fn now_ns(&self) -> u64 {
        self.began.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }

    fn serve(&self, worker: &mut Worker<'_>, own: &Own) -> Result<()> {
        let mut client = endure::connect(worker.context())?;
        let safest = endure::safest(worker.context(), own.concern.as_deref())?;
        let mut registers = Collection::new(&own.database, COLLECTION).with_concern(&safest);
        // A server that is alone has nobody who could know more.
        if worker.context().mongodb()?.is_replicated() {
            registers.read_concern = Some("linearizable".to_owned());
        }
        let weights = [own.weights.read, own.weights.write, own.weights.swap];
        let mut number = 0i64;
        while let Some(ticket) = worker.next() {
            let register = self.slots.choose(&mut worker.random);
            number += 1;
            let new = i64::from(worker.index + 1) << 40 | number;
            let sent_ns = self.now_ns();
            let (name, done) = match worker.random.weighted(&weights) {
                0 => ("linearizable read", read(&mut client, &registers, register).map(Call::Read)),
                1 => (
                    "majority write",
                    write(&mut client, &registers, register, new).map(|()| Call::Write(new)),
                ),
                _ => {
                    let old = swap(&mut client, &registers, register, new);
                    ("majority swap", old.map(|old| Call::Swap { old, new }))
                }
            };
            let answered = self.now_ns();
            let (call, answered_ns) = match &done {
                Ok(call) => (Some(*call), Some(answered)),
                Err(_) if name == "linearizable read" => (None, None),
                Err(_) => (Some(Call::Write(new)), None),
            };
            if let Some(call) = call {
                let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
                history.push(Operation { register, call, sent_ns, answered_ns });
            }
            match done {
                Ok(_) => worker.done(name, ticket),
                Err(error) => worker.endured(name, ticket, error)?,
            }
            pause(worker, own.pause_ms);
        }
        Ok(())
    }
}

fn value(document: Option<RawDoc<'_>>, register: i64) -> Result<i64> {
    let value = document.and_then(|document| document.get("value")).and_then(|value| value.as_exact_i64());
    value.ok_or_else(|| Error::failed(format!("register {register} holds {document:?}")))
}

fn read(client: &mut Client, from: &Collection, register: i64) -> Result<i64> {
    value(client.find_by_id(from, register)?, register)
}

fn write(client: &mut Client, to: &Collection, register: i64, new: i64) -> Result<()> {
    let mut update = client.update(to);
    update.push(|statement| {
        statement.document("q").append("_id", register);
        statement.document("u").document("$set").append("value", new);
    });
    match update.send()?.n {
        1 => Ok(()),
        n => Err(Error::failed(format!("an update of register {register} matched {n} documents"))),
    }
}

/// Puts a new value in, and gives the old one.
fn swap(client: &mut Client, at: &Collection, register: i64, new: i64) -> Result<i64> {
    let mut command = doc! {
        "findAndModify": at.name.as_str(),
        "query": { "_id": register },
        "update": { "$set": { "value": new } }
    };
    at.write_concern.append_to(&mut command);
    let reply = client.write_command(&at.db, &command)?;
    value(reply.get("value").and_then(|old| old.as_doc()), register)
}

impl Workload for Register {
    fn configure(&mut self, settings: &Settings) -> Result<()> {
        let own: Own = settings.parse()?;
        let weights = own.weights.read + own.weights.write + own.weights.swap;
        if own.clients == 0 || own.registers == 0 || own.registers_in_all < 1 || weights == 0 {
            return Err(Error::usage("register needs clients, registers and a weight that is not 0"));
        }
        self.own = Some(own);
        Ok(())
    }

    fn setup(&mut self, context: &Context) -> Result<()> {
        let own = self.own()?.clone();
        let make = |key| doc! { "_id": key, "value": 0i64 };
        endure::fill(context, (&own.database, COLLECTION), 0..own.registers_in_all, make)?;
        self.slots = Slots::new(own.registers, own.registers_in_all, own.uses);
        Ok(())
    }

    fn groups<'a>(&'a self, _: &Context) -> Result<Vec<Group<'a>>> {
        let own = self.own()?;
        Ok(vec![Group::new("register", own.clients, move |worker| self.serve(worker, own)).without_client()])
    }

    fn databases(&self) -> Vec<String> {
        self.own.iter().map(|own| own.database.clone()).collect()
    }

    fn check_own(&mut self, context: &Context) -> Result<Vec<Check>> {
        let own = self.own()?;
        let find = doc! { "find": COLLECTION, "filter": { "_id": { "$lt": (self.slots.used().end) } } };
        // The last look at each, which must see the last write.
        let sent_ns = self.now_ns();
        let last = endure::look(context, &own.database, |client| {
            let mut last = Vec::new();
            client.for_each_at(&own.database, &find, "majority", |document| {
                let register = document.get("_id").and_then(|key| key.as_exact_i64()).unwrap_or(-1);
                last.push((register, value(Some(document), register)?));
                Ok(())
            })?;
            Ok(last)
        })?;
        let answered_ns = Some(self.now_ns());
        let mut history = std::mem::take(&mut *self.history.lock().unwrap_or_else(PoisonError::into_inner));
        history.extend(last.into_iter().map(|(register, seen)| Operation {
            register,
            call: Call::Read(seen),
            sent_ns,
            answered_ns,
        }));
        let verdict = judge(&history);
        let fine =
            format!("{} operations on {} registers are linearizable", verdict.operations, verdict.registers);
        Ok(vec![check::check("registers", &verdict.anomalies, fine)])
    }

    fn metrics(&self, context: &Context) -> Vec<Figure> {
        let measured = context.measured();
        let mut figures = Vec::new();
        for (operation, name) in
            [("linearizable read", "read"), ("majority write", "write"), ("majority swap", "swap")]
        {
            let totals = measured.operation(operation);
            figures.push(Figure::higher(format!("{name}s/s"), "1/s", measured.rate(operation)));
            figures.push(Figure::lower(format!("{name} median"), "us", totals.percentile_us(50.0)));
            figures.push(Figure::lower(format!("{name} max"), "us", totals.max_us()));
        }
        figures
    }
}
