//! One operator after the other, as explain prints them.

use sheaf_bson::{DocWriter, RawDoc, Value};
use sheaf_query::projection::Kind;
use sheaf_storage::{Index, IndexKind};
use sheaf_text::TextQuery;

use super::clustered::ClusteredScan;
use super::{Rows, Top};
use crate::index::key_pattern;
use crate::plan::{FilterPart, PlanNode, Query, Scan};
use sheaf_rows::Figures;

type Out<'o, 'b> = &'o mut DocWriter<'b, Vec<u8>>;

/// What a plan is of.
#[derive(Clone, Copy)]
pub struct Of<'q> {
    /// The query.
    pub query: &'q Query,
    /// Whether the collection was made as a clustered one.
    pub clustered: bool,
    /// Whether there is no such collection.
    pub absent: bool,
}

/// Where the printing of a plan is.
pub struct At<'q> {
    /// The operator, in the order of the figures.
    operator: usize,
    /// What is printed.
    of: Of<'q>,
    /// A limit above, which is not shown, has come to its end.
    ended: bool,
}

impl<'q> At<'q> {
    /// At the top operator.
    pub fn top(of: Of<'q>) -> Self {
        At { operator: 0, of, ended: false }
    }
}

/// Writes a plan below the operator of its command. `rows` is what the command took in.
pub fn write_top(
    out: Out<'_, '_>,
    top: Top<'_>,
    plan: &PlanNode,
    stats: Option<&[Figures]>,
    rows: Rows,
    of: Of<'_>,
) {
    let name = match top {
        // A lookup by `_id` alone takes the express path.
        Top::Find => match plan {
            PlanNode::IdLookup { filter: None, .. } => return express(out, stats, of),
            _ => return write(out, plan, stats, &mut At::top(of)),
        },
        Top::Count => "COUNT",
        Top::Update { .. } => "UPDATE",
        Top::Delete { multi: false } => "DELETE",
        Top::Delete { multi: true } => "BATCHED_DELETE",
        Top::DeleteMeasurements { .. } => "TS_MODIFY",
    };
    let counted = matches!(top, Top::Count).then(|| Counted::of(plan));
    out.append("stage", name);
    if let (Top::DeleteMeasurements { multi, buckets, residual }, None) = (top, stats) {
        write_measurements(out, multi, buckets, residual);
    }
    if let Some(stats) = stats {
        let below = stats.first().cloned().unwrap_or_default();
        figures(
            out,
            // It pulls each row, and gives none; the last call finds the end.
            &Figures {
                advanced: 0,
                works: below.works.max(1),
                need_time: below.works.saturating_sub(1),
                eof: true,
                ..below
            },
        );
        let n = rows.taken as i32;
        match top {
            Top::Count => {
                let skipped = counted.as_ref().map_or(0, |counted| counted.skipped(stats));
                out.append("nCounted", n).append("nSkipped", skipped as i32)
            }
            Top::Update { upsert, .. } => out
                .append("nMatched", n)
                .append("nWouldModify", rows.changed as i32)
                .append("nWouldUpsert", i32::from(upsert && n == 0)),
            Top::Delete { .. } => out.append("nWouldDelete", n),
            Top::DeleteMeasurements { multi, buckets, residual } => {
                write_measurements(out, multi, buckets, residual);
                out.append("nBucketsUnpacked", n).append("nMeasurementsDeleted", rows.changed as i32)
            }
            Top::Find => out,
        };
    }
    let (plan, operator) = counted.map_or((plan, 0), |counted| (counted.plan, counted.operators));
    write(&mut out.document("inputStage"), plan, stats, &mut At { operator, ..At::top(of) });
}

/// What a count is of: it skips, and stops, by itself.
struct Counted<'p> {
    plan: &'p PlanNode,
    /// Those above it.
    operators: usize,
    skips: Option<usize>,
}

impl<'p> Counted<'p> {
    fn of(mut plan: &'p PlanNode) -> Self {
        let (mut operators, mut skips) = (0, None);
        loop {
            plan = match plan {
                PlanNode::Limit { input, .. } => input,
                PlanNode::Skip { input, .. } => {
                    skips = Some(operators);
                    input
                }
                _ => return Counted { plan, operators, skips },
            };
            operators += 1;
        }
    }

    fn skipped(&self, stats: &[Figures]) -> u64 {
        let given = |operator: usize| stats.get(operator).map_or(0, |figures| figures.advanced);
        self.skips.map_or(0, |skip| given(skip + 1).saturating_sub(given(skip)))
    }
}

