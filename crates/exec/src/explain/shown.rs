//! The stages of a pipeline in the shape of explain, with their figures.

use std::sync::Arc;

use sheaf_aggregate::{Namespace, Pipeline, Shape, SharedStage};
use sheaf_bson::{ArrayBuf, DocBuf, DocWriter, RawDoc, Value, doc};
use sheaf_errors::Result;
use sheaf_expr::ParseCx;
use sheaf_query::matcher::Matcher;
use sheaf_rows::Figures;

use super::print;

/// What of a pipeline is shown, and how its expressions are read.
#[derive(Clone, Copy)]
pub(super) struct Showing<'p> {
    pub pipeline: &'p Pipeline,
    /// Makes a context in which the command's variables are known.
    pub fresh: &'p dyn Fn() -> ParseCx,
}

/// Explains the pipeline of a `$unionWith` on its collection; `None` if it was never started. Is told whether it was.
pub(super) type Inner<'i> =
    &'i mut dyn FnMut(Option<&Namespace>, &Arc<Pipeline>, bool) -> Result<Option<ArrayBuf>>;

/// The stages from `done` on, with their figures if they have run.
pub(super) fn stages(
    of: Showing<'_>,
    done: usize,
    tallies: &[Figures],
    inner: Inner<'_>,
) -> Result<Vec<DocBuf>> {
    let stages = &of.pipeline.stages()[done..];
    let printed = print::stages(of.pipeline, done, of.fresh);
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(stage) = stages.get(at) {
        if matches!(stage.shape(), Shape::Limit(_)) && kept_by_sort(&stages[..at]) {
            at += 1;
            continue;
        }
        let own = tallies.get(at);
        let mut documents = printed[at].clone();
        match stage.shape() {
            Shape::Lookup(output) | Shape::GraphLookup(output) => {
                let path = output.dotted();
                let absorbed = absorb(&documents[0], stage.name(), &path, &stages[at + 1..]);
                at += absorbed.stages;
                documents = vec![absorbed.document];
            }
            Shape::Facet(facets) => documents = vec![facet(of, facets, own, inner)?],
            Shape::Union { from, pipeline } => {
                let started = own.is_some_and(|own| !own.parts.is_empty());
                if let Some(explained) = inner(from, pipeline, started)? {
                    documents = vec![union(from, &explained)];
                }
            }
            _ if stage.name() == "$planCacheStats" => {
                // The cache is asked for what matches.
                if let Some(Shape::Match(_)) = stages.get(at + 1).map(|next| next.shape()) {
                    at += 1;
                    let filter = printed[at].first().and_then(|filter| filter.as_raw().get("$match"));
                    documents = vec![doc! { "$planCacheStats": { "match": filter.unwrap_or(Value::Null) } }];
                }
            }
            _ => {}
        }
        let tally = tallies.get(at);
        for (part, document) in documents.iter().enumerate() {
            out.push(DocBuf::build(|out| {
                out.append_all(document.as_raw());
                if let (Some(tally), Some(own)) = (tally, own) {
                    if part == 0 {
                        own_figures(out, stage.shape(), own);
                    }
                    figures(out, tally);
                }
            }));
        }
        at += 1;
    }
    Ok(out)
}

/// The figures that every stage has.
fn figures(out: &mut DocWriter<'_, Vec<u8>>, tally: &Figures) {
    out.append("nReturned", tally.advanced as i64);
    out.append("executionTimeMillisEstimate", (tally.nanos / 1_000_000) as i64);
}

/// A `$facet` whose stages are shown with their figures, behind what gives them their documents.
fn facet(
    of: Showing<'_>,
    facets: &[(String, Arc<Pipeline>)],
    own: Option<&Figures>,
    inner: Inner<'_>,
) -> Result<DocBuf> {
    let mut shown = DocBuf::new();
    for (at, (name, pipeline)) in facets.iter().enumerate() {
        let (input, tallies) = match own.and_then(|own| own.parts.get(at)).and_then(|part| part.split_first())
        {
            Some((input, tallies)) => (Some(input), tallies),
            None => (None, &[][..]),
        };
        let tee = DocBuf::build(|out| {
            drop(out.document("$internalFacetTeeConsumer"));
            if let Some(input) = input {
                figures(out, input);
            }
        });
        let stages = stages(Showing { pipeline, ..of }, 0, tallies, inner)?;
        let all = ArrayBuf::of(std::iter::once(&tee).chain(&stages).map(DocBuf::as_raw));
        shown.append(name, &all);
    }
    Ok(doc! { "$facet": &shown })
}

fn union(from: Option<&Namespace>, explained: &ArrayBuf) -> DocBuf {
    DocBuf::build(|out| {
        let mut out = out.document("$unionWith");
        if let Some(from) = from {
            out.append("coll", from.collection.as_str());
        }
        out.append("pipeline", explained);
    })
}

/// A join with what it does of the stages behind it.
struct Absorbed {
    document: DocBuf,
    /// How many those are.
    stages: usize,
}

