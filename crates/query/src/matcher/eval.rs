//! Deciding whether a document matches.

use std::cmp::Ordering;

use sheaf_bson::{Element, OwnedValue, RawDoc, Type, Value};
use sheaf_collation::{SharedCollator, compare_by};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::Env;

use super::ast::{BitsOp, CompareOp, InList, Leaf, MatchExpr, Test, binary_bit};
use crate::path::{inner, position};
use crate::ticks::{tick_for, try_all, try_any};

/// A list of so many values is gone through one by one.
const FEW: usize = 4;

/// What a match tells besides yes or no.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MatchDetails {
    /// The position of the array element that matched, in the array that was traversed implicitly: what `$`
    /// in a projection or update stands for. With several array conditions, the last one's.
    pub elem_match_index: Option<usize>,
}

impl MatchExpr {
    /// Whether a document matches.
    ///
    /// Errors: those of `$expr`; what cannot be decided (51156); what the meter says.
    pub fn matches<'a>(
        &'a self,
        doc: RawDoc<'a>,
        env: &Env<'a>,
        mut details: Option<&mut MatchDetails>,
    ) -> Result<bool> {
        Ok(match self {
            MatchExpr::AlwaysTrue => true,
            MatchExpr::AlwaysFalse => false,
            MatchExpr::And(children) => {
                for child in children {
                    if !child.matches(doc, env, details.as_deref_mut())? {
                        if let Some(details) = details {
                            *details = MatchDetails::default();
                        }
                        return Ok(false);
                    }
                }
                true
            }
            MatchExpr::Or(children) => {
                // Which branch decides is left open, so that none says where it matched.
                for child in children {
                    if child.matches(doc, env, None)? {
                        return Ok(true);
                    }
                }
                false
            }
            MatchExpr::Nor(children) => {
                for child in children {
                    if child.matches(doc, env, None)? {
                        return Ok(false);
                    }
                }
                true
            }
            MatchExpr::Not(child) => !child.matches(doc, env, None)?,
            MatchExpr::Leaf(leaf) => leaf.matches(doc, details)?,
            MatchExpr::Expr(expr) => expr.eval(doc, env)?.truthy(),
            MatchExpr::Schema(schema) => schema.matches(doc)?,
            MatchExpr::Where(script) => script.test(doc)?,
            // Where details are wanted, a plan has found the document to match before.
            MatchExpr::Text(_) if details.is_some() => true,
            MatchExpr::Text(_) => return without_index(),
        })
    }

    /// Like [`MatchExpr::matches`], for conditions without `$expr`.
    ///
    /// Errors: like [`MatchExpr::matches`].
    pub fn matches_plain(&self, doc: RawDoc<'_>) -> Result<bool> {
        Ok(match self {
            MatchExpr::AlwaysTrue => true,
            // Where `$expr` could stand, callers use `matches`.
            MatchExpr::AlwaysFalse | MatchExpr::Expr(_) => false,
            MatchExpr::And(children) => try_all(children, |child| child.matches_plain(doc))?,
            MatchExpr::Or(children) => try_any(children, |child| child.matches_plain(doc))?,
            MatchExpr::Nor(children) => !try_any(children, |child| child.matches_plain(doc))?,
            MatchExpr::Not(child) => !child.matches_plain(doc)?,
            MatchExpr::Leaf(leaf) => leaf.matches(doc, None)?,
            MatchExpr::Schema(schema) => schema.matches(doc)?,
            MatchExpr::Where(script) => script.test(doc)?,
            MatchExpr::Text(_) => return without_index(),
        })
    }

    /// Whether a single value passes, the paths of the conditions being ignored: how the parts of an
    /// `$elemMatch` on values test an element of the array.
    ///
    /// Errors: like [`MatchExpr::matches`].
    pub fn matches_element(&self, element: Element<'_>) -> Result<bool> {
        Ok(match self {
            MatchExpr::AlwaysTrue => true,
            MatchExpr::AlwaysFalse | MatchExpr::Expr(_) => false,
            MatchExpr::And(children) => try_all(children, |child| child.matches_element(element))?,
            MatchExpr::Or(children) => try_any(children, |child| child.matches_element(element))?,
            MatchExpr::Nor(children) => !try_any(children, |child| child.matches_element(element))?,
            MatchExpr::Not(child) => !child.matches_element(element)?,
            MatchExpr::Leaf(leaf) => leaf.passes(Some(element), None)?,
            MatchExpr::Schema(schema) => {
                element.kind() == Type::Document && schema.matches(inner(element))?
            }
            MatchExpr::Where(_) => unreachable!("$where is refused within $elemMatch"),
            MatchExpr::Text(_) => return without_index(),
        })
    }
}

