//! The threads on which clients' functions run, so that an operation can leave them behind.
//!
//! The engine asks the meter between its steps, not within one, and a step may be a comparison of two long strings or a sort:
//! milliseconds each, and ten thousand of them from one look to the next. So a function runs on a thread that only waits for functions.
//! Its operation waits with its own meter, and goes on without it when the operation has to end and the function does not heed that.
//! Who is left behind keeps its sandbox, whose memory stays paid, has the processor last, and is bounded in number and memory: such a step may be
//! without end, so what one user leaves behind takes no other's share ([`places`]).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_errors::{Code, Error, Result};
use sheaf_meter::Meter;

use crate::places::{self, Heap};

/// How long an operation that has to end waits for its function to heed that.
const GRACE: Duration = Duration::from_millis(100);

/// A thread that nobody has given work for so long ends.
const IDLE: Duration = Duration::from_secs(10);

/// Between two looks of a thread whether anybody knows it still.
const LOOK: Duration = Duration::from_millis(20);

/// So long who waits for the other looks without sleeping: a call and the next one are mostly nearer than that, and waking takes as long.
const SOON: Duration = Duration::from_micros(20);

/// Conversions go as deep as documents may be nested, beside what the engine's own stack may be.
const STACK_BYTES: usize = 4 << 20;

/// Threads without work; who was last at work is first.
static IDLERS: Mutex<Vec<Arc<Worker>>> = Mutex::new(Vec::new());

type Job = Box<dyn FnOnce() + Send>;

/// A thread that runs one job after the other. Who gave it one has it until the job is done.
struct Worker {
    thread: OnceLock<Thread>,
    /// The system's number of the thread, where there is one.
    number: OnceLock<i32>,
    has_job: AtomicBool,
    job: Mutex<Option<Job>>,
}

const RUNNING: u8 = 0;
const DONE: u8 = 1;
const ABANDONED_BY_CALLER: u8 = 2;

/// What who waits and who works both see of a job.
struct Call<T> {
    state: AtomicU8,
    outcome: Mutex<Option<std::result::Result<T, Box<dyn Any + Send>>>>,
    /// The operation goes on without it: its meter may be another operation's by now.
    let_go: Arc<AtomicBool>,
}

/// Runs a job on another thread for this thread's operation, and waits for it no longer than the operation may go on.
///
/// Errors: what the operation has to end with; `JSInterpreterFailure` while too many are left behind.
pub(crate) fn run<T: Send + 'static>(
    heap: &Arc<Heap>,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    places::take(sheaf_meter::owner(), heap)?;
    let worker = Worker::idle().inspect_err(|_| places::give_back(heap))?;
    let call =
        Arc::new(Call { state: AtomicU8::new(RUNNING), outcome: Mutex::new(None), let_go: Arc::default() });
    let meter = sheaf_meter::current().map(|meter| leashed(meter, &call.let_go));
    let (shared, caller, own) = (call.clone(), std::thread::current(), heap.clone());
    worker.give(Box::new(move || {
        let outcome = {
            let _entered = meter.map(sheaf_meter::enter);
            catch_unwind(AssertUnwindSafe(job))
        };
        *shared.outcome.lock() = Some(outcome);
        match shared.state.compare_exchange(RUNNING, DONE, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                places::give_back(&own);
                caller.unpark();
            }
            // The sandbox goes with it, before another may take its place.
            Err(_) => {
                drop(shared.outcome.lock().take());
                places::found(&own);
                places::give_back(&own);
            }
        }
    }));
    let is_done = || call.state.load(Ordering::Acquire) == DONE;
    if !comes_soon(is_done)
        && let Err(error) = sheaf_meter::wait_until(is_done)
        && !heeds(&worker, &call, heap)
    {
        worker.comes_last();
        return Err(error);
    }
    IDLERS.lock().push(worker);
    match call.outcome.lock().take().expect("who is done has an outcome") {
        Ok(value) => Ok(value),
        Err(panic) => resume_unwind(panic),
    }
}

/// Whether it comes true within a moment. Others have the processor between two looks, if they need it.
fn comes_soon(done: impl Fn() -> bool) -> bool {
    let until = Instant::now() + SOON;
    loop {
        for _ in 0..50 {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::yield_now();
    }
}

/// The operation has to end: whether the job has ended, too. If it has not it is left behind.
fn heeds<T>(worker: &Worker, call: &Call<T>, heap: &Arc<Heap>) -> bool {
    // It may sleep.
    worker.unpark();
    let until = Instant::now() + GRACE;
    loop {
        if call.state.load(Ordering::Acquire) == DONE {
            return true;
        }
        let left = until.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            std::thread::park_timeout(left);
            continue;
        }
        places::lose(heap);
        call.let_go.store(true, Ordering::Release);
        let left =
            call.state.compare_exchange(RUNNING, ABANDONED_BY_CALLER, Ordering::AcqRel, Ordering::Acquire);
        if left.is_err() {
            places::found(heap);
        }
        return left.is_err();
    }
}

