//! How short memory is in fact: what the process has, against what it may have.
//!
//! Accounts know what they were told of. What they were not (allocators' leftovers, fragments, what a library keeps) is
//! seen only from outside, by looking at the memory of the process.

/// How short memory is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Pressure {
    /// There is enough.
    None,
    /// What is freed should go back to the system at once.
    Some,
    /// Caches shrink, large messages wait.
    High,
    /// The largest operations are ended.
    Higher,
    /// In addition, nobody who has much gets more.
    Critical,
}

impl From<u8> for Pressure {
    fn from(level: u8) -> Self {
        match level {
            0 => Pressure::None,
            1 => Pressure::Some,
            2 => Pressure::High,
            3 => Pressure::Higher,
            _ => Pressure::Critical,
        }
    }
}

/// Where each level begins, for a process that may have so many bytes.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    limit: u64,
    /// What is to stay free: below it, operations are ended.
    reserve: u64,
}

/// More than this need not stay free, however large the machine.
const RESERVE_MAX: u64 = 1 << 30;

impl Marks {
    /// Marks for a process that may have `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Marks { limit, reserve: (limit / 5).min(RESERVE_MAX) }
    }

    /// The level of a process that has `used` bytes.
    pub fn level(&self, used: u64) -> Pressure {
        let free = self.limit.saturating_sub(used);
        let half = self.reserve / 2;
        match () {
            () if free <= half => Pressure::Critical,
            () if free <= self.reserve => Pressure::Higher,
            () if free <= self.reserve + half => Pressure::High,
            () if free <= 2 * self.reserve + half => Pressure::Some,
            () => Pressure::None,
        }
    }

    /// Whether a process that has `used` bytes has so few that they would have to double before anything is done.
    pub fn is_far(&self, used: u64) -> bool {
        self.level(used.saturating_mul(2)) == Pressure::None
    }

    /// How much a process that has `used` bytes has too much: what must come free for [`Pressure::Higher`] to end.
    pub fn excess(&self, used: u64) -> u64 {
        used.saturating_sub(self.limit - self.reserve)
    }
}
