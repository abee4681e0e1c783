//! Whether reads and writes of one document could have happened one after another, each at one moment between its call
//! and its answer: linearizability, which readConcern "linearizable" and majority writes promise together.
//!
//! The search is that of Wing and Gong with Lowe's memory of what was tried before. A write whose answer never came may
//! have happened at any later time or not at all; since all written values differ, it counts only if somebody saw its
//! value, and then it happened before that read was answered.

use std::collections::{BTreeMap, BTreeSet};

use super::Anomaly;

/// What was asked of the register. Before everything, it holds 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// It held this.
    Read(i64),
    /// It was made to hold this. No two writes have the same value, and none is 0.
    Write(i64),
    /// It was made to hold `new`, and had held `old`: findAndModify.
    Swap {
        /// Before.
        old: i64,
        /// After.
        new: i64,
    },
}

/// One call on one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Which register.
    pub register: i64,
    /// What.
    pub call: Call,
    /// When it was sent, by a clock that all clients share and that never goes back.
    pub sent_ns: u64,
    /// When it was answered; `None` for a write whose answer never came. A read without an answer is left out.
    pub answered_ns: Option<u64>,
}

/// What was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// One for each register that is not linearizable.
    pub anomalies: Vec<Anomaly>,
    /// Registers.
    pub registers: usize,
    /// Operations, without those that nobody knows of and nobody saw.
    pub operations: usize,
}

/// Judges a history, register by register.
pub fn judge(history: &[Operation]) -> Verdict {
    let mut registers: BTreeMap<i64, Vec<Operation>> = BTreeMap::new();
    for operation in history {
        registers.entry(operation.register).or_default().push(*operation);
    }
    let mut verdict = Verdict { registers: registers.len(), ..Verdict::default() };
    for (register, operations) in registers {
        let operations = settle(operations);
        verdict.operations += operations.len();
        if let Err(stuck) = linearize(&operations) {
            let text = format!("register {register}: {}", in_words(&operations, stuck));
            verdict.anomalies.push(Anomaly { kind: "not linearizable", text });
        }
    }
    verdict
}

/// Leaves out the writes that nobody saw and nobody acknowledged, and gives those that were seen an end.
fn settle(operations: Vec<Operation>) -> Vec<Operation> {
    let mut first_seen: BTreeMap<i64, u64> = BTreeMap::new();
    for operation in &operations {
        let (Call::Read(seen) | Call::Swap { old: seen, .. }, Some(at)) =
            (operation.call, operation.answered_ns)
        else {
            continue;
        };
        let first = first_seen.entry(seen).or_insert(at);
        *first = (*first).min(at);
    }
    let mut settled: Vec<Operation> = operations
        .into_iter()
        .filter_map(|mut operation| {
            if operation.answered_ns.is_none() {
                let (Call::Write(value) | Call::Swap { new: value, .. }) = operation.call else {
                    return None;
                };
                // What a swap without an answer had found is not known.
                operation.call = Call::Write(value);
                // Seen before it was sent: the search will say that this cannot be.
                operation.answered_ns = Some((*first_seen.get(&value)?).max(operation.sent_ns));
            }
            Some(operation)
        })
        .collect();
    settled.sort_by_key(|operation| operation.sent_ns);
    settled
}

impl Operation {
    fn answered(&self) -> u64 {
        self.answered_ns.unwrap_or(u64::MAX)
    }

    /// The value after it, if it can happen while the register holds `value`.
    fn on(&self, value: i64) -> Option<i64> {
        match self.call {
            Call::Write(new) => Some(new),
            Call::Read(seen) => (seen == value).then_some(value),
            Call::Swap { old, new } => (old == value).then_some(new),
        }
    }
}

/// Which operations have happened: all before `from`, and of the others those in the list.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Done {
    from: usize,
    further: BTreeSet<usize>,
}

impl Done {
    fn with(&self, at: usize) -> Done {
        let mut done = self.clone();
        done.further.insert(at);
        while done.further.remove(&done.from) {
            done.from += 1;
        }
        done
    }

    fn has(&self, at: usize) -> bool {
        at < self.from || self.further.contains(&at)
    }
}