/// Which measurements a `TS_MODIFY` is about.
fn write_measurements(out: Out<'_, '_>, multi: bool, buckets: RawDoc<'_>, residual: RawDoc<'_>) {
    out.append("opType", if multi { "deleteMany" } else { "deleteOne" });
    out.append("bucketFilter", buckets).append("residualFilter", residual);
}

/// The counter of a whole collection.
pub fn fast_count(out: Out<'_, '_>, n: u64, query: &Query) {
    let left = n.saturating_sub(query.skip);
    let counted = query.limit.map_or(left, |limit| left.min(limit));
    out.append("stage", "RECORD_STORE_FAST_COUNT");
    figures(out, &Figures { works: 1, eof: true, ..Figures::default() });
    out.append("nCounted", counted as i32).append("nSkipped", (n - left) as i32);
}

fn express(out: Out<'_, '_>, stats: Option<&[Figures]>, of: Of<'_>) {
    out.append("stage", if of.clustered { "EXPRESS_CLUSTERED_IXSCAN" } else { "EXPRESS_IXSCAN" });
    let stats = stats.and_then(<[Figures]>::first);
    if let Some(stats) = stats {
        figures(out, stats);
    }
    if !of.clustered {
        out.append("keyPattern", "{ _id: 1 }");
        out.append("indexName", "_id_");
    }
    if let Some(stats) = stats {
        out.append("keysExamined", if of.clustered { 0 } else { stats.keys_examined as i32 });
        out.append("docsExamined", stats.docs_examined as i32);
    }
}

/// Writes the scan of a clustered collection.
fn clustered(out: Out<'_, '_>, scan: &ClusteredScan<'_>, stats: Option<&[Figures]>, at: &mut At<'_>) {
    let own = stats.and_then(|stats| scan.figures(stats.get(at.operator..)?));
    at.operator += scan.operators;
    let own = own.map(|own| Figures { eof: own.eof || std::mem::take(&mut at.ended), ..own });
    head(out, scan.name(), scan.filter(at.of.query).as_ref(), own.as_ref());
    out.append("direction", direction(scan.backward()));
    scan.write_records(out);
    if let Some(own) = own {
        out.append("docsExamined", own.docs_examined as i32);
    }
}

fn direction(backward: bool) -> &'static str {
    if backward { "backward" } else { "forward" }
}

