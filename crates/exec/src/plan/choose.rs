//! The candidate plans of a query.

use std::ops::Bound;
use std::sync::Arc;

use sheaf_bson::{DocBuf, OwnedValue, Value};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::Deps;
use sheaf_query::matcher::{CompareOp, MatchExpr, Test};
use sheaf_rows::Fields;
use sheaf_storage::{Collection, Index, IndexKind, Range};

use super::analyze::{IndexUse, conjuncts, eligible, may_hold_strings, uses};
use super::hint::key_range;
use super::query::{Hint, Start};
use super::{Ahead, FilterPart, PlanNode, Query, Scan};
use crate::bounds::{FieldBounds, IndexBounds, Intervals};
use crate::index::{hashed_fields, is_record_order};

/// More scans than this are not made of one to get an order from an index.
const MAX_EXPLODED: usize = 200;

/// The `_id` of a filter that is exactly `{_id: value}` (for values that equal only themselves).
pub fn id_equality(expr: &MatchExpr) -> Option<&OwnedValue> {
    match expr {
        MatchExpr::Leaf(leaf) if leaf.path.dotted() == "_id" => match &leaf.test {
            Test::Compare { op: CompareOp::Eq, operand } => {
                // No `_id` is an array, and a stored null is not the same as a missing field: left to a scan.
                let simple = !matches!(
                    operand.as_value(),
                    Value::Array(_) | Value::Null | Value::Undefined | Value::Regex(_)
                );
                simple.then_some(operand)
            }
            _ => None,
        },
        _ => None,
    }
}

/// All plans worth trying; at least one.
///
/// Errors: `BadValue` for a hint that fits no index, those of `min` and `max`.
pub fn candidates(query: &Query, collection: &Arc<Collection>) -> Result<Vec<PlanNode>> {
    if !query.whole_documents
        && !query.matcher().has_text()
        && let Some(plan) = super::distinct::plan(query, collection)?
    {
        return Ok(vec![plan]);
    }
    if let Some(plan) = super::distinct::one_of_each(query, collection)? {
        return Ok(vec![plan]);
    }
    let plans = ordinary(query, collection)?;
    let counts_keys = query.counting && !query.whole_documents;
    Ok(if counts_keys { plans.into_iter().map(count_keys).collect() } else { plans })
}

/// Of so many documents a twentieth may be drawn, as it is in MongoDB; of more a hundredth, which is where reading all begins to be quicker.
const DRAWN_FREELY: u64 = 1000;
/// More than these are not drawn: their keys are all in memory.
const MOST_DRAWN: u64 = 50_000;

/// A plan that gives some documents by chance, where that is less work than to read all: MongoDB has one where there are more
/// than a hundred, and not more than a twentieth is wanted.
pub fn by_chance(query: &Query, collection: &Collection) -> Option<PlanNode> {
    let (wanted, there) = (query.sample?, collection.count());
    let share = if wanted <= DRAWN_FREELY { 20 } else { 100 };
    let few = wanted <= MOST_DRAWN && wanted * share <= there;
    (few && there > 100 && !collection.is_oplog()).then_some(PlanNode::RandomRecords(wanted as usize))
}

/// Where only the number of an unbroken run of keys is wanted, they need not be looked into.
fn count_keys(node: PlanNode) -> PlanNode {
    match node {
        PlanNode::IndexScan(scan)
            if scan.filter.is_none()
                && scan.keys.is_none()
                && !scan.backward
                && scan.bounds.is_single_range() =>
        {
            PlanNode::CountScan(scan)
        }
        PlanNode::Limit { input, limit } => PlanNode::Limit { input: Box::new(count_keys(*input)), limit },
        PlanNode::Skip { input, skip } => PlanNode::Skip { input: Box::new(count_keys(*input)), skip },
        other => other,
    }
}

