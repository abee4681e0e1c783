//! `$rankFusion`: documents by the sum of what their ranks in several pipelines are worth (reciprocal rank fusion).

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Type, Value, doc};
use sheaf_errors::{Code, Result, bail};

use super::inputs::{self, Inputs, field, literal, path};
use crate::idl::Fields;
use crate::stage::{Needs, Split, StageCx, StageEntry};

/// `$rankFusion`.
pub(crate) const RANK_FUSION: StageEntry =
    StageEntry::short_for("$rankFusion", expand, Split::Merger, Needs::Foreign).leading().unstable();

/// What is added to a rank, so that the first few do not count for everything.
const RANK_CONSTANT: i32 = 60;

const DESCRIPTION: &str = "value output by reciprocal rank fusion algorithm, computed as sum of (weight * (1 / (60 + \
                           rank))) across input pipelines from which this document is output, from:";

fn check(stages: RawDoc<'_>) -> Result<()> {
    const RULE: &str = "All subpipelines to the $rankFusion stage must begin with one of $search, $vectorSearch, \
                        $geoNear, or have a custom $sort in the pipeline.";
    if stages.is_empty() {
        bail!(9834300, "$rankFusion input pipeline cannot be empty. {RULE}");
    }
    if inputs::is_nested(stages) {
        bail!(
            10473002,
            "$rankFusion input pipeline has a nested hybrid search stage ($rankFusion/$scoreFusion). {RULE}"
        );
    }
    if inputs::names(stages).any(|name| name == "$score") {
        bail!(10614800, "$rankFusion input pipelines must not contain a $score stage.");
    }
    let first = inputs::names(stages).next();
    let has_order = matches!(first, Some("$search" | "$vectorSearch" | "$geoNear"));
    if !has_order && !inputs::names(stages).any(|name| name == "$sort") {
        bail!(
            9191100,
            "Pipeline did not begin with a ranked stage and did not contain an explicit $sort stage. {RULE}"
        );
    }
    match inputs::changing(stages) {
        Some(why) => {
            bail!(9191103, "{why} Only stages that retrieve, limit, or order documents are allowed.")
        }
        None => Ok(()),
    }
}

fn expand(argument: Value<'_>, cx: &StageCx<'_>) -> Result<Vec<DocBuf>> {
    let Value::Document(spec) = argument else {
        bail!(
            Code::FAILED_TO_PARSE,
            "$rankFusion must take a nested object but found: $rankFusion: {}",
            crate::print::value(argument)
        );
    };
    let fields = Fields::new("$rankFusion", spec, &["input", "combination", "scoreDetails"])?;
    let input = fields.required("input", &[Type::Document])?.as_doc().unwrap_or(RawDoc::EMPTY);
    let input = Fields::new("$rankFusion.input", input, &["pipelines"])?;
    let pipelines = input.required("pipelines", &[Type::Document])?.as_doc().unwrap_or(RawDoc::EMPTY);
    let combination =
        inputs::combination("$rankFusion.combination", fields.document("combination")?, &["weights"])?;
    let weights = match &combination {
        Some(combination) => Some(combination.required("weights", &[Type::Document])?),
        None => None,
    };
    let details = fields.flag("scoreDetails")?.unwrap_or(false);
    let mut found = inputs::read("$rankFusion", pipelines, check)?;
    if let Some(weights) = weights.and_then(|weights| weights.as_doc()) {
        inputs::weigh("$rankFusion", weights, &mut found)?;
    }
    Ok(stages(&found, details, cx))
}

fn stages(inputs: &Inputs<'_>, details: bool, cx: &StageCx<'_>) -> Vec<DocBuf> {
    let parts = inputs.iter().map(|(name, input)| {
        let by = if inputs::names(input.stages).any(|name| name == "$sort") {
            "sortKey"
        } else {
            "geoNearDistance"
        };
        let (rank, ranked) = (field(name, "rank"), path(name, "rank"));
        let worth = doc! { "$divide": [1, { "$add": [ranked.as_str(), RANK_CONSTANT] }] };
        let mut part: Vec<DocBuf> =
            input.stages.values().filter_map(|stage| stage.as_doc().map(DocBuf::from)).collect();
        part.push(inputs::set_aside());
        part.push(doc! { "$_internalRank": { "field": rank.as_str(), "by": by } });
        let score = field(name, "score");
        part.push(doc! { "$addFields": { (score.as_str()): { "$multiply": [&worth, input.weight] } } });
        if details {
            let place = field(name, "scoreDetails");
            part.push(doc! { "$addFields": { (place.as_str()): { "details": [] } } });
        }
        part
    });
    let mut all = inputs::joined(parts.collect(), cx);
    all.push(inputs::grouped(inputs, details.then_some("rank")));
    let scores = inputs::paths(inputs, "score");
    all.push(doc! { "$setMetadata": { "score": { "$add": &scores } } });
    if details {
        all.push(explained(inputs));
    }
    all.extend(inputs::ordered());
    all
}

/// The stage that makes `scoreDetails`.
fn explained(inputs: &Inputs<'_>) -> DocBuf {
    let each = inputs.iter().map(|(name, input)| {
        let rank = path(name, "rank");
        let shown = doc! { "$cond": [{ "$eq": [rank.as_str(), 0] }, "NA", rank.as_str()] };
        let own = doc! {
            "inputPipelineName": &literal(*name),
            "rank": &shown,
            "weight": input.weight,
        };
        doc! { "$mergeObjects": [&own, path(name, "scoreDetails").as_str()] }
    });
    let details = ArrayBuf::of(&each.collect::<Vec<_>>());
    doc! {
        "$setMetadata": {
            "scoreDetails": {
                "value": { "$meta": "score" },
                "description": &literal(DESCRIPTION),
                "details": &details,
            }
        }
    }
}
