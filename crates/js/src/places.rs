//! Who may run functions: so many at a time, with so much memory.
//!
//! What an operation leaves behind may be at work for good, with its heap. So each user has a share of the threads, and of the memory of
//! operations, that what runs for him cannot exceed, and what is left behind has a bound for all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sheaf_errors::{Code, Error, Result};
use sheaf_meter::Account;

/// So many functions may run at a time, those that were left behind included...
const MOST: usize = 256;

/// ...and so many of one user, or of all of whom nobody knows who they are.
const MOST_OF_ONE: usize = 16;

/// Of the memory of all operations, what the functions of one user may have together; one alone may have what its operation may.
const SHARE_OF_ONE: usize = 5;

/// The same of all that are left behind: beyond it, those have no more functions who have left any, and nobody gets more than one begins with.
const SHARE_OF_LEFT: usize = 3;

/// Between two looks of who has to wait for a place.
const LOOK: Duration = Duration::from_millis(20);

static PLACES: Mutex<Places> = Mutex::new(Places(Vec::new()));

/// The memory of a sandbox.
pub(crate) struct Heap {
    /// What it may have, which grows while it runs.
    bytes: AtomicUsize,
    /// Who pays for it.
    account: Option<Arc<Account>>,
    /// Bytes of which the account knows that they stay in use.
    lost: AtomicUsize,
}

impl Heap {
    /// So many bytes of this account.
    pub fn new(bytes: usize, account: Option<Arc<Account>>) -> Arc<Heap> {
        Arc::new(Heap { bytes: AtomicUsize::new(bytes), account, lost: AtomicUsize::new(0) })
    }

    /// What it may have.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// It has grown.
    pub fn set(&self, bytes: usize) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }
}

/// A function that runs.
struct Running {
    owner: u64,
    heap: Arc<Heap>,
    /// Whether its operation has gone on without it.
    left: bool,
}

#[derive(Default)]
struct Sum {
    count: usize,
    bytes: usize,
}

struct Places(Vec<Running>);

/// What becomes of who asks for a place.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Taken,
    /// Those at work may soon be done.
    Wait,
    /// Those that are left behind may not.
    Refused,
}

impl Places {
    fn sum(&self, of: impl Fn(&Running) -> bool) -> Sum {
        let mut sum = Sum::default();
        for running in self.0.iter().filter(|running| of(running)) {
            sum.count += 1;
            sum.bytes += running.heap.bytes();
        }
        sum
    }

    /// A place for an owner's function with this heap, where all operations have `limit` bytes together.
    fn take(&mut self, owner: u64, heap: &Arc<Heap>, limit: usize) -> Answer {
        let bytes = heap.bytes();
        let left = self.sum(|running| running.left);
        let own_left = self.sum(|running| running.left && running.owner == owner);
        let too_much =
            own_left.bytes + bytes > limit / SHARE_OF_ONE || left.bytes + bytes > limit / SHARE_OF_LEFT;
        if left.count >= MOST || own_left.count >= MOST_OF_ONE || own_left.count > 0 && too_much {
            return Answer::Refused;
        }
        let own = self.sum(|running| running.owner == owner);
        let has_room = own.count == 0 || own.bytes + bytes <= limit / SHARE_OF_ONE;
        if self.0.len() >= MOST || own.count >= MOST_OF_ONE || !has_room {
            return Answer::Wait;
        }
        self.0.push(Running { owner, heap: heap.clone(), left: false });
        Answer::Taken
    }

    fn of(&mut self, heap: &Arc<Heap>) -> Option<&mut Running> {
        self.0.iter_mut().find(|running| Arc::ptr_eq(&running.heap, heap))
    }

    /// Whether the function with this heap may have so much.
    fn may_grow(&self, heap: &Arc<Heap>, bytes: usize, limit: usize) -> bool {
        let Some(running) = self.0.iter().find(|running| Arc::ptr_eq(&running.heap, heap)) else {
            // It runs where its operation is, which waits for it.
            return true;
        };
        let others = self.sum(|other| other.owner == running.owner && !Arc::ptr_eq(&other.heap, heap));
        let left = self.sum(|other| other.left);
        !running.left
            && (others.count == 0 || others.bytes + bytes <= limit / SHARE_OF_ONE)
            && (left.count == 0 || left.bytes + bytes <= limit / SHARE_OF_LEFT)
    }
}

/// What all operations may have, where that is known.
fn limit() -> usize {
    sheaf_meter::current().map_or(usize::MAX, |meter| meter.process().limit() as usize)
}

