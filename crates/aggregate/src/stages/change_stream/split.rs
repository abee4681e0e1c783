//! `$changeStreamSplitLargeEvent`: events that are larger than a document may be, in several.

use std::collections::VecDeque;
use std::sync::Arc;

use sheaf_bson::{DocBuf, DocWriter, Element, MAX_DOCUMENT_SIZE, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::Deps;

use super::ResumeToken;
use crate::database::SharedDatabase;
use crate::stage::{self, Needs, Reads, SharedStage, Stage, StageCx, StageEntry};

/// `$changeStreamSplitLargeEvent`.
pub(crate) const SPLIT_LARGE_EVENT: StageEntry =
    StageEntry::new("$changeStreamSplitLargeEvent", parse, stage::Split::Merger, Needs::Nothing)
        .last_of_stream();
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step};

/// Room for what a fragment has besides its fields: its position, `splitEvent`.
const HEAD_BYTES: usize = 128;

/// A parsed `$changeStreamSplitLargeEvent`.
#[derive(Clone, Debug, Default)]
pub struct Split {
    /// A stream that is resumed behind a fragment: fragments up to there were seen.
    pub resumed: Option<ResumeToken>,
}

/// Parses the stage.
///
/// Errors: 7182800.
pub(crate) fn parse(argument: Value<'_>, _cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    match argument {
        Value::Document(spec) if spec.is_empty() => Ok(vec![Arc::new(Split::default())]),
        _ => bail!(7182800, "$changeStreamSplitLargeEvent spec should be an empty object"),
    }
}

impl Stage for Split {
    fn name(&self) -> &'static str {
        "$changeStreamSplitLargeEvent"
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(SplitRun { stage: self, input, fragments: VecDeque::new(), current: None })
    }

    fn dependencies(&self, _deps: &mut Deps) -> Reads {
        Reads::All
    }

    fn resumed_at(&self, token: &ResumeToken) -> Option<SharedStage> {
        Some(Arc::new(Split { resumed: Some(token.clone()) }))
    }
}

/// Runs the stage.
struct SplitRun {
    stage: Arc<Split>,
    input: BoxOperator,
    fragments: VecDeque<DocBuf>,
    /// The fragment being given; `None` if the row is the input's.
    current: Option<DocBuf>,
}

impl Operator for SplitRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        self.current = self.fragments.pop_front();
        if self.current.is_some() {
            return Ok(Step::Row);
        }
        let step = self.input.work(cx)?;
        if step != Step::Row {
            return Ok(step);
        }
        let event = self.input.row().document();
        let seen = self.seen(event)?;
        if event.len() <= MAX_DOCUMENT_SIZE && seen == 0 {
            return Ok(Step::Row);
        }
        self.fragments = split(event, MAX_DOCUMENT_SIZE)?;
        // What fits is one fragment here, and was never given as one.
        let count = if event.len() <= MAX_DOCUMENT_SIZE { 0 } else { self.fragments.len() as u64 };
        if seen > count {
            bail!(
                Code::CHANGE_STREAM_FATAL_ERROR,
                "Attempted to resume from a split event fragment, but the event in the resumed stream was not split"
            );
        }
        self.fragments.drain(..seen as usize);
        Ok(Step::More)
    }

    fn row(&self) -> Row<'_> {
        self.current.as_ref().map_or_else(|| self.input.row(), |fragment| Row::of(fragment.as_raw()))
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.input.metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }
}

impl SplitRun {
    /// How many fragments of this event were seen before the stream was resumed.
    fn seen(&self, event: RawDoc<'_>) -> Result<u64> {
        let Some(resumed) = &self.stage.resumed else { return Ok(0) };
        let Some(fragment) = resumed.fragment else { return Ok(0) };
        let Some(Value::Document(id)) = event.get("_id") else { return Ok(0) };
        let same = resumed.without_fragment().to_doc().as_raw() == id;
        Ok(if same { fragment + 1 } else { 0 })
    }
}

/// The event in fragments: the smaller fields first, as many in each as there is room for.
pub(super) fn split(event: RawDoc<'_>, limit: usize) -> Result<VecDeque<DocBuf>> {
    let Some(Value::Document(id)) = event.get("_id") else {
        bail!(7182801, "a large event without its resume token cannot be split");
    };
    let token = ResumeToken::parse(id)?;
    let room = limit.saturating_sub(id.len() + HEAD_BYTES);
    let mut fields: Vec<Element<'_>> = event.iter().filter(|field| field.key() != "_id").collect();
    fields.sort_by_key(|field| field.as_bytes().len());
    let mut parts: Vec<Vec<Element<'_>>> = vec![Vec::new()];
    let mut used = 0;
    for field in fields {
        let bytes = field.as_bytes().len();
        if bytes > room {
            bail!(
                Code::BSON_OBJECT_TOO_LARGE,
                "Splitting change event failed: fragment size {bytes} is greater than maximum allowed fragment size {room}"
            );
        }
        if used + bytes > room && parts.last().is_some_and(|part| !part.is_empty()) {
            parts.push(Vec::new());
            used = 0;
        }
        used += bytes;
        if let Some(part) = parts.last_mut() {
            part.push(field);
        }
    }
    let of = parts.len() as i32;
    let fragments = parts.iter().enumerate().map(|(at, part)| {
        let token = token.with_fragment(at as u64);
        DocBuf::build(|out| write(out, &token, at as i32 + 1, of, part))
    });
    Ok(fragments.collect())
}

fn write(
    out: &mut DocWriter<'_, Vec<u8>>,
    token: &ResumeToken,
    number: i32,
    of: i32,
    fields: &[Element<'_>],
) {
    out.append("_id", &token.to_doc());
    out.document("splitEvent").append("fragment", number).append("of", of);
    fields.iter().for_each(|field| _ = out.append_element(*field));
}
