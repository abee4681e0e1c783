//! The queue of the pipeline: one leads, the others wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use sheaf_errors::Result;

use crate::commit::prepared::Prepared;
use crate::critical::{Critical, impossible, must};
use crate::options::{Block, OpTime};
use crate::order::{Condvar, Held, Mutex, about_to_wait, rank};

enum Slot {
    Waiting(Box<Prepared>),
    /// A leader took it along.
    InGroup,
    /// The pipeline is this one's now.
    Lead(Box<Prepared>),
    Done(Result<OpTime>),
    /// Wants the pipeline to be still.
    WaitingStill,
    /// It is.
    Still,
    Taken,
}

struct Ticket {
    slot: Mutex<{ rank::SLOT }, Slot>,
    changed: Condvar,
}

/// A group takes microseconds. Behind one that takes longer than this (a disk that lets writes wait) the thread's other
/// work must go on.
const PATIENCE: Duration = Duration::from_millis(2);

impl Ticket {
    /// Waits until a leader has come by, and takes what it left.
    fn wait(&self, block: &Block) -> Slot {
        let undecided = |slot: &Slot| matches!(slot, Slot::Waiting(_) | Slot::InGroup);
        let mut slot = self.slot.lock();
        if undecided(&slot) {
            self.changed.wait_for(&mut slot, PATIENCE);
        }
        if undecided(&slot) {
            drop(slot);
            block(&mut || {
                let mut slot = self.slot.lock();
                while undecided(&slot) {
                    self.changed.wait(&mut slot);
                }
            });
            slot = self.slot.lock();
        }
        std::mem::replace(&mut *slot, Slot::Taken)
    }
}

/// Who has the pipeline, and who waits for it. Its lock has the rank [`rank::QUEUE`], those of the waiting have [`rank::SLOT`].
#[derive(Default)]
pub(super) struct Queue(Mutex<{ rank::QUEUE }, State>);

#[derive(Default)]
struct State {
    busy: bool,
    waiting: VecDeque<Arc<Ticket>>,
}

/// The pipeline held still: no commit is between log and publish while it lives. A panic of its holder ends the process: those
/// whom it has taken along would wait for ever, and what the log has might not be applied.
pub(crate) struct Still<'q>(&'q Queue, #[allow(dead_code)] Held, Critical);

impl<'q> Still<'q> {
    /// The pipeline is this thread's now.
    fn new(queue: &'q Queue) -> Still<'q> {
        Still(queue, Held::note(rank::PIPELINE), Critical::enter("the commit pipeline"))
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        self.2.end();
        self.0.hand_on();
    }
}

/// How a commit comes out of the queue.
pub(super) enum Outcome<'q> {
    /// The pipeline was idle, and nobody else is in it. A lone commit is not to allocate.
    Alone(Still<'q>, Prepared),
    /// It leads, and takes along those who wait.
    Leads(Still<'q>, Box<Prepared>),
    /// A leader has taken it along.
    Done(Result<OpTime>),
}

/// Those whom a leader has taken along, in the order of their commits.
pub(super) struct Companions(Vec<Arc<Ticket>>);

impl Companions {
    /// Tells each its result.
    pub fn tell(self, results: impl ExactSizeIterator<Item = Result<OpTime>>) {
        must!(
            results.len() == self.0.len(),
            "{} commits were taken along, and {} have results",
            self.0.len(),
            results.len()
        );
        for (ticket, result) in self.0.iter().zip(results) {
            let before = std::mem::replace(&mut *ticket.slot.lock(), Slot::Done(result));
            must!(matches!(before, Slot::InGroup), "a commit of a group was decided twice");
            ticket.changed.notify_one();
        }
    }
}

impl Queue {
    /// Waits until this commit has the pipeline, or a leader has taken it along.
    pub fn enter(&self, prepared: Prepared, block: &Block) -> Outcome<'_> {
        about_to_wait(rank::PIPELINE);
        let mut state = self.0.lock();
        if !state.busy {
            state.busy = true;
            drop(state);
            return Outcome::Alone(Still::new(self), prepared);
        }
        let ticket =
            Arc::new(Ticket { slot: Mutex::new(Slot::Waiting(Box::new(prepared))), changed: Condvar::new() });
        // Who is given the pipeline must take it.
        let waiting = Critical::enter("the queue of the commit pipeline");
        state.waiting.push_back(ticket.clone());
        drop(state);
        let left = ticket.wait(block);
        drop(waiting);
        match left {
            Slot::Done(result) => Outcome::Done(result),
            Slot::Lead(own) => Outcome::Leads(Still::new(self), own),
            Slot::Waiting(_) | Slot::InGroup | Slot::WaitingStill | Slot::Still | Slot::Taken => {
                impossible!("a commit came out of the queue undecided")
            }
        }
    }

    /// Adds those who wait to the leader's group, as far as they fit into an entry of `bytes_max`.
    pub fn take_along(&self, group: &mut Vec<Prepared>, bytes_max: usize) -> Companions {
        let mut bytes: usize = group.iter().map(|unit| unit.payload.len()).sum();
        let mut tickets = Vec::new();
        let mut state = self.0.lock();
        while bytes < bytes_max
            && let Some(ticket) = state.waiting.front()
        {
            let mut slot = ticket.slot.lock();
            let Slot::Waiting(next) = &*slot else { break };
            if next.chained || bytes + next.payload.len() > bytes_max {
                break;
            }
            if let Slot::Waiting(prepared) = std::mem::replace(&mut *slot, Slot::InGroup) {
                bytes += prepared.payload.len();
                group.push(*prepared);
            }
            drop(slot);
            tickets.extend(state.waiting.pop_front());
        }
        Companions(tickets)
    }

    /// Holds the pipeline still: waits for commits under way, lets none start until it is dropped.
    pub fn still(&self) -> Still<'_> {
        about_to_wait(rank::PIPELINE);
        let mut state = self.0.lock();
        if !state.busy {
            state.busy = true;
            return Still::new(self);
        }
        // It takes its turn like a commit, so that a stream of them cannot starve it.
        let ticket = Arc::new(Ticket { slot: Mutex::new(Slot::WaitingStill), changed: Condvar::new() });
        state.waiting.push_back(ticket.clone());
        drop(state);
        let mut slot = ticket.slot.lock();
        while matches!(*slot, Slot::WaitingStill) {
            ticket.changed.wait(&mut slot);
        }
        must!(matches!(*slot, Slot::Still), "who wanted the pipeline held has got something else");
        Still::new(self)
    }

    /// Gives the pipeline to the next who waits, or leaves it idle.
    fn hand_on(&self) {
        let mut state = self.0.lock();
        must!(state.busy, "the pipeline is handed on, and nobody has it");
        let Some(next) = state.waiting.pop_front() else {
            state.busy = false;
            return;
        };
        drop(state);
        let mut slot = next.slot.lock();
        *slot = match std::mem::replace(&mut *slot, Slot::Taken) {
            Slot::Waiting(prepared) => Slot::Lead(prepared),
            Slot::WaitingStill => Slot::Still,
            Slot::InGroup | Slot::Lead(_) | Slot::Done(_) | Slot::Still | Slot::Taken => {
                impossible!("one who does not wait is in the queue of the pipeline")
            }
        };
        next.changed.notify_one();
    }
}