fn ordinary(query: &Query, collection: &Arc<Collection>) -> Result<Vec<PlanNode>> {
    let filter = FilterPart::whole(query.matcher());
    if filter.expr().has_text() {
        return Ok(vec![super::text::plan(query, collection, &filter)?]);
    }
    let hinted = query.hint.index(collection, query.collator.as_ref())?;
    let range = (query.min.as_ref(), query.max.as_ref());
    let keys = key_range(hinted.as_ref(), query.collator.as_ref(), range)?;
    if matches!(filter.expr(), MatchExpr::AlwaysFalse) {
        return Ok(vec![PlanNode::Eof]);
    }
    if let Some(near) = super::near::plan(query, collection, &filter, hinted.as_ref())? {
        return Ok(vec![finish(query, near, query.sort.is_none())]);
    }
    if query.tailable || query.natural_sort().is_some() || matches!(query.hint, Hint::Natural(_)) {
        if query.natural_sort().is_some() && hinted.is_some() {
            bail!(Code::BAD_VALUE, "Cannot combine a $natural sort with a hint");
        }
        return Ok(vec![natural(query, &filter)]);
    }
    let by_id = hinted.is_none() && !query.return_key && crate::index::clustered_by_id(collection);
    if by_id
        && query.collator.is_none()
        && let Some(id) = id_equality(filter.expr())
    {
        let lookup = PlanNode::IdLookup { id: id.clone(), filter: None };
        return Ok(vec![finish(query, lookup, true)]);
    }
    if let Some(index) = &hinted {
        let plans = with_index(query, collection, &filter, index, keys);
        if plans.is_empty() {
            bail!(
                Code::NO_QUERY_EXECUTION_PLANS,
                "error processing query: ns={} planner returned error :: caused by :: No query solutions",
                collection.namespace
            );
        }
        return Ok(plans);
    }
    let mut plans = Vec::new();
    for index in collection.indexes.iter().filter(|index| eligible(index, filter.expr())) {
        for found in uses(query.collator.as_ref(), index, filter.expr()) {
            plans.extend(index_plans(query, collection, &filter, &found));
        }
    }
    if let Some(plan) = or_plan(query, collection, &filter) {
        plans.push(plan);
    }
    if plans.iter().all(PlanNode::blocks) && query.sort_fields().is_some() {
        plans.extend(full_scans(query, collection, &filter));
    }
    if plans.is_empty() {
        plans.push(finish(query, collection_scan(collection, &filter), false));
    }
    Ok(plans)
}

fn whole(filter: &FilterPart) -> Option<FilterPart> {
    filter.without(&[])
}

fn natural(query: &Query, filter: &FilterPart) -> PlanNode {
    let backward = match (&query.hint, query.natural_sort()) {
        (_, Some(backward)) => backward,
        (Hint::Natural(backward), None) => *backward,
        _ => false,
    };
    let sorted = query.natural_sort().is_some();
    let range = query.start.as_ref().map(|Start { record, after }| {
        let place = if *after { Bound::Excluded } else { Bound::Included };
        Range { lower: place(record.clone()), upper: Bound::Unbounded }
    });
    finish(query, PlanNode::CollScan { filter: whole(filter), backward, range }, sorted)
}

fn collection_scan(_collection: &Collection, filter: &FilterPart) -> PlanNode {
    PlanNode::CollScan { filter: whole(filter), backward: false, range: None }
}

/// Plans with a hinted index: its bounds if the filter gives any, else all of it.
fn with_index(
    query: &Query,
    collection: &Arc<Collection>,
    filter: &FilterPart,
    index: &Arc<Index>,
    keys: Option<(Option<DocBuf>, Option<DocBuf>)>,
) -> Vec<PlanNode> {
    if keys.is_some() {
        let mut found = full_use(query.collator.as_ref(), index);
        found.multikey = index.multikey();
        return scan_plan(query, collection, filter, &found, keys).into_iter().collect();
    }
    let mut plans = Vec::new();
    for found in uses(query.collator.as_ref(), index, filter.expr()) {
        plans.extend(index_plans(query, collection, filter, &found));
    }
    if let (true, Some(plan)) = (plans.is_empty(), or_plan_with(query, collection, filter, Some(index))) {
        plans.push(plan);
    }
    if plans.is_empty() && !matches!(index.kind, IndexKind::Wildcard | IndexKind::Text) {
        plans.extend(scan_plan(query, collection, filter, &full_use(query.collator.as_ref(), index), None));
    }
    plans
}

/// All of an index.
pub(super) fn full_use(collator: Option<&SharedCollator>, index: &Arc<Index>) -> IndexUse {
    let field = |(path, descending): &(String, bool)| FieldBounds {
        path: path.clone(),
        descending: *descending,
        intervals: Intervals::all(),
    };
    IndexUse {
        index: index.clone(),
        bounds: IndexBounds { fields: index.fields.iter().map(field).collect() },
        fields: index.fields.clone(),
        exact: Vec::new(),
        covered: Vec::new(),
        multikey: index.multikey(),
        strings_alike: crate::index::compares_strings_alike(index, collator),
    }
}

