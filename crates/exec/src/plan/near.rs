//! Plans for `$near` and its kin: a geometric index gives documents in the order of their distances.

use std::sync::Arc;

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_geo::{Indexing, Near};
use sheaf_query::path::Path;
use sheaf_storage::{Collection, Index};

use super::analyze::{eligible, uses};
use super::query::Hint;
use super::{FilterPart, PlanNode, Query, Scan};

/// A scan of a geometric index in the order of distances.
#[derive(Clone)]
pub struct NearScan {
    /// The scan of one ring, whose bounds on the geometry are to be filled in.
    pub scan: Scan,
    /// Which of the index's fields the geometry is.
    pub field: usize,
    /// The geometry's path.
    pub path: Path,
    /// The centre, the metric and the limits.
    pub near: Arc<Near>,
    /// What else to check.
    pub filter: Option<FilterPart>,
}

impl NearScan {
    /// How the index makes keys.
    pub fn indexing(&self) -> &Indexing {
        self.scan.index.indexing().expect("a plan by distances has a geometric index")
    }

    /// The distance of a document's nearest geometry, and the geometry.
    ///
    /// Errors: what the meter says.
    pub fn nearest<'d>(&self, doc: RawDoc<'d>) -> Result<Option<(f64, Value<'d>)>> {
        let mut best: Option<(f64, Value<'d>)> = None;
        self.path.any(doc, false, &mut |element, _| {
            if let Some(element) = element
                && let Some(found) = self.near.nearest(element.value())?
                && best.is_none_or(|(least, _)| found.0 < least)
            {
                best = Some(found);
            }
            Ok(false)
        })?;
        Ok(best)
    }

    /// The stage's name in explain.
    pub fn name(&self) -> &'static str {
        match self.indexing() {
            Indexing::Sphere { .. } => "GEO_NEAR_2DSPHERE",
            Indexing::Grid(_) => "GEO_NEAR_2D",
        }
    }
}

/// The plan of a query that orders by distance; `None` if the query does not.
///
/// Errors: `NoQueryExecutionPlans` if no index serves; `BadValue` for an order that it cannot have; 16433.
pub(super) fn plan(
    query: &Query,
    collection: &Arc<Collection>,
    filter: &FilterPart,
    hinted: Option<&Arc<Index>>,
) -> Result<Option<PlanNode>> {
    let Some((at, path, near)) = filter.expr().near() else { return Ok(None) };
    if query.natural_sort().is_some() || matches!(query.hint, Hint::Natural(_)) {
        bail!(Code::BAD_VALUE, "geoNear expression not allowed with $natural sort order or hint");
    }
    if query.tailable {
        bail!(Code::BAD_VALUE, "Tailable cursors and geo $near cannot be used together");
    }
    let allowed = |index: &&Arc<Index>| match hinted {
        Some(hinted) => Arc::ptr_eq(hinted, index),
        None => eligible(index, filter.expr()),
    };
    for index in collection.indexes.iter().filter(allowed) {
        let Some(indexing) = index.indexing().filter(|indexing| indexing.serves_near(near)) else { continue };
        let field = (0..index.fields.len())
            .find(|field| index.is_geo_field(*field) && index.fields[*field].0 == path.dotted());
        let (Some(field), Some(found)) =
            (field, uses(query.collator.as_ref(), index, filter.expr()).into_iter().next())
        else {
            continue;
        };
        indexing.check_near(near)?;
        let done: Vec<usize> = found.exact.iter().copied().chain([at]).collect();
        let scan = Scan {
            index: index.clone(),
            fields: found.fields.clone(),
            bounds: found.bounds.clone(),
            backward: false,
            // What was seen in one ring may come again in another, so that the operator looks.
            multikey: false,
            filter: None,
            keys: None,
            leading: 0,
        };
        return Ok(Some(PlanNode::GeoNear(Box::new(NearScan {
            scan,
            field,
            path: path.clone(),
            near: near.clone(),
            filter: filter.without(&done),
        }))));
    }
    bail!(
        Code::NO_QUERY_EXECUTION_PLANS,
        "error processing query: ns={} planner returned error :: caused by :: unable to find index for $geoNear query",
        collection.namespace
    )
}
