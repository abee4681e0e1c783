//! Clients against servers that answer by a script.

use std::io::{Read, Write};

use sheaf_bson::{DocBuf, Value, doc};
use sheaf_wire::{HEADER_LEN, Header, REPLY_HEAD};

use super::*;
use crate::error::ServerError;

#[test]
fn a_transaction_without_operations_never_reaches_the_server() {
    let ok = || Some(doc! { "ok": 1.0, "n": 1 });
    let (address, thread) = scripted(vec![ok(), ok()]);
    let mut client = Client::connect(&ConnectionString::direct(&address)).unwrap();
    let options = TransactionOptions { write_concern: WriteConcern::majority(), ..Default::default() };
    client.start_transaction(&options);
    assert!(client.in_transaction());
    client.commit_transaction().unwrap();
    assert!(!client.in_transaction());
    let (n, retries) = client
        .transaction(&options, |client| {
            let mut insert = client.insert(&Collection::new("lab", "x"));
            insert.push(|document| {
                document.append("_id", 1);
            });
            insert.send()
        })
        .unwrap();
    assert_eq!((n.n, retries), (1, 0));
    assert_eq!(thread.join().unwrap(), ["insert", "commitTransaction"]);
}

/// A request's number and its command; `None` at the connection's end.
fn receive(stream: &mut std::net::TcpStream) -> Option<(i32, String)> {
    let mut message = vec![0; HEADER_LEN];
    stream.read_exact(&mut message).ok()?;
    let header = Header::parse(&message).unwrap();
    message.resize(header.length as usize, 0);
    stream.read_exact(&mut message[HEADER_LEN..]).unwrap();
    let Ok(sheaf_wire::Request::Msg(request)) = sheaf_wire::parse(&message) else { panic!() };
    Some((header.request_id, request.body.iter().next().unwrap().key().to_owned()))
}

fn send(stream: &mut std::net::TcpStream, to: i32, reply: &DocBuf) {
    let mut bytes = vec![0; REPLY_HEAD];
    bytes.extend_from_slice(reply.as_bytes());
    sheaf_wire::finish_msg(&mut bytes, 0, to, 0);
    stream.write_all(&bytes).unwrap();
}

/// Answers one message; `None` at the connection's end.
pub(crate) fn answer(stream: &mut std::net::TcpStream, reply: &DocBuf) -> Option<()> {
    let (id, _) = receive(stream)?;
    send(stream, id, reply);
    Some(())
}

/// A server that answers the messages of its connections with these replies; `None` cuts the connection. What the
/// messages were is given back.
fn scripted(replies: Vec<Option<DocBuf>>) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = std::thread::spawn(move || {
        let (mut seen, mut stream) = (Vec::new(), listener.accept().unwrap().0);
        for reply in replies {
            let (id, name) = receive(&mut stream).unwrap();
            seen.push(name);
            match reply {
                Some(reply) => send(&mut stream, id, &reply),
                None => {
                    drop(stream);
                    stream = listener.accept().unwrap().0;
                }
            }
        }
        seen
    });
    (address, thread)
}

fn insert_in_transaction(address: &str) -> Result<u32> {
    let mut client = Client::connect(&ConnectionString::direct(address))?;
    let outcome = client.transaction(&TransactionOptions::default(), |client| {
        let mut insert = client.insert(&Collection::new("lab", "x"));
        insert.push(|document| {
            document.append("_id", 1);
        });
        insert.send()
    });
    outcome.map(|(_, retries)| retries)
}

