//! Transactions that append to lists and read them.
//!
//! A list shows its own history: who reads `[3, 7]` knows that 3 was appended before 7, and by whom. So the order of the
//! versions of every key, and from it which transaction depends on which, is read off what transactions saw, without any
//! clock. Snapshot isolation forbids every cycle of dependencies but those with two anti-dependencies in a row (write
//! skew, G2), which are not looked for. The names are those of Adya's thesis and of Berenson and others:
//!
//! | name | what it is |
//! | --- | --- |
//! | `G0` | a cycle of writes that overwrite each other |
//! | `G1a` | a transaction that did not commit was read |
//! | `G1b` | a state in the middle of a transaction was read by another one |
//! | `G1c` | a cycle of writes and reads |
//! | `G-single` | a cycle with one anti-dependency: read skew, or a lost update |
//! | `G-nonadjacent` | one with several anti-dependencies, no two in a row |
//! | `lost update` | two transactions read the same version of a key, and both appended to it |
//! | `internal` | a transaction does not see what it has itself read or written |
//! | `duplicate`, `phantom`, `incompatible order`, `lost append` | elements twice, from nobody, in two orders, gone |
//!
//! `-session` behind a name says that the cycle needs the order in which one client's transactions ran.

use std::collections::BTreeMap;

use super::Anomaly;
use super::cycles::find_cycles;
use super::graph::{Dependencies, Edge, Kind};

/// One operation of a transaction, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The value was put at the end of the key's list. No two appends have the same key and value.
    Append {
        /// Whose list.
        key: i64,
        /// The new element.
        value: i64,
    },
    /// The list that was read.
    Read {
        /// Whose list.
        key: i64,
        /// All of it.
        list: Vec<i64>,
    },
}

/// How a transaction ended, as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The commit was acknowledged.
    Committed,
    /// It has not happened, and never will.
    Aborted,
    /// The answer to the commit never came.
    Unknown,
}

/// One transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Who ran it. A client's transactions stand in the history in the order in which it ran them.
    pub client: u32,
    /// What it did and saw. What an aborted transaction saw says nothing.
    pub ops: Vec<Op>,
    /// How it ended.
    pub outcome: Outcome,
}

/// What a history holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// What must not be.
    pub anomalies: Vec<Anomaly>,
    /// Transactions that committed.
    pub committed: usize,
    /// Transactions of which it is not known.
    pub unknown: usize,
    /// Of those: seen by others, so that they did commit.
    pub unknown_seen: usize,
    /// Dependencies between transactions that were found.
    pub dependencies: usize,
}

/// Looks for anomalies. `last` are the lists as they were read at the end, when all was quiet; `sessions` says that each
/// client must see its own earlier transactions.
pub fn judge(history: &[Transaction], last: &BTreeMap<i64, Vec<i64>>, sessions: bool) -> Verdict {
    let mut judge = Judge::new(history);
    for (at, transaction) in history.iter().enumerate() {
        if transaction.outcome == Outcome::Committed {
            judge.inside(at, transaction);
        }
    }
    judge.order_versions(last);
    judge.look_at_reads();
    judge.look_at_end(last);
    judge.look_for_lost_updates();
    let dependencies = judge.dependencies(sessions);
    let cycles = find_cycles(&dependencies, |edge| judge.explain(edge));
    judge.anomalies.extend(cycles);
    let unknown = |(_, t): &(usize, &Transaction)| t.outcome == Outcome::Unknown;
    Verdict {
        committed: history.iter().filter(|t| t.outcome == Outcome::Committed).count(),
        unknown: history.iter().enumerate().filter(unknown).count(),
        unknown_seen: history.iter().enumerate().filter(unknown).filter(|(at, _)| judge.seen[*at]).count(),
        dependencies: dependencies.count(),
        anomalies: judge.anomalies,
    }
}

/// Who appended an element.
#[derive(Clone, Copy)]
struct Writer {
    transaction: u32,
    /// It is the last one that the transaction appended to the key.
    last: bool,
}

/// A read that shows what others have done: the list without what the reader itself had appended.
struct Read<'h> {
    reader: u32,
    key: i64,
    list: &'h [i64],
}

struct Judge<'h> {
    history: &'h [Transaction],
    /// By key and value.
    writers: BTreeMap<(i64, i64), Writer>,
    reads: Vec<Read<'h>>,
    /// The longest list of each key that was seen by anybody.
    versions: BTreeMap<i64, Vec<i64>>,
    /// Transactions of which something was seen.
    seen: Vec<bool>,
    anomalies: Vec<Anomaly>,
}

