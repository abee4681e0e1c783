//! The meter of the operation that this thread works for.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_errors::Result;

use crate::account::Held;
use crate::meter::Meter;

/// Units between two looks at the clock; a unit is about 50 ns of work.
const ROUND: u32 = 256;

/// How long an operation may work before it is told that it is long.
const SHORT: Duration = Duration::from_micros(150);

thread_local! {
    static CURRENT: RefCell<Option<Arc<Meter>>> = const { RefCell::new(None) };
    /// Units left until the next check.
    static LEFT: Cell<u32> = const { Cell::new(ROUND) };
    static SLICE: Cell<Slice> = const { Cell::new(Slice::NONE) };
}

/// Whom to tell that the operation is not a short one.
#[derive(Clone, Copy)]
struct Slice {
    /// When ticks were first seen to go round.
    began: Option<Instant>,
    tell: Option<fn()>,
}

impl Slice {
    const NONE: Slice = Slice { began: None, tell: None };
}

/// As long as this lives, the thread works with the meter it was [entered](enter) with.
#[must_use = "the meter is left at once"]
pub struct Entered {
    before: Option<Arc<Meter>>,
    slice: Slice,
    /// It belongs to this thread.
    not_send: PhantomData<*const ()>,
}

/// Makes this the meter of what the thread does, until the guard is dropped. An operation's helper threads enter the
/// same meter.
pub fn enter(meter: Arc<Meter>) -> Entered {
    install(Some(meter), None)
}

/// Until the guard is dropped, the thread works for nobody who could be stopped: what has been logged is applied whole,
/// also where the thread of a client that has just been killed does it.
pub fn shield() -> Entered {
    install(None, None)
}

/// Like [`enter`], and `tell` is called once, from a [`tick`], when the operation has gone on ticking for 150
/// microseconds: on a reactor's thread it makes others go on without this thread.
pub fn enter_until_long(meter: Arc<Meter>, tell: fn()) -> Entered {
    install(Some(meter), Some(tell))
}

fn install(meter: Option<Arc<Meter>>, tell: Option<fn()>) -> Entered {
    let before = CURRENT.with(|current| std::mem::replace(&mut *current.borrow_mut(), meter));
    LEFT.set(ROUND);
    Entered { before, slice: SLICE.replace(Slice { began: None, tell }), not_send: PhantomData }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let before = self.before.take();
        let left = CURRENT.with(|current| std::mem::replace(&mut *current.borrow_mut(), before));
        SLICE.set(self.slice);
        drop(left);
    }
}

/// The thread's meter, for helper threads of the same operation; `None` outside any operation.
pub fn current() -> Option<Arc<Meter>> {
    CURRENT.with(|current| current.borrow().clone())
}

/// Whether the operation may go on. It costs a look at the clock: tight loops [`tick`].
///
/// Errors: `Interrupted`, `InterruptedAtShutdown`, `MaxTimeMSExpired`, `ExceededMemoryLimit` and whatever else the
/// operation was stopped with.
pub fn check() -> Result<()> {
    CURRENT.with(|current| match &*current.borrow() {
        Some(meter) => meter.check(),
        None => Ok(()),
    })
}

/// Counts `cost` units of work, of about 50 ns each, and [checks](check) when enough have come together.
///
/// Errors: those of [`check`].
#[inline]
pub fn tick(cost: u32) -> Result<()> {
    let left = LEFT.get();
    if left > cost {
        LEFT.set(left - cost);
        return Ok(());
    }
    go_round()
}

/// Counts the work of looking at this many bytes, about a nanosecond each.
///
/// Errors: those of [`check`].
#[inline]
pub fn tick_for(bytes: usize) -> Result<()> {
    tick(1 + u32::try_from(bytes >> 6).unwrap_or(ROUND))
}

#[cold]
fn go_round() -> Result<()> {
    LEFT.set(ROUND);
    let slice = SLICE.get();
    if let Some(tell) = slice.tell {
        match slice.began {
            None => SLICE.set(Slice { began: Some(Instant::now()), ..slice }),
            Some(began) if began.elapsed() >= SHORT => {
                SLICE.set(Slice::NONE);
                tell();
            }
            Some(_) => {}
        }
    }
    check()
}

/// Takes memory from the operation's account and the process's. Outside any operation it counts nothing.
///
/// Errors: `ExceededMemoryLimit`.
pub fn reserve(bytes: u64) -> Result<Held> {
    CURRENT.with(|current| match &*current.borrow() {
        Some(meter) => meter.reserve(bytes),
        None => Ok(Held::none()),
    })
}

/// How much a stage keeps in memory before it goes on on disk: `wanted`, or less where operations have little.
pub fn spill_bytes(wanted: usize) -> usize {
    CURRENT.with(|current| match &*current.borrow() {
        Some(meter) => meter.process().spill_bytes(wanted),
        None => wanted,
    })
}