#[test]
fn a_commit_whose_answer_is_lost_is_sent_again_and_the_transaction_is_not() {
    let ok = || Some(doc! { "ok": 1.0, "n": 1 });
    let (address, thread) = scripted(vec![ok(), None, None, ok()]);
    assert_eq!(insert_in_transaction(&address).unwrap(), 0);
    assert_eq!(
        thread.join().unwrap(),
        ["insert", "commitTransaction", "commitTransaction", "commitTransaction"]
    );
    let unknown = || {
        let labels = sheaf_bson::array!["UnknownTransactionCommitResult"];
        Some(doc! { "ok": 0.0, "code": 50, "errorLabels": (Value::Array(labels.as_raw())) })
    };
    let replies = std::iter::once(ok()).chain((0..10).map(|_| unknown())).collect();
    let (address, thread) = scripted(replies);
    assert_eq!(insert_in_transaction(&address).unwrap_err().code(), Some(50));
    assert_eq!(thread.join().unwrap().iter().filter(|name| *name == "insert").count(), 1);
}

#[test]
fn a_conflict_at_the_commit_runs_the_transaction_again() {
    let ok = || Some(doc! { "ok": 1.0, "n": 1 });
    let labels = sheaf_bson::array!["TransientTransactionError"];
    let conflict = doc! { "ok": 0.0, "code": 112, "errorLabels": (Value::Array(labels.as_raw())) };
    let (address, thread) = scripted(vec![ok(), Some(conflict), ok(), ok()]);
    assert_eq!(insert_in_transaction(&address).unwrap(), 1);
    assert_eq!(thread.join().unwrap(), ["insert", "commitTransaction", "insert", "commitTransaction"]);
}

#[test]
fn transient_errors_are_tried_again_and_others_are_not() {
    let (address, _) = scripted(Vec::new());
    let mut client = Client::connect(&ConnectionString::direct(&address)).unwrap();
    let failure = |label: &str| {
        let labels = vec![label.to_owned()];
        Error::Server(Box::new(ServerError { code: 112, labels, ..ServerError::default() }))
    };
    let mut calls = 0;
    let outcome = client.transaction(&TransactionOptions::default(), |_| {
        calls += 1;
        if calls < 4 { Err(failure("TransientTransactionError")) } else { Ok("done") }
    });
    assert_eq!(outcome.unwrap(), ("done", 3));
    let mut calls = 0;
    let outcome = client.transaction(&TransactionOptions::default(), |_| -> Result<()> {
        calls += 1;
        Err(failure("Other"))
    });
    assert_eq!((outcome.unwrap_err().code(), calls), (Some(112), 1));
    assert!(!client.in_transaction());
}

/// What the members of a set of three know, and what they have been asked.
#[derive(Default)]
struct Known {
    addresses: Vec<String>,
    /// Each believes: whether it is the primary, and by which election.
    primary: [bool; 3],
    election: [u8; 3],
    /// How many connections each was asked for, and how often all said what they are.
    dialled: [usize; 3],
    hellos: usize,
    /// Member, command, and its document.
    asked: Vec<(usize, String, DocBuf)>,
    /// What the next commands other than hello are answered with; `None` cuts the connection.
    answers: std::collections::VecDeque<Option<DocBuf>>,
    /// These take commands and say nothing.
    silent: [bool; 3],
    /// Nor do they say what they are.
    stopped: [bool; 3],
    /// Happens after the next of these answers.
    then: Option<fn(&mut Known)>,
}

struct MockSet(std::sync::Arc<std::sync::Mutex<Known>>);

impl MockSet {
    /// Three members, the third one being the primary. The threads end with the test.
    fn start() -> MockSet {
        let known = std::sync::Arc::new(std::sync::Mutex::new(Known::default()));
        for member in 0..3 {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            known.lock().unwrap().addresses.push(listener.local_addr().unwrap().to_string());
            let known = known.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let known = known.clone();
                    known.lock().unwrap().dialled[member] += 1;
                    std::thread::spawn(move || serve_member(member, stream, &known));
                }
            });
        }
        known.lock().unwrap().primary[2] = true;
        known.lock().unwrap().election = [1; 3];
        MockSet(known)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap()
    }

    /// Only the first member is named.
    fn connection_string(&self) -> ConnectionString {
        let first = self.known().addresses[0].clone();
        format!("mongodb://{first}/?replicaSet=rs&retryWrites=true").parse().unwrap()
    }

    fn answer(&self, answers: &[Option<DocBuf>], then: Option<fn(&mut Known)>) {
        self.known().answers.extend(answers.iter().cloned());
        self.known().then = then;
    }

    /// Who was asked what.
    fn asked(&self) -> Vec<(usize, String)> {
        self.known().asked.iter().map(|(member, name, _)| (*member, name.clone())).collect()
    }

    fn field(&self, at: usize, name: &str) -> Option<String> {
        self.known().asked[at].2.as_raw().get(name).map(|value| format!("{value:?}"))
    }
}