/// What mongod says where no text index can serve.
fn without_index<T>() -> Result<T> {
    bail!(Code::INDEX_NOT_FOUND, "text index required for $text query")
}

impl Leaf {
    /// Whether any value that the path leads to passes.
    ///
    /// Errors: like [`MatchExpr::matches`].
    pub fn matches(&self, doc: RawDoc<'_>, mut details: Option<&mut MatchDetails>) -> Result<bool> {
        // The `$expr` beside it decides; to an empty array on the way a path leads nowhere.
        if matches!(self.test, Test::ExprCompare { .. }) {
            return Ok(true);
        }
        self.path.any(doc, self.test.looks_into_arrays(), &mut |element, offset| {
            let passes = self.passes(element, details.as_deref_mut())?;
            if passes && let (Some(details), Some(offset)) = (details.as_deref_mut(), offset) {
                details.elem_match_index = Some(position(offset));
            }
            Ok(passes)
        })
    }
}

impl Leaf {
    /// Whether one value (`None`: a missing field) passes.
    pub fn passes(&self, element: Option<Element<'_>>, details: Option<&mut MatchDetails>) -> Result<bool> {
        self.test.passes(element, details, self.collator.as_ref())
    }
}

impl Test {
    /// Whether an array at the end of a path is tested element by element (and then as a whole), or only as
    /// a whole.
    pub fn looks_into_arrays(&self) -> bool {
        !matches!(self, Test::Size(_) | Test::ElemMatchObject(_) | Test::ElemMatchValue(_))
    }

    /// Whether one value (`None`: a missing field) passes.
    pub fn passes(
        &self,
        element: Option<Element<'_>>,
        details: Option<&mut MatchDetails>,
        collator: Option<&SharedCollator>,
    ) -> Result<bool> {
        let Some(element) = element else { return Ok(self.passes_missing()) };
        Ok(match self {
            Test::ExprCompare { .. } => true,
            Test::Compare { op, operand } => {
                tick_for(element.data().len().min(operand.data().len()) * 16)?;
                compares(*op, operand, element, collator)
            }
            Test::In(list) => match list.contains_bytes(element, collator) {
                Some(found) => found,
                None => list.contains(element.value(), collator)?,
            },
            Test::Exists => true,
            Test::Type(types) => types.contains(element.kind()),
            Test::Size(size) => element.kind() == Type::Array && inner(element).count() as i64 == *size,
            Test::Mod { divisor, remainder } => {
                truncated(element.value()).is_some_and(|n| n.wrapping_rem(*divisor) == *remainder)
            }
            Test::Regex(regex) => regex.matches_value(element.value())?,
            Test::Bits { op, positions, mask } => bits(*op, positions, *mask, element.value()),
            Test::ElemMatchObject(inside) => any_item(element, details, |item| {
                Ok(matches!(item.kind(), Type::Document | Type::Array)
                    && inside.matches_plain(inner(item))?)
            })?,
            Test::ElemMatchValue(inside) => any_item(element, details, |item| inside.matches_element(item))?,
            Test::Geo(predicate) => predicate.matches(element.value())?,
            Test::Near(near) => {
                near.nearest(element.value())?.is_some_and(|(distance, _)| near.allows(distance))
            }
        })
    }

    fn passes_missing(&self) -> bool {
        match self {
            Test::Compare { op, operand } => match (operand.kind(), op) {
                (Type::Null, op) => matches!(op, CompareOp::Eq | CompareOp::Gte | CompareOp::Lte),
                (Type::MinKey, op) => matches!(op, CompareOp::Gt | CompareOp::Gte),
                (Type::MaxKey, op) => matches!(op, CompareOp::Lt | CompareOp::Lte),
                _ => false,
            },
            Test::In(list) => list.has_null,
            _ => false,
        }
    }
}

fn any_item<'a>(
    array: Element<'a>,
    details: Option<&mut MatchDetails>,
    passes: impl Fn(Element<'a>) -> Result<bool>,
) -> Result<bool> {
    if array.kind() != Type::Array {
        return Ok(false);
    }
    for (index, item) in inner(array).iter().enumerate() {
        sheaf_meter::tick(1)?;
        if passes(item)? {
            if let Some(details) = details {
                details.elem_match_index = Some(index);
            }
            return Ok(true);
        }
    }
    Ok(false)
}

