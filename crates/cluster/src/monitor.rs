//! One thread for each member that is known: an awaitable `hello` is under way to it at all times, so that a new primary is known as
//! soon as it is one.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_client::{Connection, Message, Role};

use crate::failure::error_in;
use crate::members::{HEARTBEAT as AWAIT, Member};
use crate::set::ReplicaSet;

/// How long one may take to accept a connection, and to answer beyond what it was allowed to wait.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often a monitor looks whether it should ask anew.
const LOOK: Duration = Duration::from_millis(20);

/// An answer within this time has not waited for anything.
const SOON: Duration = Duration::from_millis(5);

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
    let Some(membership) = set.upgrade().map(|set| {
        // What was doubted before is asked now; otherwise who was lost once would be asked anew again and again.
        set.is_doubted(host);
        set.membership.clone()
    }) else {
        return false;
    };
    let mut to = membership.direct(host);
    let patience = set.upgrade().map_or(PATIENCE, |set| set.patience(host, PATIENCE));
    (to.connect_timeout, to.socket_timeout) = (patience, patience);
    let mut connection = match Connection::open(host, &to) {
        Ok(connection) => connection,
        Err(error) => {
            if let Some(set) = set.upgrade() {
                set.unreached(host, &error);
                if is_silence(&error) {
                    set.missed(host);
                }
            }
            return false;
        }
    };
    if connection.set_patience(LOOK, PATIENCE).is_err() {
        return false;
    }
    let (mut answered, mut soon) = (false, false);
    let mut version: Option<DocBuf> = None;
    loop {
        let hello = match &version {
            Some(version) => {
                doc! { "hello": 1, "topologyVersion": version.as_raw(), "maxAwaitTimeMS": AWAIT.as_millis() as i64 }
            }
            None => doc! { "hello": 1 },
        };
        let asked = Instant::now();
        let Some(reply) = ask(set, host, &mut connection, &hello) else { return answered };
        answered = true;
        let (took, has_awaited) = (asked.elapsed(), version.is_some());
        version = reply.get("topologyVersion").and_then(|version| version.as_doc()).map(DocBuf::from);
        let mut member = member(reply);
        member.round_trip = (!has_awaited).then_some(took);
        let Some(set) = set.upgrade().filter(|set| set.is_watched(host)) else { return answered };
        set.heard(host, member);
        // One that does not wait with its answers is not to be asked all the time.
        let at_once = has_awaited && took < SOON;
        if version.is_none() || at_once && std::mem::replace(&mut soon, true) {
            set.pause(PAUSE.1);
        }
        // What has waited to the end is followed by one that does not wait: it measures the way.
        if has_awaited && took >= AWAIT {
            version = None;
        }
    }
}

/// One `hello`, unless the member is doubted meanwhile.
fn ask<'c>(
    set: &Weak<ReplicaSet>,
    host: &str,
    connection: &'c mut Connection,
    hello: &DocBuf,
) -> Option<RawDoc<'c>> {
    let mut message = Message::new();
    message.begin(0, |body| {
        body.append_all(hello.as_raw()).append("$db", "admin");
    });
    connection.send(&mut message).ok()?;
    let asked = Instant::now();
    let awaits = hello.as_raw().get("maxAwaitTimeMS").is_some();
    let received = connection.receive_while(&mut || {
        let set = set.upgrade().filter(|set| set.is_watched(host)).ok_or(sheaf_client::Error::Interrupted)?;
        if awaits && set.has_to_prove(host) && is_silent(&set, host) {
            set.missed(host);
            return Err(sheaf_client::Error::Interrupted);
        }
        // A doubt is settled by a new question, on a new connection.
        if awaits && set.is_doubted(host) {
            return Err(sheaf_client::Error::Interrupted);
        }
        let patience = if awaits { AWAIT + PATIENCE } else { set.patience(host, PATIENCE) };
        if asked.elapsed() < patience {
            return Ok(());
        }
        set.missed(host);
        Err(sheaf_client::Error::Interrupted)
    });
    received.ok()?;
    Some(connection.reply()).filter(|reply| error_in(*reply).is_none())
}

