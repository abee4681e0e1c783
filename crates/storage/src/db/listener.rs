//! What RocksDB tells of its background work, and what it is told back.
//!
//! The binding has no listeners, so this goes to the C interface that the binding itself is built on. It is the one place of
//! this crate with unsafe code: pointers that RocksDB hands to its callbacks, valid for the time of the call, and figures that the
//! binding has no call for.
//!
//! - When memtables are about to become a file, [`Events::set_gate`]'s closure is called and may wait. Whatever has caused the
//!   flush, nothing gets into the files before it is allowed to.
//! - When a table file cannot be written for want of room, descriptors or memory, RocksDB would stop the whole database, in
//!   most cases for good. Nothing is lost by it: the memtables are still there, and an unfinished file is thrown away. So the
//!   error is taken note of and RocksDB is told that there was none; whoever asked for the flush asks again. Any other error,
//!   and any that concerns the MANIFEST, stands: the database takes no more writes then, until it is opened anew.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use librocksdb_sys as ffi;
use rocksdb::{AsColumnFamilyRef, AsRawPtr};

use crate::order::Mutex;
use crate::order::rank::LEAF;

/// Bytes of the smallest and largest keys of all table files. (The binding's own list would copy them once more.)
pub(crate) fn file_key_bytes(db: &rocksdb::DB) -> u64 {
    let mut bytes = 0;
    // SAFETY: the list is RocksDB's own copy, valid until it is freed here, and is asked for what it has only.
    unsafe {
        let files = ffi::rocksdb_livefiles(db.as_raw_ptr());
        for at in 0..ffi::rocksdb_livefiles_count(files) {
            for key in [ffi::rocksdb_livefiles_smallestkey, ffi::rocksdb_livefiles_largestkey] {
                let mut len = 0;
                key(files, at, &raw mut len);
                bytes += len as u64;
            }
        }
        ffi::rocksdb_livefiles_destroy(files);
    }
    bytes
}

/// Estimated bytes of a key range in memtables, which the binding knows nothing of.
pub(crate) fn memtable_bytes(db: &rocksdb::DB, cf: &rocksdb::ColumnFamily, from: &[u8], to: &[u8]) -> u64 {
    let flags = ffi::rocksdb_size_approximation_flags_include_memtable;
    let (mut bytes, mut error) = (0, std::ptr::null_mut());
    // SAFETY: one range, whose keys are there for the time of the call; an error is RocksDB's own copy, freed here.
    unsafe {
        ffi::rocksdb_approximate_sizes_cf_with_flags(
            db.as_raw_ptr(),
            cf.inner(),
            1,
            &from.as_ptr().cast(),
            &from.len(),
            &to.as_ptr().cast(),
            &to.len(),
            flags as u8,
            &raw mut bytes,
            &raw mut error,
        );
        if !error.is_null() {
            ffi::rocksdb_free(error.cast());
        }
    }
    bytes
}

/// Starts an atomic flush of all memtables of these families, at once: unless it is told so, which the binding has no call for, RocksDB
/// waits before until a file more would not slow down writers, for as long as a compaction takes.
pub(crate) fn flush(db: &rocksdb::DB, families: &[&rocksdb::ColumnFamily]) -> Result<(), String> {
    let mut families: Vec<_> = families.iter().map(|family| family.inner()).collect();
    let mut error = std::ptr::null_mut();
    // SAFETY: options and handles are there for the time of the call; an error is RocksDB's own copy, freed here.
    unsafe {
        let options = ffi::rocksdb_flushoptions_create();
        // RocksDB itself would wait for ever for a flush whose failure we have told it to pass over.
        ffi::rocksdb_flushoptions_set_wait(options, 0);
        ffi::rocksdb_flushoptions_set_allow_write_stall(options, 1);
        ffi::rocksdb_flush_cfs(
            db.as_raw_ptr(),
            options,
            families.as_mut_ptr(),
            families.len() as i32,
            &raw mut error,
        );
        ffi::rocksdb_flushoptions_destroy(options);
        if error.is_null() {
            return Ok(());
        }
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        ffi::rocksdb_free(error.cast());
        Err(text)
    }
}

