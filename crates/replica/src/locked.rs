//! The core, one at a time.

use std::ops::{Deref, DerefMut};

use sheaf_repl::Member;
use sheaf_storage::critical::Critical;
use sheaf_storage::order::{Mutex, MutexGuard, rank};

/// The core behind its lock. A panic while it is held ends the process: half of an input may have changed the core, and what
/// it wanted done may be lost.
pub struct Locked(Mutex<{ rank::REPLICATION }, Member>);

/// The core, for the one who has it.
pub struct Entered<'c> {
    // Ends before the lock is given back.
    _critical: Critical,
    core: MutexGuard<'c, { rank::REPLICATION }, Member>,
}

impl Locked {
    pub fn new(core: Member) -> Locked {
        Locked(Mutex::new(core))
    }

    /// Waits for the core.
    #[track_caller]
    pub fn lock(&self) -> Entered<'_> {
        let core = self.0.lock();
        Entered { _critical: Critical::enter("the replication core"), core }
    }
}

impl Deref for Entered<'_> {
    type Target = Member;
    fn deref(&self) -> &Member {
        &self.core
    }
}

impl DerefMut for Entered<'_> {
    fn deref_mut(&mut self) -> &mut Member {
        &mut self.core
    }
}