fn serve_member(member: usize, mut stream: std::net::TcpStream, known: &std::sync::Mutex<Known>) {
    loop {
        let mut message = vec![0; HEADER_LEN];
        if stream.read_exact(&mut message).is_err() {
            return;
        }
        let header = Header::parse(&message).unwrap();
        message.resize(header.length as usize, 0);
        stream.read_exact(&mut message[HEADER_LEN..]).unwrap();
        let Ok(sheaf_wire::Request::Msg(request)) = sheaf_wire::parse(&message) else { panic!() };
        let name = request.body.iter().next().unwrap().key().to_owned();
        let mut known = known.lock().unwrap();
        if known.stopped[member] || (known.silent[member] && name != "hello") {
            known.asked.push((member, name, DocBuf::from(request.body)));
            if let Some(then) = known.then.take() {
                then(&mut known);
            }
            continue;
        }
        let reply = if name == "hello" {
            known.hellos += 1;
            Some(hello_of(&known, member))
        } else {
            known.asked.push((member, name, DocBuf::from(request.body)));
            let reply = known.answers.pop_front().unwrap_or(Some(doc! { "ok": 1.0, "n": 1 }));
            if let Some(then) = known.then.take() {
                then(&mut known);
            }
            reply
        };
        let Some(reply) = reply else { return };
        let mut bytes = vec![0; REPLY_HEAD];
        bytes.extend_from_slice(reply.as_bytes());
        sheaf_wire::finish_msg(&mut bytes, 0, header.request_id, 0);
        stream.write_all(&bytes).unwrap();
    }
}

fn hello_of(known: &Known, member: usize) -> DocBuf {
    let primary = known.primary[member];
    DocBuf::build(|hello| {
        hello.append("isWritablePrimary", primary).append("secondary", !primary).append("setName", "rs");
        let mut hosts = hello.array("hosts");
        for address in &known.addresses {
            hosts.push(address.as_str());
        }
        drop(hosts);
        if primary {
            let id = sheaf_bson::ObjectId([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, known.election[member]]);
            hello.append("electionId", Value::ObjectId(id));
        }
        hello.append("ok", 1.0);
    })
}

fn insert_one(client: &mut Client) -> Result<Written> {
    let mut insert = client.insert(&Collection::new("lab", "x"));
    insert.push(|document| {
        document.append("_id", 1);
    });
    insert.send()
}

fn not_primary() -> Option<DocBuf> {
    Some(doc! { "ok": 0.0, "code": 10107, "errmsg": "not primary" })
}

/// The first member is elected, and the third one knows.
fn elect_first(known: &mut Known) {
    known.primary = [true, false, false];
    known.election[0] = 2;
}

#[test]
fn the_primary_is_found_and_followed() {
    let set = MockSet::start();
    let mut client = Client::connect(&set.connection_string()).unwrap();
    insert_one(&mut client).unwrap();
    set.answer(&[not_primary()], Some(elect_first));
    assert_eq!(insert_one(&mut client).unwrap().n, 1);
    assert_eq!(set.asked(), [(2, "insert".into()), (2, "insert".into()), (0, "insert".into())]);
    // The same transaction number, so that it happens once; another one than that of the first write.
    assert!(set.field(1, "txnNumber").is_some());
    assert_eq!(set.field(1, "txnNumber"), set.field(2, "txnNumber"));
    assert_eq!(set.field(1, "lsid"), set.field(2, "lsid"));
    assert_ne!(set.field(0, "txnNumber"), set.field(1, "txnNumber"));
}

