//! The server as a whole: what all connections share.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use sheaf_storage::Engine;

/// Everything that connections share.
pub struct Node {
    /// The time of day.
    pub clock: Clock,
    /// Open cursors.
    pub cursors: crate::cursors::Cursors,
    engine: OnceLock<Engine>,
    shutting_down: AtomicBool,
}

impl Node {
    /// A new node.
    pub fn new() -> Self {
        Node {
            clock: Clock,
            cursors: Default::default(),
            engine: OnceLock::new(),
            shutting_down: AtomicBool::new(false),
        }
    }

    /// The storage engine; it is open before the first connection is accepted.
    pub fn engine(&self) -> &Engine {
        self.engine.get().expect("the engine is open before connections are accepted")
    }

    /// Whether shutdown has begun.
    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Relaxed)
    }
}

impl Default for Node {
    fn default() -> Self {
        Self::new()
    }
}

/// The time of day, asked for in one place.
pub struct Clock;

impl Clock {
    /// Milliseconds since the epoch.
    pub fn now_millis(&self) -> i64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
    }
}
