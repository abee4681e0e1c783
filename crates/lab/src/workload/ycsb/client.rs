//! What a client does: reads that are checked, updates, inserts, scans and read-modify-writes.

use std::sync::atomic::Ordering;

use sheaf_bson::{RawDoc, doc};

use super::record;
use super::{COLLECTION, Parsed, State};
use crate::context::Worker;
use crate::error::Result;
use crate::generate::keys::KeyChooser;
use crate::measure::Ticket;
use crate::workload::endure;
use crate::workload::findings::Findings;

/// One client.
pub(super) struct YcsbClient<'a> {
    pub parsed: &'a Parsed,
    pub state: &'a State,
    pub findings: &'a Findings,
    pub chooser: KeyChooser,
    pub bytes: Vec<u8>,
}

impl YcsbClient<'_> {
    /// Operations until the run is over.
    pub fn work(&mut self, worker: &mut Worker<'_>) -> Result<()> {
        let weights = self.parsed.own.weights.in_order();
        while let Some(ticket) = worker.next() {
            let operation = worker.random.weighted(&weights);
            match self.operate(worker, operation) {
                Ok(problem) => self.report(worker, operation, ticket, problem),
                Err(error) => worker.endured(&self.parsed.names[operation], ticket, error)?,
            }
        }
        if !self.parsed.collection.write_concern.acknowledged() {
            // Answered when everything before it was worked off, so that the check sees all of it.
            worker.client().command("admin", &doc! { "ping": 1 })?;
        }
        Ok(())
    }

    /// One operation; what is wrong with what it gave.
    fn operate(&mut self, worker: &mut Worker<'_>, operation: usize) -> Result<Option<String>> {
        match operation {
            0 => {
                let key = self.existing(worker);
                self.read(worker, key)
            }
            1 => {
                let key = self.loaded(worker);
                self.update(worker, key)
            }
            2 => self.insert(worker),
            3 => self.scan(worker),
            _ => {
                let key = self.loaded(worker);
                let problem = self.read(worker, key)?;
                Ok(self.update(worker, key)?.or(problem))
            }
        }
    }

    fn report(&self, worker: &mut Worker<'_>, operation: usize, ticket: Ticket, problem: Option<String>) {
        let operation = &self.parsed.names[operation];
        match problem {
            None => worker.done(operation, ticket),
            Some(problem) => {
                self.findings.add(problem);
                worker.failed(operation, ticket);
            }
        }
    }

    /// A record whose insert was acknowledged.
    fn existing(&mut self, worker: &mut Worker<'_>) -> u64 {
        self.chooser.next(&mut worker.random, self.state.sequence.limit())
    }

    /// A record that was there at the start: of those the versions are known.
    fn loaded(&mut self, worker: &mut Worker<'_>) -> u64 {
        self.chooser.next(&mut worker.random, self.state.loaded)
    }

    fn read(&mut self, worker: &mut Worker<'_>, key: u64) -> Result<Option<String>> {
        let State { versions, loaded, maker, .. } = self.state;
        let may_be_old = endure::reads_may_be_old(worker.context());
        let floor = if key < *loaded && !may_be_old { versions.floor(key) } else { 0 };
        let id = record::id(key);
        let Some(found) = worker.client().find_by_id(&self.parsed.collection, id.as_str())? else {
            if may_be_old && key >= *loaded {
                return Ok(None);
            }
            return Ok(Some(format!("record {key} was not found")));
        };
        Ok(match maker.verify(found) {
            Err(wrong) => Some(wrong),
            Ok((other, _)) if other != key => Some(format!("record {other} came instead of {key}")),
            Ok((_, version)) if key < *loaded => {
                versions.judge(key, floor, version).map(|problem| format!("record {key}: {problem}"))
            }
            Ok(_) => None,
        })
    }

    fn update(&mut self, worker: &mut Worker<'_>, key: u64) -> Result<Option<String>> {
        let State { versions, maker, .. } = self.state;
        let field = worker.random.below(self.parsed.own.fields.into()) as u32;
        let writing = versions.begin(key);
        let text = maker.text(key, field, writing.version);
        let id = record::id(key);
        let mut update = worker.client().update(&self.parsed.collection);
        update.push(|statement| {
            statement.document("q").append("_id", id.as_str());
            statement.document("u").document("$set").append(maker.name(field), text.as_str());
        });
        match update.send()?.n {
            1 => {
                versions.finish(writing);
                Ok(None)
            }
            n => Ok(Some(format!("record {key}: an update matched {n} records"))),
        }
    }

    fn insert(&mut self, worker: &mut Worker<'_>) -> Result<Option<String>> {
        let key = self.state.sequence.take();
        self.bytes.clear();
        self.state.maker.append(&mut self.bytes, key);
        let mut insert = worker.client().insert(&self.parsed.collection);
        insert.push_raw(RawDoc::new(&self.bytes));
        if let Err(error) = insert.send() {
            self.state.unknown.store(true, Ordering::Relaxed);
            return Err(error);
        }
        // Without an acknowledgement nobody may look for it before the end.
        if self.parsed.collection.write_concern.acknowledged() {
            self.state.sequence.acknowledge(key);
        }
        Ok(None)
    }

    fn scan(&mut self, worker: &mut Worker<'_>) -> Result<Option<String>> {
        let key = self.existing(worker);
        let length = 1 + worker.random.below(self.parsed.own.longest_scan);
        let start = record::id(key);
        let find = doc! {
            "find": COLLECTION,
            "filter": { "_id": { "$gte": start.as_str() } },
            "sort": { "_id": 1 },
            "limit": length as i64,
            "batchSize": length as i64
        };
        let maker = &self.state.maker;
        let (mut problem, mut before, mut count) = (None, String::new(), 0);
        worker.client().for_each(&self.parsed.own.database, &find, |found| {
            problem = problem.take().or_else(|| maker.verify(found).err());
            let id = found.get("_id").and_then(|id| id.as_str()).unwrap_or_default();
            if count == 0 && id != start {
                problem.get_or_insert(format!("a scan from {start} began with {id}"));
            }
            if count > 0 && id <= before.as_str() {
                problem.get_or_insert(format!("in a scan {id} came after {before}"));
            }
            before.clear();
            before.push_str(id);
            count += 1;
            Ok(())
        })?;
        if count == 0 || count > length {
            problem.get_or_insert(format!("a scan of {length} from {start} gave {count} records"));
        }
        Ok(problem)
    }
}