/// Writes an operator and those below it.
pub fn write(out: Out<'_, '_>, node: &PlanNode, stats: Option<&[Figures]>, at: &mut At<'_>) {
    if let Some(scan) = ClusteredScan::of(node) {
        return clustered(out, &scan, stats, at);
    }
    let keeps_shape = at.of.query.distinct.is_some() && at.of.query.matcher().matches_everything();
    if let Some((scan, operators)) = fetching(node, keeps_shape) {
        let all = stats.and_then(|stats| stats.get(at.operator..at.operator + operators));
        at.operator += operators;
        return write_fetching(out, scan, all);
    }
    let own = stats.and_then(|stats| stats.get(at.operator));
    at.operator += 1;
    // A sort keeps to the limit by itself; mongod shows none above it.
    if let PlanNode::Limit { input, .. } = node
        && over_sort(input)
    {
        at.ended = own.is_some_and(|own| own.eof);
        return write(out, input, stats, at);
    }
    let ended = std::mem::take(&mut at.ended);
    let own = own.map(|own| Figures { eof: own.eof || ended, ..own.clone() });
    let own = own.as_ref();
    match node {
        PlanNode::Eof => {
            head(out, "EOF", None, own);
            let why = if at.of.absent { "nonExistentNamespace" } else { "predicateEvalsToFalse" };
            out.append("type", why);
        }
        PlanNode::CollScan { filter, backward, .. } => {
            head(out, "COLLSCAN", filter.as_ref(), own);
            out.append("direction", direction(*backward));
            if let Some(own) = own {
                out.append("docsExamined", own.docs_examined as i32);
            }
        }
        PlanNode::RandomRecords(_) => head(out, "MULTI_ITERATOR", None, own),
        PlanNode::IdLookup { id, filter } if at.of.clustered => {
            head(out, "CLUSTERED_IXSCAN", filter.as_ref(), own);
            out.append("direction", "forward");
            out.append("minRecord", id.as_value()).append("maxRecord", id.as_value());
            if let Some(own) = own {
                out.append("docsExamined", own.docs_examined as i32);
            }
        }
        PlanNode::IdLookup { filter, .. } => {
            head(out, "IDHACK", filter.as_ref(), own);
            if let Some(own) = own {
                out.append("keysExamined", own.keys_examined as i32);
                out.append("docsExamined", own.docs_examined as i32);
            }
        }
        PlanNode::GeoNear(near) => {
            head(out, near.name(), near.filter.as_ref(), own);
            out.append("keyPattern", key_pattern(&near.scan.index));
            out.append("indexName", &near.scan.index.name);
            out.append("indexVersion", 2);
            if let Some(own) = own {
                out.append("keysExamined", own.keys_examined as i32);
                out.append("docsExamined", own.docs_examined as i32);
            }
        }
        PlanNode::IndexScan(scan) => write_scan(out, "IXSCAN", scan, own),
        PlanNode::DistinctScan(scan) => write_scan(out, "DISTINCT_SCAN", scan, own),
        PlanNode::CountScan(scan) => write_scan(out, "COUNT_SCAN", scan, own),
        PlanNode::Fetch { filter, .. } => {
            head(out, "FETCH", filter.as_ref(), own);
            if let Some(own) = own {
                out.append("docsExamined", own.docs_examined as i32).append("alreadyHasObj", 0);
            }
        }
        PlanNode::Or { .. } => {
            head(out, "OR", None, own);
            if let Some(own) = own {
                out.append("dupsTested", own.dups_tested as i32)
                    .append("dupsDropped", own.dups_dropped as i32);
            }
        }
        PlanNode::SortMerge { pattern, .. } => {
            head(out, "SORT_MERGE", None, own);
            out.append("sortPattern", &pattern.to_doc());
            if let Some(own) = own {
                out.append("dupsTested", own.dups_tested as i32)
                    .append("dupsDropped", own.dups_dropped as i32);
            }
        }
        PlanNode::Sort { pattern, limit, .. } => {
            head(out, "SORT", None, own);
            out.append("sortPattern", &pattern.to_doc());
            out.append("memLimit", 104_857_600);
            if *limit > 0 {
                out.append("limitAmount", *limit as i32);
            }
            out.append("type", "simple");
            if let Some(own) = own {
                out.append("totalDataSizeSorted", own.sorted_bytes as i64);
                out.append("usedDisk", own.spilled.count > 0);
                out.append("spills", own.spilled.count as i64);
                out.append("spilledDataStorageSize", own.spilled.bytes as i64);
            }
        }
        PlanNode::Skip { skip, .. } => {
            head(out, "SKIP", None, own);
            out.append("skipAmount", *skip as i32);
        }
        PlanNode::Limit { limit, .. } => {
            head(out, "LIMIT", None, own);
            out.append("limitAmount", *limit as i32);
        }
        PlanNode::Project { input, projection, covered, .. } => {
            let simple = !projection.is_computed()
                && !projection.needs_match_details()
                && projection.kind() != Kind::Addition
                && projection.to_doc().as_raw().values().all(|v| v.as_bool().is_some() || v.is_number());
            let dotted = projection.to_doc().as_raw().iter().any(|e| e.key().contains('.'));
            let covered = *covered && ClusteredScan::of(input).is_none();
            let name = match (covered, simple && !dotted) {
                (true, _) => "PROJECTION_COVERED",
                (false, true) => "PROJECTION_SIMPLE",
                (false, false) => "PROJECTION_DEFAULT",
            };
            head(out, name, None, own);
            // Shown as the query has it.
            let given = at.of.query.projection_spec.as_raw();
            match given.is_empty() {
                true => out.append("transformBy", &projection.to_doc()),
                false => out.append("transformBy", given),
            };
        }
        PlanNode::ShardingFilter { .. } => {
            head(out, "SHARDING_FILTER", None, own);
            let below = stats.and_then(|stats| stats.get(at.operator));
            if let (Some(own), Some(below)) = (own, below) {
                out.append("chunkSkips", below.advanced.saturating_sub(own.advanced) as i32);
            }
        }
        PlanNode::TextMatch { search, .. } => {
            head(out, "TEXT_MATCH", None, own);
            out.append("indexPrefix", &search.prefix);
            out.append("indexName", &search.index.name);
            write_text_query(&mut out.document("parsedTextQuery"), &search.query);
            out.append("textIndexVersion", search.index.text.as_ref().map_or(3, |spec| spec.version()));
            let below = stats.and_then(|stats| stats.get(at.operator));
            if let (Some(own), Some(below)) = (own, below) {
                out.append("docsRejected", below.advanced.saturating_sub(own.advanced) as i32);
            }
        }
        PlanNode::ReturnKey { .. } => head(out, "RETURN_KEY", None, own),
        // Not an operator of mongod's: there the projection adds it.
        PlanNode::RecordId { input, .. } => return write(out, input, stats, at),
    }
    write_inputs(out, node, stats, at);
}

