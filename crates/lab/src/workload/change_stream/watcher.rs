//! One stream, which is resumed wherever it breaks.

use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, RawDoc, Value, doc};

use crate::check::Anomaly;
use crate::check::stream::Event;
use crate::client::{Client, ConnectionString, Cursor};
use crate::context::Context;
use crate::error::{Error, Result};

/// How long the server waits for an event.
const WAIT: Duration = Duration::from_millis(200);
/// How long it may take at the end until the last event comes.
const LAST_EVENT: Duration = Duration::from_secs(300);

/// Errors after which a stream is resumed even without the label ResumableChangeStreamError: CursorNotFound,
/// CursorKilled, and what [`Error::is_transient`] knows.
const RESUMABLE: [i32; 2] = [43, 237];

pub(super) struct Watcher {
    pub name: String,
    to: ConnectionString,
    db: String,
    collection: String,
    client: Option<Client>,
    cursor: Option<Cursor>,
    /// Where to go on.
    token: Option<DocBuf>,
    pub events: Vec<Event>,
    pub resumed: u64,
    pub anomalies: Vec<Anomaly>,
}

impl Watcher {
    /// Opens a stream; all that happens from now on will be seen.
    pub fn open(name: String, to: ConnectionString, db: &str, collection: &str) -> Result<Watcher> {
        let mut watcher = Watcher {
            name,
            to,
            db: db.to_owned(),
            collection: collection.to_owned(),
            client: None,
            cursor: None,
            token: None,
            events: Vec::new(),
            resumed: 0,
            anomalies: Vec::new(),
        };
        watcher.resume()?;
        if watcher.token.is_none() {
            return Err(Error::failed("a change stream without events has no postBatchResumeToken"));
        }
        Ok(watcher)
    }

    /// Looks for events, and takes them in; how many.
    pub fn look(&mut self, context: &Context) -> Result<u64> {
        if !self.anomalies.is_empty() {
            // It cannot go on.
            std::thread::sleep(WAIT);
            return Ok(0);
        }
        if self.cursor.is_none() {
            return self.resume();
        }
        let (Some(client), Some(cursor)) = (&mut self.client, &mut self.cursor) else { return Ok(0) };
        let events = &mut self.events;
        let mut newest = None;
        let seen = client.next_batch(cursor, Some(WAIT), |event| {
            events.push(read_event(event)?);
            newest = event.get("_id").and_then(|id| id.as_doc()).map(DocBuf::from);
            Ok(())
        })?;
        // The token of the batch also covers what did not match; of an old server there is only the event's own.
        self.token = cursor.resume_token.clone().or(newest).or(self.token.take());
        if !cursor.is_open() && !context.stop.is_set() {
            self.anomalies.push(Anomaly {
                kind: "stream ended",
                text: format!("{}: the server closed it without an error", self.name),
            });
        }
        Ok(seen)
    }

    fn resume(&mut self) -> Result<u64> {
        if self.client.is_none() {
            self.client = Some(Client::connect(&self.to)?);
        }
        let Some(client) = &mut self.client else { return Ok(0) };
        let mut stage = DocBuf::build(|_| {});
        if let Some(token) = &self.token {
            stage.append("resumeAfter", token.as_raw());
            self.resumed += 1;
        }
        let command = doc! {
            "aggregate": self.collection.as_str(),
            "pipeline": [{ "$changeStream": stage.as_raw() }],
            "cursor": {}
        };
        let events = &mut self.events;
        let mut newest = None;
        let (cursor, seen) = client.open_cursor(&self.db, &command, |event| {
            events.push(read_event(event)?);
            newest = event.get("_id").and_then(|id| id.as_doc()).map(DocBuf::from);
            Ok(())
        })?;
        self.token = cursor.resume_token.clone().or(newest).or(self.token.take());
        self.cursor = Some(cursor);
        Ok(seen)
    }