#[test]
fn what_a_lost_connection_has_not_answered_is_sent_again_only_if_asked_for() {
    let set = MockSet::start();
    let mut client = Client::connect(&set.connection_string()).unwrap();
    set.answer(&[None], None);
    insert_one(&mut client).unwrap();
    assert_eq!(set.field(0, "txnNumber"), set.field(1, "txnNumber"));
    // A write concern that was not met in time is an answer.
    let late = doc! { "ok": 1.0, "n": 1, "writeConcernError": { "code": 64, "errmsg": "late" } };
    set.answer(&[Some(late)], None);
    assert_eq!(insert_one(&mut client).unwrap_err().code(), Some(64));
    assert_eq!(set.asked().len(), 3);
    let mut to = set.connection_string();
    to.retry = false;
    let mut client = Client::connect(&to).unwrap();
    set.answer(&[not_primary()], None);
    assert_eq!(insert_one(&mut client).unwrap_err().code(), Some(10107));
    assert!(set.asked().len() == 4 && set.field(3, "txnNumber").is_none());
}

#[test]
fn a_primary_that_was_voted_out_is_not_believed() {
    let set = MockSet::start();
    let mut client = Client::connect(&set.connection_string()).unwrap();
    // The first one is elected; the third does not know it yet, and the first is asked later.
    set.answer(
        &[None],
        Some(|known| {
            known.primary = [true, false, true];
            known.election[0] = 2;
        }),
    );
    insert_one(&mut client).unwrap();
    // Now the new one is not reachable, and the old one still believes.
    set.answer(&[None], Some(|known| known.primary = [false, false, true]));
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(150));
            set.known().election[2] = 3;
        });
        insert_one(&mut client).unwrap();
    });
    assert!(began.elapsed() >= Duration::from_millis(150));
    assert_eq!(set.asked().last().unwrap().0, 2);
}

#[test]
fn a_primary_that_falls_silent_is_not_waited_for() {
    let wait_for_one_that = |falls_silent: fn(&mut Known)| {
        let set = MockSet::start();
        let mut to = set.connection_string();
        // It is the one that is asked first.
        to.hosts = vec![set.known().addresses[2].clone()];
        let mut client = Client::connect(&to).unwrap();
        falls_silent(&mut set.known());
        // The old one believes that it is the primary still.
        set.answer(
            &[],
            Some(|known| {
                known.primary = [true, false, true];
                known.election[0] = 2;
            }),
        );
        let began = Instant::now();
        insert_one(&mut client).unwrap();
        assert!(began.elapsed() < client.connection_string().socket_timeout / 4);
        let asked = set.asked();
        let inserts: Vec<_> = asked.iter().filter(|(_, name)| name == "insert").collect();
        assert_eq!(inserts, [&(2, "insert".to_owned()), &(0, "insert".to_owned())]);
    };
    // Cut off with its clients: it says what it is, and another one was elected.
    wait_for_one_that(|known| known.silent[2] = true);
    // Paused.
    wait_for_one_that(|known| (known.silent[2], known.stopped[2]) = (true, true));
}

#[test]
fn a_slow_answer_of_the_primary_is_waited_for() {
    let set = MockSet::start();
    let mut to = set.connection_string();
    to.socket_timeout = 3 * super::select::LOOK_AFTER;
    let mut client = Client::connect(&to).unwrap();
    set.known().silent[2] = true;
    let began = Instant::now();
    let mut insert = client.insert(&Collection::new("lab", "x"));
    insert.push(|document| {
        document.append("_id", 1);
    });
    // Until the time is over, and not sent again to the same one before.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(2 * super::select::LOOK_AFTER);
            assert_eq!(set.asked().len(), 1);
            set.known().silent[2] = false;
        });
        insert.send().unwrap();
    });
    assert!(began.elapsed() >= to.socket_timeout);
}