/// The distinct scan below what fetches its documents: to mongod they are one operator, and the projection above is none, unless it has
/// made the plan without its planner, as it does where there is neither filter nor order. How many operators they are here.
fn fetching(node: &PlanNode, keeps_shape: bool) -> Option<(&Scan, usize)> {
    match node {
        PlanNode::Project { input, covered: false, .. } if !keeps_shape => {
            fetching(input, false).map(|(scan, operators)| (scan, operators + 1))
        }
        PlanNode::Fetch { input, filter: None, .. } => match &**input {
            PlanNode::DistinctScan(scan) if !crate::index::is_clustered(&scan.index) => Some((scan, 2)),
            _ => None,
        },
        _ => None,
    }
}

fn write_fetching(out: Out<'_, '_>, scan: &Scan, stats: Option<&[Figures]>) {
    let below = stats.and_then(<[Figures]>::last);
    let top = stats.and_then(<[Figures]>::first).zip(below);
    let own = top.map(|(top, below)| Figures { keys_examined: below.keys_examined, ..top.clone() });
    write_scan_as(out, "DISTINCT_SCAN", scan, own.as_ref(), true);
    if let Some(stats) = stats {
        let docs: u64 = stats.iter().map(|figures| figures.docs_examined).sum();
        out.append("docsExamined", docs as i32);
    }
}

fn write_text_query(out: Out<'_, '_>, query: &TextQuery) {
    let mut list = |name: &str, words: &mut dyn Iterator<Item = &str>| {
        let mut list = out.array(name);
        words.for_each(|word| _ = list.push(word));
    };
    list("terms", &mut query.terms());
    list("negatedTerms", &mut query.negated_terms());
    list("phrases", &mut query.phrases());
    list("negatedPhrases", &mut query.negated_phrases());
}

fn write_inputs(out: Out<'_, '_>, node: &PlanNode, stats: Option<&[Figures]>, at: &mut At<'_>) {
    match node {
        PlanNode::Or { inputs } | PlanNode::SortMerge { inputs, .. } => write_all(out, inputs, stats, at),
        PlanNode::TextMatch { input, .. } if wants_score(at.of.query) => {
            write_text_or(&mut out.document("inputStage"), input, stats, at);
        }
        _ => {
            for input in node.inputs() {
                write(&mut out.document("inputStage"), input, stats, at);
            }
        }
    }
}

fn write_all(out: Out<'_, '_>, inputs: &[PlanNode], stats: Option<&[Figures]>, at: &mut At<'_>) {
    let mut list = out.array("inputStages");
    for input in inputs {
        write(&mut list.document(), input, stats, at);
    }
}

/// Whether the score of `$text` is asked for.
fn wants_score(query: &Query) -> bool {
    let shown = query.projection.as_ref().is_some_and(|shown| shown.metadata().contains(&"textScore"));
    shown || query.sort.as_ref().is_some_and(|sort| sort.needs_text_score())
}

/// What fetches the documents with any of the words: where scores are wanted mongod adds these up while it joins the scans.
fn write_text_or(out: Out<'_, '_>, node: &PlanNode, stats: Option<&[Figures]>, at: &mut At<'_>) {
    let PlanNode::Fetch { input, filter, .. } = node else { return write(out, node, stats, at) };
    let own = stats.and_then(|stats| stats.get(at.operator));
    at.operator += 1;
    head(out, "TEXT_OR", filter.as_ref(), own);
    if let Some(own) = own {
        out.append("docsExamined", own.docs_examined as i32);
    }
    match &**input {
        PlanNode::Or { inputs } => {
            at.operator += 1;
            write_all(out, inputs, stats, at);
        }
        scan => write(&mut out.document("inputStage"), scan, stats, at),
    }
}

fn over_sort(node: &PlanNode) -> bool {
    match node {
        PlanNode::Sort { limit, .. } => *limit > 0,
        PlanNode::Skip { input, .. } | PlanNode::Project { input, .. } => over_sort(input),
        _ => false,
    }
}

fn head(out: Out<'_, '_>, name: &str, filter: Option<&FilterPart>, stats: Option<&Figures>) {
    out.append("stage", name);
    if let Some(filter) = filter {
        out.append("filter", &filter.to_doc());
    }
    if let Some(stats) = stats {
        figures(out, stats);
    }
}

