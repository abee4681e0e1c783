//! The allocators: mimalloc for what is ours, the C library's for RocksDB.
//!
//! mimalloc keeps what was freed for a second and more, so that it need not be had again from the system; that second's
//! worth of arenas and messages has filled a small machine. So it is told how short memory is.

use std::ffi::{c_int, c_long};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sheaf_front::guard::{Allocator, Pressure};

/// What the server calls.
pub const HOOKS: Allocator = Allocator { relieve, tidy };

/// `mi_option_purge_delay`: milliseconds after which freed memory goes back to the system, and 0 for at once.
const PURGE_DELAY: c_int = 15;

/// mimalloc's own choice.
const USUAL_DELAY_MS: c_long = 1000;

/// `mi_option_page_full_retain`: pages of small values that a thread keeps although they are full, of each size.
const PAGE_FULL_RETAIN: c_int = 36;

/// `mi_option_generic_collect`: after so many slow allocations a thread tidies up.
const GENERIC_COLLECT: c_int = 34;

/// mimalloc's own choice.
const USUAL_COLLECT: c_long = 10_000;

/// A process that may have less than this is small.
const SMALL_BYTES: u64 = 4 << 30;

/// One that may have less than this is tiny. All hostile clients together (tests/hostile) fill 512 MB with what was freed and
/// kept if it stays for even a moment.
const TINY_BYTES: u64 = 1 << 30;

/// How often the C library is asked; it walks through all it has.
const TRIM_PERIOD: Duration = Duration::from_secs(1);

#[allow(unsafe_code)]
unsafe extern "C" {
    fn mi_option_set(option: c_int, value: c_long);
    fn mi_collect(force: bool);
}

/// Blocks of the C library from this size on are had from the system one by one, where memory is very little.
const MAPPED_BYTES: c_int = 256 << 10;

/// And where memory is little.
const LARGE_BYTES: c_int = 2 << 20;

/// Whether the process is so small that nothing freed may lie about.
static TINY: AtomicBool = AtomicBool::new(false);

/// To be called before there are threads, with what the process may have: where that is little, threads keep less, and where
/// it is very little, what is freed goes back at once, in pages of the usual size.
#[allow(unsafe_code)]
pub fn prepare(bytes: u64) {
    if bytes < SMALL_BYTES {
        // SAFETY: takes plain numbers.
        unsafe { mi_option_set(PAGE_FULL_RETAIN, 0) };
        // Eight threads with batches of 14 MB each had half a gigabyte of nothing.
        return_blocks_from(LARGE_BYTES);
    }
    if bytes < TINY_BYTES {
        TINY.store(true, Ordering::Relaxed);
        // SAFETY: both take plain numbers. The second changes no more than what pages the system gives, and may fail.
        unsafe {
            mi_option_set(PURGE_DELAY, 0);
            libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
        }
        return_blocks_from(MAPPED_BYTES);
    }
}

/// Gives back what this thread keeps for itself.
#[allow(unsafe_code)]
fn tidy(pressure: Pressure) {
    // SAFETY: takes a flag; it is about this thread's own memory, and with force about all that lies free.
    unsafe { mi_collect(pressure >= Pressure::High) };
}

/// Has freed memory go back to the system: all that lies there now, and what is freed from now on the sooner the less
/// memory there is.
#[allow(unsafe_code)]
fn relieve(pressure: Pressure) {
    let delay = match pressure {
        _ if TINY.load(Ordering::Relaxed) => 0,
        Pressure::None => USUAL_DELAY_MS,
        Pressure::Some => 10,
        _ => 0,
    };
    let collect = if pressure == Pressure::None { USUAL_COLLECT } else { USUAL_COLLECT / 10 };
    // SAFETY: these take plain numbers and may be called from any thread at any time.
    unsafe {
        mi_option_set(GENERIC_COLLECT, collect);
        if pressure > Pressure::None {
            // With a delay of 0 it would not look at what was freed before.
            mi_option_set(PURGE_DELAY, 1);
            mi_collect(true);
        }
        mi_option_set(PURGE_DELAY, delay);
    }
    if pressure >= Pressure::High {
        trim();
    }
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
fn trim() {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if last.is_none_or(|last| last.elapsed() >= TRIM_PERIOD) {
        *last = Some(Instant::now());
        // SAFETY: takes a number, and the C library's own locks.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Has the C library give large blocks back to the system when they are freed. By itself it learns to keep blocks of up to
/// 32 MB, and RocksDB's buffers for large keys and values, of many sizes, then leave holes that nothing fits into.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
fn return_blocks_from(bytes: c_int) {
    // SAFETY: takes plain numbers.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, bytes) };
}

#[cfg(not(target_env = "gnu"))]
fn return_blocks_from(_: c_int) {}

#[cfg(not(target_env = "gnu"))]
fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Touched, so that the system has given it.
    fn megabytes(count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|n| vec![n as u8 | 1; 1 << 20]).collect()
    }

    #[allow(unsafe_code)]
    unsafe extern "C" {
        fn mi_option_get(option: c_int) -> c_long;
    }

    /// Set in the process that this test starts, with the values of the options.
    const OPTIONS: [(c_int, &str, c_long); 3] = [
        (PURGE_DELAY, "MIMALLOC_PURGE_DELAY", 1234),
        (PAGE_FULL_RETAIN, "MIMALLOC_PAGE_FULL_RETAIN", 7),
        (GENERIC_COLLECT, "MIMALLOC_GENERIC_COLLECT", 4321),
    ];

    /// The numbers are not in the binding, and another version of mimalloc may have others. It takes its options from the
    /// environment too, by name.
    #[test]
    fn the_options_numbers_are_those_of_their_names() {
        const STARTED: &str = "SHEAF_TEST_OPTIONS_BY_NAME";
        if std::env::var_os(STARTED).is_some() {
            for (option, name, value) in OPTIONS {
                // SAFETY: takes a plain number.
                #[allow(unsafe_code)]
                let known = unsafe { mi_option_get(option) };
                assert_eq!(known, value, "{name} is not option {option}");
            }
            return;
        }
        let itself = std::env::current_exe().unwrap();
        let mut again = std::process::Command::new(itself);
        again.args([
            "--exact",
            "allocator::tests::the_options_numbers_are_those_of_their_names",
            "--nocapture",
        ]);
        again.env(STARTED, "1");
        for (_, name, value) in OPTIONS {
            again.env(name, value.to_string());
        }
        let output = again.output().unwrap();
        let [text, why] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        assert!(output.status.success() && text.contains("1 passed"), "{text}{why}");
    }

    #[test]
    fn what_was_freed_goes_back_when_memory_is_short() {
        let before = sheaf_front::system::anonymous_memory();
        let held = megabytes(200);
        let most = sheaf_front::system::anonymous_memory();
        assert!(most >= before + (180 << 20), "{before} {most}");
        drop(held);
        relieve(Pressure::High);
        let after = sheaf_front::system::anonymous_memory();
        assert!(after <= before + (60 << 20), "{before} {most} {after}");
        // And without another call, once it is very short: the option's number is the right one.
        relieve(Pressure::High);
        drop(megabytes(200));
        let after = sheaf_front::system::anonymous_memory();
        assert!(after <= before + (60 << 20), "{before} {most} {after}");
        relieve(Pressure::None);
    }
}
