//! The recipient of a collection that gets another key or place: it compares its part with each donor's once, and takes what changes there
//! from then on.
//!
//! How far it is with each donor is in memory. Whoever has forgotten it, or is refused by the donor, compares everything once more; so
//! no death on either side leaves anything wrong.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_storage::{Interrupt, Statement};

use crate::node::Node;
use crate::sharding::marks::{uuid_in, uuid_value};
use crate::sharding::moves::fetched::{Fetched, Position, Progress};
use crate::sharding::moves::{Moves, batch, not_primary};
use crate::sharding::moving::{self, Keys, Part, binary};
use crate::sharding::participants::{Asked, name};

/// Documents that are in the way of others for a moment wait; more of them do not pass.
const WAITING_MAX: usize = 10_000;

/// How long one request follows donors in which much is written.
const FOLLOW: Duration = Duration::from_secs(5);

/// What is left when a request that is not the last one ends.
const LITTLE: i64 = 100;

/// [`name::FETCH`]: takes the documents that are to be this shard's. With `last` nothing changes any more on the donors, and nothing is left.
///
/// Errors: `DuplicateKey`, where documents of several donors cannot be together; those of the donors.
pub fn fetch(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    let (Some(moves), Some(id)) = (node.moves(), uuid_in(body, "id")) else {
        bail!(Code::FAILED_TO_PARSE, "an internal command names no operation");
    };
    let until = || {
        go_on()?;
        moves.until_end()?;
        match moves.fetches.lock().0.get(&id).is_some_and(|known| known.given_up) {
            true => Err(Error::new(Code::INTERRUPTED, "the operation was given up")),
            false => Ok(()),
        }
    };
    Asked::with(node, body, &until, |asked| {
        moves.take_office()?;
        let Some(term) = moves.term() else { return Err(not_primary()) };
        let known = moves.fetches.lock().0.get(&id).filter(|known| known.term == term).cloned();
        let begin = || Fetched { term, progress: Arc::new(Progress::of(body)), ..Fetched::default() };
        let fetched = known.unwrap_or_else(begin);
        let is_last = body.get("last").is_some_and(|flag| flag.truthy());
        fetched.progress.is_last.store(is_last, Ordering::Relaxed);
        {
            let mut all = moves.fetches.lock();
            let given_up = all.0.get(&id).is_some_and(|known| known.given_up);
            all.0.insert(id, Fetched { given_up, ..fetched.clone() });
        }
        let mut fetch = Fetch { node, moves, asked, body, id, fetched };
        let done = fetch.run();
        // What was given up meanwhile stays so.
        let mut all = moves.fetches.lock();
        let given_up = all.0.get(&id).is_some_and(|known| known.given_up);
        all.0.insert(id, Fetched { given_up, ..fetch.fetched });
        done.map(|left| doc! { "left": left })
    })
}

/// What was fetched and noted for an operation is of no use any more; whoever fetches right now stops.
pub fn forget(node: &Node, id: [u8; 16], given_up: bool) {
    let Some(moves) = node.moves() else { return };
    moves.end_notes(&id);
    let mut all = moves.fetches.lock();
    match given_up {
        true => all.0.entry(id).or_default().given_up = true,
        false => _ = all.0.remove(&id),
    }
}

struct Fetch<'f> {
    node: &'f Arc<Node>,
    moves: &'f Arc<Moves>,
    asked: &'f Asked<'f>,
    body: RawDoc<'f>,
    id: [u8; 16],
    fetched: Fetched,
}

/// A donor as the command describes it.
#[derive(Clone, Copy)]
struct Donor<'d> {
    shard: &'d str,
    /// What of the collection is the donor's, by the key that it has had so far; everything where it has none.
    keys: RawDoc<'d>,
}

impl<'f> Fetch<'f> {
    fn run(&mut self) -> Result<i64> {
        let last = self.body.get("last").is_some_and(|flag| flag.truthy());
        let list = self.body.get("donors").and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
        let donors: Vec<Donor<'f>> = list
            .values()
            .filter_map(|donor| {
                let donor = donor.as_doc()?;
                let keys = donor.get("keys").and_then(|keys| keys.as_array()).unwrap_or(RawDoc::EMPTY);
                Some(Donor { shard: donor.get("shard")?.as_str()?, keys })
            })
            .collect();
        let mut left = 0;
        for donor in &donors {
            left += self.follow(*donor, last)?;
        }
        self.settle(&donors, last)?;
        Ok(left)
    }

