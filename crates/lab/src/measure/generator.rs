//! How fast the load generator is by itself: the same clients against a responder that does nothing.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use sheaf_bson::doc;
use sheaf_wire::{Flags, HEADER_LEN, Header, REPLY_HEAD, finish_msg};

use super::{Load, Measured, Span};
use crate::client::{Collection, ConnectionString};
use crate::context::{Context, Group};
use crate::database::Database;
use crate::error::Result;
use crate::stop::Stop;

/// A server in this process that answers every message with the same few bytes. It ends with this value.
pub struct NullResponder {
    address: SocketAddr,
    stop: Stop,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl NullResponder {
    /// Listens on a free port.
    pub fn start() -> io::Result<NullResponder> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let stop = Stop::default();
        let halt = stop.clone();
        let thread = std::thread::spawn(move || {
            // Each connection's thread ends when the client closes it.
            for stream in listener.incoming().flatten() {
                if halt.is_set() {
                    return;
                }
                std::thread::spawn(move || drop(answer_all(stream)));
            }
        });
        Ok(NullResponder { address, stop, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for NullResponder {
    fn drop(&mut self) {
        self.stop.set();
        // Wakes the thread that accepts.
        let woken = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn answer_all(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // Good for hello, for a write of one document and for anything that only wants ok.
    let body = doc! { "n": 1, "isWritablePrimary": true, "maxWireVersion": 27, "ok": 1.0 };
    let mut reply = vec![0; REPLY_HEAD];
    reply.extend_from_slice(body.as_bytes());
    let mut buffer = vec![0; 64 * 1024];
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..])?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        while filled >= HEADER_LEN {
            let header = Header::parse(&buffer[..filled]).map_err(|_| io::ErrorKind::InvalidData)?;
            let length = header.length as usize;
            if filled < length {
                if buffer.len() < length {
                    buffer.resize(length, 0);
                }
                break;
            }
            let flags = buffer.get(HEADER_LEN..HEADER_LEN + 4).and_then(|bytes| bytes.first_chunk::<4>());
            let more_to_come = flags.is_some_and(|bytes| Flags(u32::from_le_bytes(*bytes)).more_to_come());
            if !more_to_come {
                finish_msg(&mut reply, 0, header.request_id, 0);
                stream.write_all(&reply)?;
            }
            buffer.copy_within(length..filled, 0);
            filled -= length;
        }
    }
}

/// Drives the responder for a while with single small inserts by so many clients.
pub fn drive(clients: u32, seconds: f64, stop: &Stop) -> Result<Measured> {
    let responder = NullResponder::start()?;
    let to = ConnectionString::direct(&responder.address());
    let mut context = Context::bare(Database::MongoDb(to), Default::default());
    context.stop = stop.clone();
    let collection = Collection::new("lab", "null");
    let group = Group::new("client", clients, |worker| {
        while let Some(ticket) = worker.next() {
            let mut insert = worker.client().insert(&collection);
            insert.push(|document| {
                document.append("_id", ticket.number as i64).append("text", "a small document");
            });
            insert.send()?;
            worker.done("insert", ticket);
        }
        Ok(())
    });
    context.run(&[group.load(Load::closed(Span::Seconds(seconds)))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_responder_answers_clients_large_and_small() {
        let responder = NullResponder::start().unwrap();
        let to = ConnectionString::direct(&responder.address());
        let mut client = crate::client::Client::connect(&to).unwrap();
        let collection = Collection::new("lab", "null");
        let text = "x".repeat(300_000);
        for unacknowledged in [false, true, false] {
            let concern = crate::client::WriteConcern::nodes(u32::from(!unacknowledged));
            let target = collection.clone().with_concern(&concern);
            let mut insert = client.insert(&target);
            insert.push(|document| {
                document.append("text", text.as_str());
            });
            assert_eq!(insert.send().unwrap().n, 1);
        }
        client.barrier().unwrap();
    }

    #[test]
    fn driving_it_counts_every_operation() {
        let measured = drive(2, 0.05, &Stop::default()).unwrap();
        let totals = measured.operation("insert");
        assert!(totals.count() > 10 && totals.errors == 0, "{totals:?}");
        assert!((measured.rate("insert") - totals.count() as f64 / measured.seconds).abs() < 1e-6);
    }
}