/// Whether a member says nothing where it is asked once more, on a connection of its own. What else may go wrong there its other connections
/// tell, too.
fn is_silent(set: &ReplicaSet, host: &str) -> bool {
    let mut to = set.membership.direct(host);
    let patience = set.patience(host, PATIENCE);
    (to.connect_timeout, to.socket_timeout) = (patience, patience);
    let said = Connection::open(host, &to).and_then(|mut connection| connection.hello());
    said.is_err_and(|error| is_silence(&error))
}

/// Whether nothing came at all: neither an answer nor a refusal.
fn is_silence(error: &sheaf_client::Error) -> bool {
    let kinds = [std::io::ErrorKind::TimedOut, std::io::ErrorKind::WouldBlock];
    matches!(error, sheaf_client::Error::Io(error) if kinds.contains(&error.kind()))
}

fn member(reply: RawDoc<'_>) -> Member {
    let tags = reply.get("tags").and_then(|tags| tags.as_doc()).map(DocBuf::from).unwrap_or_default();
    let config_server = reply.get("configsvr").is_some();
    let written = reply.get("lastWrite").and_then(|write| write.as_doc()?.get("lastWriteDate"));
    let last_write = match written {
        Some(Value::DateTime(millis)) => Some((millis, Instant::now())),
        _ => None,
    };
    Member { role: Role::of(reply), tags, config_server, last_write, round_trip: None }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use sheaf_wire::{HEADER_LEN, Header, REPLY_HEAD};

    use super::*;
    use crate::address::SetAddress;
    use crate::preference::Preference;

    /// A primary that ends its first connection, and has no news for who waits for some. Counts its connections.
    fn primary() -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let connections = Arc::new(AtomicUsize::new(0));
        let (own, counted) = (host.clone(), connections.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, own) = (stream.unwrap(), own.clone());
                if counted.fetch_add(1, Ordering::SeqCst) > 0 {
                    std::thread::spawn(move || serve(stream, &own));
                }
            }
        });
        (host, connections)
    }

    fn serve(mut stream: TcpStream, own: &str) {
        let mut message = vec![0; HEADER_LEN];
        while stream.read_exact(&mut message).is_ok() {
            let header = Header::parse(&message).unwrap();
            message.resize(header.length as usize, 0);
            stream.read_exact(&mut message[HEADER_LEN..]).unwrap();
            let Ok(sheaf_wire::Request::Msg(request)) = sheaf_wire::parse(&message) else { panic!() };
            if request.body.get("maxAwaitTimeMS").is_none() {
                let reply = doc! {
                    "isWritablePrimary": true, "setName": "x", "hosts": [own], "topologyVersion": { "counter": 1i64 }, "ok": 1.0
                };
                let mut bytes = vec![0; REPLY_HEAD];
                bytes.extend_from_slice(reply.as_bytes());
                sheaf_wire::finish_msg(&mut bytes, 0, header.request_id, 0);
                stream.write_all(&bytes).unwrap();
            }
            message.resize(HEADER_LEN, 0);
        }
    }

    #[test]
    fn a_member_that_was_lost_once_is_not_dialled_again_and_again() {
        let (host, connections) = primary();
        let address = format!("x/{host}").parse::<SetAddress>().unwrap();
        let set = ReplicaSet::new(&address, &Default::default());
        assert_eq!(set.select(&Preference::default(), &|| Ok(())).unwrap(), host);
        // Nothing is to happen, so there is nothing that could be waited for.
        std::thread::sleep(Duration::from_secs(1));
        let before = connections.load(Ordering::SeqCst);
        assert!((2..5).contains(&before), "{before}");
        // Who doubts it has it asked anew.
        set.lost(&host);
        assert_eq!(set.select(&Preference::default(), &|| Ok(())).unwrap(), host);
        assert!(connections.load(Ordering::SeqCst) > before);
    }
}