    /// The part of the own collection that has come from a donor.
    fn part(&self, donor: Donor<'_>) -> Result<Part> {
        let keys = doc! { "keys": Value::Array(donor.keys) };
        Part::new(self.node, self.body, Keys::list(keys.as_raw(), "keys")?)
    }

    fn ask(&self, donor: Donor<'_>, command: &str, more: RawDoc<'_>) -> Result<DocBuf> {
        let Some(sharding) = self.node.sharding() else { return Err(not_primary()) };
        let command = DocBuf::build(|out| {
            out.append(command, self.asked.namespace);
            out.append("id", uuid_value(&self.id))
                .append("recipient", sharding.shard_name().unwrap_or_default());
            out.append("uuid", self.body.get_or_missing("source"));
            for name in ["of", "command"] {
                out.append(name, self.body.get_or_missing(name));
            }
            let mut keys = out.array("keys");
            donor.keys.values().for_each(|of| _ = keys.push(of));
            if let Some(wanted) = self.body.get("wanted") {
                keys.push(wanted);
            }
            drop(keys);
            out.append_all(more);
        });
        sharding.ask_shard(donor.shard, &command, self.asked.go_on)
    }

    /// Takes what has changed on a donor, or everything that it has for this shard. Gives how much is left.
    fn follow(&mut self, donor: Donor<'f>, last: bool) -> Result<i64> {
        let began = Instant::now();
        // What the last round has to take: what is noted from then on is sessions' that this and others write meanwhile.
        let mut all = None;
        loop {
            (self.asked.go_on)()?;
            let Some(position) = self.fetched.by_donor.get(donor.shard) else {
                self.begin(donor)?;
                continue;
            };
            let ((term, number), received) = (position.name, position.received);
            let more = doc! { "term": term, "number": number, "received": received };
            let told = self.ask(donor, name::NOTED, more.as_raw())?;
            let told = told.as_raw();
            if told.get("state").and_then(|state| state.as_str()) != Some("changed") {
                // Its notes are gone: with its office, or as they were too many.
                self.fetched.by_donor.remove(donor.shard);
                all = None;
                continue;
            }
            self.take(donor, told)?;
            let number = |name: &str| told.get(name).and_then(|number| number.as_exact_i64()).unwrap_or(0);
            let (upto, left, count) = (number("upto"), number("left"), number("count"));
            if let Some(position) = self.fetched.by_donor.get_mut(donor.shard) {
                position.received = upto;
            }
            let is_done = match last {
                true => upto >= *all.get_or_insert(number("newest")),
                false => left == 0 && count <= LITTLE || began.elapsed() > FOLLOW,
            };
            if is_done {
                return Ok(left + count);
            }
        }
    }

    /// Has the donor note what changes, and takes what it has.
    fn begin(&mut self, donor: Donor<'f>) -> Result<()> {
        let told = self.ask(donor, name::BEGIN_NOTES, RawDoc::EMPTY)?;
        let number =
            |name: &str| told.as_raw().get(name).and_then(|number| number.as_exact_i64()).unwrap_or(0);
        let mut position = Position { name: (number("term"), number("number")), ..Position::default() };
        let part = self.part(donor)?;
        let ask = |command: &str, more: RawDoc<'_>| self.ask(donor, command, more);
        let (asked, progress, waiting) = (self.asked, &self.fetched.progress, &mut position.waiting);
        let mut put = |documents: &[RawDoc<'_>]| {
            progress.wrote(documents);
            put_all(asked, &part, documents, waiting)
        };
        progress.is_copying.store(true, Ordering::Relaxed);
        moving::take_over(asked, &part, &ask, &mut put)?;
        progress.is_copying.store(false, Ordering::Relaxed);
        self.fetched.by_donor.insert(donor.shard.to_owned(), position);
        Ok(())
    }

