//! Which states can be read: the newest one, what the set has committed, and the past at a cluster time.
//!
//! The state at time T has what is stamped up to T, and of what was prepared over several shards what committed as of T or before,
//! even where the commit's entry is later. A snapshot that was kept after an entry has the first part; [`Past`] adds the second, and
//! has readers wait for what is in doubt at T.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, Timestamp};
use sheaf_errors::{Code, Error, Result};

use crate::catalog::Collection;
use crate::commit::majority::Found;
use crate::core::Core;
use crate::db::Cf;
use crate::engine::Engine;
use crate::keys::full_key;
use crate::options::Interrupt;
use crate::read::undecided::Past;
use crate::read::view::{Doc, View};
use crate::write::transaction::Transaction;

/// How long after its last use a state that a reader has named, or was given the time of, can be named again
/// (MongoDB's `minSnapshotHistoryWindowInSeconds`).
const NAMED_AGE: Duration = Duration::from_secs(300);

/// The longest wait for transactions of several shards, of which nearly all are decided within milliseconds.
const DECISIONS: Duration = Duration::from_millis(200);

/// How long a commit under way is awaited without giving up the processor.
const SPINS: u32 = 200;

/// How often it is looked for after that.
const PAUSE: Duration = Duration::from_micros(50);

impl Engine {
    /// The newest published state. What is prepared over several shards is not seen, and not waited for.
    pub fn view(&self) -> Result<View> {
        Ok(View::newest(&self.core().published))
    }

    /// The newest published state. Who meets what is prepared waits for the decision, and sees it if it is a commit.
    pub fn decided_view(&self) -> Result<View> {
        Ok(self.core().decided_view())
    }

