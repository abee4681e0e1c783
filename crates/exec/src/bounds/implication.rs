//! Whether a filter implies a partial index's filter, so that the index holds all of its matches.

use sheaf_bson::{Value, compare};
use sheaf_collation::{SharedCollator, compare_by};
use sheaf_errors::{Code, Result, bail};
use sheaf_query::matcher::{CompareOp, Leaf, MatchExpr, Matcher, Test};

use super::predicate::{FieldTraits, compares_strings, test_bounds};

/// Refuses conditions that a partial index's filter may not have.
///
/// Errors: `CannotCreateIndex`.
pub fn check_partial_filter(filter: &Matcher) -> Result<()> {
    check(filter.root())
}

fn check(expr: &MatchExpr) -> Result<()> {
    match expr {
        MatchExpr::AlwaysTrue => Ok(()),
        MatchExpr::And(children) | MatchExpr::Or(children) => children.iter().try_for_each(check),
        MatchExpr::Leaf(leaf) => match &leaf.test {
            Test::Compare { .. } | Test::In(_) | Test::Exists | Test::Type(_) | Test::Geo(_) => Ok(()),
            _ => refuse(expr),
        },
        _ => refuse(expr),
    }
}

fn refuse(expr: &MatchExpr) -> Result<()> {
    bail!(
        Code::CANNOT_CREATE_INDEX,
        "Expression not supported in partial index: {}",
        sheaf_bson::value_text(Value::Document(expr.to_doc().as_raw()))
    )
}

/// Whether every document that matches `query` matches `filter`. It may say no where the truth is yes.
pub fn implies(query: &MatchExpr, filter: &MatchExpr) -> bool {
    match filter {
        MatchExpr::AlwaysTrue => return true,
        MatchExpr::And(parts) => return parts.iter().all(|part| implies(query, part)),
        _ => {}
    }
    match query {
        MatchExpr::AlwaysFalse => return true,
        MatchExpr::And(parts) if parts.iter().any(|part| implies(part, filter)) => return true,
        MatchExpr::Or(parts) => return parts.iter().all(|part| implies(part, filter)),
        _ => {}
    }
    match filter {
        MatchExpr::Or(parts) => parts.iter().any(|part| implies(query, part)),
        MatchExpr::Leaf(wanted) => match query {
            MatchExpr::Leaf(given) => given.path == wanted.path && leaf_implies(given, wanted),
            MatchExpr::Not(negated) => match &**negated {
                // `{a: {$ne: null}}` says that the field exists.
                MatchExpr::Leaf(Leaf {
                    path, test: Test::Compare { op: CompareOp::Eq, operand }, ..
                }) => {
                    *path == wanted.path
                        && operand.as_value().is_nullish()
                        && matches!(wanted.test, Test::Exists)
                }
                _ => false,
            },
            _ => false,
        },
        _ => false,
    }
}

fn leaf_implies(given: &Leaf, wanted: &Leaf) -> bool {
    match (&given.test, &wanted.test) {
        (test, Test::Exists) => implies_existence(test),
        (Test::Geo(given), Test::Geo(wanted)) => {
            given.kind() == wanted.kind() && given.source().as_bytes() == wanted.source().as_bytes()
        }
        // What follows compares by bytes.
        (test, other)
            if (given.collator.is_some() || wanted.collator.is_some())
                && (compares_strings(test) || compares_strings(other)) =>
        {
            given.collator == wanted.collator && are_equal(test, other, given.collator.as_ref())
        }
        (Test::Compare { op: CompareOp::Eq, operand }, test) if !operand.as_value().is_nullish() => {
            admits(test, operand.as_value())
        }
        (Test::In(list), test) if list.regexes.is_empty() && !list.has_null => {
            list.values.iter().all(|value| admits(test, value.as_value()))
        }
        (Test::Compare { .. } | Test::Type(_), Test::Compare { .. } | Test::Type(_)) => {
            // A range within a range: true of every single value, and a condition holds for one value at a time.
            let plain = FieldTraits::default();
            let bounds =
                |test| test_bounds(test, plain).filter(|(_, tight)| *tight == super::Tightness::Exact);
            match (bounds(&given.test), bounds(&wanted.test)) {
                (Some((narrow, _)), Some((wide, _))) => narrow.is_within(&wide),
                _ => false,
            }
        }
        _ => false,
    }
}

/// Whether two tests ask for the same comparison.
fn are_equal(a: &Test, b: &Test, collator: Option<&SharedCollator>) -> bool {
    match (a, b) {
        (Test::Compare { op: a_op, operand: a }, Test::Compare { op: b_op, operand: b }) => {
            a_op == b_op && compare_by(collator, a.as_value(), b.as_value()).is_eq()
        }
        _ => false,
    }
}

fn implies_existence(test: &Test) -> bool {
    match test {
        Test::Compare { operand, op } => match operand.as_value() {
            Value::Null | Value::Undefined | Value::Missing => false,
            // Everything, missing fields too, lies above MinKey and below MaxKey.
            Value::MinKey => matches!(op, CompareOp::Eq),
            Value::MaxKey => matches!(op, CompareOp::Eq),
            _ => true,
        },
        Test::In(list) => !list.has_null,
        Test::ExprCompare { .. } => false,
        _ => true,
    }
}

/// Whether a field that equals this value passes the test.
fn admits(test: &Test, value: Value<'_>) -> bool {
    match test {
        Test::Compare { op: CompareOp::Eq, operand } => compare(operand.as_value(), value).is_eq(),
        Test::In(list) => list.contains(value, None).unwrap_or(false),
        Test::Exists => true,
        Test::Compare { .. } | Test::Type(_) if !matches!(value, Value::Array(_)) => {
            match test_bounds(test, FieldTraits::default()) {
                Some((intervals, super::Tightness::Exact)) => intervals.contains(value),
                Some(_) | None => match test {
                    Test::Type(types) => types.contains(value.kind()),
                    _ => false,
                },
            }
        }
        _ => false,
    }
}
