//! Scans that step from value to value of an index.

use std::sync::Arc;

use sheaf_bson::DocBuf;
use sheaf_errors::Result;
use sheaf_expr::ParseCx;
use sheaf_query::matcher::MatchExpr;
use sheaf_query::projection::{Mode, Projection};
use sheaf_storage::{Collection, Index, IndexKind};

use super::analyze::{IndexUse, eligible, uses};
use super::choose::{covers, finish, full_use, gives_order, gives_value};
use super::query::{Hint, OneOfEach};
use super::{FilterPart, PlanNode, Query, Scan};

/// A scan of one key for each value of the field whose distinct values are wanted, if the filter leaves nothing to check.
///
/// Errors: `BadValue` for a hint that fits no index.
pub(super) fn plan(query: &Query, collection: &Arc<Collection>) -> Result<Option<PlanNode>> {
    let Some(key) = &query.distinct else { return Ok(None) };
    let filter = FilterPart::whole(query.matcher());
    if matches!(query.hint, Hint::Natural(_)) || matches!(filter.expr(), MatchExpr::AlwaysFalse) {
        return Ok(None);
    }
    let hinted = query.hint.index(collection, query.collator.as_ref())?;
    let all = query.matcher().matches_everything();
    let allowed = |index: &&Arc<Index>| {
        hinted.as_ref().is_none_or(|hinted| hinted.name == index.name)
            && eligible(index, filter.expr())
            && crate::index::compares_strings_alike(index, query.collator.as_ref())
    };
    let indexes = collection.indexes.iter().filter(allowed);
    let found = if all {
        indexes.filter(|index| has_all(index, key, query.unwinds)).min_by_key(|index| index.fields.len()).map(
            |index| {
                let found = full_use(query.collator.as_ref(), index);
                (found, 1)
            },
        )
    } else {
        indexes.filter(|index| !index.multikey()).find_map(|index| within(query, &filter, index, key))
    };
    match found {
        Some((found, leading)) => Ok(Some(scan(query, &found, leading, key)?)),
        None => Ok(None),
    }
}

/// A scan of one document for each value of the path by which they are grouped, if an index has them in the order in which the first
/// of each group is wanted; backward for the last. What is collated has no such keys: several documents may be of one group.
///
/// Errors: `BadValue` for a hint that fits no index.
pub(super) fn one_of_each(query: &Query, collection: &Arc<Collection>) -> Result<Option<PlanNode>> {
    let Some(OneOfEach { path, last }) = &query.one_of_each else { return Ok(None) };
    let Some(mut wanted) = query.sort_fields() else { return Ok(None) };
    let filter = FilterPart::whole(query.matcher());
    let natural = matches!(query.hint, Hint::Natural(_)) || query.natural_sort().is_some();
    let none = natural || matches!(filter.expr(), MatchExpr::AlwaysFalse) || filter.expr().has_text();
    if none || query.whole_documents || query.collator.is_some() {
        return Ok(None);
    }
    wanted.iter_mut().for_each(|(_, descending)| *descending ^= last);
    let hinted = query.hint.index(collection, None)?;
    let allowed = |index: &&Arc<Index>| {
        hinted.as_ref().is_none_or(|hinted| hinted.name == index.name)
            && eligible(index, filter.expr())
            && index.collator.is_none()
            && !index.multikey()
            && matches!(index.kind, IndexKind::Btree | IndexKind::Id)
    };
    let all = query.matcher().matches_everything();
    for index in collection.indexes.iter().filter(allowed) {
        let found = match (all, index.sparse || index.partial.is_some()) {
            (true, true) => None,
            (true, false) => {
                let at = index.fields.iter().position(|(field, _)| field == path);
                (at == Some(0)).then(|| (full_use(None, index), 1))
            }
            (false, _) => within(query, &filter, index, path),
        };
        let Some((found, leading)) = found else { continue };
        let Some(backward) = gives_order(&found, &wanted) else { continue };
        let covered = covers(query, &found);
        let scan = PlanNode::DistinctScan(Scan { backward, ..scan_of(&found, leading) });
        let node = match covered {
            true => scan,
            false => PlanNode::Fetch { input: Box::new(scan), filter: None, ahead: None },
        };
        return Ok(Some(finish(query, node, true)));
    }
    Ok(None)
}

/// Whether an index begins with the field and has each document: where arrays are, only for who wants their elements.
fn has_all(index: &Index, key: &str, unwinds: bool) -> bool {
    let paths = index.multikey_paths();
    let arrays = index.multikey()
        && paths.as_ref().and_then(|paths| paths.first()).is_none_or(|arrays| !arrays.is_empty());
    index.fields[0].0 == *key
        && index.partial.is_none()
        && !index.sparse
        && matches!(index.kind, IndexKind::Btree | IndexKind::Id)
        && (!arrays || unwinds && !key.contains('.'))
}

/// The use of an index whose keys are those of the documents that match, and the number of fields up to this one: those before it
/// are held to one value.
fn within(query: &Query, filter: &FilterPart, index: &Arc<Index>, key: &str) -> Option<(IndexUse, usize)> {
    if !matches!(index.kind, IndexKind::Btree | IndexKind::Id | IndexKind::Wildcard) {
        return None;
    }
    uses(query.collator.as_ref(), index, filter.expr()).into_iter().find_map(|found| {
        let at = found.bounds.fields.iter().position(|field| field.path == *key)?;
        let held = found.bounds.fields[..at].iter().all(|field| field.intervals.as_point().is_some());
        (held && filter.without(&found.exact).is_none()).then_some((found, at + 1))
    })
}

fn scan_of(found: &IndexUse, leading: usize) -> Scan {
    Scan {
        index: found.index.clone(),
        fields: found.fields.clone(),
        bounds: found.bounds.clone(),
        backward: false,
        multikey: found.multikey,
        filter: None,
        keys: None,
        leading,
    }
}

fn scan(query: &Query, found: &IndexUse, leading: usize, key: &str) -> Result<PlanNode> {
    // Keys of collated strings are not the strings: the first document of each has one.
    let covered = gives_value(found, key);
    let scan = PlanNode::DistinctScan(scan_of(found, leading));
    let scan =
        if covered { scan } else { PlanNode::Fetch { input: Box::new(scan), filter: None, ahead: None } };
    let shape = DocBuf::new().with("_id", i32::from(key == "_id")).with(key, 1);
    let shape = if key == "_id" { DocBuf::new().with("_id", 1) } else { shape };
    let projection = Projection::parse(shape.as_raw(), Mode::Find, &mut ParseCx::new())?;
    Ok(PlanNode::Project {
        input: Box::new(scan),
        projection: Arc::new(projection),
        matcher: query.matcher(),
        covered,
        sort: None,
    })
}
