//! Operators from a plan.

use std::sync::Arc;

use sheaf_errors::Result;
use sheaf_storage::{Collection, Range};

use super::fetch::{Fetch, Limit, Skip};
use super::merge::{Or, SortMerge};
use super::metadata::Metadata;
use super::project::{Covered, Project, RecordId, ReturnKey};
use super::scan::{CollScan, IdLookup, IndexScan};
use super::sort::{Sort, SortOrder};
use super::{Nothing, Stage, Stats, Timed};
use crate::plan::Node;

/// Builds the operators of a plan; figures get the plan's order, an operator before its inputs.
pub fn build(
    node: &Node,
    collection: &Arc<Collection>,
    tailable: bool,
    timed: bool,
    stats: &mut Vec<Stats>,
) -> Result<Box<dyn Stage>> {
    let id = stats.len();
    let stage = build_one(node, collection, tailable, timed, stats)?;
    Ok(if timed { Box::new(Timed { id, inner: stage }) } else { stage })
}

fn build_one(
    node: &Node,
    collection: &Arc<Collection>,
    tailable: bool,
    timed: bool,
    stats: &mut Vec<Stats>,
) -> Result<Box<dyn Stage>> {
    let id = stats.len();
    stats.push(Stats::default());
    let mut below = |input: &Node| build(input, collection, tailable, timed, stats);
    Ok(match node {
        Node::Eof => Box::new(Nothing { id }),
        Node::CollScan { filter, backward, .. } if collection.is_oplog() => {
            Box::new(crate::oplog::OplogScan::new(id, filter.clone(), *backward, tailable))
        }
        Node::CollScan { filter, backward, range } => {
            let range = range.clone().unwrap_or(Range::ALL);
            Box::new(CollScan::new(id, filter.clone(), *backward, range, tailable))
        }
        Node::IdLookup { id: value, filter } => {
            let key = collection.record_key(value.as_value())?;
            Box::new(IdLookup::new(id, key, filter.clone()))
        }
        Node::IndexScan(scan) | Node::CountScan(scan) => {
            let records = crate::index::is_record_order(collection, &scan.index);
            let operator = IndexScan::new(id, scan.clone(), records);
            let counts = matches!(node, Node::CountScan(_));
            Box::new(if counts { operator.counting() } else { operator })
        }
        Node::DistinctScan(scan) => {
            let records = crate::index::is_record_order(collection, &scan.index);
            Box::new(IndexScan::new(id, scan.clone(), records).distinct(1))
        }
        Node::Fetch { input, filter } => Box::new(Fetch::new(id, below(input)?, filter.clone())),
        Node::Or { inputs } => {
            let inputs = inputs.iter().map(below).collect::<Result<Vec<_>>>()?;
            Box::new(Or::new(id, inputs))
        }
        Node::SortMerge { inputs, pattern } => {
            let inputs = inputs.iter().map(below).collect::<Result<Vec<_>>>()?;
            Box::new(SortMerge::new(id, inputs, SortOrder::new(pattern.clone())))
        }
        Node::Sort { input, pattern, limit } => {
            Box::new(Sort::new(id, below(input)?, SortOrder::new(pattern.clone()), *limit))
        }
        Node::Skip { input, skip } => Box::new(Skip { id, input: below(input)?, left: *skip }),
        Node::Limit { input, limit } => Box::new(Limit { id, input: below(input)?, left: *limit }),
        Node::Project { input, projection, matcher, covered, sort } => {
            let inner = below(input)?;
            let fields = key_fields(input);
            if *covered {
                Box::new(Covered::new(id, inner, projection.clone(), fields))
            } else {
                let capped = !crate::index::clustered_by_id(collection);
                let metadata = Metadata::of(projection, sort.clone(), fields, capped);
                Box::new(Project::new(id, inner, projection.clone(), matcher.clone(), metadata))
            }
        }
        Node::RecordId { input } => {
            let capped = !crate::index::clustered_by_id(collection);
            Box::new(RecordId::new(id, below(input)?, capped))
        }
        Node::ReturnKey { input } => {
            let fields = key_fields(input);
            Box::new(ReturnKey::new(id, below(input)?, fields))
        }
    })
}

/// The fields of the keys that a plan's rows carry.
pub(super) fn key_fields(node: &Node) -> Vec<(String, bool)> {
    match node {
        Node::IndexScan(scan) | Node::DistinctScan(scan) | Node::CountScan(scan) => scan.fields.clone(),
        other => other.inputs().first().map(key_fields).unwrap_or_default(),
    }
}
