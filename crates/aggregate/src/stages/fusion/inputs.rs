//! What `$rankFusion` and `$scoreFusion` have in common: named pipelines over one collection, their weights, and how what they give
//! comes together.

use std::collections::BTreeMap;

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Type, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::FieldPath;

use crate::idl::Fields;
use crate::stage::StageCx;

/// Where a document stands while scores stand beside it.
const DOCS: &str = "docs";

/// Stages that pass documents on as they are.
const SELECTING: &[&str] =
    &["$geoNear", "$limit", "$match", "$sample", "$score", "$search", "$skip", "$sort", "$vectorSearch"];

/// A named pipeline.
pub(super) struct Input<'a> {
    pub(super) stages: RawDoc<'a>,
    pub(super) weight: f64,
}

/// The pipelines by their names, in whose order they run.
pub(super) type Inputs<'a> = BTreeMap<&'a str, Input<'a>>;

/// Reads the pipelines, each of which has to pass `check`.
///
/// Errors: `TypeMismatch` for what is no pipeline; those of `check`, and of names.
pub(super) fn read<'a>(
    stage: &str,
    pipelines: RawDoc<'a>,
    check: impl Fn(RawDoc<'a>) -> Result<()>,
) -> Result<Inputs<'a>> {
    let mut inputs = Inputs::new();
    for field in pipelines.iter() {
        let Value::Array(stages) = field.value() else {
            bail!(Code::TYPE_MISMATCH, "A pipeline must be an array of objects");
        };
        if stages.values().any(|stage| !matches!(stage, Value::Document(_))) {
            bail!(Code::TYPE_MISMATCH, "Each element of the 'pipeline' array must be an object");
        }
        check(stages)?;
        let name = field.key();
        if name.contains('.') {
            bail!(16412, "FieldPath field names may not contain '.'. Consider using $getField or $setField.");
        }
        FieldPath::parse(name)?;
        if inputs.insert(name, Input { stages, weight: 1.0 }).is_some() {
            bail!(9921000, "{stage} pipeline names must be unique, but found duplicate name '{name}'.");
        }
    }
    Ok(inputs)
}

/// Names of the stages of a pipeline.
pub(super) fn names(stages: RawDoc<'_>) -> impl Iterator<Item = &str> {
    stages.values().filter_map(|stage| Some(stage.as_doc()?.iter().next()?.key()))
}

/// Whether another of these stages is in the pipeline.
pub(super) fn is_nested(stages: RawDoc<'_>) -> bool {
    names(stages).any(|name| matches!(name, "$rankFusion" | "$scoreFusion"))
}

/// The stage that changes documents, and why it does.
pub(super) fn changing(stages: RawDoc<'_>) -> Option<String> {
    let found = stages.values().find(|stage| {
        let Some(field) = stage.as_doc().and_then(|stage| stage.iter().next()) else { return true };
        let spec = field.value().as_doc().unwrap_or(RawDoc::EMPTY);
        let places = ["distanceField", "includeLocs"].iter().any(|name| spec.get(name).is_some());
        !SELECTING.contains(&field.key()) || (field.key() == "$geoNear" && places)
    })?;
    let name = found.as_doc().and_then(|stage| stage.iter().next()).map_or("", |field| field.key());
    Some(format!("{name} is not a selection stage because it modifies or transforms the input documents."))
}

/// Reads `combination.weights`.
///
/// Errors: 13118, 9460300 for what is no weight; 9460301, 9967500 for names of no pipeline.
pub(super) fn weigh<'a>(stage: &str, weights: RawDoc<'a>, inputs: &mut Inputs<'a>) -> Result<()> {
    let mut unknown = Vec::new();
    for field in weights.iter() {
        let name = field.key();
        let Some(input) = inputs.get_mut(name) else {
            unknown.push(name);
            continue;
        };
        let Some(weight) = field.value().as_f64() else {
            bail!(13118, "expected {name} to have a numeric type, but it is a {}", field.value().type_name());
        };
        if weight.is_nan() || weight < 0.0 {
            bail!(
                9460300,
                "{}'s pipeline weight must be non-negative, but given {weight} for pipeline '{name}'.",
                stage.trim_start_matches('$')
            );
        }
        input.weight = weight;
    }
    if weights.count() > inputs.len() {
        bail!(
            9460301,
            "{stage} input has more weights ({}) than pipelines ({}). If 'combination.weights' is specified, there must \
             be a less or equal number of weights as pipelines, each of which is unique and existing. Possible \
             extraneous specified weights = [{}]",
            weights.count(),
            inputs.len(),
            unknown.join(", ")
        );
    }
    if !unknown.is_empty() {
        bail!(
            9967500,
            "{stage} stage contained ({}) weight(s) in 'combination.weights' that did not reference valid pipeline \
             names: {}",
            unknown.len(),
            unknown.join(", ")
        );
    }
    Ok(())
}