/// An `$unwind` of what was joined is a part of that, and so is a filter on what was unwound.
fn absorb(joined: &DocBuf, name: &str, output: &str, next: &[SharedStage]) -> Absorbed {
    let unwinds = match next.first().map(|next| next.shape()) {
        Some(Shape::Unwind { path, include_array_index, preserve_null_and_empty })
            if path.dotted() == output =>
        {
            Some((include_array_index.map(|index| index.dotted()), preserve_null_and_empty))
        }
        _ => None,
    };
    let Some((index, preserves)) = unwinds else { return Absorbed { document: joined.clone(), stages: 0 } };
    let filter = match next.get(1).map(|next| next.shape()) {
        Some(Shape::Match(matcher)) if name == "$lookup" && !preserves => below(matcher, output),
        _ => None,
    };
    let stages = 1 + usize::from(filter.is_some());
    let spec = joined.as_raw().get(name).and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY);
    let document = DocBuf::build(|out| {
        let mut out = out.document(name);
        match &filter {
            None => _ = out.append_all(spec),
            Some(filter) => filtered(&mut out, spec, filter),
        }
        let mut out = out.document("unwinding");
        out.append("preserveNullAndEmptyArrays", preserves);
        if let Some(index) = index {
            out.append("includeArrayIndex", index.as_str());
        }
    });
    Absorbed { document, stages }
}

/// A `$lookup` whose pipeline ends with a filter.
fn filtered(out: &mut DocWriter<'_, Vec<u8>>, spec: RawDoc<'_>, filter: &DocBuf) {
    for field in spec.iter().filter(|field| field.key() != "pipeline") {
        out.append_element(field);
    }
    if spec.element("let").is_none() {
        drop(out.document("let"));
    }
    let stages = spec.get("pipeline").and_then(|stages| stages.as_array()).unwrap_or(RawDoc::EMPTY);
    let last = doc! { "$match": filter };
    let mut out = out.array("pipeline");
    for stage in stages.values().filter_map(|stage| stage.as_doc()) {
        out.push(stage);
    }
    out.push(&last);
}

/// The filter as the joined documents are asked, if it asks for nothing but them.
fn below(matcher: &Matcher, output: &str) -> Option<DocBuf> {
    fn walk(filter: RawDoc<'_>, output: &str) -> Option<DocBuf> {
        let mut out = DocBuf::new();
        for field in filter.iter() {
            match (field.key(), field.value()) {
                (name @ ("$and" | "$or" | "$nor"), Value::Array(parts)) => {
                    let parts: Option<Vec<DocBuf>> =
                        parts.values().map(|part| walk(part.as_doc()?, output)).collect();
                    out.append(name, &ArrayBuf::of(parts?.iter().map(DocBuf::as_raw)));
                }
                (path, value) => {
                    out.append(path.strip_prefix(output)?.strip_prefix('.')?, value);
                }
            }
        }
        Some(out)
    }
    walk(matcher.to_doc().as_raw(), output).filter(|filter| !filter.as_raw().is_empty())
}

/// Whether a `$limit` behind these stages is part of a `$sort` among them, which knows how many to keep.
fn kept_by_sort(before: &[SharedStage]) -> bool {
    let mut shapes = before.iter().rev().map(|stage| stage.shape());
    let sort = shapes.find(|shape| !matches!(shape, Shape::Skip(_)));
    matches!(sort, Some(Shape::Sort { limit: Some(_), .. }))
}

/// The figures that only stages of this kind have.
fn own_figures(out: &mut DocWriter<'_, Vec<u8>>, shape: Shape<'_>, own: &Figures) {
    let spilled = &own.spilled;
    let disk = |out: &mut DocWriter<'_, Vec<u8>>| {
        out.append("usedDisk", spilled.count > 0);
        out.append("spills", spilled.count as i64);
        out.append("spilledDataStorageSize", spilled.bytes as i64);
    };
    match shape {
        Shape::Group { .. } => {
            out.append("totalOutputDataSizeBytes", own.output_bytes as i64);
            disk(out);
            out.append("numBytesSpilledEstimate", spilled.bytes as i64);
            out.append("spilledRecords", spilled.records as i64);
        }
        Shape::Sort { .. } | Shape::BucketAuto => {
            out.append("totalDataSizeSortedBytesEstimate", own.output_bytes as i64);
            disk(out);
        }
        Shape::GraphLookup(_) => {
            disk(out);
            out.append("spilledBytes", spilled.bytes as i64);
            out.append("spilledRecords", spilled.records as i64);
        }
        Shape::Lookup(_) => {
            out.append("totalDocsExamined", own.docs_examined as i64);
            out.append("totalKeysExamined", own.keys_examined as i64);
            out.append("collectionScans", own.collection_scans as i64);
            let mut indexes = out.array("indexesUsed");
            for name in &own.indexes_used {
                indexes.push(name.as_str());
            }
        }
        _ => {}
    }
}
