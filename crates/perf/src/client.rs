//! A client as thin as one can be: one blocking socket, OP_MSG written and read by hand.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use sheaf_bson::{DocBuf, RawDoc, doc};

const OP_MSG: i32 = 2013;

/// One connection.
pub(crate) struct Client {
    stream: TcpStream,
    reply: Vec<u8>,
}

/// A command as a whole message, ready to be sent again and again.
pub(crate) fn message(command: &DocBuf) -> Vec<u8> {
    let mut bytes = vec![0; 21];
    bytes[12..16].copy_from_slice(&OP_MSG.to_le_bytes());
    bytes.extend_from_slice(command.as_bytes());
    close(bytes)
}

/// A command whose documents follow in a sequence section, as drivers send their writes.
pub(crate) fn message_with(command: &DocBuf, identifier: &str, documents: &[DocBuf]) -> Vec<u8> {
    let mut bytes = message(command);
    bytes.push(1);
    let at = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(identifier.as_bytes());
    bytes.push(0);
    for document in documents {
        bytes.extend_from_slice(document.as_bytes());
    }
    let length = (bytes.len() - at) as i32;
    bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
    close(bytes)
}

fn close(mut bytes: Vec<u8>) -> Vec<u8> {
    let length = bytes.len() as i32;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes
}

impl Client {
    pub fn connect(port: u16) -> io::Result<Client> {
        let mut client = Client::bare(port)?;
        client.call(&doc! { "hello": 1, "$db": "admin" })?;
        Ok(client)
    }

    /// A connection to what need not be a server.
    pub fn bare(port: u16) -> io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Client { stream, reply: Vec::new() })
    }

    /// Sends a prepared message; the reply's document.
    pub fn send(&mut self, message: &[u8]) -> io::Result<RawDoc<'_>> {
        self.stream.write_all(message)?;
        self.reply.resize(16, 0);
        self.stream.read_exact(&mut self.reply)?;
        let length =
            i32::from_le_bytes([self.reply[0], self.reply[1], self.reply[2], self.reply[3]]) as usize;
        self.reply.resize(length, 0);
        self.stream.read_exact(&mut self.reply[16..])?;
        Ok(RawDoc::new(&self.reply[21..]))
    }

    /// Sends a command and fails when the server says that it failed, or that one of its writes did.
    pub fn call(&mut self, command: &DocBuf) -> io::Result<RawDoc<'_>> {
        self.checked(&message(command))
    }

    /// As [`Client::call`], with a prepared message.
    pub fn checked(&mut self, message: &[u8]) -> io::Result<RawDoc<'_>> {
        let reply = self.send(message)?;
        let ok = reply.get("ok").and_then(|ok| ok.as_f64()) == Some(1.0);
        if !ok || reply.get("writeErrors").is_some() {
            let text = reply.get("errmsg").and_then(|text| text.as_str().map(str::to_owned));
            return Err(io::Error::other(format!("the server answered: {text:?} {reply:?}")));
        }
        Ok(reply)
    }

    /// Bytes of the last reply, header included.
    pub fn reply_len(&self) -> usize {
        self.reply.len()
    }

    /// Inserts documents in one command.
    pub fn insert(&mut self, collection: &str, documents: &[DocBuf]) -> io::Result<()> {
        let command = doc! { "insert": collection, "$db": "perf" };
        self.checked(&message_with(&command, "documents", documents)).map(drop)
    }

    /// Reads a whole find through its batches; documents and bytes of documents that came.
    pub fn drain(&mut self, find: &DocBuf, collection: &str, batch: i32) -> io::Result<(usize, usize)> {
        let (mut count, mut bytes) = (0, 0);
        let mut id = take(self.call(find)?, "firstBatch", &mut count, &mut bytes);
        while id != 0 {
            let more = doc! { "getMore": id, "collection": collection, "batchSize": batch, "$db": "perf" };
            id = take(self.call(&more)?, "nextBatch", &mut count, &mut bytes);
        }
        Ok((count, bytes))
    }
}

/// Counts a batch; the cursor's id.
fn take(reply: RawDoc<'_>, batch: &str, count: &mut usize, bytes: &mut usize) -> i64 {
    let Some(cursor) = reply.get("cursor").and_then(|cursor| cursor.as_doc()) else { return 0 };
    for value in
        cursor.get(batch).and_then(|b| b.as_array()).into_iter().flat_map(|documents| documents.values())
    {
        if let Some(document) = value.as_doc() {
            *count += 1;
            *bytes += document.len();
        }
    }
    cursor.get("id").and_then(|id| id.as_exact_i64()).unwrap_or(0)
}