/// `combination`, if it was given: its fields, and the weights in it.
pub(super) fn combination<'a>(
    place: &'static str,
    spec: Option<RawDoc<'a>>,
    known: &[&str],
) -> Result<Option<Fields<'a>>> {
    spec.map(|spec| Fields::new(place, spec, known)).transpose()
}

/// The weights in `combination`.
pub(super) fn weights<'a>(fields: &Fields<'a>) -> Result<Option<RawDoc<'a>>> {
    Ok(fields.optional("weights", &[Type::Document])?.and_then(|weights| weights.as_doc()))
}

/// A pipeline's name followed by what a field of it holds, as a path.
pub(super) fn path(name: &str, suffix: &str) -> String {
    format!("${name}_{suffix}")
}

/// The same as a name.
pub(super) fn field(name: &str, suffix: &str) -> String {
    format!("{name}_{suffix}")
}

/// The paths of this field of all pipelines.
pub(super) fn paths(inputs: &Inputs<'_>, suffix: &str) -> ArrayBuf {
    ArrayBuf::build(|out| inputs.keys().for_each(|name| _ = out.push(path(name, suffix).as_str())))
}

/// The stage that sets the documents aside.
pub(super) fn set_aside() -> DocBuf {
    doc! { "$replaceWith": { (DOCS): "$$ROOT" } }
}

/// All pipelines in a row: the first as it is, the others joined to it.
pub(super) fn joined(parts: Vec<Vec<DocBuf>>, cx: &StageCx<'_>) -> Vec<DocBuf> {
    let mut parts = parts.into_iter();
    let mut all = parts.next().unwrap_or_default();
    let collection = cx.namespace.collection.as_str();
    for part in parts {
        let stages = ArrayBuf::of(&part);
        all.push(doc! { "$unionWith": { "coll": collection, "pipeline": &stages } });
    }
    all
}

/// The stage that brings together what pipelines say of one document: the scores, and with `detail` the number of that name and
/// the details.
pub(super) fn grouped(inputs: &Inputs<'_>, detail: Option<&str>) -> DocBuf {
    let id = format!("${DOCS}._id");
    let first = format!("${DOCS}");
    let group = DocBuf::build(|out| {
        out.append("_id", id.as_str());
        out.document(DOCS).append("$first", first.as_str());
        for name in inputs.keys() {
            let highest = |suffix| doc! { "$max": { "$ifNull": [path(name, suffix).as_str(), 0] } };
            out.append(&field(name, "score"), &highest("score"));
            if let Some(suffix) = detail {
                out.append(&field(name, suffix), &highest(suffix));
                let merged = doc! { "$mergeObjects": path(name, "scoreDetails").as_str() };
                out.append(&field(name, "scoreDetails"), &merged);
            }
        }
    });
    doc! { "$group": &group }
}

/// The last stages: the order by scores, and the documents themselves.
pub(super) fn ordered() -> [DocBuf; 2] {
    let root = format!("${DOCS}");
    [
        doc! { "$sort": { "score": { "$meta": "score" }, "_id": 1 } },
        doc! { "$replaceRoot": { "newRoot": root.as_str() } },
    ]
}

/// An expression that is the string or document itself.
pub(super) fn literal<'v>(value: impl Into<Value<'v>>) -> DocBuf {
    DocBuf::new().with("$literal", value)
}