    /// Lets go of the cursor; the next look resumes.
    pub fn close(&mut self) {
        if let (Some(client), Some(cursor)) = (&mut self.client, &mut self.cursor) {
            client.close_cursor(cursor);
        }
        self.cursor = None;
    }

    /// The stream broke. If it may not be resumed, that is an anomaly: nobody may lose events.
    pub fn lost(&mut self, error: &Error) {
        self.cursor = None;
        if matches!(error, Error::Io(_)) {
            self.client = None;
        }
        let code = error.code().unwrap_or(0);
        let resumable = error.has_label("ResumableChangeStreamError")
            || error.is_transient()
            || RESUMABLE.contains(&code);
        if !resumable {
            let text = format!("{}: after {} events: {error}", self.name, self.events.len());
            self.anomalies.push(Anomaly { kind: "stream cannot be resumed", text });
        }
    }

    /// Reads on until the event of this document has come. What comes after it is left out: a write of a client that has
    /// given up may be done at any later time.
    pub fn read_until(&mut self, context: &Context, last: i64) -> Result<()> {
        let began = Instant::now();
        while !self.ends_with(last) {
            if !self.anomalies.is_empty() || began.elapsed() > LAST_EVENT {
                // What is missing is found by the check.
                return Ok(());
            }
            if context.stop.is_set() {
                return Err(Error::Interrupted);
            }
            if let Err(error) = self.look(context) {
                self.lost(&error);
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        self.close();
        Ok(())
    }

    /// Whether the event of this document has come; then it is the last one.
    fn ends_with(&mut self, document: i64) -> bool {
        let at = self.events.iter().rposition(|event| event.document == document);
        self.events.truncate(at.map_or(self.events.len(), |at| at + 1));
        at.is_some()
    }
}

fn read_event(event: RawDoc<'_>) -> Result<Event> {
    let part = |name: &str| event.get(name).and_then(|part| part.as_doc());
    let bad = || Error::failed(format!("not the event of a numbered write: {event:?}"));
    let number = match event.get("operationType").and_then(|kind| kind.as_str()) {
        Some("insert" | "replace") => part("fullDocument").and_then(|document| document.get("number")),
        Some("update") => part("updateDescription")
            .and_then(|update| update.get("updatedFields"))
            .and_then(|fields| fields.as_doc())
            .and_then(|fields| fields.get("number")),
        _ => None,
    };
    let token = part("_id").and_then(|id| id.get("_data")).and_then(|data| data.as_str());
    let document = part("documentKey").and_then(|key| key.get("_id")).and_then(|id| id.as_exact_i64());
    let Some(Value::Timestamp(time)) = event.get("clusterTime") else { return Err(bad()) };
    Ok(Event {
        token: token.ok_or_else(bad)?.to_owned(),
        document: document.ok_or_else(bad)?,
        number: number.and_then(|number| number.as_exact_i64()).ok_or_else(bad)?,
        cluster_time: (time.seconds(), time.increment()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_bson::Timestamp;

    #[test]
    fn events_are_read() {
        let time = Value::Timestamp(Timestamp::new(7, 3));
        let update = doc! {
            "_id": { "_data": "82AB" }, "operationType": "update", "clusterTime": time,
            "documentKey": { "_id": 5 }, "updateDescription": { "updatedFields": { "number": 9i64 } }
        };
        let expected = Event { token: "82AB".into(), document: 5, number: 9, cluster_time: (7, 3) };
        assert_eq!(read_event(update.as_raw()).unwrap(), expected);
        let insert = doc! {
            "_id": { "_data": "82AB" }, "operationType": "insert", "clusterTime": time,
            "documentKey": { "_id": 5 }, "fullDocument": { "_id": 5, "number": 9i64 }
        };
        assert_eq!(read_event(insert.as_raw()).unwrap(), expected);
        let drop = doc! { "_id": { "_data": "82AB" }, "operationType": "drop", "clusterTime": time };
        assert!(read_event(drop.as_raw()).unwrap_err().to_string().contains("drop"));
    }
}
