//! What keeps writers and changes of a collection's placement apart.
//!
//! What a shard owns of a sharded collection says a document of `config.placements`, by the collection's UUID. A writer that has looked at
//! it and commits when it is another one writes what is not the shard's any more. So:
//!
//! - **Who writes a placement holds the collection's gate** ([`Gate::hold`](crate::locks::Gate::hold)) until its commit is visible: no unit
//!   is within, and none gets in. A prepared transaction holds it until it is decided, on every member.
//! - **A unit** looks at the placement after it has passed the gate: it stays what it is until the unit leaves.
//! - **A transaction** may be open for long, and is not waited for. It passes the gate again to commit or to be prepared, and fails if the
//!   placement of a collection that it writes to has changed since its snapshot ([`Guards`]). Prepared, it is within like a unit, on every
//!   member: who wants to change the placement waits for the decision.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Result, bail};
use smallvec::SmallVec;
use uuid::Uuid;

use crate::catalog::{Catalog, Collection};
use crate::core::Core;
use crate::engine::Engine;
use crate::keys::{prefixed, put_id_key};
use crate::locks::{Hold, Pass};
use crate::oplog::{self, Operation, uuid_value, value_uuid};
use crate::options::Interrupt;
use crate::write::write_conflict;

/// Where placements are.
const PLACEMENTS: &str = "config.placements";

/// How long who writes a placement waits for units that write to its collection. They do not get in meanwhile.
const HOLD_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a transaction that is about to commit waits for a change of a placement under way, which it most likely conflicts with.
const GUARD_TIMEOUT: Duration = Duration::from_millis(50);

/// Passes of a transaction that is about to commit, through the gates of the collections that it writes to.
pub(crate) type Guards = SmallVec<[(Arc<Collection>, Pass); 2]>;

/// The collection whose placement this document of a collection is, if it is one.
pub(crate) fn placed_by(
    catalog: &Catalog,
    home: &Collection,
    document: RawDoc<'_>,
) -> Option<Arc<Collection>> {
    if home.namespace != PLACEMENTS {
        return None;
    }
    catalog.by_uuid(&value_uuid(document.get("_id"))?).cloned()
}

/// The collections whose placements operations of a transaction change.
pub(crate) fn placed_by_operations(catalog: &Catalog, operations: &[u8]) -> Vec<Arc<Collection>> {
    let id_of = |operation| {
        let fields = Operation::read(operation);
        let document = if fields.op == Some("u") { fields.o2 } else { fields.o };
        if fields.namespace == PLACEMENTS { value_uuid(document.get("_id")) } else { None }
    };
    oplog::documents(operations).filter_map(|op| catalog.by_uuid(&id_of(op)?).cloned()).collect()
}

/// Holds the gate of a collection whose placement is about to be written.
///
/// Errors: `LockTimeout`, if its units do not leave in time.
pub(crate) fn hold(core: &Core, collection: &Collection, interrupt: Interrupt<'_>) -> Result<Hold> {
    let deadline = Instant::now() + HOLD_TIMEOUT;
    let in_time = || {
        interrupt()?;
        if Instant::now() < deadline {
            return Ok(());
        }
        bail!(
            Code::LOCK_TIMEOUT,
            "the placement of '{}' cannot be changed: its writers do not end within {HOLD_TIMEOUT:?}",
            collection.namespace
        )
    };
    collection.state.gate.hold(&core.base.options.block, &in_time)
}

/// Passes, for a transaction that is about to commit or to be prepared, through the gates of these collections once more, but those that
/// it holds itself.
///
/// Errors: `WriteConflict`, if a placement is about to change.
pub(crate) fn guard(
    core: &Core,
    passes: &[(Arc<Collection>, Pass)],
    holds: &[Hold],
    interrupt: Interrupt<'_>,
) -> Result<Guards> {
    let mut guards = Guards::new();
    for (collection, _) in passes {
        let gate = &collection.state.gate;
        let pass = match gate.try_pass_again() {
            Some(pass) => pass,
            None if holds.iter().any(|hold| hold.holds(gate)) => gate.force(),
            None => wait(core, collection, interrupt)?,
        };
        guards.push((collection.clone(), pass));
    }
    Ok(guards)
}

/// The records of the placements of these collections: whole keys.
pub(crate) fn placements(core: &Core, guards: &Guards) -> Result<Vec<Vec<u8>>> {
    let catalog = core.published.catalog();
    let Some(home) = catalog.collection(PLACEMENTS) else { return Ok(Vec::new()) };
    let record = |collection: &Collection| {
        let (mut key, mut full) = (Vec::with_capacity(24), Vec::new());
        put_id_key(uuid_value(&collection.uuid), &mut key)?;
        prefixed(home.ident, &key, &mut full);
        Ok(full)
    };
    guards.iter().map(|(collection, _)| record(collection)).collect()
}

/// Waits a little until a gate is not held any more. Who drains it of its units waits for those, and they perhaps for this transaction.
fn wait(core: &Core, collection: &Collection, interrupt: Interrupt<'_>) -> Result<Pass> {
    let gate = &collection.state.gate;
    let deadline = Instant::now() + GUARD_TIMEOUT;
    let in_time = || {
        interrupt()?;
        if gate.is_held() && Instant::now() < deadline { Ok(()) } else { Err(write_conflict()) }
    };
    loop {
        in_time()?;
        gate.wait_while_held(&core.base.options.block, &in_time)?;
        if let Some(pass) = gate.try_pass_again() {
            return Ok(pass);
        }
    }
}

impl Engine {
    /// Keeps plain writes out of a collection, without changing anything: waits until those that are under way are done, and for the
    /// decision on prepared transactions that have written to it. Transactions that are open cannot commit what they write to it, but its
    /// placement can be written. `None`: there is no such collection.
    ///
    /// Errors: those of `interrupt`; what waits meanwhile goes on.
    pub fn hold(&self, uuid: &Uuid, interrupt: Interrupt<'_>) -> Result<Option<Hold>> {
        let core = self.core();
        let Some(collection) = core.published.catalog().by_uuid(uuid).cloned() else { return Ok(None) };
        collection.state.gate.hold(&core.base.options.block, interrupt).map(Some)
    }
}
