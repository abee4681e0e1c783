//! Scans of clustered collections. Their records are in the order of `_id`, so that to mongod the scan of a part of them is a
//! collection scan between two records, without an index: no keys are examined.

use sheaf_bson::{DocWriter, Value};
use sheaf_rows::Figures;

use crate::index::is_clustered;
use crate::plan::{FilterPart, PlanNode, Query, Scan};

/// A scan as mongod has it.
pub struct ClusteredScan<'p> {
    scan: &'p Scan,
    /// What is left to check of each document.
    filter: Option<&'p FilterPart>,
    /// How many of our operators it is.
    pub operators: usize,
}

impl<'p> ClusteredScan<'p> {
    /// The scan that an operator, with the one below, is.
    pub fn of(node: &'p PlanNode) -> Option<Self> {
        match node {
            PlanNode::Fetch { input, filter, .. } => match &**input {
                PlanNode::IndexScan(scan) if is_clustered(&scan.index) => {
                    Some(ClusteredScan { scan, filter: filter.as_ref(), operators: 2 })
                }
                _ => None,
            },
            PlanNode::IndexScan(scan) | PlanNode::DistinctScan(scan) | PlanNode::CountScan(scan)
                if is_clustered(&scan.index) =>
            {
                Some(ClusteredScan { scan, filter: scan.filter.as_ref(), operators: 1 })
            }
            _ => None,
        }
    }

    /// Whether it is of all records.
    fn is_full(&self) -> bool {
        self.scan.keys.is_none() && self.scan.bounds.is_full()
    }

    /// Its stage.
    pub fn name(&self) -> &'static str {
        if self.is_full() { "COLLSCAN" } else { "CLUSTERED_IXSCAN" }
    }

    /// Whether it walks downwards.
    pub fn backward(&self) -> bool {
        self.scan.backward
    }

    /// The filter that it shows: between two records only one range can be said exactly.
    pub fn filter(&self, query: &Query) -> Option<FilterPart> {
        let ranges = self.scan.bounds.fields.first().map_or(1, |field| field.intervals.len());
        match ranges {
            0 | 1 => self.filter.cloned(),
            _ => Some(FilterPart::whole(query.matcher())),
        }
    }

    /// Writes the records between which it goes.
    pub fn write_records(&self, out: &mut DocWriter<'_, Vec<u8>>) {
        if let Some((min, max)) = &self.scan.keys {
            for (name, key) in [("minRecord", min), ("maxRecord", max)] {
                if let Some(record) = key.as_ref().and_then(|key| key.as_raw().values().next()) {
                    out.append(name, record);
                }
            }
            return;
        }
        let Some(field) = self.scan.bounds.fields.first().filter(|_| !self.is_full()) else { return };
        let mut ranges = field.intervals.iter();
        let Some(first) = ranges.next() else { return };
        let last = ranges.next_back().unwrap_or(first);
        let low = match first.low.as_value() {
            // The smallest number of a range that has no lower end is NaN for records.
            Value::Double(low) if low == f64::NEG_INFINITY => Value::Double(f64::NAN),
            low => low,
        };
        if !matches!(low, Value::MinKey) {
            out.append("minRecord", low);
        }
        if !matches!(last.high.as_value(), Value::MaxKey) {
            out.append("maxRecord", last.high.as_value());
        }
    }

    /// Its figures of those of its operators: what it examines are documents.
    pub fn figures(&self, own: &[Figures]) -> Option<Figures> {
        let top = own.first()?;
        let docs = own.get(self.operators - 1).map_or(0, |scan| scan.keys_examined);
        Some(Figures { keys_examined: 0, docs_examined: docs, ..top.clone() })
    }
}

/// Keys and documents that a plan has examined, as mongod counts them. `clustered`: so is the collection.
pub fn examined(plan: &PlanNode, figures: &[Figures], clustered: bool) -> (u64, u64) {
    let (mut keys, mut docs, mut operator) = (0, 0, 0);
    count(plan, figures, clustered, &mut operator, &mut |figures| {
        keys += figures.keys_examined;
        docs += figures.docs_examined;
    });
    (keys, docs)
}

fn count(
    node: &PlanNode,
    figures: &[Figures],
    clustered: bool,
    operator: &mut usize,
    take: &mut dyn FnMut(&Figures),
) {
    let own = figures.get(*operator..).unwrap_or_default();
    if let Some(scan) = ClusteredScan::of(node) {
        *operator += scan.operators;
        return scan.figures(own).iter().for_each(take);
    }
    *operator += 1;
    match (node, own.first()) {
        (PlanNode::IdLookup { .. }, Some(own)) if clustered => {
            take(&Figures { keys_examined: 0, ..own.clone() });
        }
        (_, Some(own)) => take(own),
        (_, None) => {}
    }
    node.inputs().iter().for_each(|input| count(input, figures, clustered, operator, take));
}