impl<'h> Judge<'h> {
    fn new(history: &'h [Transaction]) -> Judge<'h> {
        let mut writers = BTreeMap::new();
        let mut twice = Vec::new();
        for (at, transaction) in history.iter().enumerate() {
            let mut last = BTreeMap::new();
            for op in &transaction.ops {
                let Op::Append { key, value } = op else { continue };
                if let Some(before) = last.insert(*key, *value)
                    && let Some(writer) = writers.get_mut(&(*key, before))
                {
                    let writer: &mut Writer = writer;
                    writer.last = false;
                }
                if writers.insert((*key, *value), Writer { transaction: at as u32, last: true }).is_some() {
                    // Nothing could be told apart any more: a slip of whoever made the history.
                    twice.push(Anomaly {
                        kind: "bad history",
                        text: format!("{value} was appended twice to key {key}"),
                    });
                }
            }
        }
        let seen = vec![false; history.len()];
        Judge { history, writers, reads: Vec::new(), versions: BTreeMap::new(), seen, anomalies: twice }
    }

    fn found(&mut self, kind: &'static str, text: String) {
        self.anomalies.push(Anomaly { kind, text });
    }

    /// Looks whether a transaction sees its own doings, and keeps what it saw of others.
    fn inside(&mut self, at: usize, transaction: &'h Transaction) {
        // By key: the list as it must be now, if it was read, and what was appended without it having been read.
        let mut known: BTreeMap<i64, (Option<Vec<i64>>, Vec<i64>)> = BTreeMap::new();
        for op in &transaction.ops {
            match op {
                Op::Append { key, value } => {
                    let (list, own) = known.entry(*key).or_default();
                    match list {
                        Some(list) => list.push(*value),
                        None => own.push(*value),
                    }
                }
                Op::Read { key, list } => {
                    let (before, own) = known.entry(*key).or_default();
                    match before {
                        Some(expected) if expected != list => {
                            let text = format!(
                                "{} read {list:?} of key {key}, after what it had done it should be {expected:?}",
                                name(self.history, at)
                            );
                            self.anomalies.push(Anomaly { kind: "internal", text });
                        }
                        Some(_) => {}
                        None if !list.ends_with(own) => {
                            let text = format!(
                                "{} read {list:?} of key {key} after it had appended {own:?}",
                                name(self.history, at)
                            );
                            self.anomalies.push(Anomaly { kind: "internal", text });
                        }
                        None => {
                            let others = &list[..list.len() - own.len()];
                            self.reads.push(Read { reader: at as u32, key: *key, list: others });
                            *before = Some(list.clone());
                        }
                    }
                }
            }
        }
    }

    /// The longest list of a key that was seen gives the order of its versions; all others must be its beginnings.
    fn order_versions(&mut self, last: &BTreeMap<i64, Vec<i64>>) {
        let mut versions: BTreeMap<i64, &[i64]> = BTreeMap::new();
        for (key, list) in
            self.reads.iter().map(|r| (r.key, r.list)).chain(last.iter().map(|(k, l)| (*k, &l[..])))
        {
            let longest = versions.entry(key).or_default();
            if list.len() > longest.len() {
                *longest = list;
            }
        }
        let mut strange = Vec::new();
        let mut bad = std::collections::BTreeSet::new();
        for (key, list) in &versions {
            let mut elements = list.to_vec();
            elements.sort_unstable();
            if let Some(pair) = elements.windows(2).find(|pair| pair[0] == pair[1]) {
                let text = format!("{} stands twice in key {key}: {list:?}", pair[0]);
                strange.push(Anomaly { kind: "duplicate", text });
                bad.insert(*key);
            }
        }
        for (key, list, who) in self
            .reads
            .iter()
            .map(|r| (r.key, r.list, Some(r.reader)))
            .chain(last.iter().map(|(key, list)| (*key, &list[..], None)))
        {
            let longest = versions[&key];
            if !longest.starts_with(list) {
                let who = who.map_or("the end".to_owned(), |at| name(self.history, at as usize));
                let text = format!("{who} saw {list:?} in key {key}, somebody else {longest:?}");
                strange.push(Anomaly { kind: "incompatible order", text });
                bad.insert(key);
            }
        }
        self.anomalies.extend(strange);
        // Without one order there are no dependencies to be told.
        self.versions = versions
            .into_iter()
            .filter(|(key, _)| !bad.contains(key))
            .map(|(key, list)| (key, list.to_vec()))
            .collect();
    }

    /// Every element must come from a transaction that committed, and no list may end within a transaction.
    fn look_at_reads(&mut self) {
        let mut found = Vec::new();
        for (key, list) in &self.versions {
            for value in list {
                match self.writers.get(&(*key, *value)) {
                    None => {
                        let text = format!("{value} in key {key} was appended by nobody");
                        found.push(Anomaly { kind: "phantom", text });
                    }
                    Some(writer) => {
                        let writer = writer.transaction as usize;
                        self.seen[writer] = true;
                        if self.history[writer].outcome == Outcome::Aborted {
                            let text = format!(
                                "{value} in key {key} is of {}, which did not commit",
                                name(self.history, writer)
                            );
                            found.push(Anomaly { kind: "G1a", text });
                        }
                    }
                }
            }
        }
        for read in &self.reads {
            let Some(value) = read.list.last() else { continue };
            let Some(writer) = self.writers.get(&(read.key, *value)) else { continue };
            if !writer.last && writer.transaction != read.reader {
                let text = format!(
                    "{} read key {} when {} had appended {value} and not yet the rest",
                    name(self.history, read.reader as usize),
                    read.key,
                    name(self.history, writer.transaction as usize)
                );
                found.push(Anomaly { kind: "G1b", text });
            }
        }
        self.anomalies.extend(found);
    }

    /// What was acknowledged must be there at the end.
    fn look_at_end(&mut self, last: &BTreeMap<i64, Vec<i64>>) {
        let mut lost = Vec::new();
        for ((key, value), writer) in &self.writers {
            let committed = self.history[writer.transaction as usize].outcome == Outcome::Committed;
            if committed && !last.get(key).is_some_and(|list| list.contains(value)) {
                let text = format!(
                    "{value} of {} is not in key {key} at the end",
                    name(self.history, writer.transaction as usize)
                );
                lost.push(Anomaly { kind: "lost append", text });
            }
        }
        self.anomalies.extend(lost);
    }

    /// Two that both read the same version of a key and both appended to it: one has not seen the other.
    fn look_for_lost_updates(&mut self) {
        let mut first: BTreeMap<(i64, usize), u32> = BTreeMap::new();
        let mut lost = Vec::new();
        for read in &self.reads {
            let writes = |op: &Op| matches!(op, Op::Append { key, .. } if *key == read.key);
            if !self.history[read.reader as usize].ops.iter().any(writes) {
                continue;
            }
            if let Some(other) = first.insert((read.key, read.list.len()), read.reader) {
                lost.push(format!(
                    "{} and {} both read {} elements of key {} and appended to it",
                    name(self.history, other as usize),
                    name(self.history, read.reader as usize),
                    read.list.len(),
                    read.key
                ));
            }
        }
        lost.into_iter().for_each(|text| self.found("lost update", text));
    }

    fn dependencies(&self, sessions: bool) -> Dependencies {
        let mut graph = Dependencies::new(self.history.len());
        let writer = |key: i64, value: i64| self.writers.get(&(key, value)).map(|writer| writer.transaction);
        for (key, list) in &self.versions {
            for pair in list.windows(2) {
                if let (Some(from), Some(to)) = (writer(*key, pair[0]), writer(*key, pair[1])) {
                    graph.add(Edge { from, to, kind: Kind::WriteWrite, key: *key });
                }
            }
        }
        for read in &self.reads {
            let Some(version) = self.versions.get(&read.key) else { continue };
            let (key, to) = (read.key, read.reader);
            if let Some(from) = read.list.last().and_then(|value| writer(key, *value)) {
                graph.add(Edge { from, to, kind: Kind::WriteRead, key });
            }
            if let Some(next) = version.get(read.list.len()).and_then(|value| writer(key, *value)) {
                graph.add(Edge { from: to, to: next, kind: Kind::ReadWrite, key });
            }
        }
        if sessions {
            let mut before: BTreeMap<u32, u32> = BTreeMap::new();
            for (at, transaction) in self.history.iter().enumerate() {
                if transaction.outcome == Outcome::Committed
                    && let Some(from) = before.insert(transaction.client, at as u32)
                {
                    graph.add(Edge { from, to: at as u32, kind: Kind::Session, key: 0 });
                }
            }
        }
        graph
    }

    /// An edge in words.
    fn explain(&self, edge: &Edge) -> String {
        let (from, to) = (name(self.history, edge.from as usize), name(self.history, edge.to as usize));
        match edge.kind {
            Kind::WriteWrite => format!("{from} appended to key {} before {to}", edge.key),
            Kind::WriteRead => format!("{from} appended to key {} what {to} read", edge.key),
            Kind::ReadWrite => format!("{from} read key {} before {to} appended to it", edge.key),
            Kind::Session => format!("{from} ended before {to} began"),
        }
    }
}

/// A transaction for people: its place in the history, and whose it is.
fn name(history: &[Transaction], at: usize) -> String {
    format!("T{at} (client {})", history[at].client)
}

#[cfg(test)]
mod tests;
