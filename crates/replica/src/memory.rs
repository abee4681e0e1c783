//! The memory that replication has: entries kept for others, entries that came and are not in the log yet, messages that wait
//! for a link or come in pieces, files of a copy.
//!
//! All of it is a part of the memory that clients' operations have together, so that where it grows they make room for it:
//! what members say to each other is not to wait for what one client asks for. While the whole is short, less is kept
//! and sent ahead ([`sheaf_repl::Member::be_sparing`]); and what comes faster than it is written is passed over as if the
//! network had lost it, so that its sender begins again with what is missing, one message at a time.

use std::sync::Arc;

use sheaf_meter::{Part, Pressure, Process};
use sheaf_repl::{Envelope, Member};

/// Changes of less are not worth telling the process.
const STEP: u64 = 64 << 10;

/// Of the memory that operations have, entries that came and are not in the log yet may have so much, as a divisor; and while
/// it is short.
const UNWRITTEN_SHARE: u64 = 4;
const UNWRITTEN_SHARE_SHORT: u64 = 16;

/// Memory of replication, counted.
#[derive(Clone)]
pub struct Memory(Arc<Part>);

impl Memory {
    /// Nothing yet.
    pub fn of(process: &Arc<Process>) -> Memory {
        Memory(Arc::new(Part::of(process)))
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.0.used()
    }

    /// A share of replication's memory, with nothing in it yet.
    pub fn share(&self) -> Share {
        Share { part: Some(self.0.clone()), bytes: 0 }
    }

    /// Whether there is so little left that replication keeps less.
    pub fn is_short(&self) -> bool {
        let process = self.0.process();
        process.used() > process.limit() / 4 * 3 || process.pressure() >= Pressure::High
    }

    /// Whether a message is passed over: too much that came is not written yet.
    pub fn refuses(&self, core: &Member, envelope: &Envelope) -> bool {
        envelope.brings_entries() && self.is_too_much(core.unwritten_bytes(), envelope.entry_bytes())
    }

    /// Where nothing waits, whatever comes is taken.
    fn is_too_much(&self, waiting: usize, coming: usize) -> bool {
        let share = if self.is_short() { UNWRITTEN_SHARE_SHORT } else { UNWRITTEN_SHARE };
        waiting > 0 && (waiting + coming) as u64 > self.0.process().limit() / share
    }
}

/// So many bytes of replication's memory, until this is dropped.
#[derive(Default)]
pub struct Share {
    part: Option<Arc<Part>>,
    bytes: u64,
}

impl Share {
    /// Makes the share so many bytes, in steps of 64 KB.
    pub fn set(&mut self, bytes: usize) {
        let bytes = bytes as u64 / STEP * STEP;
        if let Some(part) = self.part.as_ref().filter(|_| bytes != self.bytes) {
            part.change(self.bytes, bytes);
            self.bytes = bytes;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_counted_in_steps_and_given_back() {
        let process = Process::new(1 << 30, 1 << 30);
        let memory = Memory::of(&process);
        let mut share = memory.share();
        share.set(STEP as usize - 1);
        assert_eq!(process.used(), 0);
        share.set(5 * STEP as usize + 7);
        let mut other = memory.share();
        other.set(STEP as usize);
        assert_eq!((process.used(), memory.used()), (6 * STEP, 6 * STEP));
        share.set(0);
        assert_eq!(process.used(), STEP);
        drop((share, other));
        assert_eq!(process.used(), 0);
        Share::default().set(1 << 20);
    }

    #[test]
    fn what_comes_faster_than_it_is_written_is_passed_over() {
        let process = Process::new(160 << 20, 1 << 30);
        let memory = Memory::of(&process);
        let most = 40 << 20;
        assert!(!memory.is_too_much(most - 9, 9));
        assert!(memory.is_too_much(most - 9, 10));
        // However large an entry is, it is taken in the end.
        assert!(!memory.is_too_much(0, 2 * most));
        process.set_pressure(Pressure::High);
        assert!(memory.is_too_much(most / 4, 1));
        assert!(!memory.is_too_much(0, 2 * most));
    }

    #[test]
    fn memory_is_short_by_count_or_in_fact() {
        let process = Process::new(100 << 20, 1 << 30);
        let memory = Memory::of(&process);
        assert!(!memory.is_short());
        let mut share = memory.share();
        share.set(80 << 20);
        assert!(memory.is_short());
        drop(share);
        process.set_pressure(Pressure::High);
        assert!(memory.is_short());
    }
}
