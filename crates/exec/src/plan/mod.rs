//! Plans: how a query's documents are found.
//!
//! - [`analyze`]: what a filter lets an index do.
//! - [`choose`]: the candidates for a query; [`cache`]: the choices remembered by query shape.
//! - [`PlanNode`]: a plan, which [`crate::run`] turns into operators.

pub mod analyze;
pub mod cache;
pub mod choose;
mod distinct;
pub mod filters;
pub mod hint;
pub mod near;
pub mod query;
pub mod settings;
pub mod shape;
pub mod text;
pub mod wildcard;

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, OwnedValue, RawDoc};
use sheaf_errors::Result;
use sheaf_query::matcher::{MatchExpr, Matcher};
use sheaf_query::projection::Projection;
use sheaf_query::sort::SortPattern;
use sheaf_rows::{Cx, Fields};
use sheaf_storage::{Index, Range};
use sheaf_text::TextQuery;
use smallvec::SmallVec;

use crate::bounds::IndexBounds;
use crate::run::Part;

use near::NearScan;
pub use query::Query;

/// A `$text` condition and the index that serves it.
pub struct TextSearch {
    /// The index.
    pub index: Arc<Index>,
    /// The condition.
    pub query: TextQuery,
    /// The values to which the fields before the words are held.
    pub prefix: DocBuf,
}

/// A part of a filter: a node of its tree, or some of that node's conjuncts.
#[derive(Clone, Debug)]
pub struct FilterPart {
    matcher: Arc<Matcher>,
    /// Child numbers from the root down.
    node: SmallVec<[u32; 4]>,
    /// The conjuncts that are left; `None`: the whole node.
    conjuncts: Option<Vec<u32>>,
}

impl FilterPart {
    /// The whole filter.
    pub fn whole(matcher: Arc<Matcher>) -> Self {
        FilterPart { matcher, node: SmallVec::new(), conjuncts: None }
    }

    /// The node of a child.
    #[must_use]
    pub fn child(&self, at: usize) -> Self {
        let mut node = self.node.clone();
        node.push(at as u32);
        FilterPart { matcher: self.matcher.clone(), node, conjuncts: None }
    }

    /// All conjuncts but those at these places; `None` if none are left.
    pub fn without(&self, places: &[usize]) -> Option<Self> {
        let mut left = vec![true; analyze::conjuncts(self.expr()).len()];
        for at in places {
            if let Some(is_left) = left.get_mut(*at) {
                *is_left = false;
            }
        }
        self.only((0..).zip(left).filter_map(|(at, is_left)| is_left.then_some(at)).collect())
    }

    /// Only these conjuncts; `None` if none are left.
    pub fn only(&self, left: Vec<u32>) -> Option<Self> {
        let total = analyze::conjuncts(self.expr()).len();
        match left.len() {
            0 => None,
            n if n == total => Some(FilterPart { conjuncts: None, ..self.clone() }),
            _ => Some(FilterPart { conjuncts: Some(left), ..self.clone() }),
        }
    }

    /// The node.
    pub fn expr(&self) -> &MatchExpr {
        self.node.iter().fold(self.matcher.root(), |expr, at| match analyze::conjuncts_or_branches(expr) {
            children if !children.is_empty() => &children[*at as usize],
            _ => expr,
        })
    }