/// Takes a place for an owner's function; who finds none waits for one, as long as his operation may.
///
/// Errors: `JSInterpreterFailure` while too many are left behind; what the operation has to end with.
pub(crate) fn take(owner: u64, heap: &Arc<Heap>) -> Result<()> {
    loop {
        let answer = PLACES.lock().take(owner, heap, limit());
        match answer {
            Answer::Taken => return Ok(()),
            Answer::Wait => sheaf_meter::pause(LOOK)?,
            Answer::Refused => {
                return Err(Error::new(
                    Code::JS_INTERPRETER_FAILURE,
                    "too many functions whose operations have ended are still at work in the JavaScript engine",
                ));
            }
        }
    }
}

/// The function with this heap has ended.
pub(crate) fn give_back(heap: &Arc<Heap>) {
    let mut places = PLACES.lock();
    let at = places.0.iter().position(|running| Arc::ptr_eq(&running.heap, heap));
    places.0.swap_remove(at.expect("who gives a place back has taken it"));
}

/// The function with this heap is left behind: the heap does not come back when its operation ends, and grows no more.
pub(crate) fn lose(heap: &Arc<Heap>) {
    let mut places = PLACES.lock();
    // It may just have ended.
    let Some(running) = places.of(heap) else { return };
    running.left = true;
    let bytes = heap.bytes();
    heap.lost.store(bytes, Ordering::Relaxed);
    if let Some(account) = &heap.account {
        account.lose(bytes as u64);
    }
}

/// It has ended after all.
pub(crate) fn found(heap: &Arc<Heap>) {
    let bytes = heap.lost.swap(0, Ordering::Relaxed);
    if let Some(account) = &heap.account {
        account.found(bytes as u64);
    }
}

/// Whether the sandbox with this heap may have so many bytes; outside of a place it may.
///
/// Errors: `ExceededMemoryLimit`.
pub(crate) fn may_grow(heap: &Arc<Heap>, bytes: usize) -> Result<()> {
    if PLACES.lock().may_grow(heap, bytes, limit()) {
        return Ok(());
    }
    let text = "the functions of one user in the JavaScript engine, or those whose operations have ended, have too much memory";
    Err(Error::new(Code::EXCEEDED_MEMORY_LIMIT, text))
}

/// Whether any function is left behind.
#[cfg(test)]
pub(crate) fn any_is_left() -> bool {
    PLACES.lock().sum(|running| running.left).count > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;

    fn heap(bytes: usize) -> Arc<Heap> {
        Heap::new(bytes, None)
    }

    #[test]
    fn nobody_takes_the_share_of_others() {
        let mut places = Places(Vec::new());
        for at in 0..MOST_OF_ONE {
            assert_eq!((places.take(7, &heap(MB), 1000 * MB), places.0.len()), (Answer::Taken, at + 1));
        }
        // Those at work may soon be done, those left behind may not.
        assert_eq!(places.take(7, &heap(MB), 1000 * MB), Answer::Wait);
        places.0.iter_mut().for_each(|running| running.left = true);
        assert_eq!(places.take(7, &heap(MB), 1000 * MB), Answer::Refused);
        assert_eq!(places.take(8, &heap(MB), 1000 * MB), Answer::Taken);
        while places.0.len() < MOST {
            let owner = places.0.len() as u64 + 1000;
            assert_eq!(places.take(owner, &heap(MB), 1000 * MB), Answer::Taken);
        }
        assert_eq!(places.take(9, &heap(MB), 1000 * MB), Answer::Wait);
    }

    #[test]
    fn what_is_left_behind_has_little_memory() {
        let mut places = Places(Vec::new());
        // One alone may have more than a share.
        let large = heap(8 * MB);
        assert_eq!(places.take(7, &large, 100 * MB), Answer::Taken);
        assert!(places.may_grow(&large, 32 * MB, 100 * MB));
        large.set(32 * MB);
        assert_eq!(places.take(7, &heap(8 * MB), 100 * MB), Answer::Wait, "it is done soon");
        places.of(&large).unwrap().left = true;
        assert!(!places.may_grow(&large, 64 * MB, 100 * MB), "nobody pays for it any more");
        assert_eq!(places.take(7, &heap(8 * MB), 100 * MB), Answer::Refused);
        // Others have what one begins with, and no more.
        let other = heap(8 * MB);
        assert_eq!(places.take(8, &other, 100 * MB), Answer::Taken);
        assert!(!places.may_grow(&other, 32 * MB, 100 * MB));
        assert_eq!(places.take(8, &heap(8 * MB), 100 * MB), Answer::Taken);
        assert_eq!(places.take(8, &heap(8 * MB), 100 * MB), Answer::Wait, "of a fifth two have taken most");
    }
}
