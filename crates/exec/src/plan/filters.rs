//! Index filters: which indexes the plans of a query's shape may use. Storage keeps them, in memory, as MongoDB does.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value, compare};
use sheaf_collation::Collator;
use sheaf_query::matcher::Matcher;
use sheaf_storage::{Collection, Index, View};

use super::query::Hint;
use super::{Query, cache, choose};
use crate::index::key_pattern;

/// What tells the shape of a query that `planCacheSetFilter` and its kin name.
///
/// The collation is a part of the shape.
pub fn shape(matcher: Matcher, sort: RawDoc<'_>, projection: RawDoc<'_>, collation: RawDoc<'_>) -> u64 {
    // Whoever asks has looked at it.
    let collator = Collator::parse(collation).ok().flatten();
    let query = Query {
        collator,
        sort_spec: DocBuf::from(sort),
        projection_spec: DocBuf::from(projection),
        ..Query::filtered(matcher)
    };
    cache::shape_hash(&query)
}

/// The filter that holds for a query, as `planCacheListFilters` shows it.
///
/// A lookup by `_id` alone is never planned, so that no filter concerns it.
pub fn of(query: &Query, collection: &Collection, view: &View) -> Option<Arc<DocBuf>> {
    let filters = view.plans();
    if !filters.has_filters() || choose::id_equality(query.matcher().root()).is_some() {
        return None;
    }
    filters.filter(collection.uuid, cache::shape_hash(query))
}

/// The query and the collection as a filter has the planner see them: without hints, with the filter's indexes only.
pub fn narrowed(query: &Query, collection: &Collection, filter: &DocBuf) -> (Query, Arc<Collection>) {
    let allowed = filter.as_raw().get("indexes").and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
    let query = Query { hint: Hint::None, ..query.clone() };
    (query, Arc::new(collection.with_only(|index| allows(allowed, index))))
}

fn allows(allowed: RawDoc<'_>, index: &Index) -> bool {
    allowed.values().any(|one| match one {
        Value::String(name) => index.name == name,
        pattern => compare(pattern, Value::Document(key_pattern(index))).is_eq(),
    })
}
