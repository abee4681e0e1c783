//! Making pipelines: reading them in any place, with the rules of what may stand where, and joining two.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_meter::ALLOCATION;
use sheaf_query::matcher::Matcher;

use crate::metadata;
use crate::optimize;
use crate::pipeline::{Given, Pipeline, measured_near};
use crate::stage::{Place, Shape, SharedStage, StageCx, StageEntry, StagePosition};
use crate::stages::change_stream::Start;
use crate::stages::sort_key;

/// What a stage takes besides the bytes that it was given as and what is counted for its parts: in lists, which have room for
/// four, and where it is shared.
const STAGE_BYTES: usize = 4 * (size_of::<SharedStage>() + size_of::<Given>() + size_of::<usize>())
    + size_of::<Matcher>()
    + 4 * ALLOCATION;

/// More stages than this are refused, those of views included.
const MAX_STAGES: usize = 1000;

fn check_length(stages: usize) -> Result<()> {
    if stages > MAX_STAGES {
        bail!(7749501, "Pipeline length must be no longer than {MAX_STAGES} stages");
    }
    Ok(())
}

/// Reads a pipeline in any place, and optimises it.
pub(crate) fn pipeline(stages: RawDoc<'_>, cx: &mut StageCx<'_>) -> Result<Pipeline> {
    let variables = cx.expr.slots().map(|(name, slot)| (name.into(), slot)).collect();
    let collator = cx.expr.collator().cloned();
    let mut pipeline = Pipeline { in_facet: cx.in_facet, variables, collator, ..Pipeline::default() };
    let mut entries = Vec::new();
    let count = stages.count();
    check_length(count)?;
    sheaf_meter::grow(size_of::<Pipeline>() + 2 * ALLOCATION)?;
    for (at, stage) in stages.values().enumerate() {
        let Value::Document(spec) = stage else {
            bail!(Code::TYPE_MISMATCH, "Each element of the 'pipeline' array must be an object");
        };
        let mut fields = spec.iter();
        let (Some(field), None) = (fields.next(), fields.next()) else {
            bail!(40323, "A pipeline stage specification object must contain exactly one field.");
        };
        sheaf_meter::grow(STAGE_BYTES + spec.len())?;
        let Some(entry) = cx.entry(field.key()) else {
            bail!(40324, "Unrecognized pipeline stage name: '{}'", field.key());
        };
        if cx.expr.is_api_strict() && !entry.stable_api {
            bail!(
                Code::API_STRICT_ERROR,
                "stage {} is not allowed with 'apiStrict: true' in API Version 1",
                entry.name
            );
        }
        let short = entry.expand(field.value(), cx)?;
        entries.push(entry);
        match short {
            None => add(&mut pipeline, entry, spec, at == 0, cx)?,
            Some(stages) => add_long(&mut pipeline, entry, &stages, at == 0, cx)?,
        }
    }
    check_namespace(entries.first().copied(), cx)?;
    // A stage that cannot be read is reported before one that stands in the wrong place.
    for (at, entry) in entries.iter().enumerate() {
        check_position(entry, at, count, cx)?;
    }
    check_change_stream(&entries, &mut pipeline.stages)?;
    pipeline.asks_metadata = metadata::is_asked(&pipeline.stages);
    sort_key::attach(&mut pipeline.stages);
    optimize::optimize(&mut pipeline.stages);
    // A view's definition may have it anywhere: what a query makes of it decides.
    if cx.place != Place::View {
        check_geo_near(&pipeline.stages)?;
    }
    pipeline.check_order();
    Ok(pipeline)
}

/// Reads a stage that stands for itself.
///
/// Errors: 17313; those of the stage.
fn add(
    pipeline: &mut Pipeline,
    entry: &StageEntry,
    spec: RawDoc<'_>,
    first: bool,
    cx: &mut StageCx<'_>,
) -> Result<()> {
    let parsed = entry.parse(spec.iter().next().map_or(Value::Missing, |field| field.value()), cx)?;
    if (!first || cx.in_facet) && parsed.iter().any(has_text) {
        return Err(text_not_first());
    }
    pipeline.own_source |= first && matches!(entry.position, StagePosition::First);
    pipeline.stages.extend(parsed.iter().cloned());
    pipeline.given.push(Given { document: DocBuf::from(spec), stages: parsed.into() });
    Ok(())
}

/// Reads what a stage is short for: the pipeline is as if these had been given.
///
/// Errors: 10170100; those of the stages.
fn add_long(
    pipeline: &mut Pipeline,
    short: &StageEntry,
    stages: &[DocBuf],
    first: bool,
    cx: &mut StageCx<'_>,
) -> Result<()> {
    if !first && short.position == StagePosition::Leading {
        return Err(not_leading(short.name));
    }
    for (at, stage) in stages.iter().enumerate() {
        let name = stage.as_raw().iter().next().map_or("", |field| field.key());
        let Some(entry) = cx.entry(name) else { bail!(40324, "Unrecognized pipeline stage name: '{name}'") };
        sheaf_meter::grow(STAGE_BYTES + stage.as_raw().len())?;
        add(pipeline, entry, stage.as_raw(), first && at == 0, cx)?;
    }
    Ok(())
}

fn text_not_first() -> Error {
    Error::location(17313, "$match with $text is only allowed as the first pipeline stage")
}

fn not_leading(name: &str) -> Error {
    Error::location(10170100, format!("{name} is only valid as the first stage in a pipeline"))
}

/// Whether a stage is a `$match` with `$text`.
fn has_text(stage: &SharedStage) -> bool {
    matches!(stage.shape(), Shape::Match(matcher) if matcher.has_text())
}

