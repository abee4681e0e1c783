//! Trees as BSON, and as shapes.

use sheaf_bson::{Bump, DocBuf, DocWriter, Type, Value};

use super::ast::{Leaf, MatchExpr, Test};
use super::normalize::rank;
use super::operand_types::TypeSet;

type Writer<'w> = DocWriter<'w, Vec<u8>>;

/// A whole filter: the empty one is `{}`.
pub(super) fn root_doc(expr: &MatchExpr) -> DocBuf {
    if matches!(expr, MatchExpr::AlwaysTrue) { DocBuf::new() } else { to_doc(expr) }
}

/// One condition.
pub(super) fn to_doc(expr: &MatchExpr) -> DocBuf {
    DocBuf::build(|doc| put(expr, doc))
}

fn put(expr: &MatchExpr, doc: &mut Writer<'_>) {
    match expr {
        MatchExpr::AlwaysTrue => _ = doc.append("$alwaysTrue", 1),
        MatchExpr::AlwaysFalse => _ = doc.append("$alwaysFalse", 1),
        MatchExpr::And(children) => put_all("$and", children, doc),
        MatchExpr::Or(children) => put_all("$or", children, doc),
        MatchExpr::Nor(children) => put_all("$nor", children, doc),
        MatchExpr::Not(child) => put_not(child, doc),
        MatchExpr::Leaf(leaf) => put_test(&leaf.test, &mut doc.document(leaf.path.dotted())),
        MatchExpr::Expr(expr) => {
            let arena = Bump::new();
            doc.append("$expr", expr.serialize(&arena));
        }
        MatchExpr::Schema(schema) => _ = doc.append("$jsonSchema", schema.source()),
        MatchExpr::Where(script) => _ = doc.append("$where", Value::JavaScript(&script.code)),
        MatchExpr::Text(params) => {
            let mut text = doc.document("$text");
            text.append("$search", params.search.as_str());
            text.append("$language", params.language.as_deref().unwrap_or(""));
            text.append("$caseSensitive", params.case_sensitive);
            text.append("$diacriticSensitive", params.diacritic_sensitive);
        }
    }
}

fn put_all(name: &str, children: &[MatchExpr], doc: &mut Writer<'_>) {
    let mut array = doc.array(name);
    for child in children {
        put(child, &mut array.document());
    }
}

/// `{a: {$not: {...}}}` where the condition is on one path, otherwise `{$nor: [...]}`.
fn put_not(child: &MatchExpr, doc: &mut Writer<'_>) {
    match child {
        MatchExpr::Leaf(leaf) => {
            put_test(&leaf.test, &mut doc.document(leaf.path.dotted()).document("$not"));
        }
        MatchExpr::And(parts) if same_path(parts).is_some() => {
            let mut on_path = doc.document(same_path(parts).unwrap_or_default());
            let mut not = on_path.document("$not");
            parts.iter().for_each(|part| put_on_value(part, &mut not));
        }
        other => put_all("$nor", std::slice::from_ref(other), doc),
    }
}

fn same_path(parts: &[MatchExpr]) -> Option<&str> {
    let mut paths = parts.iter().map(|part| match part {
        MatchExpr::Leaf(leaf) => Some(leaf.path.dotted()),
        _ => None,
    });
    let first = paths.next()??;
    paths.all(|path| path == Some(first)).then_some(first)
}

/// A condition without its path.
fn put_on_value(expr: &MatchExpr, doc: &mut Writer<'_>) {
    match expr {
        MatchExpr::Leaf(leaf) => put_test(&leaf.test, doc),
        MatchExpr::And(parts) => parts.iter().for_each(|part| put_on_value(part, doc)),
        MatchExpr::Not(child) => put_on_value(child, &mut doc.document("$not")),
        other => put(other, doc),
    }
}