/// A meter that says what the operation's does, for as long as the operation waits.
fn leashed(operation: Arc<Meter>, let_go: &Arc<AtomicBool>) -> Arc<Meter> {
    let process = operation.process().clone();
    let let_go = let_go.clone();
    Meter::new(
        &process,
        Arc::new(move || {
            if let_go.load(Ordering::Acquire) {
                return Err(Error::new(Code::INTERRUPTED, "operation was interrupted"));
            }
            operation.check()
        }),
    )
}

impl Worker {
    /// One that has nothing to do.
    fn idle() -> Result<Arc<Worker>> {
        if let Some(worker) = IDLERS.lock().pop() {
            return Ok(worker);
        }
        let worker = Arc::new(Worker {
            thread: OnceLock::new(),
            number: OnceLock::new(),
            has_job: AtomicBool::new(false),
            job: Mutex::new(None),
        });
        let own = worker.clone();
        let started = std::thread::Builder::new()
            .name("script".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || own.work())
            .map_err(|error| {
                let text = format!("no thread for the JavaScript engine: {error}");
                Error::new(Code::JS_INTERPRETER_FAILURE, text)
            })?;
        let _ = worker.thread.set(started.thread().clone());
        Ok(worker)
    }

    fn give(&self, job: Job) {
        *self.job.lock() = Some(job);
        self.has_job.store(true, Ordering::Release);
        self.unpark();
    }

    fn unpark(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn work(self: Arc<Self>) {
        if let Some(number) = thread_number() {
            let _ = self.number.set(number);
        }
        let mut since = Instant::now();
        loop {
            if self.has_job.swap(false, Ordering::Acquire) {
                let job = self.job.lock().take().expect("who is told of a job has it");
                job();
                comes_soon(|| self.has_job.load(Ordering::Acquire));
                since = Instant::now();
                continue;
            }
            let left = IDLE.saturating_sub(since.elapsed());
            if !left.is_zero() {
                std::thread::park_timeout(left);
                continue;
            }
            let mut idlers = IDLERS.lock();
            let Some(at) = idlers.iter().position(|other| Arc::ptr_eq(other, &self)) else {
                // Somebody has just taken it; or nobody will again, if it was left behind.
                if Arc::strong_count(&self) == 1 {
                    return;
                }
                drop(idlers);
                std::thread::park_timeout(LOOK);
                continue;
            };
            idlers.remove(at);
            return;
        }
    }

    /// Whom nobody waits for gets what others leave of the processors.
    fn comes_last(&self) {
        #[cfg(target_os = "linux")]
        if let Some(pid) = self.number.get().and_then(|number| rustix::process::Pid::from_raw(*number)) {
            // Without it, it only takes more of a processor than it should.
            let _ = rustix::process::setpriority_process(Some(pid), 19);
        }
    }
}

/// The number by which the system knows this thread.
fn thread_number() -> Option<i32> {
    // It ends in `…/task/NUMBER`, where there is such a thing.
    let own = std::fs::read_link("/proc/thread-self").ok()?;
    own.file_name()?.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use sheaf_meter::Process;

    use super::*;

    #[test]
    fn who_does_not_heed_is_left_behind_and_comes_back() {
        // The share of one user is for all tests of this program.
        let process = Process::new(4 << 30, 64 << 20);
        let meter = Meter::background(&process);
        let _entered = sheaf_meter::enter(meter.clone());
        let account = meter.account();
        let held = account.reserve(9 << 20).unwrap();
        let heap = Heap::new(9 << 20, Some(account.clone()));
        assert_eq!(run(&heap, || 7).unwrap(), 7, "who is in time is waited for");

        let (free, waits) = std::sync::mpsc::sync_channel::<()>(1);
        let sandbox = Arc::new(());
        let kept = Arc::downgrade(&sandbox);
        meter.set_deadline(Some(Instant::now() + Duration::from_millis(5)));
        let error = run(&heap, move || (waits.recv(), sandbox, held)).expect_err("its time is over");
        assert_eq!(error.code(), Code::MAX_TIME_MS_EXPIRED);
        assert!(places::any_is_left());
        account.reserve(1).unwrap();
        assert_eq!((process.shed(64 << 20), account.used()), ((0, 0), 9 << 20), "it would not come back");

        // The next operation of the same meter has time; that is not for who was left behind.
        meter.set_deadline(None);
        assert_eq!(run(&Heap::new(1, None), || 8).unwrap(), 8, "others go on");
        assert!(kept.upgrade().is_some());
        free.send(()).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while kept.upgrade().is_some() {
            assert!(Instant::now() < until, "it has ended and is still kept");
            std::thread::sleep(Duration::from_millis(1));
        }
        while account.used() > 0 {
            assert!(Instant::now() < until, "it has not given back its memory");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_panic_is_the_caller_s() {
        let caught = catch_unwind(|| run(&Heap::new(1, None), || panic!("planted")).map(|()| 0));
        assert_eq!(caught.expect_err("it panics").downcast_ref::<&str>(), Some(&"planted"));
    }
}
