//! The merged events, as the rows of a pipeline.

use std::sync::Arc;

use parking_lot::Mutex;
use sheaf_aggregate::{Namespace, SharedDatabase};
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_exec::change_stream::SharedPosition;
use sheaf_rows::{Cx, Operator, Row, Step};

use super::inputs::{Inputs, Next};

/// The events of all shards in one order. At what is known for now it gives `Eof`, and goes on later.
pub struct StreamSource {
    inputs: Arc<Mutex<Inputs>>,
    position: SharedPosition,
    /// Finds documents as they are now, where the stream wants that.
    documents: Option<SharedDatabase>,
    current: Option<DocBuf>,
}

impl StreamSource {
    /// The events of these; `documents` finds documents as they are now.
    pub fn new(
        inputs: Arc<Mutex<Inputs>>,
        position: SharedPosition,
        documents: Option<SharedDatabase>,
    ) -> Self {
        StreamSource { inputs, position, documents, current: None }
    }

    /// Takes the next event, if all that is before it was told.
    fn take(&mut self) -> Result<Option<DocBuf>> {
        let mut inputs = self.inputs.lock();
        let mut position = self.position.lock();
        if position.has_ended() {
            return Ok(None);
        }
        let at = match inputs.next() {
            Next::Event(at) => at,
            Next::Over => {
                // A stage of the client's has taken the last event away.
                position.end();
                return Ok(None);
            }
            Next::Unknown => {
                if let Some(mark) = inputs.mark() {
                    position.known_before(mark);
                }
                return Ok(None);
            }
        };
        let input = inputs.at(at);
        let event = DocBuf::from(input.document());
        let token = input.next().expect("an event is at hand").clone();
        inputs.advance(at)?;
        let kind = event.as_raw().get("operationType").and_then(|kind| kind.as_str());
        position.moved(&token, kind == Some("invalidate"));
        Ok(Some(event))
    }

    /// An update's document as it is now.
    fn look_up(&self, event: DocBuf, cx: &mut Cx<'_>) -> Result<DocBuf> {
        let Some(documents) = &self.documents else { return Ok(event) };
        if event.as_raw().get("operationType").and_then(|kind| kind.as_str()) != Some("update") {
            return Ok(event);
        }
        let part = |name: &str| event.as_raw().get(name).and_then(|part| part.as_doc());
        let (ns, key) = (part("ns").unwrap_or(RawDoc::EMPTY), part("documentKey").unwrap_or(RawDoc::EMPTY));
        let text = |name: &str| ns.get(name).and_then(|name| name.as_str()).unwrap_or_default();
        let found = documents.find_merge_target(&Namespace::new(text("db"), text("coll")), key, None, cx)?;
        Ok(match &found {
            Some(found) => event.with("fullDocument", found.as_raw()),
            None => event.with("fullDocument", Value::Null),
        })
    }
}

impl Operator for StreamSource {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        self.current = None;
        let Some(event) = self.take()? else { return Ok(Step::Eof) };
        self.current = Some(self.look_up(event, cx)?);
        Ok(Step::Row)
    }

    fn row(&self) -> Row<'_> {
        self.current.as_ref().map_or(Row::default(), |event| Row::of(event.as_raw()))
    }

    fn inputs(&mut self, _: &mut dyn FnMut(&mut dyn Operator)) {}
}