fn put_test(test: &Test, doc: &mut Writer<'_>) {
    match test {
        Test::Compare { op, operand } => _ = doc.append(op.name(), operand),
        Test::ExprCompare { op, operand } => _ = doc.append(op.internal_name(), operand),
        Test::In(list) => {
            let mut array = doc.array("$in");
            list.values.iter().for_each(|value| _ = array.push(value));
            list.regexes.iter().for_each(|regex| _ = array.push(regex.as_value()));
        }
        Test::Exists => _ = doc.append("$exists", true),
        Test::Type(types) => put_types(types, doc),
        Test::Size(size) => match i32::try_from(*size) {
            Ok(size) => _ = doc.append("$size", size),
            Err(_) => _ = doc.append("$size", *size),
        },
        Test::Mod { divisor, remainder } => _ = doc.array("$mod").push(*divisor).push(*remainder),
        Test::Regex(regex) => {
            doc.append("$regex", regex.pattern());
            if !regex.options().is_empty() {
                doc.append("$options", regex.options());
            }
        }
        Test::Bits { op, positions, .. } => {
            let mut array = doc.array(op.name());
            positions.iter().for_each(|at| _ = array.push(*at as i32));
        }
        Test::ElemMatchObject(inside) => {
            let mut inner = doc.document("$elemMatch");
            if !matches!(**inside, MatchExpr::AlwaysTrue) {
                put(inside, &mut inner);
            }
        }
        Test::ElemMatchValue(inside) => put_on_value(inside, &mut doc.document("$elemMatch")),
        Test::Geo(predicate) => _ = doc.append(predicate.kind().name(), predicate.source()),
        Test::Near(near) => near.source().as_raw().iter().for_each(|part| _ = doc.append_element(part)),
    }
}

fn put_types(types: &TypeSet, doc: &mut Writer<'_>) {
    let mut array = doc.array("$type");
    if types.number {
        array.push("number");
    }
    types.types.iter().for_each(|number| _ = array.push(*number));
}

/// Appends the shape: see [`super::Matcher::shape`].
pub(super) fn put_shape(expr: &MatchExpr, shape: &mut Vec<u8>) {
    shape.push(rank(expr));
    match expr {
        MatchExpr::Leaf(leaf) => put_leaf_shape(leaf, shape),
        MatchExpr::Expr(_) | MatchExpr::Schema(_) | MatchExpr::Where(_) => {
            // Their operands decide everything, so they are part of the shape.
            shape.extend_from_slice(to_doc(expr).as_bytes());
        }
        _ => {}
    }
    let children = expr.children();
    shape.extend_from_slice(&(children.len() as u32).to_le_bytes());
    children.iter().for_each(|child| put_shape(child, shape));
}

fn put_leaf_shape(leaf: &Leaf, shape: &mut Vec<u8>) {
    shape.extend_from_slice(leaf.path.dotted().as_bytes());
    shape.push(0);
    let class = |value: Value<'_>| match value.kind() {
        // A sparse index cannot serve null, a multikey one treats arrays apart, a wildcard one objects.
        Type::Null => b'n',
        Type::Array => b'a',
        Type::Document => b'o',
        Type::MinKey | Type::MaxKey => b'k',
        Type::String | Type::Symbol => b's',
        _ => b'v',
    };
    match &leaf.test {
        Test::Compare { operand, .. } | Test::ExprCompare { operand, .. } => {
            shape.push(class(operand.as_value()));
        }
        Test::In(list) => {
            let mut classes: Vec<u8> = list.values.iter().map(|value| class(value.as_value())).collect();
            classes.dedup();
            classes.extend(list.regexes.first().map(|_| b'r'));
            shape.extend(classes);
        }
        Test::Regex(regex) => shape.push(if regex.prefix().is_some() { b'p' } else { b'r' }),
        Test::Type(types) => {
            shape.push(u8::from(types.number));
            types.types.iter().for_each(|t| shape.push(*t as u8));
        }
        _ => {}
    }
    shape.push(0);
}