/// Looks for an order; `Err` gives the longest beginning that could be reached, as the operations in it.
///
/// The operations are in the order in which they were sent.
fn linearize(operations: &[Operation]) -> Result<(), Done> {
    let start = (Done { from: 0, further: BTreeSet::new() }, 0);
    let mut tried = BTreeSet::from([start.clone()]);
    let mut open = vec![start];
    let mut furthest = Done { from: 0, further: BTreeSet::new() };
    while let Some((done, value)) = open.pop() {
        if done.from == operations.len() {
            return Ok(());
        }
        if done.from + done.further.len() > furthest.from + furthest.further.len() {
            furthest = done.clone();
        }
        // Whatever comes next was sent before the first of the others was answered.
        let mut before = u64::MAX;
        for (at, operation) in operations.iter().enumerate().skip(done.from) {
            if operation.sent_ns > before {
                break;
            }
            if done.has(at) {
                continue;
            }
            before = before.min(operation.answered());
        }
        for (at, operation) in operations.iter().enumerate().skip(done.from) {
            if operation.sent_ns > before {
                break;
            }
            if done.has(at) {
                continue;
            }
            if let Some(after) = operation.on(value) {
                let next = (done.with(at), after);
                if tried.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
    }
    Err(furthest)
}

/// What could not be put in order: the first operations that are left, and the last write before them.
fn in_words(operations: &[Operation], stuck: Done) -> String {
    let left: Vec<String> = operations
        .iter()
        .enumerate()
        .filter(|(at, _)| !stuck.has(*at))
        .take(4)
        .map(|(_, operation)| describe(operation))
        .collect();
    let writes = operations
        .iter()
        .enumerate()
        .filter(|(at, operation)| stuck.has(*at) && !matches!(operation.call, Call::Read(_)));
    let before: Vec<String> = writes.map(|(_, operation)| describe(operation)).collect();
    let before = &before[before.len().saturating_sub(3)..];
    format!("no order explains {} after {}", left.join(", "), before.join(", "))
}

fn describe(operation: &Operation) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    let what = match operation.call {
        Call::Read(seen) => format!("read {seen}"),
        Call::Write(new) => format!("write {new}"),
        Call::Swap { old, new } => format!("swap {old} for {new}"),
    };
    format!("{what} ({:.3}-{:.3} ms)", ms(operation.sent_ns), ms(operation.answered()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(call: Call, sent_ns: u64, answered: impl Into<Option<u64>>) -> Operation {
        Operation { register: 1, call, sent_ns, answered_ns: answered.into() }
    }

    fn fine(history: &[Operation]) -> bool {
        judge(history).anomalies.is_empty()
    }

    use Call::{Read, Swap, Write};

    #[test]
    fn one_after_another() {
        assert!(fine(&[at(Read(0), 0, 1), at(Write(5), 2, 3), at(Read(5), 4, 5)]));
        let swaps = [at(Swap { old: 0, new: 1 }, 0, 1), at(Swap { old: 1, new: 2 }, 2, 3), at(Read(2), 4, 5)];
        assert!(fine(&swaps));
    }

    #[test]
    fn a_stale_read_is_found() {
        let verdict = judge(&[at(Write(5), 0, 1), at(Write(6), 2, 3), at(Read(5), 4, 5)]);
        assert_eq!(verdict.anomalies.len(), 1);
        let text = &verdict.anomalies[0].text;
        assert!(text.contains("no order explains read 5") && text.contains("write 6"), "{text}");
    }

    #[test]
    fn what_overlaps_may_be_in_either_order() {
        assert!(fine(&[at(Write(5), 0, 10), at(Write(6), 1, 9), at(Read(5), 11, 12)]));
        assert!(fine(&[at(Write(5), 0, 10), at(Read(0), 1, 2), at(Read(5), 3, 4)]));
        // But once the new value was seen, the old one is gone.
        assert!(!fine(&[at(Write(5), 0, 10), at(Read(5), 1, 2), at(Read(0), 3, 4)]));
    }

    #[test]
    fn a_lost_write_is_found() {
        assert!(!fine(&[at(Write(5), 0, 1), at(Read(0), 2, 3)]));
        assert!(!fine(&[at(Swap { old: 0, new: 1 }, 0, 1), at(Swap { old: 0, new: 2 }, 2, 3)]));
        // Two swaps that meet cannot both have found the same.
        assert!(!fine(&[at(Swap { old: 0, new: 1 }, 0, 9), at(Swap { old: 0, new: 2 }, 1, 8)]));
    }

    #[test]
    fn a_write_without_an_answer_may_have_happened_or_not() {
        let write = at(Write(5), 0, None);
        assert!(fine(&[write, at(Read(0), 2, 3), at(Read(0), 4, 5)]));
        assert!(fine(&[write, at(Read(0), 2, 3), at(Read(5), 4, 5), at(Read(5), 6, 7)]));
        assert!(!fine(&[write, at(Read(5), 2, 3), at(Read(0), 4, 5)]));
        assert!(fine(&[at(Swap { old: 99, new: 5 }, 0, None), at(Read(5), 2, 3)]));
        // Nobody wrote it, or only later.
        assert!(!fine(&[at(Read(7), 0, 1)]));
        assert!(!fine(&[at(Read(5), 0, 1), at(Write(5), 2, None)]));
    }

    #[test]
    fn registers_have_nothing_to_do_with_each_other() {
        let other = Operation { register: 2, ..at(Read(0), 4, 5) };
        let verdict = judge(&[at(Write(5), 0, 1), other]);
        assert_eq!((verdict.anomalies.len(), verdict.registers, verdict.operations), (0, 2, 2));
    }

    /// Clients that really use one register: their histories are linearizable. A value changed in one of their reads
    /// must be found.
    #[test]
    fn random_histories() {
        let mut random = crate::generate::Random::new(3);
        for round in 0..100 {
            let mut history = Vec::new();
            let (mut value, mut now) = (0, 0);
            // Each client's next free moment.
            let mut free = [0u64; 5];
            for number in 1..200i64 {
                now += 1 + random.below(10);
                let client = (0..5).min_by_key(|at| free[*at as usize]).unwrap_or(0) as usize;
                let sent = free[client].max(now.saturating_sub(random.below(40))).min(now);
                let answered = now + random.below(40);
                free[client] = answered + 1;
                let call = match random.below(3) {
                    0 => Read(value),
                    1 => Write(number),
                    _ => Swap { old: value, new: number },
                };
                if !matches!(call, Read(_)) {
                    value = number;
                }
                let lost = matches!(call, Write(_)) && random.below(10) == 0;
                // It happened at `now`, between its call and its answer.
                history.push(at(call, sent, (!lost).then_some(answered)));
            }
            assert!(fine(&history), "round {round}");
            let reads: Vec<usize> =
                (20..history.len()).filter(|n| matches!(history[*n].call, Read(_))).collect();
            let spoiled = reads[random.below(reads.len() as u64) as usize];
            history[spoiled].call = Read(0);
            let overwritten = history[..spoiled].iter().any(|o| {
                !matches!(o.call, Read(_)) && o.answered_ns.is_some_and(|end| end < history[spoiled].sent_ns)
            });
            assert_eq!(fine(&history), !overwritten, "round {round}");
        }
    }
}
