//! Transactions over several shards, as far as this shard's log tells of them: what is prepared, and how it ended.
//!
//! Rows stand among those of the session:
//!
//! ```text
//! [lsid document] 'p' [txnNumber u64]  -> {state, at, participants, ...} and, while it is prepared, its operations
//! ```
//!
//! All of them are in memory too, without the operations. Who applies an entry [computes](Transactions::changes) what it makes of
//! them, has that in its batch, and [shows](Transactions::show) it when the batch is visible. That is the same on every member.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ahash::AHashSet;
use arc_swap::ArcSwap;
use rocksdb::WriteBatch;
use sheaf_bson::{DocBuf, RawDoc, Timestamp};
use sheaf_errors::{Code, Result, bail};
use smallvec::SmallVec;

use super::prepared::{Counts, Written};
use super::step::{Holding, Step};
use super::transaction_rows::{Row, TransactionRow, row_key};
use crate::db::{Cf, Db, io_error};
use crate::durability::LogPin;
use crate::keys::catalog_key;
use crate::oplog::{TransactionKey, TransactionRecord};
use crate::options::{Block, Interrupt, OpTime};
use crate::order::{Condvar, Mutex, rank};
use crate::read::undecided::{Ended, InDoubt, Undecided};

/// How often who waits for another's turn looks whether it was interrupted.
const POLL: Duration = Duration::from_millis(20);

/// Is told of records, in the order of the log, with the position of each.
pub type TransactionListener = Arc<dyn Fn(OpTime, &TransactionRecord) + Send + Sync>;

/// A row and what goes with it in memory.
struct Known {
    row: Row,
    /// Of what is prepared.
    held: Option<Holding>,
    /// The same, as readers meet it.
    undecided: Option<Arc<Undecided>>,
    /// Keeps the prepare in the log until the commit is settled, for change streams and rollbacks.
    pin: Option<LogPin>,
}

type Rows = BTreeMap<TransactionKey, Known>;

/// What a transaction changes that was prepared here.
pub(crate) struct Made {
    pub of: Arc<Undecided>,
    pub counts: Counts,
    pub locks: Written,
}

/// A commit, as long as a state without its entry can be read at a time that is not below the commit's.
struct Late {
    /// Index of its entry.
    index: u64,
    /// Time of its entry.
    time: u64,
    /// The time as of which it is committed.
    at: u64,
    of: Arc<Undecided>,
}

/// Commits, by index, and from which state on all that are behind it are known.
#[derive(Default)]
struct LateCommits {
    all: VecDeque<Late>,
    known_from: u64,
    /// The time of the last one that was forgotten.
    known_from_time: u64,
}

/// What a step makes of rows; `None`: the row goes.
pub(crate) type RowChanges = Vec<(TransactionKey, Option<Row>)>;

/// What is prepared and how it ended, who decides now, and the ceiling. All locks are leaves.
#[derive(Default)]
pub(crate) struct Transactions {
    rows: Mutex<{ rank::LEAF }, Rows>,
    /// What is prepared and not decided; changed under the lock of the rows, before locks of records are taken or freed.
    open: ArcSwap<Vec<Arc<Undecided>>>,
    /// Odd while entries of others that decide are being applied: what is visible then may have later values of what is still listed.
    applying: AtomicU64,
    late: Mutex<{ rank::LEAF }, LateCommits>,
    /// How many are prepared.
    undecided: AtomicUsize,
    ceiling: AtomicU64,
    listener: Mutex<{ rank::LEAF }, Option<TransactionListener>>,
    /// Sessions of which somebody is about to write a record.
    turns: Mutex<{ rank::LEAF }, AHashSet<Vec<u8>>>,
    turn_over: Condvar,
}

/// The turn of a session's records, until it is dropped: nobody else writes any meanwhile.
pub(crate) struct Turn<'t> {
    transactions: &'t Transactions,
    lsid: Vec<u8>,
}

/// Entries that decide are being applied, until it is dropped.
pub(crate) struct Applying<'t>(&'t Transactions);

impl Drop for Applying<'_> {
    fn drop(&mut self) {
        self.0.applying.fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.transactions.turns.lock().remove(&self.lsid);
        self.transactions.turn_over.notify_all();
    }
}