#[test]
fn members_are_dialled_once_while_they_elect() {
    let set = MockSet::start();
    set.known().primary = [false; 3];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Some rounds of questions.
            while set.known().hellos < 30 {
                std::thread::sleep(Duration::from_millis(1));
            }
            set.known().primary[1] = true;
        });
        let mut client = Client::connect(&set.connection_string()).unwrap();
        insert_one(&mut client).unwrap();
    });
    // One each, and another now and then where a machine is slow to answer; each question had one of its own before.
    let dialled: usize = set.known().dialled.iter().sum();
    assert!((3..10).contains(&dialled), "{dialled}");
}

#[test]
fn reads_go_where_the_preference_says() {
    let set = MockSet::start();
    let to = set.connection_string().reading(ReadPreference::Secondary);
    let found = || Some(doc! { "ok": 1.0, "cursor": { "id": 0i64, "ns": "lab.x", "firstBatch": [] } });
    let mut members = std::collections::BTreeSet::new();
    for at in 0..20 {
        let mut client = Client::connect(&to).unwrap();
        set.answer(&[found()], None);
        assert!(client.find_by_id(&Collection::new("lab", "x"), 1).unwrap().is_none());
        members.insert(set.asked()[at].0);
        assert!(set.field(at, "$readPreference").unwrap().contains("secondary"));
    }
    // Both secondaries, by chance; never the primary.
    assert_eq!(members.into_iter().collect::<Vec<_>>(), [0, 1]);
    let mut client = Client::connect(&to).unwrap();
    insert_one(&mut client).unwrap();
    assert_eq!(set.asked()[20], (2, "insert".into()));
    assert!(set.field(20, "$readPreference").is_none());
}

#[test]
fn a_causal_client_reads_after_what_it_has_seen() {
    let set = MockSet::start();
    let mut client = Client::connect(&set.connection_string()).unwrap().causal();
    let time = |n| Value::Timestamp(sheaf_bson::Timestamp::new(7, n));
    set.answer(
        &[
            Some(doc! { "ok": 1.0, "n": 1, "operationTime": time(3), "$clusterTime": { "clusterTime": time(4) } }),
            // What is older changes nothing.
            Some(doc! {
                "ok": 1.0, "operationTime": time(2), "$clusterTime": { "clusterTime": time(1) },
                "cursor": { "id": 0i64, "ns": "lab.x", "firstBatch": [] }
            }),
        ],
        None,
    );
    insert_one(&mut client).unwrap();
    client.find_by_id(&Collection::new("lab", "x"), 1).unwrap();
    let _ = client.find_by_id(&Collection::new("lab", "x"), 1);
    for at in [1, 2] {
        let known = set.known();
        let inner = |outer: &str, name: &str| known.asked[at].2.as_raw().get(outer)?.as_doc()?.get(name);
        assert!(
            matches!(inner("readConcern", "afterClusterTime"), Some(Value::Timestamp(t)) if t.increment() == 3)
        );
        assert!(
            matches!(inner("$clusterTime", "clusterTime"), Some(Value::Timestamp(t)) if t.increment() == 4)
        );
    }
}

#[test]
fn another_router_is_told_where_to_ask_what_became_of_a_transaction() {
    let set = MockSet::start();
    let mut client = Client::connect(&set.connection_string()).unwrap();
    let token = |shard: &str| Some(doc! { "ok": 1.0, "n": 1, "recoveryToken": { "recoveryShardId": shard } });
    // The answer to the first commit is lost.
    set.answer(&[token("shard1"), None], None);
    client.transaction(&TransactionOptions::default(), insert_one).unwrap();
    client.transaction(&TransactionOptions::default(), insert_one).unwrap();
    let names: Vec<String> = set.asked().into_iter().map(|(_, name)| name).collect();
    let expected = ["insert", "commitTransaction", "commitTransaction", "insert", "commitTransaction"];
    assert_eq!(names, expected);
    let told: Vec<bool> = (0..5).map(|at| set.field(at, "recoveryToken").is_some()).collect();
    // The next transaction has none of it.
    assert_eq!(told, [false, true, true, false, false]);
}
