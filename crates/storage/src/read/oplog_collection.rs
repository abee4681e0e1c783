//! The log as a collection: what the catalog has of it.

use std::collections::VecDeque;
use std::sync::Arc;

use sheaf_errors::{Code, Result, bail};
use sheaf_log::Log;
use uuid::Uuid;

use crate::catalog::{Catalog, Collection, CollectionState};
use crate::order::{Mutex, rank};

/// The namespace under which clients read the log.
pub const OPLOG_NAMESPACE: &str = "local.oplog.rs";

/// Above every number that collections and indexes get; it has no records.
const OPLOG_IDENT: u32 = u32::MAX - 1;

/// The log's UUID as a collection; the same in every data folder.
const OPLOG_UUID: Uuid = Uuid::from_u128(0x6f70_6c6f_672e_8272_8873_6865_6166_0001);

/// The log as the catalog has it. It is not stored there, and its records are the log's.
pub(crate) struct OplogCollection {
    pub collection: Arc<Collection>,
    pub(super) log: Arc<Log>,
    pub(super) counts: Mutex<{ rank::OPLOG_COUNTS }, Counts>,
}

/// How many operations the log holds: known only once somebody has asked.
#[derive(Default)]
pub(super) struct Counts {
    /// First entry, operations and their bytes of each run of entries, oldest first.
    pub runs: VecDeque<(u64, i64, i64)>,
    /// The first entry not counted.
    pub next: u64,
}

impl OplogCollection {
    pub fn new(log: Arc<Log>, max_bytes: u64) -> Self {
        let options = sheaf_bson::doc! { "capped": true, "size": max_bytes as i64, "autoIndexId": false };
        let state = Arc::new(CollectionState::new(0, 0));
        let namespace = OPLOG_NAMESPACE.to_owned();
        let collection = Collection::new(namespace, OPLOG_UUID, OPLOG_IDENT, options, Vec::new(), state);
        OplogCollection { collection: Arc::new(collection), log, counts: Mutex::default() }
    }
}

/// Refuses what may be done to every collection but the log.
///
/// Errors: `IllegalOperation`.
pub(crate) fn refuse_oplog(namespace: &str, what: &str) -> Result<()> {
    if namespace == OPLOG_NAMESPACE {
        bail!(Code::ILLEGAL_OPERATION, "can't {what} live oplog while replicating");
    }
    Ok(())
}

impl Collection {
    /// Whether this is the log itself.
    pub fn is_oplog(&self) -> bool {
        self.ident == OPLOG_IDENT
    }
}

impl Catalog {
    /// The log as a collection; `None` without a journal.
    pub fn oplog(&self) -> Option<&Arc<Collection>> {
        self.by_uuid(&OPLOG_UUID)
    }
}
