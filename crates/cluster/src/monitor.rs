//! One thread for each member that is known: an awaitable `hello` is under way to it at all times, so that a new primary is known as
//! soon as it is one.

use std::sync::{Arc, Weak};
use std::time::Duration;

use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_client::{Connection, ConnectionString, Role};

use crate::set::{Member, ReplicaSet};

/// How long a member keeps a `hello` back when nothing changes.
const AWAIT: Duration = Duration::from_secs(10);

/// How long one may take to accept a connection, and to answer beyond what it was allowed to wait.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pause before a member that did not answer is asked again: first, and at the most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Watches a member for as long as the set lives and knows of it.
pub(crate) fn start(set: &Arc<ReplicaSet>, host: &str) {
    let (weak, host) = (Arc::downgrade(set), host.to_owned());
    let watch = move || watch(&weak, &host);
    let thread = std::thread::Builder::new().name("sheaf-monitor".to_owned()).stack_size(256 << 10);
    if let Err(error) = thread.spawn(watch) {
        // A set with an unwatched member is never left by it: whoever finds no primary starts the watch again.
        set.unwatched(&error);
    }
}

fn watch(set: &Weak<ReplicaSet>, host: &str) {
    let mut pause = PAUSE.0;
    while let Some(strong) = set.upgrade().filter(|set| set.is_watched(host)) {
        drop(strong);
        if follow(set, host) {
            pause = PAUSE.0;
        }
        let Some(strong) = set.upgrade() else { return };
        strong.lost(host);
        strong.pause(pause);
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Asks again and again until the connection breaks. Whether the member has answered at all.
fn follow(set: &Weak<ReplicaSet>, host: &str) -> bool {
    let mut to = ConnectionString::direct(host);
    to.connect_timeout = PATIENCE;
    to.socket_timeout = AWAIT + PATIENCE;
    let Ok(mut connection) = Connection::open(host, &to) else { return false };
    let mut answered = false;
    let mut version: Option<DocBuf> = None;
    loop {
        let hello = match &version {
            Some(version) => {
                doc! { "hello": 1, "topologyVersion": version.as_raw(), "maxAwaitTimeMS": AWAIT.as_millis() as i64 }
            }
            None => doc! { "hello": 1 },
        };
        let Ok(reply) = connection.command("admin", &hello) else { return answered };
        answered = true;
        version = reply.get("topologyVersion").and_then(|version| version.as_doc()).map(DocBuf::from);
        let member = member(reply);
        let Some(set) = set.upgrade().filter(|set| set.is_watched(host)) else { return answered };
        set.heard(host, member);
        if version.is_none() {
            set.pause(PAUSE.1);
        }
    }
}

fn member(reply: RawDoc<'_>) -> Member {
    let tags = reply.get("tags").and_then(|tags| tags.as_doc()).map(DocBuf::from).unwrap_or_default();
    let config_server = reply.get("configsvr").is_some();
    Member { role: Role::of(reply), tags, config_server }
}