impl Transactions {
    // ---- turns ----

    /// Waits for the turn of a session's records. Who waits may hold passes through collections' gates, and no other.
    pub fn turn(&self, lsid: RawDoc<'_>, block: &Block, interrupt: Interrupt<'_>) -> Result<Turn<'_>> {
        if let Some(turn) = self.try_turn(lsid) {
            return Ok(turn);
        }
        let mut outcome = Ok(());
        block(&mut || {
            let mut turns = self.turns.lock();
            while turns.contains(lsid.as_bytes()) {
                outcome = interrupt();
                if outcome.is_err() {
                    return;
                }
                self.turn_over.wait_for(&mut turns, POLL);
            }
        });
        outcome?;
        match self.try_turn(lsid) {
            Some(turn) => Ok(turn),
            None => self.turn(lsid, block, interrupt),
        }
    }

    /// [`Transactions::turn`], if nobody has it.
    pub fn try_turn(&self, lsid: RawDoc<'_>) -> Option<Turn<'_>> {
        let lsid = lsid.as_bytes().to_vec();
        let free = self.turns.lock().insert(lsid.clone());
        // A turn that is not had must not be given back.
        free.then(|| Turn { transactions: self, lsid })
    }

    // ---- what is known ----

    pub fn row(&self, key: &TransactionKey) -> Option<Row> {
        self.rows.lock().get(key).map(|known| known.row.clone())
    }

    pub fn all(&self) -> Vec<(TransactionKey, TransactionRow)> {
        self.rows.lock().iter().map(|(key, known)| (key.clone(), known.row.row.clone())).collect()
    }

    /// The number of a session's newest row.
    pub fn newest(&self, lsid: RawDoc<'_>) -> Option<i64> {
        let rows = self.rows.lock();
        of_session(&rows, lsid).next_back().map(|(key, _)| key.txn_number)
    }

    /// Whether a transaction over several shards is committed.
    pub fn is_committed(&self, lsid: RawDoc<'_>, txn_number: i64) -> bool {
        let row = self.row(&TransactionKey { lsid: lsid.into(), txn_number });
        matches!(row.map(|row| row.row), Some(TransactionRow::Committed { .. }))
    }

    /// Errors: this transaction cannot be prepared any more, nor committed as one that nobody else knows of.
    pub fn check_unprepared(&self, key: &TransactionKey) -> Result<()> {
        let number = key.txn_number;
        match self.row(key).map(|row| row.row) {
            Some(TransactionRow::Aborted) => {
                bail!(Code::NO_SUCH_TRANSACTION, "Transaction {number} has been aborted.")
            }
            Some(TransactionRow::Prepared { .. }) => {
                bail!(Code::PREPARED_TRANSACTION_IN_PROGRESS, "Transaction {number} is prepared already.")
            }
            Some(TransactionRow::Committed { .. }) => {
                bail!(Code::TRANSACTION_COMMITTED, "Transaction {number} has been committed.")
            }
            None => {}
        }
        match self.newest(key.lsid.as_raw()) {
            Some(newest) if newest > number => bail!(
                Code::TRANSACTION_TOO_OLD,
                "Cannot end transaction {number}: the session has used transaction {newest}."
            ),
            _ => Ok(()),
        }
    }

    /// Whether a session has what must not be forgotten: a prepared transaction, or a commit that is not settled.
    pub fn is_pending(&self, lsid: RawDoc<'_>) -> bool {
        let rows = self.rows.lock();
        of_session(&rows, lsid).any(|(_, row)| row.is_pending())
    }

    /// A transaction that was prepared at or before `at` and is not decided.
    pub fn prepared_before(&self, at: Option<Timestamp>) -> Option<TransactionKey> {
        if self.undecided.load(Ordering::Acquire) == 0 {
            return None;
        }
        let rows = self.rows.lock();
        let in_doubt = |row: &Row| row.is_prepared() && at.is_none_or(|at| row.prepared <= at);
        let found = rows.iter().find(|(_, known)| in_doubt(&known.row));
        found.map(|(key, _)| key.clone())
    }

    pub fn ceiling(&self) -> Timestamp {
        Timestamp(self.ceiling.load(Ordering::Acquire))
    }

    pub fn listen(&self, listener: TransactionListener) {
        *self.listener.lock() = Some(listener);
    }

    /// Whether somebody wants to be told of records.
    pub fn is_listened_to(&self) -> bool {
        self.listener.lock().is_some()
    }

    // ---- steps ----

    /// What an entry that ends at `at` makes of the rows. The steps before it have been shown, those of the same sessions at
    /// least.
    ///
    /// Errors: the log decides of what is not prepared.
    pub fn changes(&self, step: &Step, at: OpTime) -> Result<RowChanges> {
        let rows = self.rows.lock();
        let mut changes = RowChanges::new();
        match &step.record {
            TransactionRecord::Prepare { key, participants } => {
                if rows.contains_key(key) {
                    bail!(Code::INTERNAL_ERROR, "transaction {key:?} is prepared, and there is a row of it");
                }
                let prepared = Timestamp(at.time);
                let row = TransactionRow::Prepared {
                    index: at.index,
                    at: prepared,
                    participants: participants.clone(),
                };
                let first = (at.index + 1).saturating_sub(step.entries);
                let collections = step.collections.clone();
                let row = Row { row, first, prepared, collections };
                changes.push((key.clone(), Some(row)));
                prune(&rows, key, &mut changes);
            }
            TransactionRecord::Commit { key, at } => {
                let Some(before) = rows.get(key).map(|known| &known.row) else {
                    bail!(Code::INTERNAL_ERROR, "transaction {key:?} commits, and there is no row of it");
                };
                let TransactionRow::Prepared { participants, .. } = &before.row else {
                    bail!(Code::INTERNAL_ERROR, "transaction {key:?} commits, and it is {:?}", before.row);
                };
                let row =
                    TransactionRow::Committed { at: *at, participants: participants.clone(), settled: false };
                changes.push((key.clone(), Some(Row { row, ..before.clone() })));
            }
            TransactionRecord::Abort { key } => {
                let before = rows.get(key).map(|known| &known.row);
                if let Some(TransactionRow::Committed { .. }) = before.map(|before| &before.row) {
                    bail!(Code::INTERNAL_ERROR, "transaction {key:?} is aborted after it has committed");
                }
                let newest = of_session(&rows, key.lsid.as_raw()).next_back();
                if newest.is_some_and(|(newest, _)| newest.txn_number > key.txn_number) {
                    changes.extend(before.map(|_| (key.clone(), None)));
                } else {
                    changes.push((key.clone(), Some(Row::aborted())));
                    prune(&rows, key, &mut changes);
                }
            }
            TransactionRecord::Settled { keys } => {
                for key in keys {
                    let Some(before) = rows.get(key).map(|known| &known.row) else { continue };
                    let TransactionRow::Committed { at, participants, settled: false } = &before.row else {
                        continue;
                    };
                    let newest = of_session(&rows, key.lsid.as_raw()).next_back();
                    let goes = newest.is_some_and(|(newest, _)| newest.txn_number > key.txn_number);
                    let row = TransactionRow::Committed {
                        at: *at,
                        participants: participants.clone(),
                        settled: true,
                    };
                    let settled = Row { row, ..before.clone() };
                    changes.push((key.clone(), (!goes).then_some(settled)));
                }
            }
            TransactionRecord::Ceiling(_)
            | TransactionRecord::Alone { .. }
            | TransactionRecord::SessionsEnded { .. } => {}
        }
        Ok(changes)
    }

    /// Has the rows in the batch that the step's operations are in.
    pub fn put(&self, db: &Db, step: &Step, changes: &RowChanges, batch: &mut WriteBatch) {
        for (key, row) in changes {
            let full = row_key(key);
            match row {
                Some(row) => {
                    let mut value = row.encode();
                    value.extend_from_slice(&step.operations);
                    batch.put_cf(db.cf(Cf::Sessions), full, value);
                }
                None => batch.delete_cf(db.cf(Cf::Sessions), full),
            }
        }
        if let TransactionRecord::Ceiling(at) = &step.record {
            let highest = at.0.max(self.ceiling().0);
            batch.put_cf(db.cf(Cf::Catalog), catalog_key::CEILING, highest.to_le_bytes());
        }
    }

    /// What the step has changed is visible: others see it too, locks of what is decided are free, and it is told. A prepare
    /// holds `held`; `pin` keeps it in the log.
    pub fn show(
        &self,
        step: Step,
        changes: RowChanges,
        held: Option<Holding>,
        pin: impl Fn(u64) -> LogPin,
        at: OpTime,
    ) {
        let prepared = changes.iter().filter_map(|(_, row)| row.as_ref()).find(|row| row.is_prepared());
        let mut with = (held, prepared.map(|row| pin(row.first.saturating_sub(1))));
        let mut gone = Vec::with_capacity(changes.len());
        let mut ended: SmallVec<[(Arc<Undecided>, Ended); 1]> = SmallVec::new();
        {
            let mut rows = self.rows.lock();
            for (key, row) in changes {
                let mut before = rows.remove(&key);
                self.count(before.as_ref(), -1);
                if let Some(undecided) = before.as_mut().and_then(|before| before.undecided.take()) {
                    ended.push((undecided, how_it_ended(row.as_ref())));
                }
                if let Some(row) = row {
                    let (mut held, pin) = match row.row {
                        TransactionRow::Prepared { .. } => (with.0.take(), with.1.take()),
                        TransactionRow::Committed { settled: false, .. } => {
                            (None, before.as_mut().and_then(|before| before.pin.take()))
                        }
                        _ => (None, None),
                    };
                    let undecided = held.as_mut().and_then(|held| undecided_of(&row, held));
                    self.change_open(undecided.iter().cloned(), &[]);
                    let known = Known { row, held, undecided, pin };
                    self.count(Some(&known), 1);
                    rows.insert(key, known);
                }
                gone.extend(before);
            }
        }
        if !ended.is_empty() {
            // Who looks at what is open and then at what was late finds it in one of them.
            self.note_late(&ended, at);
            let _rows = self.rows.lock();
            self.change_open(None, &ended);
        }
        // Locks are given back under no other.
        drop((gone, with));
        ended.iter().for_each(|(undecided, how)| undecided.end(*how));
        if let TransactionRecord::Ceiling(ceiling) = &step.record {
            self.ceiling.fetch_max(ceiling.0, Ordering::AcqRel);
        }
        let listener = self.listener.lock().clone();
        if let Some(listener) = listener {
            listener(at, &step.record);
        }
    }

    /// These sessions have ended with the entry at `at`, and their rows are gone.
    pub fn forget(&self, lsids: Vec<DocBuf>, at: OpTime) {
        if lsids.is_empty() {
            return;
        }
        for lsid in &lsids {
            let mut rows = self.rows.lock();
            let keys: Vec<_> = of_session(&rows, lsid.as_raw()).map(|(key, _)| key.clone()).collect();
            let gone: Vec<_> = keys.iter().filter_map(|key| rows.remove(key)).collect();
            drop(rows);
            gone.iter().for_each(|known| self.count(Some(known), -1));
        }
        let listener = self.listener.lock().clone();
        if let Some(listener) = listener {
            listener(at, &TransactionRecord::SessionsEnded { lsids });
        }
    }

    fn count(&self, known: Option<&Known>, by: isize) {
        if known.is_some_and(|known| known.row.is_prepared()) {
            self.undecided.fetch_add(by as usize, Ordering::AcqRel);
        }
    }

    // ---- on disk ----

    /// Reads all rows and the ceiling. What is prepared holds nothing yet ([`Transactions::hold`]); `pin` keeps it in the log.
    pub fn load(&self, db: &Db, pin: impl Fn(u64) -> LogPin) -> Result<()> {
        if let Some(bytes) = db.get(Cf::Catalog, catalog_key::CEILING)? {
            let ceiling = bytes.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            self.ceiling.store(ceiling, Ordering::Release);
        }
        let mut iter = db.raw().raw_iterator_cf(db.cf(Cf::Sessions));
        iter.seek_to_first();
        while let Some(lsid) = iter.key().and_then(|key| crate::oplog::documents(key).next()) {
            let lsid = DocBuf::from(lsid);
            let prefix = [lsid.as_bytes(), b"p"].concat();
            iter.seek(&prefix);
            while let (Some(key), Some(value)) = (iter.key(), iter.value())
                && let Some(number) = key.strip_prefix(&prefix[..])
            {
                let number = number.first_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes) as i64);
                let (Some(txn_number), Some(row)) = (number, Row::decode(value)) else {
                    bail!(
                        Code::INTERNAL_ERROR,
                        "the row of a transaction of session {lsid:?} cannot be read"
                    );
                };
                let pin = row.is_pending().then(|| pin(row.first.saturating_sub(1)));
                let known = Known { row, held: None, undecided: None, pin };
                self.count(Some(&known), 1);
                self.rows.lock().insert(TransactionKey { lsid: lsid.clone(), txn_number }, known);
                iter.next();
            }
            // Statements are passed over: there may be many.
            iter.seek([lsid.as_bytes(), b"t"].concat());
        }
        iter.status().map_err(io_error)
    }

    /// What is prepared.
    pub fn prepared(&self) -> Vec<TransactionKey> {
        let rows = self.rows.lock();
        let prepared = rows.iter().filter(|(_, known)| known.row.is_prepared());
        prepared.map(|(key, _)| key.clone()).collect()
    }

    /// What a prepared transaction changes, with what this does to counts and all that it has locked; `None` where that is told by its
    /// operations alone: another member has prepared it, or this one before it was started.
    pub fn made(&self, key: &TransactionKey) -> Option<Made> {
        let rows = self.rows.lock();
        let known = rows.get(key)?;
        let (held, of) = (known.held.as_ref()?, known.undecided.clone()?);
        Some(Made { of, counts: held.counts.clone()?, locks: held.locks.as_slice().into() })
    }

    /// A transaction that is prepared holds this from now on.
    pub fn hold(&self, key: &TransactionKey, mut held: Holding) {
        let mut rows = self.rows.lock();
        let Some(known) = rows.get_mut(key) else { return };
        known.undecided = undecided_of(&known.row, &mut held);
        self.change_open(known.undecided.iter().cloned(), &[]);
        let before = known.held.replace(held);
        drop(rows);
        drop(before);
    }

    // ---- for readers ----

    /// Changes what is open. The rows are locked.
    fn change_open(&self, new: impl IntoIterator<Item = Arc<Undecided>>, ended: &[(Arc<Undecided>, Ended)]) {
        let mut new = new.into_iter().peekable();
        if new.peek().is_none() && ended.is_empty() {
            return;
        }
        let has_ended = |one: &Arc<Undecided>| ended.iter().any(|(other, _)| Arc::ptr_eq(one, other));
        let before = self.open.load();
        let left = before.iter().filter(|one| !has_ended(one)).cloned();
        self.open.store(Arc::new(left.chain(new).collect()));
    }

    fn note_late(&self, ended: &[(Arc<Undecided>, Ended)], entry: OpTime) {
        let commits = ended.iter().filter_map(|(of, how)| match how {
            Ended::Committed(at) => {
                Some(Late { index: entry.index, time: entry.time, at: *at, of: of.clone() })
            }
            Ended::Aborted => None,
        });
        self.late.lock().all.extend(commits);
    }

    /// No state before this index is read any more.
    pub fn forget_late(&self, oldest: u64) {
        let mut gone = SmallVec::<[Late; 8]>::new();
        let mut late = self.late.lock();
        late.known_from = late.known_from.max(oldest);
        while late.all.front().is_some_and(|late| late.index <= oldest) {
            gone.extend(late.all.pop_front());
        }
        late.known_from_time = gone.last().map_or(late.known_from_time, |last| last.time);
        drop(late);
    }

    /// Whether anything is prepared and not decided.
    pub fn has_open(&self) -> bool {
        self.undecided.load(Ordering::Acquire) > 0
    }

    /// To be kept while a batch of entries of others becomes visible, and what they have decided is not shown yet.
    pub fn applying(&self) -> Applying<'_> {
        self.applying.fetch_add(1, Ordering::AcqRel);
        Applying(self)
    }

    /// Where it is with entries of others; `None` while they are being applied.
    pub fn applied(&self) -> Option<u64> {
        Some(self.applying.load(Ordering::Acquire)).filter(|count| count % 2 == 0)
    }

    /// What is prepared and not decided. As long as this list is the newest, locks of what is in it are held.
    pub fn open(&self) -> Arc<Vec<Arc<Undecided>>> {
        self.open.load_full()
    }

    /// Whether that list is still the newest.
    pub fn is_open(&self, list: &Arc<Vec<Arc<Undecided>>>) -> bool {
        Arc::ptr_eq(&self.open.load(), list)
    }

    /// What is to be looked at besides a snapshot that ends at an index: what was prepared up to then, and decided behind it.
    /// `as_of` is a time below which all prepares are in the snapshot, and others do not matter. `None`: the state is too old; some of it
    /// is forgotten.
    pub fn beside(&self, index: u64, as_of: Option<u64>) -> Option<Vec<Arc<Undecided>>> {
        let concerns = |of: &Undecided| of.index <= index && as_of.is_none_or(|as_of| of.prepared <= as_of);
        // What ends meanwhile is in both lists rather than in none.
        let mut found: Vec<_> = self.open.load().iter().filter(|of| concerns(of)).cloned().collect();
        let late = self.late.lock();
        if index < late.known_from {
            return None;
        }
        let behind = late.all.iter().rev().take_while(|late| late.index > index);
        let behind = behind.filter(|late| as_of.is_none_or(|as_of| late.at <= as_of) && concerns(&late.of));
        for late in behind {
            if !found.iter().any(|known| Arc::ptr_eq(known, &late.of)) {
                found.push(late.of.clone());
            }
        }
        Some(found)
    }

    /// What was prepared and not decided at this time. `None`: some of it is forgotten.
    pub fn undecided_at(&self, time: Timestamp) -> Option<Vec<InDoubt>> {
        let in_doubt = |of: &Arc<Undecided>| InDoubt {
            prepared: Timestamp(of.prepared),
            collections: of.collections.clone(),
        };
        let mut found: Vec<_> = self.open.load().iter().map(in_doubt).collect();
        let late = self.late.lock();
        if time.0 < late.known_from_time {
            return None;
        }
        // They are in the order of their entries.
        let behind = late.all.iter().rev().take_while(|late| late.time > time.0);
        found.extend(behind.map(|late| in_doubt(&late.of)));
        drop(late);
        found.retain(|one| one.prepared <= time);
        Some(found)
    }

    /// What was decided up to this time, nobody here knows.
    pub fn begin(&self, time: u64) {
        self.late.lock().known_from_time = time;
    }
}