fn figures(out: Out<'_, '_>, stats: &Figures) {
    out.append("nReturned", stats.advanced as i32);
    out.append("executionTimeMillisEstimate", (stats.nanos / 1_000_000) as i32);
    out.append("works", stats.works as i32);
    out.append("advanced", stats.advanced as i32);
    out.append("needTime", stats.need_time as i32);
    out.append("needYield", 0);
    out.append("saveState", stats.saves as i32);
    out.append("restoreState", stats.saves as i32);
    out.append("isEOF", i32::from(stats.eof));
}

fn write_scan(out: Out<'_, '_>, name: &str, scan: &Scan, stats: Option<&Figures>) {
    write_scan_as(out, name, scan, stats, false);
}

fn write_scan_as(out: Out<'_, '_>, name: &str, scan: &Scan, stats: Option<&Figures>, fetching: bool) {
    head(out, name, scan.filter.as_ref(), stats);
    let index = &scan.index;
    let wildcard = index.kind == IndexKind::Wildcard;
    if wildcard {
        // A wildcard index shows the path that it is used for.
        let mut pattern = out.document("keyPattern");
        for (path, descending) in &scan.fields {
            pattern.append(path, if *descending { -1 } else { 1 });
        }
    } else {
        out.append("keyPattern", key_pattern(index));
    }
    out.append("indexName", &index.name);
    if let Some(Value::Document(collation)) = index.spec.as_raw().get("collation") {
        out.append("collation", collation);
    }
    out.append("isMultiKey", scan.multikey);
    if !matches!(index.kind, IndexKind::Hashed) {
        write_multikey_paths(out, index, scan);
    }
    out.append("isUnique", index.unique || index.kind == IndexKind::Id);
    out.append("isSparse", index.sparse || wildcard);
    out.append("isPartial", index.partial.is_some());
    if name == "DISTINCT_SCAN" {
        // The filter of shards is a stage of its own here.
        out.append("isShardFiltering", false).append("isFetching", fetching);
    }
    out.append("indexVersion", 2);
    out.append("direction", direction(scan.backward));
    if name == "COUNT_SCAN" {
        count_bounds(&mut out.document("indexBounds"), scan);
        if let Some(stats) = stats {
            out.append("keysExamined", stats.keys_examined as i32);
        }
        return;
    }
    match &scan.keys {
        Some((min, max)) => {
            let mut bounds = out.document("indexBounds");
            let empty = RawDoc::EMPTY;
            bounds.append("startKey", min.as_ref().map_or(empty, |d| d.as_raw()));
            bounds.append("endKey", max.as_ref().map_or(empty, |d| d.as_raw()));
        }
        None => scan.bounds.write(&mut out.document("indexBounds"), scan.backward, index.collator.is_some()),
    }
    if let Some(stats) = stats {
        out.append("keysExamined", stats.keys_examined as i32);
        if name == "DISTINCT_SCAN" {
            return;
        }
        out.append("seeks", stats.seeks as i32);
        out.append("dupsTested", stats.dups_tested as i32);
        out.append("dupsDropped", stats.dups_dropped as i32);
    }
}

/// The run of keys that a `COUNT_SCAN` counts, by its ends.
fn count_bounds(out: Out<'_, '_>, scan: &Scan) {
    let mut write = |name: &str, low: bool| {
        let mut inclusive = true;
        let mut key = out.document(name);
        for field in &scan.bounds.fields {
            let Some(interval) = field.intervals.iter().next() else { continue };
            let (value, within) = if low != field.descending {
                (&interval.low, interval.low_in)
            } else {
                (&interval.high, interval.high_in)
            };
            key.append(&field.path, value.as_value());
            inclusive &= within;
        }
        drop(key);
        out.append(&format!("{name}Inclusive"), inclusive);
    };
    write("startKey", true);
    write("endKey", false);
}

fn write_multikey_paths(out: Out<'_, '_>, index: &Index, scan: &Scan) {
    let paths = index.multikey_paths();
    let mut all = out.document("multiKeyPaths");
    for (at, (field, _)) in scan.fields.iter().enumerate() {
        let mut list = all.array(field);
        let Some(arrays) = paths.as_ref().and_then(|paths| paths.get(at)) else { continue };
        let parts: Vec<&str> = field.split('.').collect();
        for last in arrays {
            if let Some(prefix) = parts.get(..=*last) {
                list.push(prefix.join(".").as_str());
            }
        }
    }
}
