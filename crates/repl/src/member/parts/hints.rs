//! What broken connections have said of a primary.

/// How many hints count within an election time-out and a term. One that proves wrong again and again tells of the network
/// only; one that was right has led to a new term.
const HINTS_MAX: u32 = 4;

/// What hints have done.
#[derive(Default)]
pub struct Hints {
    /// When the next election would be due without them.
    deadline_before: Option<u64>,
    since: u64,
    term: u64,
    count: u32,
}

impl Hints {
    /// The connection to the primary of this term broke. What was counted before another term, or longer ago than an
    /// election time-out, is forgotten.
    pub fn add(&mut self, now: u64, timeout: u64, term: u64) {
        if now >= self.since + timeout || term != self.term {
            *self = Hints { since: now, term, ..Hints::default() };
        }
        self.count += 1;
    }

    /// Whether hints still count.
    pub fn are_believed(&self) -> bool {
        self.count <= HINTS_MAX
    }

    /// A hint brings the next election forward, which would be due at `deadline` otherwise.
    pub fn bring_forward(&mut self, deadline: u64) {
        self.deadline_before = Some(deadline);
    }

    /// When the election that a hint has brought forward would be due without it. Asked once.
    pub fn take_deadline(&mut self) -> Option<u64> {
        self.deadline_before.take()
    }
}
