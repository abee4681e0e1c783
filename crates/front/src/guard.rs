//! The last line of defence of memory: looks at what the process has in fact.
//!
//! Accounts ([`sheaf_meter::Process`]) count what they are told of. Allocators, libraries and fragments take more, and the
//! kernel ends a process that takes more than its control group may have. So a thread of its own looks at the memory of
//! the process many times a second; the less is left ([`Marks`]), the more is done about it.

use std::cell::Cell;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use sheaf_bson::doc;
pub use sheaf_meter::Pressure;
use sheaf_meter::{Marks, Meter};

use crate::front::Front;
use crate::{log, system};

/// Between two looks while most is free: even a processor that does nothing else needs longer to fill it.
const IDLE: Duration = Duration::from_millis(100);

/// Between two looks while there is enough.
const CALM: Duration = Duration::from_millis(20);

/// Between two looks otherwise: a processor fills some ten megabytes meanwhile.
const TENSE: Duration = Duration::from_millis(5);

/// For so long memory has not been short when caches grow again.
const CACHE_PATIENCE: Duration = Duration::from_secs(5);

/// Between two lines in the log about operations that were ended.
const TELL_PERIOD: Duration = Duration::from_secs(1);

/// A thread tidies up no more often than this.
const TIDY_PERIOD: Duration = Duration::from_millis(10);

/// What an allocator can do about memory that was freed.
#[derive(Clone, Copy, Debug)]
pub struct Allocator {
    /// Gives back to the system what the process has freed.
    pub relieve: fn(Pressure),
    /// Gives back to the process what this thread keeps for itself.
    pub tidy: fn(Pressure),
}

static ALLOCATOR: OnceLock<Allocator> = OnceLock::new();

/// Starts the thread. `shrink` makes the role's caches small while memory is short, and lets them grow again.
///
/// Errors: there can be no such thread.
pub fn start(
    front: &Arc<Front>,
    allocator: Allocator,
    shrink: impl Fn(bool) + Send + 'static,
) -> std::io::Result<()> {
    let allocator = *ALLOCATOR.get_or_init(|| allocator);
    front.memory.on_shortage(tidy);
    let front = Arc::downgrade(front);
    let guard = Guard::new(allocator.relieve, Box::new(shrink));
    std::thread::Builder::new().name("memory".to_owned()).spawn(move || guard.run(&front))?;
    Ok(())
}

/// Called when this thread has done an operation. Allocators keep freed memory by threads, and nobody else can take it from
/// them: dozens of threads, each of which has done something large once, would keep hundreds of megabytes. A long operation does the same while it goes on, when memory
/// is short.
pub fn after_operation(meter: &Meter) {
    let pressure = meter.process().pressure();
    if pressure != Pressure::None || meter.was_large() {
        tidy(pressure);
    }
}

#[cold]
fn tidy(pressure: Pressure) {
    thread_local! {
        static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    let Some(allocator) = ALLOCATOR.get() else { return };
    if LAST.get().is_none_or(|last| last.elapsed() >= TIDY_PERIOD) {
        (allocator.tidy)(pressure);
        LAST.set(Some(Instant::now()));
    }
}

struct Guard {
    marks: Marks,
    relieve: fn(Pressure),
    shrink: Box<dyn Fn(bool) + Send>,
    level: Pressure,
    pause: Duration,
    relieved: Instant,
    /// When memory was short last, while caches are small for it.
    short: Option<Instant>,
    told: Option<Instant>,
}

impl Guard {
    fn new(relieve: fn(Pressure), shrink: Box<dyn Fn(bool) + Send>) -> Self {
        let marks = Marks::new(system::memory_limit());
        Guard {
            marks,
            relieve,
            shrink,
            level: Pressure::None,
            pause: CALM,
            relieved: Instant::now(),
            short: None,
            told: None,
        }
    }

    fn run(mut self, front: &Weak<Front>) {
        loop {
            std::thread::sleep(self.pause);
            let Some(front) = front.upgrade() else { return };
            self.look(&front);
        }
    }

    fn look(&mut self, front: &Front) {
        let mut used = system::anonymous_memory();
        let before = self.level;
        self.level = self.marks.level(used);
        if self.is_relief_due(before) {
            (self.relieve)(self.level);
            self.relieved = Instant::now();
            used = system::anonymous_memory();
            self.level = self.marks.level(used);
        }
        self.pause = match self.level {
            Pressure::None if self.marks.is_far(used) => IDLE,
            Pressure::None => CALM,
            _ => TENSE,
        };
        front.memory.set_pressure(self.level);
        self.mind_cache();
        if self.level >= Pressure::Higher {
            let (count, bytes) = front.memory.shed(self.marks.excess(used));
            if count > 0 {
                self.tell(front, used, count, bytes);
            }
        }
    }

    /// What has just been freed is often wanted again, so it is not given back more often than need be.
    fn is_relief_due(&self, before: Pressure) -> bool {
        let period = match self.level {
            Pressure::None => return before != Pressure::None,
            Pressure::Some => Duration::from_millis(100),
            Pressure::High => Duration::from_millis(20),
            Pressure::Higher | Pressure::Critical => Duration::ZERO,
        };
        self.level > before || self.relieved.elapsed() >= period
    }

    fn mind_cache(&mut self) {
        if self.level >= Pressure::High {
            if self.short.is_none() {
                (self.shrink)(true);
            }
            self.short = Some(Instant::now());
        } else if self.short.is_some_and(|short| short.elapsed() >= CACHE_PATIENCE) {
            self.short = None;
            (self.shrink)(false);
        }
    }

    fn tell(&mut self, front: &Front, used: u64, count: usize, bytes: u64) {
        if self.told.is_some_and(|told| told.elapsed() < TELL_PERIOD) {
            return;
        }
        self.told = Some(Instant::now());
        let about = doc! {
            "processBytes": used as i64,
            "countedBytes": front.memory.used() as i64,
            "ended": count as i64,
            "endedBytes": bytes as i64,
        };
        let text = "Memory is short; the operations and cursors that use the most of it are ended";
        log::warning("CONTROL", log::ids::MEMORY_SHORT, "memory", text, Some(about));
    }
}