/// Distances come from an index: `$geoNear` is the first stage in the end. Of measurements it may be the one behind that which
/// takes them out of their buckets.
///
/// Errors: 40603; those of what it may not ask of measurements.
fn check_geo_near(stages: &[SharedStage]) -> Result<()> {
    let mut before = 1;
    if let Some((near, meta)) = measured_near(stages) {
        near.check_measured(meta)?;
        before = 2;
    }
    let is_near = |stage: &SharedStage| matches!(stage.shape(), Shape::GeoNear(_));
    if stages.iter().skip(before).any(is_near) {
        bail!(
            40603,
            "$geoNear was not the first stage in the pipeline after optimization. Is optimization disabled or \
             inhibited?"
        );
    }
    Ok(())
}

/// A pipeline without a collection must start with a stage that needs none.
fn check_namespace(first: Option<&StageEntry>, cx: &StageCx<'_>) -> Result<()> {
    if !cx.namespace.collection.is_empty() || cx.place != Place::Top {
        return Ok(());
    }
    match first {
        Some(entry) if entry.collectionless => Ok(()),
        Some(entry) => bail!(
            Code::INVALID_NAMESPACE,
            "{{aggregate: 1}} is not valid for '{}'; a collection is required.",
            entry.name
        ),
        None => bail!(Code::INVALID_NAMESPACE, "{{aggregate: 1}} is not valid for an empty pipeline."),
    }
}

/// Checks which stages stand together: behind `$changeStream` those that neither wait for the end nor read elsewhere. Tells
/// a split stage where the stream is resumed.
///
/// Errors: `IllegalOperation`, 7182802.
fn check_change_stream(entries: &[&StageEntry], stages: &mut [SharedStage]) -> Result<()> {
    let is_last = |entry: &&&StageEntry| entry.position == StagePosition::LastOfStream;
    let stream = match stages.first().map(|first| first.shape()) {
        Some(Shape::ChangeStream(stream)) => stream.clone(),
        _ => match entries.iter().find(is_last) {
            Some(entry) => {
                bail!(Code::ILLEGAL_OPERATION, "{} can only be used in a $changeStream pipeline", entry.name)
            }
            None => return Ok(()),
        },
    };
    if let Some(other) = entries.iter().find(|entry| !entry.in_change_streams) {
        bail!(Code::ILLEGAL_OPERATION, "{} is not permitted in a $changeStream pipeline", other.name);
    }
    if let Some(entry) = entries.iter().rev().skip(1).find(is_last) {
        bail!(7182802, "{} must be the last stage in the pipeline", entry.name);
    }
    if let Start::After(token) = &stream.start {
        let mut splits = false;
        for stage in stages {
            if let Some(resumed) = stage.resumed_at(token) {
                *stage = resumed;
                splits = true;
            }
        }
        if token.fragment.is_some() && !splits {
            bail!(
                Code::CHANGE_STREAM_FATAL_ERROR,
                "To resume from a split event, the $changeStream pipeline must include a $changeStreamSplitLargeEvent stage"
            );
        }
    }
    Ok(())
}

fn check_position(entry: &StageEntry, at: usize, count: usize, cx: &StageCx<'_>) -> Result<()> {
    let name = entry.name;
    match cx.place {
        Place::Lookup if entry.position == StagePosition::Last => {
            bail!(51047, "{name} is not allowed within a $lookup's sub-pipeline");
        }
        Place::Union if entry.position == StagePosition::Last => {
            bail!(31441, "{name} is not allowed within a $unionWith's sub-pipeline");
        }
        Place::View if entry.position == StagePosition::Last => bail!(
            Code::OPTION_NOT_SUPPORTED_ON_VIEW,
            "The aggregation stage {name} in location {at} of the pipeline cannot be used in the view definition"
        ),
        _ => {}
    }
    if cx.in_facet && !entry.in_facet {
        bail!(40600, "{name} is not allowed to be used within a $facet stage");
    }
    match entry.position {
        StagePosition::First if at != 0 => {
            Err(Error::location(40602, format!("{name} is only valid as the first stage in a pipeline")))
        }
        StagePosition::Leading if at != 0 => Err(not_leading(name)),
        StagePosition::Last if at + 1 != count => {
            Err(Error::location(40601, format!("{name} can only be the final stage in the pipeline")))
        }
        _ => Ok(()),
    }
}

impl Pipeline {
    /// This view's pipeline followed by another: what a query on the view runs.
    ///
    /// Errors: 7749501 if that is too long; 17313 and 40603 for what has to come first.
    pub fn followed_by(&self, rest: &Pipeline) -> Result<Pipeline> {
        check_length(self.given.len() + rest.given.len())?;
        if !self.given.is_empty() && rest.given.iter().any(|given| given.stages.iter().any(has_text)) {
            return Err(text_not_first());
        }
        let mut joined = Pipeline {
            stages: self.stages.iter().chain(&rest.stages).cloned().collect(),
            given: self.given.iter().chain(&rest.given).cloned().collect(),
            own_source: self.own_source || (self.stages.is_empty() && rest.own_source),
            in_facet: self.in_facet,
            asks_metadata: self.asks_metadata || rest.asks_metadata,
            held: self.held.iter().chain(&rest.held).cloned().collect(),
            variables: self.variables.iter().chain(&rest.variables).cloned().collect(),
            collator: rest.collator.clone(),
        };
        optimize::optimize(&mut joined.stages);
        check_geo_near(&joined.stages)?;
        joined.check_order();
        Ok(joined)
    }
}