/// Whole-index scans that give the order. Those that only cover what is needed are none of MongoDB's plans: keys do not tell a field that is
/// missing from one that is null, and who asks for no order gets the natural one.
fn full_scans(query: &Query, collection: &Arc<Collection>, filter: &FilterPart) -> Vec<PlanNode> {
    let usable = |index: &&Arc<Index>| {
        eligible(index, filter.expr())
            && !index.sparse
            && matches!(index.kind, IndexKind::Btree | IndexKind::Id)
    };
    let scans = collection.indexes.iter().filter(usable).filter_map(|index| {
        scan_plan(query, collection, filter, &full_use(query.collator.as_ref(), index), None)
    });
    scans.filter(|plan| !plan.blocks()).collect()
}

fn index_plans(
    query: &Query,
    collection: &Arc<Collection>,
    filter: &FilterPart,
    found: &IndexUse,
) -> Vec<PlanNode> {
    let mut plans: Vec<PlanNode> = scan_plan(query, collection, filter, found, None).into_iter().collect();
    // What can do without a sort never has one, whatever a trial would say.
    if plans.iter().all(PlanNode::blocks)
        && let Some(plan) = exploded(query, collection, filter, found)
    {
        plans = vec![plan];
    }
    plans
}

/// Whether a scan in the given direction yields the wanted order.
pub(super) fn gives_order(found: &IndexUse, wanted: &[(String, bool)]) -> Option<bool> {
    if matches!(found.index.kind, IndexKind::Geo)
        || (matches!(found.index.kind, IndexKind::Wildcard) && wanted.len() > 1)
    {
        return None;
    }
    let hashed = hashed_fields(&found.index);
    let paths = found.index.multikey_paths();
    let mut wanted = wanted.iter().peekable();
    let mut backward = None;
    for (at, field) in found.bounds.fields.iter().enumerate() {
        let Some((path, descending)) = wanted.peek() else { break };
        let point = field.intervals.as_point().is_some();
        if *path != field.path {
            // A field held to one value does not disturb the order.
            if point { continue } else { return None }
        }
        let arrays = match &paths {
            Some(paths) => paths.get(at).is_some_and(|p| !p.is_empty()),
            None => found.multikey,
        };
        if hashed.get(at).copied().unwrap_or(false) || (arrays && !field.intervals.is_all()) {
            return None;
        }
        if !found.strings_alike && may_hold_strings(&field.intervals) {
            return None;
        }
        let against = *descending != field.descending;
        if !point || backward.is_none() {
            if backward.is_some_and(|backward| backward != against) {
                return None;
            }
            if !point {
                backward = Some(against);
            }
        }
        wanted.next();
    }
    wanted.peek().is_none().then(|| backward.unwrap_or(false))
}

fn scan_plan(
    query: &Query,
    collection: &Arc<Collection>,
    filter: &FilterPart,
    found: &IndexUse,
    keys: Option<(Option<DocBuf>, Option<DocBuf>)>,
) -> Option<PlanNode> {
    if found.bounds.is_empty() {
        return Some(PlanNode::Eof);
    }
    let order = query.sort_fields().map(|wanted| gives_order(found, &wanted));
    let backward = order.flatten().unwrap_or(false);
    let sorted = matches!(order, Some(Some(_)));
    let node = access(query, collection, filter, found, backward, sorted || query.sort.is_none(), keys);
    Some(finish(query, node, sorted))
}

/// The scan with what is needed above it to have the matching documents.
fn access(
    query: &Query,
    collection: &Arc<Collection>,
    filter: &FilterPart,
    found: &IndexUse,
    backward: bool,
    in_order: bool,
    keys: Option<(Option<DocBuf>, Option<DocBuf>)>,
) -> PlanNode {
    let on_records = is_record_order(collection, &found.index);
    let covered = if on_records || found.multikey { &[][..] } else { &found.covered };
    let key_filter = filter.only(covered.iter().map(|at| *at as u32).collect());
    let done: Vec<usize> = found.exact.iter().chain(covered).copied().collect();
    let left = filter.without(&done);
    let scan = PlanNode::IndexScan(Scan {
        index: found.index.clone(),
        fields: found.fields.clone(),
        bounds: found.bounds.clone(),
        backward,
        multikey: found.multikey,
        filter: key_filter,
        keys,
        leading: 0,
    });
    let from_keys = left.is_none() && in_order && covers(query, found) && !query.show_record_id;
    // What is sorted is sorted by its document.
    if from_keys || (query.return_key && left.is_none() && in_order) {
        return scan;
    }
    PlanNode::Fetch { input: Box::new(scan), filter: left, ahead: None }
}

