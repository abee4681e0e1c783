//! Clients against servers that answer by a script.

use std::io::{Read, Write};

use sheaf_bson::{DocBuf, Value, doc};
use sheaf_wire::{HEADER_LEN, Header, REPLY_HEAD};

use super::*;
use crate::error::ServerError;
use crate::measure::generator::NullResponder;

#[test]
fn a_transaction_without_operations_never_reaches_the_server() {
    let responder = NullResponder::start().unwrap();
    let mut client = Client::connect(&ConnectionString::direct(&responder.address())).unwrap();
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
}

/// A server that answers the messages of its connections with these replies; `None` cuts the connection. What the
/// messages were is given back.
fn scripted(replies: Vec<Option<DocBuf>>) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = std::thread::spawn(move || {
        let (mut seen, mut stream) = (Vec::new(), listener.accept().unwrap().0);
        for reply in replies {
            let mut message = vec![0; HEADER_LEN];
            stream.read_exact(&mut message).unwrap();
            let header = Header::parse(&message).unwrap();
            message.resize(header.length as usize, 0);
            stream.read_exact(&mut message[HEADER_LEN..]).unwrap();
            let Ok(sheaf_wire::Request::Msg(request)) = sheaf_wire::parse(&message) else { panic!() };
            seen.push(request.body.iter().next().unwrap().key().to_owned());
            match reply {
                Some(reply) => {
                    let mut bytes = vec![0; REPLY_HEAD];
                    bytes.extend_from_slice(reply.as_bytes());
                    sheaf_wire::finish_msg(&mut bytes, 0, header.request_id, 0);
                    stream.write_all(&bytes).unwrap();
                }
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
    let responder = NullResponder::start().unwrap();
    let mut client = Client::connect(&ConnectionString::direct(&responder.address())).unwrap();
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