/// A prepared transaction for readers, with what it holds for them.
fn undecided_of(row: &Row, held: &mut Holding) -> Option<Arc<Undecided>> {
    let TransactionRow::Prepared { index, .. } = row.row else { return None };
    let writes = std::mem::take(&mut held.writes);
    Some(Undecided::new(row.prepared.0, index, held.owner, &row.collections, writes))
}

fn how_it_ended(row: Option<&Row>) -> Ended {
    match row.map(|row| &row.row) {
        Some(TransactionRow::Committed { at, .. }) => Ended::Committed(at.0),
        _ => Ended::Aborted,
    }
}

/// The rows of a session, oldest first.
fn of_session<'r>(
    rows: &'r Rows,
    lsid: RawDoc<'_>,
) -> impl DoubleEndedIterator<Item = (&'r TransactionKey, &'r Row)> {
    let bound = |txn_number| TransactionKey { lsid: lsid.into(), txn_number };
    rows.range(bound(i64::MIN)..=bound(i64::MAX)).map(|(key, known)| (key, &known.row))
}

/// A session gets a newer row: older ones that nobody will ask for go.
fn prune(rows: &Rows, newest: &TransactionKey, changes: &mut RowChanges) {
    for (key, row) in of_session(rows, newest.lsid.as_raw()) {
        let over =
            matches!(row.row, TransactionRow::Aborted | TransactionRow::Committed { settled: true, .. });
        if key.txn_number < newest.txn_number && over {
            changes.push((key.clone(), None));
        }
    }
}