/// Whether the index's keys hold all that the query needs.
pub(super) fn covers(query: &Query, found: &IndexUse) -> bool {
    if query.whole_documents {
        return false;
    }
    if query.counting {
        return true;
    }
    if found.multikey || !matches!(found.index.kind, IndexKind::Btree | IndexKind::Id) {
        return false;
    }
    match query.needed_paths() {
        Some(paths) => paths.iter().all(|path| gives_value(found, path)),
        None => false,
    }
}

/// Whether the keys hold this field's values themselves: collated strings are not the text.
pub(super) fn gives_value(found: &IndexUse, path: &str) -> bool {
    let texts = found.index.collator.is_none();
    let own = |field: &FieldBounds| field.path == path && (texts || !may_hold_strings(&field.intervals));
    found.bounds.fields.iter().any(own)
}

/// For each combination of points on the leading fields one scan, merged: `{a: {$in: [1, 2]}}` sorted by `b`
/// with an index on `{a: 1, b: 1}`.
fn exploded(
    query: &Query,
    collection: &Arc<Collection>,
    filter: &FilterPart,
    found: &IndexUse,
) -> Option<PlanNode> {
    let wanted = query.sort_fields()?;
    let pattern = query.sort.clone()?;
    if found.index.kind != IndexKind::Btree {
        return None;
    }
    let leading: Vec<&FieldBounds> = found
        .bounds
        .fields
        .iter()
        .take_while(|field| field.intervals.all_points() && field.path != wanted[0].0)
        .collect();
    let total: usize = leading.iter().map(|field| field.intervals.len()).product();
    if leading.is_empty() || !(2..=MAX_EXPLODED).contains(&total) {
        return None;
    }
    let mut inputs = Vec::with_capacity(total);
    for number in 0..total {
        let mut rest = number;
        let mut part = found.clone();
        for (at, field) in leading.iter().enumerate() {
            let chosen = rest % field.intervals.len();
            rest /= field.intervals.len();
            let point = field.intervals.iter().nth(chosen)?.low.as_value();
            part.bounds.fields[at].intervals = Intervals::point(point);
        }
        let backward = gives_order(&part, &wanted)?;
        let PlanNode::Fetch { input, filter: left, .. } =
            access(query, collection, filter, &part, backward, false, None)
        else {
            return None;
        };
        inputs.push(PlanNode::Fetch { input, filter: left, ahead: None });
    }
    Some(finish(query, PlanNode::SortMerge { inputs, pattern }, true))
}

fn or_plan(query: &Query, collection: &Arc<Collection>, filter: &FilterPart) -> Option<PlanNode> {
    or_plan_with(query, collection, filter, None)
}

/// A plan for the first `$or` among the conjuncts of which every branch has an index.
fn or_plan_with(
    query: &Query,
    collection: &Arc<Collection>,
    filter: &FilterPart,
    only: Option<&Arc<Index>>,
) -> Option<PlanNode> {
    let root = filter.expr();
    let at = conjuncts(root).iter().position(|part| matches!(part, MatchExpr::Or(_)))?;
    let part = if matches!(root, MatchExpr::Or(_)) { filter.clone() } else { filter.child(at) };
    let MatchExpr::Or(branches) = part.expr() else { return None };
    let wanted = query.sort_fields();
    let mut inputs = Vec::with_capacity(branches.len());
    let mut all_sorted = wanted.is_some();
    for (number, branch) in branches.iter().enumerate() {
        let found = best_branch(query, collection, root, branch, only)?;
        let backward = match (&wanted, all_sorted) {
            (Some(wanted), true) => match gives_order(&found, wanted) {
                Some(backward) => backward,
                None => {
                    all_sorted = false;
                    false
                }
            },
            _ => false,
        };
        inputs.push(branch_access(collection, &part.child(number), &found, backward));
    }
    let rest = filter.without(&[at]);
    let joined = match (&query.sort, all_sorted) {
        (Some(pattern), true) => PlanNode::SortMerge { inputs, pattern: pattern.clone() },
        _ => PlanNode::Or { inputs },
    };
    let fetch = PlanNode::Fetch { input: Box::new(joined), filter: rest, ahead: None };
    Some(finish(query, fetch, all_sorted))
}

