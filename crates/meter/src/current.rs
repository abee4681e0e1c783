//! The meter of the operation that this thread works for.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_errors::Result;

use crate::account::Held;
use crate::meter::Meter;
use crate::turns::Park;

/// Units between two looks at the clock; a unit is about 50 ns of work.
const ROUND: u32 = 256;

/// How long an operation may work before it is told that it is long.
const SHORT: Duration = Duration::from_micros(150);

/// Rounds of the same length.
const SHORT_ROUNDS: u32 = 12;

/// How often who pauses looks whether it has to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Rounds of a turn: three milliseconds of work.
const TURN_ROUNDS: u32 = 240;

thread_local! {
    static CURRENT: RefCell<Option<Arc<Meter>>> = const { RefCell::new(None) };
    /// Units left until the next check.
    static LEFT: Cell<u32> = const { Cell::new(ROUND) };
    static SLICE: Cell<Slice> = const { Cell::new(Slice::of(Conduct::FREE)) };
    /// See [`waited`].
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// How long the operation of this thread has waited for others so far: for locks, and for its turn.
pub fn waited() -> Duration {
    WAITED.get()
}

/// Counts what an operation has waited since `began`.
pub fn note_wait(began: Instant) {
    WAITED.set(WAITED.get().saturating_add(began.elapsed()));
}

/// A new operation has not waited yet.
pub(crate) fn begin_waits() {
    WAITED.set(Duration::ZERO);
}

/// How an operation behaves when it turns out to be long.
#[derive(Clone, Copy, Debug)]
pub struct Conduct {
    /// Called once, from a [`tick`], when it has gone on ticking for 150 microseconds: on a reactor's thread it makes
    /// others go on without this thread.
    pub when_long: Option<fn()>,
    /// How it waits when it takes turns with other long operations. What holds locks for long must not take turns.
    pub takes_turns: Option<Park>,
}

impl Conduct {
    /// Nobody minds how long it is.
    pub const FREE: Conduct = Conduct { when_long: None, takes_turns: None };
}

/// The work of the thread since it entered its meter.
#[derive(Clone, Copy)]
struct Slice {
    conduct: Conduct,
    /// When ticks were first seen to go round.
    began: Option<Instant>,
    /// Rounds of the present turn, or before the first one.
    rounds: u32,
    turn: Turn,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It is short so far.
    None,
    Had,
    /// None came in time; it goes on for as long as a turn would be.
    Missed,
}

impl Slice {
    const fn of(conduct: Conduct) -> Slice {
        Slice { conduct, began: None, rounds: 0, turn: Turn::None }
    }
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
    enter_as(meter, Conduct::FREE)
}

/// Until the guard is dropped, the thread works for nobody who could be stopped: what has been logged is applied whole,
/// also where the thread of a client that has just been killed does it.
pub fn shield() -> Entered {
    install(None, Conduct::FREE)
}

/// Like [`enter`], for an operation that others mind when it is long.
pub fn enter_as(meter: Arc<Meter>, conduct: Conduct) -> Entered {
    install(Some(meter), conduct)
}

fn install(meter: Option<Arc<Meter>>, conduct: Conduct) -> Entered {
    let before = CURRENT.with(|current| std::mem::replace(&mut *current.borrow_mut(), meter));
    LEFT.set(ROUND);
    Entered { before, slice: SLICE.replace(Slice::of(conduct)), not_send: PhantomData }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let before = self.before.take();
        let left = CURRENT.with(|current| std::mem::replace(&mut *current.borrow_mut(), before));
        if SLICE.replace(self.slice).turn == Turn::Had {
            let meter = left.as_ref().expect("only an operation has a turn");
            meter.process().turns().give_back();
        }
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
    let mut slice = SLICE.get();
    if let Some(tell) = slice.conduct.when_long {
        match slice.began {
            None => slice.began = Some(Instant::now()),
            Some(began) if began.elapsed() >= SHORT => {
                slice.conduct.when_long = None;
                tell();
            }
            Some(_) => {}
        }
        SLICE.set(slice);
    } else if let Some(park) = slice.conduct.takes_turns {
        slice.rounds += 1;
        SLICE.set(slice);
        let turn_ends = if slice.turn == Turn::None { SHORT_ROUNDS } else { TURN_ROUNDS };
        if slice.rounds >= turn_ends {
            return next_turn(slice, park);
        }
    }
    check()
}

/// Another turn for this operation, after those who wait.
fn next_turn(mut slice: Slice, park: Park) -> Result<()> {
    let Some(meter) = current() else { return Ok(()) };
    let turns = meter.process().turns();
    slice.rounds = 0;
    if slice.turn == Turn::Had {
        SLICE.set(slice);
        if !turns.is_wanted() {
            return meter.check();
        }
        turns.give_back();
    }
    // Without one while it waits: an operation that ends there has nothing to give back.
    slice.turn = Turn::Missed;
    SLICE.set(slice);
    if turns.take(&meter, park)? {
        slice.turn = Turn::Had;
        SLICE.set(slice);
    }
    meter.check()
}

/// Waits so long, and holds up nobody meanwhile: others take over the thread's duties, and its turn.
///
/// Errors: those of [`check`], as soon as the operation has to stop.
pub fn pause(time: Duration) -> Result<()> {
    let Some(meter) = current() else {
        std::thread::sleep(time);
        return Ok(());
    };
    let mut slice = SLICE.get();
    let tell = slice.conduct.when_long.take();
    let had_turn = std::mem::replace(&mut slice.turn, Turn::None) == Turn::Had;
    slice.rounds = 0;
    SLICE.set(slice);
    if had_turn {
        meter.process().turns().give_back();
    }
    if let Some(tell) = tell {
        tell();
    }
    let park = slice.conduct.takes_turns.unwrap_or(std::thread::park_timeout);
    let _waits = meter.waits();
    let began = Instant::now();
    loop {
        meter.check()?;
        let left = time.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        // Whoever stops an operation wakes one of its threads, and not for every reason.
        let left = left.min(LOOK);
        park(meter.left().map_or(left, |time| left.min(time)));
    }
}

/// Whose operation the thread works for; 0 if that is not known.
pub fn owner() -> u64 {
    CURRENT.with(|current| current.borrow().as_ref().map_or(0, |meter| meter.owner()))
}

/// Waits until `done`, for what another thread does in the operation's name: that one [unparks](std::thread::Thread::unpark)
/// this one. It counts as this thread's work, which keeps its turn; where it takes long others take over its duties.
///
/// Errors: those of [`check`], as soon as the operation has to stop.
pub fn wait_until(done: impl Fn() -> bool) -> Result<()> {
    let Some(meter) = current() else {
        while !done() {
            std::thread::park();
        }
        return Ok(());
    };
    let began = Instant::now();
    while !done() {
        let waited = began.elapsed();
        if waited >= SHORT {
            return wait_long(&meter, done);
        }
        std::thread::park_timeout(SHORT - waited);
    }
    Ok(())
}

fn wait_long(meter: &Meter, done: impl Fn() -> bool) -> Result<()> {
    let mut slice = SLICE.get();
    let tell = slice.conduct.when_long.take();
    SLICE.set(slice);
    if let Some(tell) = tell {
        tell();
    }
    let park = slice.conduct.takes_turns.unwrap_or(std::thread::park_timeout);
    let _waits = meter.waits();
    while !done() {
        meter.check()?;
        park(meter.left().map_or(LOOK, |time| LOOK.min(time)));
    }
    Ok(())
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

/// How often it is looked whether memory has become free, and for how long.
const LOOK_FOR_MEMORY: Duration = Duration::from_millis(5);
const WAIT_FOR_MEMORY: Duration = Duration::from_secs(10);

/// Takes memory of the process's for one who holds nothing that others wait for: none of theirs is taken, it is waited until they give it back.
///
/// Errors: `ExceededMemoryLimit`, and those of [`check`].
pub fn reserve_in_time(bytes: u64) -> Result<Held> {
    let Some(meter) = current() else { return Ok(Held::none()) };
    let process = meter.process();
    let began = Instant::now();
    while began.elapsed() < WAIT_FOR_MEMORY {
        if let Some(held) = process.take_free(bytes) {
            return Ok(held);
        }
        pause(LOOK_FOR_MEMORY)?;
    }
    Err(process.full())
}

/// How much a stage keeps in memory before it goes on on disk: `wanted`, or less where operations have little.
pub fn spill_bytes(wanted: usize) -> usize {
    CURRENT.with(|current| match &*current.borrow() {
        Some(meter) => meter.process().spill_bytes(wanted),
        None => wanted,
    })
}