    /// Whether all conditions hold for a document.
    pub fn passes(&self, doc: RawDoc<'_>, cx: &Cx<'_>, arena: &mut Bump) -> Result<bool> {
        // Mostly it is the whole filter: then there is no list of conditions to make for each document.
        if !self.matcher.has_expr() && self.conjuncts.is_none() {
            return self.expr().matches_plain(doc);
        }
        if !self.has_expr() {
            for condition in self.conditions() {
                if !condition.matches_plain(doc)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        arena.reset();
        let env = cx.env(arena);
        for condition in self.conditions() {
            if !condition.matches(doc, &env, None)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The conditions to check, all of which must hold.
    pub fn conditions(&self) -> impl Iterator<Item = &MatchExpr> {
        let node = self.expr();
        let picked: SmallVec<[&MatchExpr; 4]> = match &self.conjuncts {
            None => SmallVec::from_elem(node, 1),
            Some(left) => {
                let all = analyze::conjuncts(node);
                left.iter().map(|at| &all[*at as usize]).collect()
            }
        };
        picked.into_iter()
    }

    /// Whether `$expr` is part of it.
    pub fn has_expr(&self) -> bool {
        self.matcher.has_expr() && self.conditions().any(MatchExpr::has_expr)
    }

    /// As explain prints it.
    pub fn to_doc(&self) -> DocBuf {
        let mut parts = self.conditions();
        match (parts.next(), parts.next()) {
            (None, _) => DocBuf::new(),
            (Some(only), None) => only.to_doc(),
            _ => DocBuf::build(|out| {
                let mut list = out.array("$and");
                for part in self.conditions() {
                    list.push(&part.to_doc());
                }
            }),
        }
    }
}

/// An index scan.
#[derive(Clone)]
pub struct Scan {
    /// The index.
    pub index: Arc<Index>,
    /// Its fields as the scan has them.
    pub fields: Vec<(String, bool)>,
    /// What to scan.
    pub bounds: IndexBounds,
    /// Whether it walks downwards.
    pub backward: bool,
    /// A document may have several keys within the bounds.
    pub multikey: bool,
    /// Conditions that are checked on the key.
    pub filter: Option<FilterPart>,
    /// `min` and `max`: whole keys between which to scan, as documents in the key pattern's order.
    pub keys: Option<(Option<DocBuf>, Option<DocBuf>)>,
    /// A distinct scan gives one key for each combination of so many leading fields.
    pub leading: usize,
}

impl Scan {
    /// Whether it may come upon several keys of one document.
    pub fn repeats(&self) -> bool {
        self.multikey
            || self.bounds.fields.iter().any(|field| field.path == "$_path" && field.intervals.len() > 1)
    }

    /// Whether the keys of a distinct scan are of elements of arrays at its last leading field.
    fn has_elements(&self) -> bool {
        let paths = self.index.multikey_paths();
        let arrays = paths.as_ref().and_then(|paths| paths.get(self.leading.saturating_sub(1)));
        self.multikey && arrays.is_none_or(|arrays| !arrays.is_empty())
    }

    /// The scan's bounds as bytes.
    pub fn byte_bounds(&self) -> crate::bounds::bytes::ByteBounds {
        let hashed = crate::index::hashed_fields(&self.index);
        let bounds = crate::bounds::bytes::ByteBounds::new(&self.bounds, &hashed, self.backward);
        let encode = |key: &DocBuf| {
            let mut bytes = Vec::new();
            for (element, (_, descending)) in key.as_raw().iter().zip(&self.fields) {
                sheaf_bson::key::encode_bound(element.value(), *descending, &mut bytes);
            }
            bytes
        };
        match &self.keys {
            None => bounds,
            Some((min, max)) => bounds.between(min.as_ref().map(encode), max.as_ref().map(encode)),
        }
    }
}

/// How documents are fetched before it is their turn.
#[derive(Clone, Default, Debug)]
pub struct Ahead {
    /// The fields that are read of them, if those are not all.
    pub fields: Option<Arc<Fields>>,
}

/// A plan: a tree of operators.
#[derive(Clone)]
pub enum PlanNode {
    /// No documents.
    Eof,
    /// All records in natural order, or those between two record keys.
    CollScan {
        /// What to check.
        filter: Option<FilterPart>,
        /// Newest first.
        backward: bool,
        /// The record keys to walk.
        range: Option<Range>,
    },
    /// So many records by chance.
    RandomRecords(usize),
    /// One record by `_id`.
    IdLookup {
        /// The `_id`.
        id: OwnedValue,
        /// What to check besides.
        filter: Option<FilterPart>,
    },
    /// Keys of an index.
    IndexScan(Scan),
    /// Documents in the order of their distances.
    GeoNear(Box<NearScan>),
    /// The documents of the keys below.
    Fetch {
        /// Gives keys.
        input: Box<PlanNode>,
        /// What to check.
        filter: Option<FilterPart>,
        /// Nothing above ends early, so that many may be fetched before it is their turn.
        ahead: Option<Ahead>,
    },
    /// All documents of all children, each once.
    Or {
        /// The branches.
        inputs: Vec<PlanNode>,
    },
    /// The children's documents merged; each child is in the order of the pattern.
    SortMerge {
        /// The branches.
        inputs: Vec<PlanNode>,
        /// The order.
        pattern: Arc<SortPattern>,
    },
    /// All documents, sorted in memory.
    Sort {
        /// Gives documents.
        input: Box<PlanNode>,
        /// The order.
        pattern: Arc<SortPattern>,
        /// How many of the first are wanted (0: all).
        limit: u64,
        /// The fields that are read of what it gives, if those are not all.
        fields: Option<Arc<Fields>>,
    },
    /// Leaves out the first documents.
    Skip {
        /// Gives documents.
        input: Box<PlanNode>,
        /// How many.
        skip: u64,
    },
    /// Ends after some documents.
    Limit {
        /// Gives documents.
        input: Box<PlanNode>,
        /// How many.
        limit: u64,
    },
    /// Shapes the documents.
    Project {
        /// Gives documents or keys.
        input: Box<PlanNode>,
        /// The shape.
        projection: Arc<Projection>,
        /// The filter, for `a.$`.
        matcher: Arc<Matcher>,
        /// Built from keys alone.
        covered: bool,
        /// The query's order, for `{$meta: "sortKey"}`.
        sort: Option<Arc<SortPattern>>,
    },
    /// Adds `$recordId` to the documents, or has it beside them for a pipeline's `{$meta: "recordId"}`.
    RecordId {
        /// Gives documents.
        input: Box<PlanNode>,
        /// In the documents.
        shown: bool,
    },
    /// Gives index keys instead of documents (`returnKey`).
    ReturnKey {
        /// Gives keys.
        input: Box<PlanNode>,
    },
    /// One key for each combination of values of an index's leading fields.
    DistinctScan(Scan),
    /// Counts keys without looking at documents.
    CountScan(Scan),
    /// Lets documents pass that match a `$text` condition.
    TextMatch {
        /// Gives documents that have some of its words.
        input: Box<PlanNode>,
        /// The condition.
        search: Arc<TextSearch>,
    },
    /// Leaves out documents that the shard does not own.
    ShardingFilter {
        /// Gives documents.
        input: Box<PlanNode>,
        /// What it owns.
        part: Part,
    },
}

impl PlanNode {
    /// The operators directly below.
    pub fn inputs(&self) -> &[PlanNode] {
        match self {
            PlanNode::Fetch { input, .. }
            | PlanNode::Sort { input, .. }
            | PlanNode::Skip { input, .. }
            | PlanNode::Limit { input, .. }
            | PlanNode::Project { input, .. }
            | PlanNode::RecordId { input, .. }
            | PlanNode::TextMatch { input, .. }
            | PlanNode::ShardingFilter { input, .. }
            | PlanNode::ReturnKey { input } => std::slice::from_ref(&**input),
            PlanNode::Or { inputs } | PlanNode::SortMerge { inputs, .. } => inputs,
            _ => &[],
        }
    }

    /// The same plan, of documents that the shard owns: they are filtered as soon as they are there.
    #[must_use]
    pub fn filtered(self, part: &Part) -> Self {
        let below = |input: Box<PlanNode>| Box::new(input.filtered(part));
        let all = |inputs: Vec<PlanNode>| inputs.into_iter().map(|input| input.filtered(part)).collect();
        let filter = |input| PlanNode::ShardingFilter { input: Box::new(input), part: part.clone() };
        match self {
            PlanNode::Eof => PlanNode::Eof,
            scan @ (PlanNode::CollScan { .. }
            | PlanNode::RandomRecords(_)
            | PlanNode::IdLookup { .. }
            | PlanNode::GeoNear(_)
            | PlanNode::Fetch { .. }) => filter(scan),
            scan @ (PlanNode::IndexScan(_) | PlanNode::DistinctScan(_) | PlanNode::CountScan(_)) => {
                filter(PlanNode::Fetch { input: Box::new(scan), filter: None, ahead: None })
            }
            PlanNode::Or { inputs } => PlanNode::Or { inputs: all(inputs) },
            PlanNode::SortMerge { inputs, pattern } => PlanNode::SortMerge { inputs: all(inputs), pattern },
            PlanNode::Sort { input, pattern, limit, fields } => {
                PlanNode::Sort { input: below(input), pattern, limit, fields }
            }
            PlanNode::Skip { input, skip } => PlanNode::Skip { input: below(input), skip },
            PlanNode::Limit { input, limit } => PlanNode::Limit { input: below(input), limit },
            PlanNode::Project { input, projection, matcher, sort, .. } => {
                PlanNode::Project { input: below(input), projection, matcher, covered: false, sort }
            }
            PlanNode::RecordId { input, shown } => PlanNode::RecordId { input: below(input), shown },
            PlanNode::TextMatch { input, search } => PlanNode::TextMatch { input: below(input), search },
            PlanNode::ReturnKey { input } => PlanNode::ReturnKey { input: below(input) },
            filtered @ PlanNode::ShardingFilter { .. } => filtered,
        }
    }

    /// Whether its rows are keys without documents.
    pub fn gives_keys(&self) -> bool {
        match self {
            PlanNode::IndexScan(_) | PlanNode::DistinctScan(_) | PlanNode::CountScan(_) => true,
            PlanNode::Fetch { .. }
            | PlanNode::TextMatch { .. }
            | PlanNode::ShardingFilter { .. }
            | PlanNode::CollScan { .. }
            | PlanNode::RandomRecords(_)
            | PlanNode::IdLookup { .. }
            | PlanNode::GeoNear(_)
            | PlanNode::Eof => false,
            other => other.inputs().first().is_some_and(PlanNode::gives_keys),
        }
    }

    /// Whether the keys that it gives are of elements of arrays, as a distinct scan has them.
    pub fn gives_elements(&self) -> bool {
        match self {
            PlanNode::DistinctScan(scan) => scan.has_elements(),
            PlanNode::Fetch { .. } => false,
            other => other.inputs().first().is_some_and(PlanNode::gives_elements),
        }
    }

    /// Whether it must read everything before it gives anything.
    pub fn blocks(&self) -> bool {
        matches!(self, PlanNode::Sort { .. }) || self.inputs().iter().any(PlanNode::blocks)
    }

    /// Whether it looks through a whole collection.
    pub fn scans_all(&self) -> bool {
        match self {
            PlanNode::CollScan { .. } => true,
            PlanNode::IndexScan(scan) if crate::index::is_clustered(&scan.index) => {
                scan.keys.is_none() && scan.bounds.is_full()
            }
            _ => self.inputs().iter().any(PlanNode::scans_all),
        }
    }

    /// The plan summary of logs and the profiler: `IXSCAN { a: 1 }`, `COLLSCAN`.
    pub fn summary(&self) -> String {
        let mut parts = Vec::new();
        self.collect_summary(&mut parts);
        parts.join(", ")
    }

    fn collect_summary(&self, out: &mut Vec<String>) {
        let scan = |name: &str, scan: &Scan| {
            format!("{name} {}", crate::index::pattern_text(crate::index::key_pattern(&scan.index)))
        };
        match self {
            PlanNode::Eof => out.push("EOF".into()),
            PlanNode::CollScan { .. } => out.push("COLLSCAN".into()),
            PlanNode::RandomRecords(_) => out.push("MULTI_ITERATOR".into()),
            PlanNode::IdLookup { .. } => out.push("IDHACK".into()),
            PlanNode::IndexScan(s) | PlanNode::CountScan(s) | PlanNode::DistinctScan(s)
                if crate::index::is_clustered(&s.index) =>
            {
                let full = s.keys.is_none() && s.bounds.is_full();
                out.push(if full { "COLLSCAN".into() } else { "CLUSTERED_IXSCAN".into() });
            }
            PlanNode::IndexScan(s) => out.push(scan("IXSCAN", s)),
            PlanNode::GeoNear(near) => out.push(scan(near.name(), &near.scan)),
            PlanNode::DistinctScan(s) => out.push(scan("DISTINCT_SCAN", s)),
            PlanNode::CountScan(s) => out.push(scan("COUNT_SCAN", s)),
            other => other.inputs().iter().for_each(|input| input.collect_summary(out)),
        }
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;
    use sheaf_expr::ParseCx;

    use super::*;

    #[test]
    fn what_is_left_of_very_many_conditions_is_what_was_not_served() {
        let many = 70_000;
        let filter = DocBuf::build(|filter| {
            let mut conditions = filter.array("$and");
            for at in 0..many {
                conditions.push(&doc! { "a": { "$ne": at } });
            }
            conditions.push(&doc! { "b": { "$ne": 5 } });
        });
        let matcher = Matcher::parse(filter.as_raw(), &mut ParseCx::new()).unwrap();
        let whole = FilterPart::whole(Arc::new(matcher));
        let all = analyze::conjuncts(whole.expr());
        assert_eq!(all.len(), many as usize + 1);
        let last = many as usize;
        let wanted = all[last].to_doc();
        assert_eq!(wanted, doc! { "b": { "$not": { "$eq": 5 } } });
        let served: Vec<usize> = (0..all.len()).filter(|at| *at != last).collect();
        let left = whole.without(&served).unwrap();
        assert_eq!(left.to_doc(), wanted);
    }
}
