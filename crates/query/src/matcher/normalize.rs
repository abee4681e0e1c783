//! Bringing trees into one form, so that planner and plan cache see equal filters as equal.

use std::collections::{BTreeMap, HashMap};

use sheaf_bson::{OwnedValue, Type};

use super::ast::{BitsOp, CompareOp, InList, Leaf, MatchExpr, Test};

/// Flattens, folds constants, and sorts the children of every node.
pub(super) fn normalize(expr: MatchExpr) -> MatchExpr {
    let mut expr = match expr {
        MatchExpr::And(children) => and(children),
        MatchExpr::Or(children) => or(children),
        MatchExpr::Nor(children) => nor(children),
        MatchExpr::Not(child) => not(normalize(*child)),
        MatchExpr::Leaf(leaf) => normalize_leaf(leaf),
        other => other,
    };
    if let MatchExpr::And(children) | MatchExpr::Or(children) | MatchExpr::Nor(children) = &mut expr {
        // Stable, so that conditions of one kind on one path keep the order of the filter.
        children.sort_by(order);
    }
    expr
}

/// Each of them normalised, in the list that they are in.
fn normalized(mut children: Vec<MatchExpr>) -> Vec<MatchExpr> {
    for child in &mut children {
        *child = normalize(std::mem::replace(child, MatchExpr::AlwaysTrue));
    }
    children
}

fn and(children: Vec<MatchExpr>) -> MatchExpr {
    let children = normalized(children);
    if children.iter().all(|child| matches!(child, MatchExpr::Leaf(_))) {
        return single(children, MatchExpr::AlwaysTrue, MatchExpr::And);
    }
    let mut flat = Vec::new();
    for child in children {
        match child {
            MatchExpr::And(inner) => flat.extend(inner),
            MatchExpr::AlwaysTrue => {}
            MatchExpr::AlwaysFalse => return MatchExpr::AlwaysFalse,
            child => flat.push(child),
        }
    }
    single(flat, MatchExpr::AlwaysTrue, MatchExpr::And)
}

fn or(children: Vec<MatchExpr>) -> MatchExpr {
    let children = normalized(children);
    if children.iter().all(|child| matches!(child, MatchExpr::Leaf(_))) {
        return single(equalities_to_in(children), MatchExpr::AlwaysFalse, MatchExpr::Or);
    }
    let mut flat = Vec::new();
    for child in children {
        match child {
            MatchExpr::Or(inner) => flat.extend(inner),
            MatchExpr::AlwaysFalse => {}
            MatchExpr::AlwaysTrue => return MatchExpr::AlwaysTrue,
            child => flat.push(child),
        }
    }
    single(equalities_to_in(flat), MatchExpr::AlwaysFalse, MatchExpr::Or)
}

fn nor(children: Vec<MatchExpr>) -> MatchExpr {
    let mut kept = Vec::new();
    for child in children.into_iter().map(normalize) {
        match child {
            MatchExpr::AlwaysFalse => {}
            MatchExpr::AlwaysTrue => return MatchExpr::AlwaysFalse,
            child => kept.push(child),
        }
    }
    match kept.len() {
        0 => MatchExpr::AlwaysTrue,
        // The planner knows how to bound a negation.
        1 => not(kept.remove(0)),
        _ => MatchExpr::Nor(kept),
    }
}

fn not(child: MatchExpr) -> MatchExpr {
    match child {
        MatchExpr::AlwaysTrue => MatchExpr::AlwaysFalse,
        MatchExpr::AlwaysFalse => MatchExpr::AlwaysTrue,
        MatchExpr::Not(inner) => *inner,
        child => child.negate(),
    }
}

fn single(
    mut children: Vec<MatchExpr>,
    empty: MatchExpr,
    many: fn(Vec<MatchExpr>) -> MatchExpr,
) -> MatchExpr {
    match children.len() {
        0 => empty,
        1 => children.pop().unwrap_or(empty),
        _ => many(children),
    }
}

/// `{$or: [{a: 1}, {a: 2}]}` is `{a: {$in: [1, 2]}}`. The lists are gathered first and sorted once: an `$or` may have
/// hundreds of thousands of branches.
fn equalities_to_in(children: Vec<MatchExpr>) -> Vec<MatchExpr> {
    let mut out: Vec<MatchExpr> = Vec::with_capacity(children.len());
    let mut at_path: HashMap<String, usize> = HashMap::new();
    let mut merged: BTreeMap<usize, InList> = BTreeMap::new();
    for child in children {
        let MatchExpr::Leaf(leaf) = child else {
            out.push(child);
            continue;
        };
        if !is_plain_equality(&leaf.test) {
            out.push(MatchExpr::Leaf(leaf));
            continue;
        }
        match at_path.get(leaf.path.dotted()) {
            Some(&earlier) => gather(&mut merged, &mut out, earlier, leaf.test),
            None => {
                at_path.insert(leaf.path.dotted().to_owned(), out.len());
                out.push(MatchExpr::Leaf(leaf));
            }
        }
    }
    for (at, mut list) in merged {
        list.sort(None);
        let MatchExpr::Leaf(leaf) = &mut out[at] else { unreachable!("only leaves are merged") };
        leaf.test = in_test(list);
    }
    out
}

