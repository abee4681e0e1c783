//! Commands that wait without holding a thread: an awaitData cursor's `getMore`, a `hello` that waits for a change of
//! the topology, a read that must see a later state than this node has.
//!
//! A handler that has nothing to answer yet leaves a [`Parked`] with its operation. The connection waits for it
//! and runs the same request once more; who waits remembers for how long its client is willing to.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;

use sheaf_errors::{Code, Error};
pub use sheaf_front::outcome::Parked;
use sheaf_front::role::{self, Coming};
use sheaf_storage::{Collection, Engine};

use crate::cursors::{CursorInfo, OpenCursors};
use crate::node::Node;

/// What a request waits for.
pub struct Cause {
    node: Arc<Node>,
    waits: Waits,
}

/// What a request waits for.
pub enum Waits {
    /// The next change of a collection, for this cursor, which somebody may kill meanwhile.
    Cursor(Changes, Arc<CursorInfo>),
    /// Another topology than the one of this counter.
    Topology(u64),
    /// A state to read.
    State(StateWanted),
}

/// A request that waits, at the latest until this time.
pub fn parked(node: &Arc<Node>, until: Option<Instant>, waits: Waits) -> Parked {
    Parked { until, cause: Box::new(Cause { node: node.clone(), waits }) }
}

impl Cause {
    /// The cursor that waits.
    fn cursor(&self) -> Option<&Arc<CursorInfo>> {
        match &self.waits {
            Waits::Cursor(_, cursor) => Some(cursor),
            Waits::Topology(_) | Waits::State(_) => None,
        }
    }

    async fn happens(&self) {
        match &self.waits {
            Waits::Cursor(changes, cursor) => {
                let changed = poll_fn(|cx| ready_if(changes.is_over(cx.waker())));
                tokio::select! {
                    () = changed => {}
                    () = cursor.wake.notified() => {}
                }
            }
            Waits::Topology(counter) => topology_is_other(&self.node, *counter).await,
            Waits::State(wanted) => {
                let engine = self.node.engine();
                poll_fn(|cx| ready_if(wanted.is_over(engine, cx.waker()))).await;
            }
        }
    }
}

impl role::Cause for Cause {
    fn over(&self) -> Coming<'_, ()> {
        Box::pin(self.happens())
    }

    fn stopped(&self) -> Option<Error> {
        let killed = self.cursor().is_some_and(|cursor| cursor.is_killed());
        killed.then(|| Error::new(Code::CURSOR_KILLED, "cursor was killed"))
    }

    fn abandon(&self) {
        if let Some(cursor) = self.cursor() {
            self.node.cursors.kill(cursor.id);
        }
    }
}

fn ready_if(over: bool) -> Poll<()> {
    if over { Poll::Ready(()) } else { Poll::Pending }
}

/// Waits until the counter of the topology is another one, or this member ends; alone, a node has no topology that could
/// change.
async fn topology_is_other(node: &Node, counter: u64) {
    let Some(replica) = node.replica() else { return std::future::pending().await };
    let mut topology = replica.topology();
    let changed = async {
        if topology.wait_for(|now| *now != counter).await.is_err() {
            std::future::pending().await
        }
    };
    tokio::select! {
        () = changed => {}
        () = node.quiesce.begun() => {}
    }
}

/// A collection as a cursor has seen it.
#[derive(Clone)]
pub struct Changes {
    /// The collection; the log itself for what may come from anywhere.
    pub collection: Arc<Collection>,
    /// The collection's version when it was read.
    pub seen: u64,
}

impl Changes {
    /// For the next change of a collection; called before it is read.
    pub fn on(collection: &Arc<Collection>) -> Self {
        Changes { collection: collection.clone(), seen: collection.version() }
    }

    /// Whether something has changed; if not, `waker` is told of the next change.
    pub fn is_over(&self, waker: &Waker) -> bool {
        self.collection.on_change(self.seen, waker.clone())
    }
}

/// A state that this node must have before a request can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateWanted {
    /// Everything up to this cluster time...
    pub time: u64,
    /// ...is to be here, or on a majority.
    pub majority: bool,
}

impl StateWanted {
    /// Whether this node has it.
    pub fn is_here(&self, engine: &Engine) -> bool {
        if self.majority {
            engine.majority_time().is_some_and(|time| time.0 >= self.time)
        } else {
            engine.last_applied().time >= self.time
        }
    }

    /// Whether this node has it; if not, `waker` is told when that may have changed.
    pub fn is_over(&self, engine: &Engine, waker: &Waker) -> bool {
        let catalog = engine.catalog();
        // Its version grows with every entry and with the commit point; without a log there is nothing to wait for.
        let Some(oplog) = catalog.oplog() else { return true };
        loop {
            let seen = oplog.version();
            if self.is_here(engine) {
                return true;
            }
            if !oplog.on_change(seen, waker.clone()) {
                return false;
            }
        }
    }
}
