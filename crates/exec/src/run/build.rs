//! Operators from a plan.

use std::sync::Arc;

use sheaf_errors::Result;
use sheaf_rows::{BoxOperator, Empty, Limit, Measured, Skip, Sort};
use sheaf_storage::{Collection, Range};

use super::Reads;
use super::fetch::Fetch;
use super::merge::{Or, SortMerge};
use super::metadata::Metadata;
use super::near::GeoNear;
use super::number::Numbers;
use super::owned::ShardingFilter;
use super::project::{Covered, Project, RecordId, ReturnKey};
use super::random::RandomRecords;
use super::scan::{CollScan, IdLookup, IndexScan};
use super::text::TextMatch;
use crate::plan::PlanNode;

/// What operators are built for.
pub struct Building<'b> {
    /// The collection that they read.
    pub collection: &'b Arc<Collection>,
    /// The state that they read.
    pub reads: &'b Reads,
    /// Whether coming to the end is not the end.
    pub tailable: bool,
    /// Whether they are measured.
    pub timed: bool,
}

impl Building<'_> {
    /// Builds the operators of a plan: one for each node, which takes its rows from those of the node's inputs.
    pub fn build(&self, node: &PlanNode) -> Result<BoxOperator> {
        let operator = self.operator(node)?;
        Ok(if self.timed { Box::new(Measured::new(operator)) } else { operator })
    }

    fn operator(&self, node: &PlanNode) -> Result<BoxOperator> {
        let Building { collection, reads, tailable, .. } = *self;
        Ok(match node {
            PlanNode::Eof => Box::new(Empty::default()),
            PlanNode::CollScan { filter, backward, .. } if collection.is_oplog() => {
                Box::new(crate::oplog::OplogScan::new(reads, filter.clone(), *backward, tailable))
            }
            PlanNode::CollScan { filter, backward, range } => {
                let range = range.clone().unwrap_or(Range::ALL);
                Box::new(CollScan::new(reads, collection, filter.clone(), *backward, range, tailable))
            }
            PlanNode::RandomRecords(wanted) => Box::new(RandomRecords::new(reads, collection, *wanted)),
            PlanNode::IdLookup { id, filter } => {
                let key = collection.record_key(id.as_value())?;
                Box::new(IdLookup::new(reads, collection, key, filter.clone()))
            }
            PlanNode::IndexScan(scan) => Box::new(IndexScan::new(reads, collection, scan.clone())),
            PlanNode::GeoNear(scan) => Box::new(GeoNear::new(reads, collection, (**scan).clone())),
            PlanNode::CountScan(scan) => Box::new(IndexScan::new(reads, collection, scan.clone()).counting()),
            PlanNode::DistinctScan(scan) => {
                Box::new(IndexScan::new(reads, collection, scan.clone()).distinct(scan.leading))
            }
            PlanNode::Fetch { input, filter, ahead } => {
                let fetch = Fetch::new(reads, collection, self.build(input)?, filter.clone());
                Box::new(fetch.ahead(ahead.clone().filter(|_| reads.may_keep())))
            }
            PlanNode::TextMatch { input, search } => {
                Box::new(TextMatch::new(self.build(input)?, search.clone()))
            }
            PlanNode::ShardingFilter { input, part } => {
                Box::new(ShardingFilter::new(self.build(input)?, part.clone()))
            }
            PlanNode::Or { inputs } => Box::new(Or::new(self.build_all(inputs)?)),
            PlanNode::SortMerge { inputs, pattern } => {
                Box::new(SortMerge::new(reads, collection, self.build_all(inputs)?, pattern.clone()))
            }
            PlanNode::Sort { input, pattern, limit, fields } => {
                let limit = (*limit > 0).then_some(*limit);
                let sort = Sort::new(self.build(input)?, pattern.clone(), limit);
                Box::new(sort.giving_only(fields.clone()))
            }
            PlanNode::Skip { input, skip } => Box::new(Skip::new(self.build(input)?, *skip)),
            PlanNode::Limit { input, limit } => Box::new(Limit::new(self.build(input)?, *limit)),
            PlanNode::Project { input, projection, covered: true, .. } => {
                Box::new(Covered::new(self.build(input)?, projection.clone(), key_fields(input)))
            }
            PlanNode::Project { input, projection, matcher, sort, .. } => {
                let numbers = Numbers::new(reads, collection);
                let metadata = Metadata::of(projection, sort.clone(), key_fields(input), numbers);
                Box::new(Project::new(self.build(input)?, projection.clone(), matcher.clone(), metadata))
            }
            PlanNode::RecordId { input, shown } => {
                Box::new(RecordId::new(self.build(input)?, Numbers::new(reads, collection), *shown))
            }
            PlanNode::ReturnKey { input } => Box::new(ReturnKey::new(self.build(input)?, key_fields(input))),
        })
    }

    fn build_all(&self, nodes: &[PlanNode]) -> Result<Vec<BoxOperator>> {
        nodes.iter().map(|node| self.build(node)).collect()
    }
}

/// The fields of the keys that a plan's rows carry.
pub(super) fn key_fields(node: &PlanNode) -> Vec<(String, bool)> {
    match node {
        PlanNode::IndexScan(scan) | PlanNode::DistinctScan(scan) | PlanNode::CountScan(scan) => {
            scan.fields.clone()
        }
        other => other.inputs().first().map(key_fields).unwrap_or_default(),
    }
}
