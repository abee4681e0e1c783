//! Ways for tests to stand in the way of the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sheaf_errors::Result;

use crate::order::{Mutex, rank};

/// Where a hook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookPoint {
    /// Before each sync of the log; an error counts as the disk's.
    Sync,
    /// Before what a set has ordered is appended to the log; an error stands for a full disk.
    Append,
    /// Before what a set has ordered is applied; an error stands for an entry that cannot be.
    Apply,
    /// While a flush is waited for; an error stands for a flush that does not end because the disk has no room.
    Flush,
    /// When a flush is on disk, before anything follows from it.
    Flushed,
    /// Between the steps by which a stable copy is made, removed or chosen for a rollback; an error ends them there.
    StableCopy,
    /// Before a copy takes the place of what it was made from.
    Swap,
}

/// Called at a [`HookPoint`].
pub type Hook = Arc<dyn Fn() -> Result<()> + Send + Sync>;

#[derive(Default)]
pub(crate) struct Hooks {
    any: AtomicBool,
    hooks: Mutex<{ rank::LEAF }, Vec<(HookPoint, Hook)>>,
}

impl Hooks {
    pub fn set(&self, point: HookPoint, hook: Option<Hook>) {
        let mut hooks = self.hooks.lock();
        hooks.retain(|(at, _)| *at != point);
        hooks.extend(hook.map(|hook| (point, hook)));
        self.any.store(!hooks.is_empty(), Ordering::Release);
    }

    pub fn call(&self, point: HookPoint) -> Result<()> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        let hook = self.hooks.lock().iter().find(|(at, _)| *at == point).map(|(_, hook)| hook.clone());
        hook.map_or(Ok(()), |hook| hook())
    }
}
