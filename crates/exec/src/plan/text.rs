//! Plans for `$text`: the words looked up in the collection's text index, and each document looked at.

use std::sync::Arc;

use sheaf_bson::{DocBuf, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_query::matcher::{CompareOp, MatchExpr, Matcher, Test};
use sheaf_storage::{Collection, Index};
use sheaf_text::{Params, TextQuery};

use super::analyze::{conjuncts, conjuncts_or_branches};
use super::choose::{best_branch, branch_access, finish};
use super::query::Hint;
use super::{FilterPart, PlanNode, Query, Scan, TextSearch};
use crate::bounds::{FieldBounds, IndexBounds, Intervals};

/// The only plan for a filter with `$text`.
///
/// Errors: `IndexNotFound`, `NoQueryExecutionPlans`, `BadValue` for what does not go with `$text`.
pub fn plan(query: &Query, collection: &Arc<Collection>, filter: &FilterPart) -> Result<PlanNode> {
    if query.natural_sort().is_some() {
        bail!(Code::BAD_VALUE, "text expression not allowed with $natural sort order");
    }
    if query.hint != Hint::None {
        bail!(Code::BAD_VALUE, "text and hint not allowed in same query");
    }
    if query.tailable {
        bail!(Code::BAD_VALUE, "text and tailable cursor not allowed in same query");
    }
    let node = access(query, collection, filter, filter.expr())?;
    Ok(finish(query, node, false))
}

/// What is said where there is no collection, and so no index.
///
/// Errors: `IndexNotFound`.
pub fn check_collection(matcher: Option<&Matcher>, namespace: &str) -> Result<()> {
    if matcher.is_some_and(Matcher::has_text) {
        bail!(
            Code::INDEX_NOT_FOUND,
            "text index required for $text query (no such collection '{namespace}')"
        );
    }
    Ok(())
}

/// The documents of a part of the filter that has `$text` in it.
fn access(
    query: &Query,
    collection: &Arc<Collection>,
    part: &FilterPart,
    root: &MatchExpr,
) -> Result<PlanNode> {
    if let MatchExpr::Or(branches) = part.expr() {
        let mut inputs = Vec::with_capacity(branches.len());
        for (at, branch) in branches.iter().enumerate() {
            let child = part.child(at);
            if branch.has_text() {
                inputs.push(access(query, collection, &child, root)?);
                continue;
            }
            let Some(found) = best_branch(query, collection, root, branch, None) else {
                return no_plan();
            };
            inputs.push(branch_access(collection, &child, &found, false));
        }
        return Ok(PlanNode::Fetch { input: Box::new(PlanNode::Or { inputs }), filter: None, ahead: None });
    }
    let parts = conjuncts(part.expr());
    let Some(at) = parts.iter().position(MatchExpr::has_text) else { return no_plan() };
    let rest = part.without(&[at]);
    match &parts[at] {
        MatchExpr::Text(params) => search(collection, params, parts, rest),
        _ => {
            let child =
                if conjuncts_or_branches(part.expr()).is_empty() { part.clone() } else { part.child(at) };
            let inner = access(query, collection, &child, root)?;
            Ok(PlanNode::Fetch { input: Box::new(inner), filter: rest, ahead: None })
        }
    }
}

fn no_plan<T>() -> Result<T> {
    bail!(
        Code::NO_QUERY_EXECUTION_PLANS,
        "error processing query: planner returned error :: caused by :: Failed to produce a solution for TEXT under OR - \
         other non-TEXT clauses under OR have to be indexed as well."
    )
}

fn search(
    collection: &Arc<Collection>,
    params: &Params,
    siblings: &[MatchExpr],
    rest: Option<FilterPart>,
) -> Result<PlanNode> {
    let served = collection.indexes.iter().find_map(|index| {
        let spec = index.text.as_ref().filter(|_| index.ready && !index.hidden)?;
        Some((index, spec))
    });
    let Some((index, spec)) = served else {
        bail!(Code::INDEX_NOT_FOUND, "text index required for $text query");
    };
    let query = TextQuery::parse(params, spec)?;
    let mut prefix = DocBuf::new();
    for (path, _) in index.fields.iter().take_while(|(path, _)| path != "_fts") {
        let Some(value) = equality(siblings, path) else {
            bail!(
                Code::NO_QUERY_EXECUTION_PLANS,
                "error processing query: ns={} planner returned error :: caused by :: failed to use text index to satisfy \
                 $text query (if text index is compound, are equality predicates given for all prefix fields?)",
                collection.namespace
            );
        };
        prefix.append(path, value);
    }
    let mut scans: Vec<PlanNode> = query
        .bounds()
        .map(|word| {
            let bounds = bounds(index, &prefix, word);
            PlanNode::IndexScan(Scan {
                index: index.clone(),
                fields: index.fields.clone(),
                bounds,
                backward: true,
                multikey: false,
                filter: None,
                keys: None,
                leading: 0,
            })
        })
        .collect();
    let scan = match scans.len() {
        0 => PlanNode::Eof,
        1 => scans.remove(0),
        _ => PlanNode::Or { inputs: scans },
    };
    let fetch = PlanNode::Fetch { input: Box::new(scan), filter: rest, ahead: None };
    let search = Arc::new(TextSearch { index: index.clone(), query, prefix });
    Ok(PlanNode::TextMatch { input: Box::new(fetch), search })
}

/// The value that the filter holds a field to.
fn equality<'m>(siblings: &'m [MatchExpr], path: &str) -> Option<Value<'m>> {
    siblings.iter().find_map(|part| match part {
        MatchExpr::Leaf(leaf) if leaf.path.dotted() == path => match &leaf.test {
            Test::Compare { op: CompareOp::Eq, operand } => Some(operand.as_value()),
            _ => None,
        },
        _ => None,
    })
}

/// The keys of a word.
fn bounds(index: &Index, prefix: &DocBuf, word: &str) -> IndexBounds {
    let field = |(path, descending): &(String, bool)| FieldBounds {
        path: path.clone(),
        descending: *descending,
        intervals: match (path.as_str(), prefix.as_raw().get(path)) {
            ("_fts", _) => Intervals::point(Value::String(word)),
            (_, Some(value)) => Intervals::point(value),
            _ => Intervals::all(),
        },
    };
    IndexBounds { fields: index.fields.iter().map(field).collect() }
}
