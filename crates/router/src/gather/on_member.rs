//! Cursors on members of shards, and those that nobody will read from any more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_bson::{ArrayBuf, Value, doc};
use sheaf_client::Message;
use sheaf_cluster::{Call, Clock};
use sheaf_errors::{Code, Error};

use crate::target::Target;

/// A cursor that is open on one member of a shard. Where it is dropped before it has come to its end, the member is told.
pub struct OnMember {
    /// The shard.
    pub target: Target,
    /// The member.
    pub host: String,
    /// The cursor's id there; 0 once it has come to its end.
    pub id: i64,
    /// "db.collection", as the cursor was opened.
    pub namespace: String,
    abandoned: Arc<Abandoned>,
}

impl OnMember {
    /// The cursor of this id, which this member has answered; 0: it is at its end.
    pub fn new(abandoned: &Arc<Abandoned>, target: &Target, host: &str, namespace: &str, id: i64) -> Self {
        OnMember {
            target: target.clone(),
            host: host.to_owned(),
            id,
            namespace: namespace.to_owned(),
            abandoned: abandoned.clone(),
        }
    }
}

impl Drop for OnMember {
    fn drop(&mut self) {
        if self.id != 0 {
            let (target, host) = (self.target.clone(), std::mem::take(&mut self.host));
            let cursor = Left { target, host, id: self.id, namespace: std::mem::take(&mut self.namespace) };
            self.abandoned.add(cursor);
        }
    }
}

/// Cursors on shards that nobody will read from any more.
#[derive(Default)]
pub struct Abandoned {
    cursors: Mutex<Vec<Left>>,
    wake: tokio::sync::Notify,
}

struct Left {
    target: Target,
    host: String,
    id: i64,
    namespace: String,
}

/// More than so many are not remembered: shards close cursors by themselves that are idle for long.
const ABANDONED_MAX: usize = 100_000;

/// How long a member may take to close a cursor.
const PATIENCE: Duration = Duration::from_secs(1);

impl Abandoned {
    fn add(&self, cursor: Left) {
        let mut cursors = self.cursors.lock();
        if cursors.len() < ABANDONED_MAX {
            cursors.push(cursor);
        }
        self.wake.notify_one();
    }

    /// Waits until there is one.
    pub async fn wait(&self) {
        self.wake.notified().await;
    }

    /// Tells their members. One that cannot be reached closes a cursor when it has been idle for long enough.
    pub fn kill(&self, clock: &Clock) {
        let cursors = std::mem::take(&mut *self.cursors.lock());
        for cursor in cursors {
            let Some((db, collection)) = cursor.namespace.split_once('.') else { continue };
            let ids = ArrayBuf::of([cursor.id]);
            let command = doc! { "killCursors": collection, "cursors": Value::Array(ids.as_raw()) };
            let mut message = Message::new();
            message.begin(0, |out| {
                out.append_all(command.as_raw());
                clock.append(out, None);
                out.append("$db", db);
            });
            let began = Instant::now();
            let go_on = || match began.elapsed() < PATIENCE {
                true => Ok(()),
                false => Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time")),
            };
            if let Ok(call) = Call::send_to(cursor.target.set(), &cursor.host, &mut message) {
                let _ = call.finish_there(&go_on);
            }
        }
    }
}
