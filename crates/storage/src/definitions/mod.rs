//! What exists: collections and indexes, by commands that change the catalog, and what of it is on its way in or out.
//!
//! - [`ddl`] and [`swap`]: commands of clients, each decided under the gates of what it changes and in its turn;
//! - [`command`]: a change of the catalog as the log has it;
//! - [`stored`]: the catalog as it is on the disk;
//! - [`garbage`]: data of what was dropped.
//!
//! The catalog itself is published ([`crate::read::published::Published`]); index builds at work are here, their steps are
//! [`crate::build`]'s.

pub(crate) mod command;
pub(crate) mod ddl;
mod garbage;
pub(crate) mod stored;
mod swap;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::base::Base;
use crate::build::Builds;
use crate::critical::must;
use crate::order::rank::DDL;
use crate::order::{Mutex, MutexGuard, rank};
use crate::sequencer::stays_here;
pub(crate) use garbage::{Garbage, GarbageList, garbage_key, remove_prefixes};

/// Numbers of collections and indexes that stay on a member of a replica set begin here.
pub(crate) const LOCAL_IDENTS: u32 = 1 << 30;

/// And end here: numbers with this bit are those of what is kept beside an index.
const IDENTS_END: u32 = 1 << 31;

/// The owner of definitions. Its locks have the ranks [`rank::DDL`] (one DDL at a time) and [`rank::GARBAGE`] (data that waits
/// for its removal).
pub(crate) struct Definitions {
    base: Arc<Base>,
    next_ident: AtomicU32,
    /// Numbers of what stays on this member are apart: the others' are the log's to give.
    next_local_ident: AtomicU32,
    turn: Mutex<{ rank::DDL }, ()>,
    /// How many entries others had ordered when the DDL under way began.
    began: AtomicU64,
    /// The index builds at work here.
    builds: Builds,
    /// Collections that are out of the catalog but may still be read.
    garbage: GarbageList,
}

impl Definitions {
    /// Which gives away these numbers next.
    pub fn new(base: Arc<Base>, (next_ident, next_local_ident): (u32, u32)) -> Definitions {
        Definitions {
            base,
            next_ident: AtomicU32::new(next_ident),
            next_local_ident: AtomicU32::new(next_local_ident),
            turn: Mutex::new(()),
            began: AtomicU64::new(0),
            builds: Builds::default(),
            garbage: GarbageList::default(),
        }
    }

    /// The index builds at work here.
    pub fn builds(&self) -> &Builds {
        &self.builds
    }

    /// Data of what was dropped.
    pub fn garbage(&self) -> &GarbageList {
        &self.garbage
    }

    /// A number for a collection of this name, or for an index of it. It is never given again.
    pub fn new_ident(&self, namespace: &str) -> u32 {
        let local = self.base.is_replica() && stays_here(namespace);
        let (next, end) =
            if local { (&self.next_local_ident, IDENTS_END) } else { (&self.next_ident, LOCAL_IDENTS) };
        let ident = next.fetch_add(1, Ordering::AcqRel);
        must!(ident < end, "the numbers of collections and indexes are used up: {ident}");
        ident
    }

    /// This number has been given away, by this node or by another.
    pub fn note_ident(&self, ident: u32) {
        must!(ident < IDENTS_END, "{ident} is no number of a collection or an index");
        let next = if ident >= LOCAL_IDENTS { &self.next_local_ident } else { &self.next_ident };
        next.fetch_max(ident + 1, Ordering::AcqRel);
    }

    /// The next numbers: everywhere, and on this member only.
    pub fn next_idents(&self) -> (u32, u32) {
        (self.next_ident.load(Ordering::Acquire), self.next_local_ident.load(Ordering::Acquire))
    }

    /// One DDL at a time. `others`: how many entries others have ordered.
    pub fn take_turn(&self, others: impl Fn() -> u64) -> MutexGuard<'_, DDL, ()> {
        let turn = self.turn.lock();
        self.began.store(others(), Ordering::Release);
        turn
    }

    /// [`Definitions::take_turn`], if it comes within this time.
    pub fn try_turn(&self, time: Duration, others: impl Fn() -> u64) -> Option<MutexGuard<'_, DDL, ()>> {
        let turn = self.turn.try_lock_for(time)?;
        self.began.store(others(), Ordering::Release);
        Some(turn)
    }

    /// How many entries others had ordered when the DDL under way began: what has read anything since must not be
    /// committed if there are more.
    pub fn began(&self) -> u64 {
        self.began.load(Ordering::Acquire)
    }
}
