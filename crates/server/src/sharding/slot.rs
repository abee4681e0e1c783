//! Where the answer to a request is waited for, by a thread or by a task.

use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use sheaf_errors::Result;
use sheaf_storage::Interrupt;

/// How often who waits asks whether to go on.
const ASK: Duration = Duration::from_millis(20);

/// Where the answer to a request is waited for.
pub struct Slot<T> {
    state: Mutex<State<T>>,
    come: Condvar,
}

struct State<T> {
    answer: Option<Result<T>>,
    /// The task that waits.
    task: Option<Waker>,
}

impl<T> Slot<T> {
    /// An empty one.
    pub fn new() -> Arc<Slot<T>> {
        Arc::new(Slot { state: Mutex::new(State { answer: None, task: None }), come: Condvar::new() })
    }

    /// Gives the answer. Only the first one counts.
    pub fn give(&self, answer: Result<T>) {
        let task = {
            let mut state = self.state.lock();
            state.answer.get_or_insert(answer);
            state.task.take()
        };
        self.come.notify_one();
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Waits for the answer without a thread.
    ///
    /// Errors: why there is none.
    pub async fn come(&self) -> Result<T> {
        std::future::poll_fn(|cx| {
            let mut state = self.state.lock();
            match state.answer.take() {
                Some(answer) => Poll::Ready(answer),
                None => {
                    state.task = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Waits for the answer.
    ///
    /// Errors: why there is none; those of `go_on`, which is asked now and then.
    pub fn wait(&self, go_on: Interrupt<'_>) -> Result<T> {
        let mut state = self.state.lock();
        loop {
            if let Some(answer) = state.answer.take() {
                return answer;
            }
            self.come.wait_for(&mut state, ASK);
            if state.answer.is_none() {
                go_on()?;
            }
        }
    }
}