/// Compares an element with an operand, within the operand's type.
fn compares(
    op: CompareOp,
    operand: &OwnedValue,
    element: Element<'_>,
    collator: Option<&SharedCollator>,
) -> bool {
    let kind = element.kind();
    if kind.order() != operand.kind().order() {
        return match operand.kind() {
            Type::MinKey => matches!(op, CompareOp::Gt | CompareOp::Gte),
            Type::MaxKey => matches!(op, CompareOp::Lt | CompareOp::Lte),
            _ => false,
        };
    }
    if op == CompareOp::Eq && kind == operand.kind() && !may_equal_other_bytes(kind) && collator.is_none() {
        return element.data() == operand.data();
    }
    let (value, operand) = (element.value(), operand.as_value());
    if is_nan(value) || is_nan(operand) {
        let both = is_nan(value) && is_nan(operand);
        return both && !matches!(op, CompareOp::Gt | CompareOp::Lt);
    }
    let order = compare_by(collator, value, operand);
    match op {
        CompareOp::Eq => order == Ordering::Equal,
        CompareOp::Gt => order == Ordering::Greater,
        CompareOp::Gte => order != Ordering::Less,
        CompareOp::Lt => order == Ordering::Less,
        CompareOp::Lte => order != Ordering::Greater,
    }
}

/// Types of which two values can be equal without having equal bytes, because numbers may be inside.
fn may_equal_other_bytes(kind: Type) -> bool {
    matches!(
        kind,
        Type::Double
            | Type::Decimal128
            | Type::Document
            | Type::Array
            | Type::CodeWithScope
            | Type::Undefined
    )
}

fn is_nan(value: Value<'_>) -> bool {
    match value {
        Value::Double(n) => n.is_nan(),
        Value::Decimal128(n) => n.is_nan(),
        _ => false,
    }
}

impl InList {
    /// Sorts the values, and keeps the first of equal ones.
    pub(super) fn sort(&mut self, collator: Option<&SharedCollator>) {
        self.values.sort_by(|a, b| compare_by(collator, a.as_value(), b.as_value()));
        self.values.dedup_by(|a, b| compare_by(collator, a.as_value(), b.as_value()).is_eq());
    }

    /// Whether a list of few values has the element, if their bytes tell: then nothing is decoded.
    fn contains_bytes(&self, element: Element<'_>, collator: Option<&SharedCollator>) -> Option<bool> {
        let kind = element.kind();
        if collator.is_some() || may_equal_other_bytes(kind) || self.values.len() > FEW {
            return None;
        }
        let mut told = self.regexes.is_empty();
        for value in &self.values {
            if value.kind() == kind {
                if value.data() == element.data() {
                    return Some(true);
                }
            } else if value.kind().order() == kind.order() {
                told = false;
            }
        }
        told.then_some(false)
    }

    /// Whether the list has a value (or a regular expression that matches it).
    ///
    /// Errors: like [`MatchExpr::matches`].
    pub fn contains(&self, value: Value<'_>, collator: Option<&SharedCollator>) -> Result<bool> {
        tick_for(self.values.len().min(4096))?;
        let found = match self.values.len() {
            0..=FEW => self.values.iter().any(|v| compare_by(collator, v.as_value(), value).is_eq()),
            _ => self.values.binary_search_by(|v| compare_by(collator, v.as_value(), value)).is_ok(),
        };
        Ok(found || try_any(&self.regexes, |regex| regex.matches_value(value))?)
    }
}

/// A number without its fraction; `None` for what no int64 can hold, and for other types.
fn truncated(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Int32(n) => Some(i64::from(n)),
        Value::Int64(n) => Some(n),
        Value::Double(_) | Value::Decimal128(_) => match sheaf_bson::number::truncate_to_i64(value) {
            Some(sheaf_bson::number::Truncated::Integer(n)) => Some(n),
            _ => None,
        },
        _ => None,
    }
}

fn bits(op: BitsOp, positions: &[u32], mask: u64, value: Value<'_>) -> bool {
    match value {
        Value::Binary(binary) => {
            let is_set = |position: &u32| binary_bit(binary, *position);
            match op {
                BitsOp::AllSet => positions.iter().all(is_set),
                BitsOp::AllClear => !positions.iter().any(is_set),
                BitsOp::AnySet => positions.iter().any(is_set),
                BitsOp::AnyClear => !positions.iter().all(is_set),
            }
        }
        _ => match value.as_exact_i64() {
            Some(n) => number_bits(op, positions, mask, n),
            None => false,
        },
    }
}

/// Bits beyond the 64th are the sign's.
fn number_bits(op: BitsOp, positions: &[u32], mask: u64, n: i64) -> bool {
    let beyond = positions.last().is_some_and(|last| *last >= 64);
    let (low, negative) = (n as u64 & mask, n < 0);
    match op {
        BitsOp::AllSet => low == mask && (!beyond || negative),
        BitsOp::AllClear => low == 0 && !(beyond && negative),
        BitsOp::AnySet => low != 0 || (beyond && negative),
        BitsOp::AnyClear => low != mask || (beyond && !negative),
    }
}