/// RocksDB's `BackgroundErrorReason`s.
const FLUSH: u32 = 0;
const COMPACTION: u32 = 1;
const FLUSH_NO_WAL: u32 = 5;

/// After one that has failed, so long no compaction begins, unless a flush has ended meanwhile.
const COMPACTION_PAUSE: Duration = Duration::from_secs(10);

/// So long one does not begin that might not have room for all that it makes, which is no more than what it reads.
const ROOM_PATIENCE: Duration = Duration::from_secs(20);

/// So long at the most none begins while the log is applied at a start: it would take a processor from that.
const START_PATIENCE: Duration = Duration::from_secs(2);

type Gate = Box<dyn Fn() + Send + Sync>;

/// What has been heard.
#[derive(Default)]
pub(crate) struct Events {
    gate: OnceLock<Gate>,
    /// Memtables that became immutable: a flush was asked for, by us or by RocksDB.
    sealed: AtomicU64,
    failed_flushes: AtomicU64,
    stopped: AtomicBool,
    /// The log is applied.
    started: AtomicBool,
    /// When the first compaction was about to begin: when the database was opened, mostly.
    first_compaction: OnceLock<Instant>,
    /// The database is about to be closed.
    closing: AtomicBool,
    /// Nothing that is at work in the background has an effect any more.
    void: AtomicBool,
    /// Flushes that wait at the gate.
    held: AtomicU64,
    /// What stopped it may be over in a moment.
    may_go_on: AtomicBool,
    last_error: Mutex<LEAF, String>,
    /// Compactions are expected to make little of what they read.
    lessens: AtomicBool,
    /// When a compaction failed for want of something, until a flush has ended.
    compaction_failed: Mutex<LEAF, Option<Instant>>,
}

impl Events {
    /// Sets what is called, on RocksDB's thread, before memtables are written to a file. Once.
    pub fn set_gate(&self, gate: Gate) {
        let _ = self.gate.set(gate);
    }

    /// The log is applied: compactions may begin.
    pub fn note_started(&self) {
        self.started.store(true, Ordering::Release);
    }

    /// Nothing of RocksDB's waits any more for something to get better.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Background work is without effect from now on; see [`crate::db::Db::end_background`].
    pub fn end(&self) {
        self.void.store(true, Ordering::Release);
    }

    /// Whether whatever goes through the gate is without effect.
    pub fn is_void(&self) -> bool {
        self.void.load(Ordering::Acquire)
    }

