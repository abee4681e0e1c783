//! Where the answer to a request is waited for.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use sheaf_errors::Result;
use sheaf_storage::Interrupt;

/// How often who waits asks whether to go on.
const ASK: Duration = Duration::from_millis(20);

/// Where the answer to a request is waited for.
pub struct Slot<T> {
    answer: Mutex<Option<Result<T>>>,
    come: Condvar,
}

impl<T> Slot<T> {
    /// An empty one.
    pub fn new() -> Arc<Slot<T>> {
        Arc::new(Slot { answer: Mutex::new(None), come: Condvar::new() })
    }

    /// Gives the answer. Only the first one counts.
    pub fn give(&self, answer: Result<T>) {
        self.answer.lock().get_or_insert(answer);
        self.come.notify_one();
    }

    /// Waits for the answer.
    ///
    /// Errors: why there is none; those of `go_on`, which is asked now and then.
    pub fn wait(&self, go_on: Interrupt<'_>) -> Result<T> {
        let mut answer = self.answer.lock();
        loop {
            if let Some(answer) = answer.take() {
                return answer;
            }
            self.come.wait_for(&mut answer, ASK);
            if answer.is_none() {
                go_on()?;
            }
        }
    }
}