/// A branch's scan; documents are fetched only if something is left to check.
pub(super) fn branch_access(
    collection: &Collection,
    branch: &FilterPart,
    found: &IndexUse,
    backward: bool,
) -> PlanNode {
    let scan = PlanNode::IndexScan(Scan {
        index: found.index.clone(),
        fields: found.fields.clone(),
        bounds: found.bounds.clone(),
        backward,
        multikey: found.multikey,
        filter: None,
        keys: None,
        leading: 0,
    });
    match branch.without(&found.exact) {
        None if !is_record_order(collection, &found.index) => scan,
        left => PlanNode::Fetch { input: Box::new(scan), filter: left, ahead: None },
    }
}

/// The index that narrows a branch most.
pub(super) fn best_branch(
    query: &Query,
    collection: &Collection,
    root: &MatchExpr,
    branch: &MatchExpr,
    only: Option<&Arc<Index>>,
) -> Option<IndexUse> {
    let (wanted, collator) = (query.sort_fields(), query.collator.as_ref());
    let fits = |index: &&Arc<Index>| match only {
        Some(only) => Arc::ptr_eq(index, only),
        None => eligible(index, branch) || eligible(index, root),
    };
    collection
        .indexes
        .iter()
        .filter(fits)
        .flat_map(|index| uses(collator, index, branch))
        .filter(|found| !found.bounds.is_full())
        .max_by_key(|found| {
            let sorted = wanted.as_ref().is_some_and(|wanted| gives_order(found, wanted).is_some());
            let points = found.bounds.point_prefix();
            let bounded = found.bounds.fields.iter().filter(|field| !field.intervals.is_all()).count();
            (points, bounded, sorted, std::cmp::Reverse(found.fields.len()))
        })
}

/// How documents are fetched ahead where the query reads all that its scan finds.
fn ahead(query: &Query) -> Ahead {
    let Some(paths) = query.needed_paths() else { return Ahead::default() };
    let mut deps = Deps::new();
    query.matcher().dependencies(&mut deps);
    if let Some(pattern) = &query.sort {
        pattern.dependencies(&mut deps);
    }
    let fields = (!deps.whole_document).then(|| Arc::new(Fields::of_paths(paths.iter().chain(&deps.paths))));
    Ahead { fields }
}

/// Sort, skip, limit and projection above the access path.
pub(super) fn finish(query: &Query, mut node: PlanNode, sorted: bool) -> PlanNode {
    let sorts = query.sort.is_some() && !sorted;
    if let PlanNode::Fetch { input, ahead: fetch, .. } = &mut node
        && matches!(&**input, PlanNode::IndexScan(_))
        && (sorts || query.limit.is_none())
    {
        *fetch = Some(ahead(query));
    }
    if let (Some(pattern), false, None) = (&query.sort, sorted, query.natural_sort()) {
        let limit = query.limit.map_or(0, |limit| limit.saturating_add(query.skip));
        let fields = query.needed_paths().map(|paths| Arc::new(Fields::of_paths(paths)));
        node = PlanNode::Sort { input: Box::new(node), pattern: pattern.clone(), limit, fields };
    }
    if query.skip > 0 {
        node = PlanNode::Skip { input: Box::new(node), skip: query.skip };
    }
    if let (Some(projection), false) = (&query.projection, query.return_key) {
        let covered = node.gives_keys();
        let (projection, matcher) = (projection.clone(), query.matcher());
        let sort = query.sort.clone();
        node = PlanNode::Project { input: Box::new(node), projection, matcher, covered, sort };
    }
    // A bounded sort gives no more than the limit by itself, but a skip above it counts too.
    if let Some(limit) = query.limit {
        node = PlanNode::Limit { input: Box::new(node), limit };
    }
    // Who asks for keys gets nothing else.
    if query.show_record_id && !query.return_key || query.number_records {
        node = PlanNode::RecordId { input: Box::new(node), shown: query.show_record_id };
    }
    if query.return_key { PlanNode::ReturnKey { input: Box::new(node) } } else { node }
}