    /// Notes that a flush waits at the gate while `work` runs.
    pub fn hold(&self, work: impl FnOnce()) {
        self.held.fetch_add(1, Ordering::AcqRel);
        work();
        self.held.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether a flush waits at the gate.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire) > 0
    }

    /// How many memtables have been sealed since the database was opened.
    pub fn sealed(&self) -> u64 {
        self.sealed.load(Ordering::Acquire)
    }

    /// How many flushes have failed since the database was opened.
    pub fn failed_flushes(&self) -> u64 {
        self.failed_flushes.load(Ordering::Acquire)
    }

    /// Whether RocksDB takes no more writes, until it is opened anew.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Whether [`Events::is_stopped`] for want of something that the system may have again, so that opening it anew helps.
    pub fn may_go_on(&self) -> bool {
        self.is_stopped() && self.may_go_on.load(Ordering::Acquire)
    }

    /// The text of the newest error.
    pub fn last_error(&self) -> String {
        self.last_error.lock().clone()
    }

    /// Notes an error; whether RocksDB is to go on as if there had been none.
    fn error(&self, reason: u32, text: String) -> bool {
        let passes = matches!(reason, FLUSH | COMPACTION | FLUSH_NO_WAL) && is_transient(&text);
        match reason {
            _ if !passes => {
                tracing::error!(reason, error = text, "RocksDB has stopped");
                self.may_go_on.store(is_transient(&text), Ordering::Release);
                self.stopped.store(true, Ordering::Release);
            }
            COMPACTION => {
                tracing::warn!(error = text, "a compaction failed and will be tried again");
                *self.compaction_failed.lock() = Some(Instant::now());
            }
            _ => {
                tracing::warn!(error = text, "writing memtables to disk failed and will be tried again");
                self.failed_flushes.fetch_add(1, Ordering::AcqRel);
            }
        }
        *self.last_error.lock() = text;
        passes
    }

    /// RocksDB does a failed compaction again at once. On a full disk that would take, each time, the last room from the log, and from the flush that
    /// brings what was deleted into files. It is held up before it begins: what the failed one had written is gone by then. So is each while
    /// the log is applied at a start.
    fn hold_compaction(&self, inputs: &[PathBuf]) {
        let began = Instant::now();
        let bytes: u64 = inputs.iter().filter_map(|path| path.metadata().ok()).map(|about| about.len()).sum();
        let has_room =
            || inputs.first().is_none_or(|path| fs4::available_space(path).is_ok_and(|room| room >= bytes));
        let failed_lately =
            || self.compaction_failed.lock().is_some_and(|failed| failed.elapsed() < COMPACTION_PAUSE);
        let first = *self.first_compaction.get_or_init(|| began);
        let starts = || !self.started.load(Ordering::Acquire) && first.elapsed() < START_PATIENCE;
        let waits_for_room =
            || began.elapsed() < ROOM_PATIENCE && !self.lessens.load(Ordering::Acquire) && !has_room();
        while (starts() || failed_lately() || waits_for_room())
            && !self.closing.load(Ordering::Acquire)
            && !self.is_void()
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether compactions make little of what they read from now on, so that they need no room for all of it.
    pub fn expect_less(&self, less: bool) {
        self.lessens.store(less, Ordering::Release);
    }
}

/// Whether the system lacks something that it may have again in a moment.
fn is_transient(text: &str) -> bool {
    ["No space left", "quota exceeded", "Too many open files", "Cannot allocate memory"]
        .iter()
        .any(|lack| text.contains(lack))
}

/// Has a database that is opened with these options tell what it does.
pub(crate) fn listen(options: &mut rocksdb::Options, events: &Arc<Events>) {
    let state = Arc::into_raw(events.clone()).cast::<c_void>().cast_mut();
    // SAFETY: the listener owns the reference that `state` is, and `forget` gives it back when RocksDB drops the listener.
    // The options share the listener with the databases opened with them.
    unsafe {
        let listener = ffi::rocksdb_eventlistener_create(
            state,
            Some(forget),
            Some(flush_begins),
            Some(flush_ended),
            Some(compaction_begins),
            Some(compaction_ended),
            Some(subcompaction),
            Some(subcompaction),
            Some(ingested),
            Some(background_error),
            Some(stall),
            Some(sealed),
        );
        ffi::rocksdb_options_add_eventlistener(options.as_raw_ptr(), listener);
    }
}

/// # Safety
/// `state` is what [`listen`] has given to RocksDB.
unsafe fn events<'e>(state: *mut c_void) -> &'e Events {
    // SAFETY: the listener's reference keeps it alive while callbacks run.
    unsafe { &*state.cast_const().cast::<Events>() }
}

/// A panic must not go through RocksDB's frames.
fn guarded(work: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
        std::process::abort();
    }
}

unsafe extern "C" fn forget(state: *mut c_void) {
    // SAFETY: called once, when nobody can call the listener any more.
    drop(unsafe { Arc::from_raw(state.cast_const().cast::<Events>()) });
}

unsafe extern "C" fn flush_begins(
    state: *mut c_void,
    _: *mut ffi::rocksdb_t,
    _: *const ffi::rocksdb_flushjobinfo_t,
) {
    // SAFETY: see `events`.
    let events = unsafe { events(state) };
    guarded(|| {
        if let Some(gate) = events.gate.get() {
            gate();
        }
    });
}

unsafe extern "C" fn sealed(state: *mut c_void, _: *const ffi::rocksdb_memtableinfo_t) {
    // SAFETY: see `events`.
    unsafe { events(state) }.sealed.fetch_add(1, Ordering::AcqRel);
}