    /// Writes what a donor tells of changes.
    fn take(&mut self, donor: Donor<'f>, told: RawDoc<'_>) -> Result<()> {
        let part = self.part(donor)?;
        let gone: Vec<Vec<u8>> = batch::gone(told).into_iter().map(<[u8]>::to_vec).collect();
        let documents = batch::documents(told);
        let Some(position) = self.fetched.by_donor.get_mut(donor.shard) else { return Ok(()) };
        if !gone.is_empty() {
            moving::remove(self.asked, &part, &gone)?;
            gone.iter().for_each(|key| _ = position.waiting.remove(key));
        }
        if !documents.is_empty() {
            put_all(self.asked, &part, &documents, &mut position.waiting)?;
        }
        let Some(statements) = batch::statements(told) else {
            bail!(Code::PROTOCOL_ERROR, "a donor has sent a statement that is none");
        };
        // What they are about keeps its name.
        let namespace = self.body.get("of").and_then(|of| of.as_str()).unwrap_or_default();
        // Two donors that are recipients would tell each other for ever.
        let mut new = Vec::with_capacity(statements.len());
        for own in statements.chunk_by(|a, b| a.lsid == b.lsid) {
            let known = self.node.engine().session_statements(own[0].lsid.as_raw(), namespace)?;
            let number = known.first().map_or(i64::MIN, |known| known.txn_number);
            let known: BTreeSet<i32> = known.iter().map(|known| known.stmt_id).collect();
            let is_new = |one: &&Statement| {
                one.txn_number > number || (one.txn_number == number && !known.contains(&one.stmt_id))
            };
            new.extend(own.iter().filter(is_new).cloned());
        }
        self.moves.take_in_statements(namespace, &new, self.asked.go_on)
    }

    /// What was in the way of something may have gone since.
    fn settle(&mut self, donors: &[Donor<'f>], last: bool) -> Result<()> {
        let mut found = Vec::new();
        for donor in donors {
            let Some(position) = self.fetched.by_donor.get(donor.shard) else { continue };
            if position.waiting.is_empty() {
                continue;
            }
            let keys: Vec<Vec<u8>> = position.waiting.iter().cloned().collect();
            let mut left = &keys[..];
            while !left.is_empty() {
                let list = ArrayBuf::of(left.iter().map(|key| binary(key)));
                let more = doc! { "records": Value::Array(list.as_raw()) };
                let told = self.ask(*donor, name::DOCUMENTS, more.as_raw())?;
                let count =
                    told.as_raw().get("asked").and_then(|asked| asked.as_exact_i64()).unwrap_or(0).max(1);
                left = &left[(count as usize).min(left.len())..];
                found.push((*donor, told));
            }
            // Two that exchange what is unique are both in each other's way.
            moving::remove(self.asked, &self.part(*donor)?, &keys)?;
        }
        // What is not found any more is not waited for; a note tells of it where it comes back.
        self.fetched.by_donor.values_mut().for_each(|position| position.waiting.clear());
        for (donor, told) in found {
            let part = self.part(donor)?;
            let mut waiting = BTreeSet::new();
            let documents = moving::documents_in(told.as_raw());
            if last {
                moving::write(self.asked, &part, &documents)?;
            } else {
                put_all(self.asked, &part, &documents, &mut waiting)?;
            }
            if let Some(position) = self.fetched.by_donor.get_mut(donor.shard) {
                position.waiting.extend(waiting);
            }
        }
        Ok(())
    }
}

/// Writes documents; those that something is in the way of are noted.
///
/// Errors: `DuplicateKey`, where there are too many of these.
fn put_all(
    asked: &Asked<'_>,
    part: &Part,
    documents: &[RawDoc<'_>],
    waiting: &mut BTreeSet<Vec<u8>>,
) -> Result<u64> {
    let key_of = |document: RawDoc<'_>| part.collection.record_key(document.get_or_missing("_id"));
    match moving::write(asked, part, documents) {
        Err(error) if error.code() == Code::DUPLICATE_KEY => {}
        done => {
            if !waiting.is_empty() {
                for document in documents {
                    waiting.remove(&key_of(*document)?);
                }
            }
            return done;
        }
    }
    for document in documents {
        match moving::write(asked, part, std::slice::from_ref(document)) {
            Err(error) if error.code() == Code::DUPLICATE_KEY => {
                waiting.insert(key_of(*document)?);
                if waiting.len() > WAITING_MAX {
                    return Err(error);
                }
            }
            done => {
                done?;
                waiting.remove(&key_of(*document)?);
            }
        }
    }
    Ok(documents.len() as u64)
}
