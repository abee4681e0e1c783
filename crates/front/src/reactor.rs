//! Which threads do what.
//!
//! There are two runtimes. The *control* runtime accepts connections, carries the links between members, listens for
//! signals, and serves connections that have asked only for what takes no time and touches no data: handshakes, drivers'
//! monitors, `ping`, `killOp`. Everything else is the *data* runtime's; a connection goes over there with its first other
//! command. So whatever happens to the data, a member keeps in touch with its set, and an operator gets in.
//!
//! On both a thread serves many connections, and while it works for one of them, the others wait. So work that is known
//! to be long gives the thread's other duties away before it begins ([`give_way`]), and work that turns out to be long
//! does so after 150 microseconds ([`leave`], by way of the operation's meter).

use std::sync::mpsc;
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};

/// Bytes from which on reading, checking, packing or unpacking a message is work that others must not wait for.
pub const LONG_BYTES: usize = 32 * 1024;

/// How long [`leave`] waits for a thread that takes over.
const PATIENCE: Duration = Duration::from_millis(10);

/// Runs something that may wait or take long, without holding up other connections of the same thread; `if_so` says
/// whether it is.
pub fn give_way<T>(if_so: bool, work: impl FnOnce() -> T) -> T {
    if if_so { tokio::task::block_in_place(work) } else { work() }
}

/// Gives away what this thread would do for other connections, in the middle of an operation: another thread of the pool
/// does it from now on. Elsewhere than on a reactor's thread nothing happens.
pub fn leave() {
    let Ok(runtime) = Handle::try_current() else { return };
    tokio::task::block_in_place(|| {
        // The duties have been put into the pool's queue. They come back to this thread when this closure ends, unless
        // somebody has taken them by then; and the pool begins its work in order, so they are taken when this is begun.
        let (begun, beginning) = mpsc::sync_channel(1);
        drop(runtime.spawn_blocking(move || begun.send(())));
        let _ = beginning.recv_timeout(PATIENCE);
    });
}

/// Leaves a runtime to the end of the process instead of shutting it down. Operations go on on threads of their own for
/// a moment, and whatever else they do there, sooner or later they wait with a time limit: a runtime that is shut down
/// makes every timer that is asked panic, wherever that is. The end of the process ends all of it.
pub fn leave_to_the_end(runtime: Runtime) {
    std::mem::forget(runtime);
}

/// Waits until the thread is unparked, at most so long, and holds up nobody meanwhile.
pub fn park(time: Duration) {
    tokio::task::block_in_place(|| std::thread::park_timeout(time));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use super::*;

    /// One worker: whoever else runs meanwhile runs because it left.
    fn runtime() -> Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    #[test]
    fn others_go_on_when_an_operation_has_left() {
        let runtime = runtime();
        let done = Arc::new(AtomicBool::new(false));
        let (seen, began) = (done.clone(), Instant::now());
        let long = runtime.spawn(async move {
            while !seen.load(Ordering::Acquire) {
                // It is rare that nobody takes over; then it is tried again, as an operation does, too.
                leave();
                assert!(began.elapsed() < Duration::from_secs(60), "nobody else ran");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            7
        });
        let other = runtime.spawn(async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            done.store(true, Ordering::Release);
        });
        runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(60), other).await })
            .unwrap()
            .unwrap();
        assert_eq!(runtime.block_on(long).unwrap(), 7);
    }

    /// One that is in the middle of an operation when the process is about to end, and then waits for something.
    #[test]
    fn whoever_goes_on_after_the_end_can_wait() {
        let runtime = runtime();
        let handle = runtime.handle().clone();
        let (end, ended) = mpsc::sync_channel::<()>(1);
        let (started, starts) = mpsc::sync_channel(2);
        let started_too = started.clone();
        let on_its_own = runtime.spawn_blocking(move || {
            started.send(()).unwrap();
            ended.recv().unwrap();
            handle.block_on(tokio::time::sleep(Duration::from_millis(1)));
        });
        let (end_too, ended_too) = mpsc::sync_channel::<()>(1);
        let on_a_worker = runtime.spawn(async move {
            tokio::task::block_in_place(|| {
                started_too.send(()).unwrap();
                ended_too.recv().unwrap();
            });
            tokio::time::sleep(Duration::from_millis(1)).await;
        });
        starts.iter().take(2).for_each(drop);
        leave_to_the_end(runtime);
        end.send(()).unwrap();
        end_too.send(()).unwrap();
        let other = self::runtime();
        other.block_on(async {
            on_its_own.await.expect("a thread's timer");
            on_a_worker.await.expect("a worker's timer");
        });
    }

    #[test]
    fn elsewhere_nothing_happens() {
        leave();
        let runtime = runtime();
        let inner = runtime.handle().clone();
        runtime.block_on(async {
            leave();
            give_way(true, leave);
            tokio::task::spawn_blocking(move || {
                leave();
                inner.block_on(async { leave() });
            })
            .await
            .unwrap();
        });
    }
}
