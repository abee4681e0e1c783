//! Cursors whose batches are asked for one by one.

use std::time::Duration;

use sheaf_bson::{DocBuf, RawDoc, doc};

use super::Client;
use crate::error::{Error, Result};

/// A cursor on the server.
#[derive(Clone, Debug)]
pub struct Cursor {
    id: i64,
    db: String,
    collection: String,
    batch_size: Option<i64>,
    /// Of a change stream: where it can be resumed after the last batch.
    pub resume_token: Option<DocBuf>,
}

impl Cursor {
    /// Whether there is more to ask for.
    pub fn is_open(&self) -> bool {
        self.id != 0
    }
}

impl Client {
    /// Runs a command that opens a cursor, and hands over the first batch.
    pub fn open_cursor(
        &mut self,
        db: &str,
        command: &DocBuf,
        each: impl FnMut(RawDoc<'_>) -> Result<()>,
    ) -> Result<(Cursor, u64)> {
        self.open_cursor_at(db, command, None, each)
    }

    pub(super) fn open_cursor_at(
        &mut self,
        db: &str,
        command: &DocBuf,
        level: Option<&str>,
        mut each: impl FnMut(RawDoc<'_>) -> Result<()>,
    ) -> Result<(Cursor, u64)> {
        let given = command.as_raw();
        let size = given.get("batchSize").or_else(|| given.get("cursor")?.as_doc()?.get("batchSize"));
        // An opening batch of 0 only asks for the cursor; the next must hold something.
        let batch_size = size.and_then(|n| n.as_exact_i64()).filter(|size| *size > 0);
        let reply = self.read_command_at(db, command, level)?;
        let (db, collection) = (db.to_owned(), String::new());
        let mut cursor = Cursor { id: 0, db, collection, batch_size, resume_token: None };
        let count = take_batch(&mut cursor, reply, &mut each)?;
        Ok((cursor, count))
    }

    /// Asks for the next batch. A change stream's cursor waits so long for something to come.
    pub fn next_batch(
        &mut self,
        cursor: &mut Cursor,
        wait: Option<Duration>,
        mut each: impl FnMut(RawDoc<'_>) -> Result<()>,
    ) -> Result<u64> {
        let mut more = doc! { "getMore": cursor.id, "collection": cursor.collection.as_str() };
        if let Some(size) = cursor.batch_size {
            more.append("batchSize", size);
        }
        if let Some(wait) = wait {
            more.append("maxTimeMS", wait.as_millis() as i64);
        }
        let db = cursor.db.clone();
        let reply = self.read_command(&db, &more)?;
        take_batch(cursor, reply, &mut each)
    }

    /// Lets go of a cursor that is still open. That it is gone already is no error.
    pub fn close_cursor(&mut self, cursor: &mut Cursor) {
        if cursor.id != 0 {
            let cursors = sheaf_bson::array![cursor.id];
            let mut kill = doc! { "killCursors": cursor.collection.as_str() };
            kill.append("cursors", sheaf_bson::Value::Array(cursors.as_raw()));
            let db = cursor.db.clone();
            let _ = self.read_command(&db, &kill);
            cursor.id = 0;
        }
    }
}

fn take_batch(
    cursor: &mut Cursor,
    reply: RawDoc<'_>,
    each: &mut impl FnMut(RawDoc<'_>) -> Result<()>,
) -> Result<u64> {
    let found = reply
        .get("cursor")
        .and_then(|c| c.as_doc())
        .ok_or_else(|| Error::failed("the reply has no cursor"))?;
    cursor.id = found.get("id").and_then(|id| id.as_exact_i64()).unwrap_or(0);
    let ns = found.get("ns").and_then(|ns| ns.as_str()).unwrap_or("");
    ns.split_once('.').map_or(ns, |(_, name)| name).clone_into(&mut cursor.collection);
    let batch = found.get("firstBatch").or_else(|| found.get("nextBatch"));
    let mut count = 0;
    for value in batch.and_then(|b| b.as_array()).into_iter().flat_map(|array| array.values()) {
        let document = value.as_doc().ok_or_else(|| Error::failed("a batch holds no documents"))?;
        each(document)?;
        count += 1;
    }
    let token = found.get("postBatchResumeToken").and_then(|token| token.as_doc());
    cursor.resume_token = token.map(DocBuf::from).or(cursor.resume_token.take());
    Ok(count)
}