    /// One record of the newest state, without taking a snapshot: the fast path of a find by `_id`.
    pub fn get(&self, collection: &Collection, key: &[u8]) -> Result<Option<Doc<'_>>> {
        let full = full_key(collection.ident, key);
        Ok(self.core().base.db.get(Cf::Records, &full)?.map(Doc::stored))
    }

    /// [`Engine::get`], waiting for the decision if the record is prepared.
    pub fn get_decided(&self, collection: &Collection, key: &[u8]) -> Result<Option<Doc<'_>>> {
        let core = self.core();
        if core.commits.transactions().has_open() {
            let full = full_key(collection.ident, key);
            if let Some(past) = Past::new(None, core.commits.transactions().open(), &core.base.options.block)
            {
                // Once it is decided the newest state has it.
                past.get(Cf::Records, &full)?;
            }
        }
        self.get(collection, key)
    }

    /// Waits until what is prepared now is decided, for figures that count what is committed and read no rows; not for long, since who decides may
    /// be out of reach.
    pub fn wait_for_decisions(&self) {
        let core = self.core();
        let transactions = core.commits.transactions();
        let (open, until) = (transactions.open(), Instant::now() + DECISIONS);
        let is_among =
            |now: &[Arc<_>]| open.iter().any(|one| now.iter().any(|other| Arc::ptr_eq(one, other)));
        if !open.is_empty() {
            (core.base.options.block)(&mut || {
                while is_among(&transactions.open()) && Instant::now() < until {
                    std::thread::sleep(PAUSE);
                }
            });
        }
    }

    /// For how long the state after each entry is kept, for those who ask for the state at a time.
    pub fn keep_states(&self, window: Duration) {
        self.core().commits.majority().set_window(window);
    }

    /// Cluster time of the newest state that a majority of the set has; `None` until something was committed since the start.
    pub fn majority_time(&self) -> Option<Timestamp> {
        self.core().commits.majority().newest_time().map(Timestamp)
    }

    /// The newest state that a majority of the set has; `None` until something was committed since the start.
    pub fn majority_view(&self) -> Option<View> {
        let core = self.core();
        loop {
            // The newest one has become old only if this thread has slept for long.
            let found = core.commits.majority().newest(&core.published)?;
            if let Some(found) = core.with_past(found, None) {
                return Some(found.view);
            }
        }
    }

    /// [`Engine::majority_view`], whose time can be given to [`Engine::view_at`] for some minutes.
    pub fn snapshot_view(&self) -> Option<View> {
        let core = self.core();
        loop {
            let found = core.commits.majority().newest(&core.published)?;
            let time = found.view.time().0;
            if let Some(found) = core.with_past(found, Some(time)) {
                return Some(core.commits.majority().name(time, found, NAMED_AGE).view);
            }
        }
    }

    /// The state at a cluster time, if a majority has it and it is kept. It is kept for some minutes more. `is_final`: nothing that
    /// a majority does not have is stamped at that time or below.
    pub fn view_at(&self, time: Timestamp, is_final: bool) -> Option<View> {
        let core = self.core();
        let majority = core.commits.majority();
        let found = match majority.named(time.0) {
            Some(found) => found,
            None => core.with_past(majority.at(&core.published, time.0, is_final, false)?, Some(time.0))?,
        };
        Some(majority.name(time.0, found, NAMED_AGE).view)
    }

    /// Keeps the state at a cluster time for so long at least, for transactions that will begin there. Everything that is stamped up to
    /// then is applied here, and nothing more will be stamped there.
    ///
    /// Errors: `SnapshotTooOld`.
    pub fn hold_state(&self, time: Timestamp, age: Duration) -> Result<()> {
        let core = self.core();
        let found = core.state_at(time.0)?;
        core.commits.majority().name(time.0, found, age);
        Ok(())
    }

    /// The state at a cluster time that has been asked for before, as long as it is kept for that.
    pub fn named_view(&self, time: Timestamp) -> Option<View> {
        let found = self.core().commits.majority().named(time.0)?;
        Some(self.core().commits.majority().name(time.0, found, NAMED_AGE).view)
    }

    /// Waits until a majority has everything up to this index of the log.
    ///
    /// Errors: those of `interrupt`.
    pub fn wait_committed(&self, index: u64, interrupt: Interrupt<'_>) -> Result<()> {
        while self.core().commits.majority().committed_index() < index {
            interrupt()?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Waits until everything up to this index of the log is applied, and the state after it is kept.
    ///
    /// Errors: those of `interrupt`.
    pub fn wait_applied(&self, index: u64, interrupt: Interrupt<'_>) -> Result<()> {
        let core = self.core();
        let is_here = || core.commits.majority().newest_index() >= index;
        for _ in 0..SPINS {
            if is_here() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let mut outcome = Ok(());
        (core.base.options.block)(&mut || {
            while !is_here() && outcome.is_ok() {
                std::thread::sleep(PAUSE);
                outcome = interrupt();
            }
        });
        outcome
    }

    /// Starts a transaction that reads the state at a cluster time. Everything that is stamped up to then is applied here, and
    /// nothing more will be stamped there.
    ///
    /// Errors: `SnapshotTooOld`.
    pub fn begin_at(&self, session: Option<(DocBuf, i64)>, time: Timestamp) -> Result<Transaction> {
        Transaction::begin_at(self.core(), session, time)
    }
}

impl Core {
    /// The newest state, in which what is prepared is waited for.
    pub fn decided_view(&self) -> View {
        let transactions = self.commits.transactions();
        loop {
            if !transactions.has_open() {
                return View::newest(&self.published);
            }
            let Some(applied) = transactions.applied() else {
                std::thread::sleep(PAUSE);
                continue;
            };
            let open = transactions.open();
            let view = View::newest(&self.published);
            // What was prepared all the while was locked all the while: nobody's later changes are in the snapshot. A batch of entries of
            // others may have a commit and what came later.
            if transactions.is_open(&open) && transactions.applied() == Some(applied) {
                let past = Past::new(None, open, &self.base.options.block);
                return View { past, ..view };
            }
        }
    }

    /// The state at a cluster time: see [`Engine::begin_at`].
    pub fn state_at(&self, time: u64) -> Result<Found> {
        if let Some(named) = self.commits.majority().named(time) {
            return Ok(named);
        }
        let found = self.commits.majority().at(&self.published, time, true, true);
        found.and_then(|found| self.with_past(found, Some(time))).ok_or_else(|| too_old(Timestamp(time)))
    }

    /// `None`: what was committed behind this state is forgotten, since it was found.
    fn with_past(&self, found: Found, as_of: Option<u64>) -> Option<Found> {
        let beside = self.commits.transactions().beside(found.index, as_of)?;
        let past = Past::new(as_of, Arc::new(beside), &self.base.options.block);
        Some(Found { view: View { past, read_at: as_of.unwrap_or(0), ..found.view }, ..found })
    }
}

/// The state at this time is not kept any more.
fn too_old(time: Timestamp) -> Error {
    let text = format!(
        "Read timestamp Timestamp({}, {}) is older than the oldest available timestamp.",
        time.0 >> 32,
        time.0 as u32
    );
    Error::new(Code::SNAPSHOT_TOO_OLD, text)
}
