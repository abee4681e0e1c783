//! Any bytes as a message of another member: decoding returns, allocates no more than the bytes can account for,
//! and what it accepts is the same message when it is written again, and its entries are ones of one log. Any bytes as an
//! entry's payload: reading it says whether the log may have it.
#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use libfuzzer_sys::fuzz_target;
use sheaf_repl::Envelope;

/// The system's allocator, with the most that was held at once.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A configuration's members and texts of errors.
const OVERHEAD: usize = 64 * 1024;

/// An entry of 24 bytes becomes a value of some 130, in a vector that holds its old and new memory for a moment.
const RATIO: usize = 24;

fuzz_target!(|data: &[u8]| {
    any_message(data);
    let _ = sheaf_storage::check_entry(1, 1, data);
    // The first bytes are those of every message, so that what follows is reached by any input.
    let mut message = vec![0; 42];
    message[0] = 2;
    message.extend_from_slice(data);
    if let Some((kind, _)) = data.split_first() {
        message[41] = kind % 5;
    }
    any_message(&message);
});

fn any_message(data: &[u8]) {
    let bytes = data.to_vec().into();
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let decoded = Envelope::decode(&bytes);
    let took = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    assert!(took <= OVERHEAD + RATIO * data.len(), "{took} bytes for a message of {}", data.len());
    let Ok(message) = decoded else { return };
    assert_eq!(Envelope::sender(data), Some(message.from));
    let mut before = None;
    for (at, time, payload) in message.entries() {
        assert!(
            before.is_none_or(|(term, index, earlier)| term <= at.term
                && index + 1 == at.index
                && earlier < time)
        );
        before = Some((at.term, at.index, time));
        let _ = sheaf_storage::check_entry(at.term, time, payload);
    }
    // Compared as bytes: a priority may be no number, which equals nothing.
    let written = message.encode();
    let again = Envelope::decode(&written.clone().into()).expect("what was written can be read");
    assert_eq!(again.encode(), written, "{message:?}");
}