/// Adds the values of a test to those of the leaf at `earlier`, whose own are taken out first.
fn gather(merged: &mut BTreeMap<usize, InList>, out: &mut [MatchExpr], earlier: usize, test: Test) {
    let list = merged.entry(earlier).or_insert_with(|| match &mut out[earlier] {
        MatchExpr::Leaf(leaf) => into_list(std::mem::replace(&mut leaf.test, Test::Exists)),
        _ => unreachable!("only leaves are merged"),
    });
    let more = into_list(test);
    list.values.extend(more.values);
    list.regexes.extend(more.regexes);
    list.has_null |= more.has_null;
}

fn is_plain_equality(test: &Test) -> bool {
    match test {
        Test::Compare { op: CompareOp::Eq, operand } => operand.kind() != Type::Regex,
        Test::In(_) => true,
        _ => false,
    }
}

fn into_list(test: Test) -> InList {
    match test {
        Test::In(list) => list,
        Test::Compare { operand, .. } => one_value(operand),
        _ => InList::default(),
    }
}

fn one_value(operand: OwnedValue) -> InList {
    InList { has_null: operand.kind() == Type::Null, values: vec![operand], regexes: Vec::new() }
}

fn in_test(mut list: InList) -> Test {
    match (list.values.len(), list.regexes.len()) {
        (1, 0) => match list.values.pop() {
            Some(operand) => Test::Compare { op: CompareOp::Eq, operand },
            None => Test::In(list),
        },
        (0, 1) => match list.regexes.pop() {
            Some(regex) => Test::Regex(regex),
            None => Test::In(list),
        },
        _ => Test::In(list),
    }
}

fn normalize_leaf(mut leaf: Leaf) -> MatchExpr {
    leaf.test = match leaf.test {
        Test::In(list) if list.values.is_empty() && list.regexes.is_empty() => return MatchExpr::AlwaysFalse,
        Test::In(list) => in_test(list),
        Test::ElemMatchObject(inside) => Test::ElemMatchObject(Box::new(normalize(*inside))),
        Test::ElemMatchValue(inside) => Test::ElemMatchValue(Box::new(normalize(*inside))),
        test => test,
    };
    MatchExpr::Leaf(leaf)
}

/// mongod's order of conditions: by kind, then by path.
fn order(a: &MatchExpr, b: &MatchExpr) -> std::cmp::Ordering {
    fn path(expr: &MatchExpr) -> &str {
        match expr {
            MatchExpr::Leaf(leaf) => leaf.path.dotted(),
            _ => "",
        }
    }
    let by_head = rank(a).cmp(&rank(b)).then_with(|| path(a).cmp(path(b)));
    by_head.then_with(|| {
        let (a, b) = (a.children(), b.children());
        a.len().cmp(&b.len()).then_with(|| {
            a.iter().zip(b).map(|(a, b)| order(a, b)).find(|o| o.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
        })
    })
}

/// The place of a condition's kind in mongod's list of kinds.
pub(super) fn rank(expr: &MatchExpr) -> u8 {
    match expr {
        MatchExpr::And(_) => 0,
        MatchExpr::Or(_) => 1,
        MatchExpr::Leaf(leaf) => match &leaf.test {
            Test::ElemMatchObject(_) => 2,
            Test::ElemMatchValue(_) => 3,
            Test::Size(_) => 4,
            Test::Compare { op: CompareOp::Eq, .. } => 5,
            Test::Compare { op: CompareOp::Lte, .. } => 6,
            Test::Compare { op: CompareOp::Lt, .. } => 7,
            Test::Compare { op: CompareOp::Gt, .. } => 8,
            Test::Compare { op: CompareOp::Gte, .. } => 9,
            Test::Regex(_) => 10,
            Test::Mod { .. } => 11,
            Test::Exists => 12,
            Test::In(_) => 13,
            Test::Bits { op: BitsOp::AllSet, .. } => 14,
            Test::Bits { op: BitsOp::AllClear, .. } => 15,
            Test::Bits { op: BitsOp::AnySet, .. } => 16,
            Test::Bits { op: BitsOp::AnyClear, .. } => 17,
            Test::Type(_) => 20,
            Test::Geo(_) => 21,
            Test::Near(_) => 27,
            Test::ExprCompare { op: CompareOp::Eq, .. } => 29,
            Test::ExprCompare { op: CompareOp::Gt, .. } => 30,
            Test::ExprCompare { op: CompareOp::Gte, .. } => 31,
            Test::ExprCompare { op: CompareOp::Lt, .. } => 32,
            Test::ExprCompare { op: CompareOp::Lte, .. } => 33,
        },
        MatchExpr::Not(_) => 18,
        MatchExpr::Nor(_) => 19,
        MatchExpr::Expr(_) => 23,
        MatchExpr::AlwaysFalse => 24,
        MatchExpr::AlwaysTrue => 25,
        MatchExpr::Schema(_) => 26,
        MatchExpr::Where(_) => 27,
        MatchExpr::Text(_) => 28,
    }
}
