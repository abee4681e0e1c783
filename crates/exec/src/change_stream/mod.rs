//! Change streams: the log's operations as events, for one reader each.
//!
//! A [`ChangeStreamSource`] is the input of a pipeline that starts with `$changeStream`. It owns a cursor on the
//! log and nothing else that lasts: between two commands it costs memory only. Which operations concern it is
//! decided by their names, before anything of them is built. Its [`StreamPosition`] is shared with the client's cursor,
//! which tells it with every batch.

mod doubt;
mod lookup;
mod source;

use std::sync::Arc;

use parking_lot::Mutex;
use sheaf_aggregate::stages::change_stream::ResumeToken;
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result};

use sheaf_storage::View;
pub use source::ChangeStreamSource;

/// Where cluster parameters are kept, one document each.
pub const CLUSTER_PARAMETERS: &str = "config.clusterParameters";

/// Name of the cluster parameter of change streams.
pub const OPTIONS_PARAMETER: &str = "changeStreamOptions";

/// `preAndPostImages.expireAfterSeconds` of the cluster parameter; `None`: as long as the log lasts.
pub fn image_seconds(view: &View) -> Result<Option<i64>> {
    let Some(collection) = view.collection(CLUSTER_PARAMETERS) else { return Ok(None) };
    let key = collection.record_key(Value::String(OPTIONS_PARAMETER))?;
    let Some(doc) = view.get(collection, &key)? else { return Ok(None) };
    let images = doc.as_raw().get("preAndPostImages").and_then(|images| images.as_doc());
    Ok(images.and_then(|images| images.get("expireAfterSeconds")?.as_exact_i64()))
}

/// How far a change stream has come.
#[derive(Debug)]
pub struct StreamPosition {
    /// Behind the last event, or behind all that was read.
    token: ResumeToken,
    /// The `_id` of the last event.
    event: Option<DocBuf>,
    /// Whether nothing comes any more.
    ended: bool,
    /// What is committed at or below this time is in the states that are read from now on.
    promised: u64,
    /// Whether nothing more comes before the watched collection is written to.
    quiet: bool,
}

/// A position that the source moves and the cursor tells.
pub type SharedPosition = Arc<Mutex<StreamPosition>>;

impl StreamPosition {
    /// A stream that begins there.
    pub fn at(token: ResumeToken) -> Self {
        StreamPosition { token, event: None, ended: false, promised: 0, quiet: false }
    }

    /// What is committed at or below this time is in the states that are read from now on.
    pub fn promise(&mut self, time: u64) {
        self.promised = self.promised.max(time);
    }

    /// Whether all is told that is committed at or below this time.
    pub fn is_behind(&self, time: u64) -> bool {
        self.token.time > time
    }

    /// All is told that is committed before this time.
    pub fn time(&self) -> u64 {
        self.token.time
    }

    /// Whether nothing more comes before the watched collection is written to: no state that is still to be read has anything of it.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// `postBatchResumeToken`.
    pub fn token(&self) -> DocBuf {
        self.token.to_doc()
    }

    /// Whether the stream has ended: the client's cursor is closed.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Checks that a document still has the `_id` of the event that it was made from, and takes it over as the
    /// position (it may be that of a fragment).
    ///
    /// Errors: `ChangeStreamFatalError`.
    pub fn follow(&mut self, document: RawDoc<'_>) -> Result<()> {
        let Some(event) = &self.event else { return Ok(()) };
        let found = document.get("_id");
        let Some(Value::Document(id)) = found else { return Err(changed(event, found)) };
        if event.as_raw() == id {
            return Ok(());
        }
        match ResumeToken::parse(id) {
            Ok(token) if token.fragment.is_some() && token.without_fragment().to_doc() == *event => {
                self.token = token;
                Ok(())
            }
            _ => Err(changed(event, found)),
        }
    }

    /// An event is given; perhaps it is the last.
    pub fn moved(&mut self, token: &ResumeToken, ended: bool) {
        self.token = token.clone();
        self.event = Some(token.to_doc());
        self.ended = ended;
    }

    /// Everything before this time was read, and where no transaction is in doubt, everything that was promised.
    fn read_up_to(&mut self, time: u64, doubt: Option<u64>) {
        let known = time.max(self.promised + 1).min(doubt.unwrap_or(u64::MAX));
        self.known_before(ResumeToken::high_water_mark(known));
    }

    /// Nothing comes any more.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Nothing more comes before this position.
    pub fn known_before(&mut self, mark: ResumeToken) {
        if mark > self.token {
            self.token = mark;
        }
    }
}

fn changed(event: &DocBuf, found: Option<Value<'_>>) -> Error {
    let shown = |id: Option<Value<'_>>| {
        let doc = DocBuf::build(|out| {
            if let Some(id) = id {
                out.append("_id", id);
            }
        });
        sheaf_aggregate::print_document(doc.as_raw())
    };
    let (expected, found) = (shown(Some(Value::Document(event.as_raw()))), shown(found));
    Error::new(
        Code::CHANGE_STREAM_FATAL_ERROR,
        format!(
            "Encountered an event whose _id field, which contains the resume token, was modified by the pipeline. Modifying the _id field of an event makes it impossible to resume the stream from that point. Only transformations that retain the unmodified _id field are allowed. Expected: {expected} but found: {found}"
        ),
    )
}
