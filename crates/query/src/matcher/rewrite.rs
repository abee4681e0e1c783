//! What `$expr` says of single paths, as conditions that indexes can serve.
//!
//! Of `{$expr: {$eq: ["$a", 5]}}` an index on `a` has the documents, but the condition says nothing in the filter language's
//! terms: that one looks into arrays, takes a missing field for null and keeps to the operand's type. So `{a: {$_internalExprEq: 5}}`
//! goes beside it, from which bounds can be made; the `$expr` itself still decides (the manual's page on `$expr`, "Index Use").

use sheaf_bson::{OwnedValue, Type, Value};
use sheaf_expr::{Expr, View};

use super::ast::{CompareOp, InList, MatchExpr, Test};

/// Puts beside each `$expr` what it says of single paths.
pub(super) fn with_comparisons(expr: MatchExpr) -> MatchExpr {
    let all = |children: Vec<MatchExpr>| children.into_iter().map(with_comparisons).collect();
    match expr {
        MatchExpr::And(children) => MatchExpr::And(all(children)),
        MatchExpr::Or(children) => MatchExpr::Or(all(children)),
        MatchExpr::Nor(children) => MatchExpr::Nor(all(children)),
        MatchExpr::Not(child) => MatchExpr::Not(Box::new(with_comparisons(*child))),
        MatchExpr::Expr(expr) => match said(&expr) {
            Some(said) => MatchExpr::And(vec![MatchExpr::Expr(expr), said]),
            None => MatchExpr::Expr(expr),
        },
        other => other,
    }
}

/// A condition that holds for each document for which the expression is true.
fn said(expr: &Expr) -> Option<MatchExpr> {
    let View::Operator(name, args) = expr.view() else { return None };
    match name {
        "$and" => {
            let parts: Vec<MatchExpr> = args.iter().filter_map(said).collect();
            (!parts.is_empty()).then_some(MatchExpr::And(parts))
        }
        "$or" if !args.is_empty() => args.iter().map(said).collect::<Option<_>>().map(MatchExpr::Or),
        "$in" => in_list(&args[0], &args[1]),
        "$eq" => comparison(CompareOp::Eq, args),
        "$gt" => comparison(CompareOp::Gt, args),
        "$gte" => comparison(CompareOp::Gte, args),
        "$lt" => comparison(CompareOp::Lt, args),
        "$lte" => comparison(CompareOp::Lte, args),
        _ => None,
    }
}

/// Of a path and a constant, whichever comes first.
fn comparison(op: CompareOp, args: &[Expr]) -> Option<MatchExpr> {
    let (path, operand, op) = match (args[0].as_path(), args[1].as_path()) {
        (Some(path), None) => (path, args[1].constant()?, op),
        (None, Some(path)) => (path, args[0].constant()?, op.mirrored()),
        _ => return None,
    };
    if matches!(operand, Value::Array(_) | Value::Missing | Value::Undefined) {
        return None;
    }
    let operand = OwnedValue::from(operand);
    Some(MatchExpr::leaf(&path.dotted(), Test::ExprCompare { op, operand }))
}

/// Of a path and a list of constants, if both languages mean the same by each.
fn in_list(path: &Expr, list: &Expr) -> Option<MatchExpr> {
    let (path, Some(Value::Array(list))) = (path.as_path()?, list.constant()) else { return None };
    let alike = |kind| !matches!(kind, Type::Array | Type::Null | Type::Undefined | Type::Regex);
    if !list.iter().all(|item| alike(item.kind())) {
        return None;
    }
    let mut values = InList { values: list.values().map(OwnedValue::from).collect(), ..InList::default() };
    values.sort(None);
    Some(MatchExpr::leaf(&path.dotted(), Test::In(values)))
}