unsafe extern "C" fn background_error(
    state: *mut c_void,
    reason: u32,
    status: *mut ffi::rocksdb_status_ptr_t,
) {
    // SAFETY: `status` is valid for the call, and the text is RocksDB's until it is freed here.
    unsafe {
        let mut text: *mut c_char = std::ptr::null_mut();
        ffi::rocksdb_status_ptr_get_error(status, &raw mut text);
        if text.is_null() {
            return;
        }
        let message = CStr::from_ptr(text).to_string_lossy().into_owned();
        ffi::rocksdb_free(text.cast());
        let events = events(state);
        guarded(|| {
            if events.error(reason, message) {
                ffi::rocksdb_reset_status(status);
            }
        });
    }
}

unsafe extern "C" fn flush_ended(
    state: *mut c_void,
    _: *mut ffi::rocksdb_t,
    _: *const ffi::rocksdb_flushjobinfo_t,
) {
    // SAFETY: see `events`.
    let events = unsafe { events(state) };
    guarded(|| *events.compaction_failed.lock() = None);
}

unsafe extern "C" fn compaction_begins(
    state: *mut c_void,
    _: *mut ffi::rocksdb_t,
    info: *const ffi::rocksdb_compactionjobinfo_t,
) {
    // SAFETY: see `events`; the names are there for the time of the call.
    let (events, inputs) = unsafe { (events(state), input_files(info)) };
    guarded(|| events.hold_compaction(&inputs));
}

/// # Safety
/// `info` is what RocksDB has given to a callback.
unsafe fn input_files(info: *const ffi::rocksdb_compactionjobinfo_t) -> Vec<PathBuf> {
    // SAFETY: each name is asked for by a number below their count, and has as many bytes as it says.
    unsafe {
        (0..ffi::rocksdb_compactionjobinfo_input_files_count(info))
            .map(|at| {
                let mut len = 0;
                let name = ffi::rocksdb_compactionjobinfo_input_file_at(info, at, &raw mut len);
                PathBuf::from(OsStr::from_bytes(std::slice::from_raw_parts(name.cast::<u8>(), len)))
            })
            .collect()
    }
}

// The C interface calls these without looking whether they are there.
unsafe extern "C" fn compaction_ended(
    _: *mut c_void,
    _: *mut ffi::rocksdb_t,
    _: *const ffi::rocksdb_compactionjobinfo_t,
) {
}
unsafe extern "C" fn subcompaction(_: *mut c_void, _: *const ffi::rocksdb_subcompactionjobinfo_t) {}
unsafe extern "C" fn ingested(
    _: *mut c_void,
    _: *mut ffi::rocksdb_t,
    _: *const ffi::rocksdb_externalfileingestioninfo_t,
) {
}
unsafe extern "C" fn stall(_: *mut c_void, _: *const ffi::rocksdb_writestallinfo_t) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compactions_wait_until_the_log_is_applied() {
        let events = Arc::<Events>::default();
        let of_another = events.clone();
        let began = Instant::now();
        let compaction = std::thread::spawn(move || of_another.hold_compaction(&[]));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!compaction.is_finished() || began.elapsed() > START_PATIENCE);
        events.note_started();
        compaction.join().unwrap();
        events.hold_compaction(&[]);
    }

    #[test]
    fn what_stops_the_database_and_what_does_not() {
        let events = Events::default();
        assert!(events.error(FLUSH_NO_WAL, "IO error: No space left on device".into()));
        assert!(events.error(COMPACTION, "IO error: Too many open files".into()));
        assert_eq!(events.failed_flushes(), 1);
        assert!(!events.is_stopped() && events.compaction_failed.lock().is_some());
        assert!(!events.error(COMPACTION, "Corruption: block checksum mismatch".into()));
        assert!(!events.error(FLUSH_NO_WAL, "IO error: Input/output error".into()));
        assert!(events.is_stopped() && !events.may_go_on());
        let events = Events::default();
        assert!(!events.error(6, "IO error: No space left on device: MANIFEST".into()));
        assert!(events.may_go_on());
    }
}
