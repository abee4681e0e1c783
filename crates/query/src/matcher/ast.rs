//! The normalised tree of a filter.

use std::sync::Arc;

use sheaf_bson::{Binary, DocBuf, OwnedValue};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::Expr;
use sheaf_geo::{Near, Predicate};

use super::operand_types::TypeSet;
use super::regex::Regex;
use crate::path::Path;
use crate::schema::Schema;

/// A condition on a document. The planner reads this tree; [`super::Matcher`] evaluates it.
#[derive(Debug)]
pub enum MatchExpr {
    /// Matches everything: `{}`, `$alwaysTrue`.
    AlwaysTrue,
    /// Matches nothing: `$alwaysFalse`, `{a: {$in: []}}`.
    AlwaysFalse,
    /// All must match. Normalised: at least two, none of them an `And`.
    And(Vec<MatchExpr>),
    /// One must match. Normalised: at least two, none of them an `Or`.
    Or(Vec<MatchExpr>),
    /// None may match; at least one.
    Nor(Vec<MatchExpr>),
    /// Must not match: `$ne`, `$nin`, `$not`, `$exists: false`.
    Not(Box<MatchExpr>),
    /// A test on what a path leads to.
    Leaf(Leaf),
    /// `$expr`.
    Expr(Box<Expr>),
    /// `$jsonSchema`.
    Schema(Box<Schema>),
    /// `$where`.
    Where(Box<sheaf_js::Script>),
    /// `$text`, which only a plan with a text index can answer.
    Text(Box<sheaf_text::Params>),
}

/// A test on what a path leads to. It passes if any of the values that the path leads to passes (see
/// [`Path::any`]).
#[derive(Debug)]
pub struct Leaf {
    /// The path; unused for the parts of [`Test::ElemMatchValue`], which test the array's elements.
    pub path: Path,
    /// The test.
    pub test: Test,
    /// How the test compares strings, if not by their bytes.
    pub collator: Option<SharedCollator>,
}

/// A comparison that a filter can ask for. (`$ne` is a `Not` of `Eq`.)
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum CompareOp {
    Eq,
    Gt,
    Gte,
    Lt,
    Lte,
}

impl CompareOp {
    /// The operator's name.
    pub fn name(self) -> &'static str {
        match self {
            CompareOp::Eq => "$eq",
            CompareOp::Gt => "$gt",
            CompareOp::Gte => "$gte",
            CompareOp::Lt => "$lt",
            CompareOp::Lte => "$lte",
        }
    }

    /// The name of what a comparison within `$expr` says of a path.
    pub(super) fn internal_name(self) -> &'static str {
        match self {
            CompareOp::Eq => "$_internalExprEq",
            CompareOp::Gt => "$_internalExprGt",
            CompareOp::Gte => "$_internalExprGte",
            CompareOp::Lt => "$_internalExprLt",
            CompareOp::Lte => "$_internalExprLte",
        }
    }

    /// The comparison with its sides exchanged.
    pub(super) fn mirrored(self) -> Self {
        match self {
            CompareOp::Eq => CompareOp::Eq,
            CompareOp::Gt => CompareOp::Lt,
            CompareOp::Gte => CompareOp::Lte,
            CompareOp::Lt => CompareOp::Gt,
            CompareOp::Lte => CompareOp::Gte,
        }
    }
}

/// The test of a [`Leaf`].
#[derive(Debug)]
pub enum Test {
    /// `$eq`, `$gt`, `$gte`, `$lt`, `$lte`. Only values of the operand's own type can pass (numbers count as
    /// one type), except that a missing field equals null, and that MinKey and MaxKey bound everything.
    Compare {
        /// Which comparison.
        op: CompareOp,
        /// What to compare with.
        operand: OwnedValue,
    },
    /// `$_internalExprEq` and kin: what a comparison within `$expr` says of a path, for indexes. Such a comparison looks into no array,
    /// and takes values of all types in one order. It stands beside the `$expr` that it comes from, which decides.
    ExprCompare {
        /// Which comparison.
        op: CompareOp,
        /// What to compare with; no array.
        operand: OwnedValue,
    },
    /// `$in`.
    In(InList),
    /// `$exists: true`.
    Exists,
    /// `$type`.
    Type(TypeSet),
    /// `$size`.
    Size(i64),
    /// `$mod`.
    Mod {
        /// Not 0.
        divisor: i64,
        /// What must remain.
        remainder: i64,
    },
    /// `$regex`, or a regular expression as the value.
    Regex(Regex),
    /// `$bitsAllSet` and kin.
    Bits {
        /// Which test.
        op: BitsOp,
        /// Positions to look at, ascending.
        positions: Vec<u32>,
        /// The positions below 64 as a mask.
        mask: u64,
    },
    /// `$elemMatch` whose conditions are on fields of the array's elements.
    ElemMatchObject(Box<MatchExpr>),
    /// `$elemMatch` whose conditions are on the array's elements themselves.
    ElemMatchValue(Box<MatchExpr>),
    /// `$geoWithin`, `$geoIntersects`.
    Geo(Arc<Predicate>),
    /// `$near`, `$nearSphere`: a geometry within the distances. Only at the top of a filter, where it asks for an order too.
    Near(Arc<Near>),
}

/// The operand of `$in`.
#[derive(Debug, Default)]
pub struct InList {
    /// Values to equal, in MongoDB's order, without duplicates.
    pub values: Vec<OwnedValue>,
    /// Regular expressions to match.
    pub regexes: Vec<Regex>,
    /// `values` holds null, which a missing field matches.
    pub has_null: bool,
}

/// The bit tests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum BitsOp {
    AllSet,
    AllClear,
    AnySet,
    AnyClear,
}

impl BitsOp {
    /// The operator's name.
    pub fn name(self) -> &'static str {
        match self {
            BitsOp::AllSet => "$bitsAllSet",
            BitsOp::AllClear => "$bitsAllClear",
            BitsOp::AnySet => "$bitsAnySet",
            BitsOp::AnyClear => "$bitsAnyClear",
        }
    }
}

/// Bits of binary data that are looked at by position: least significant bit of the first byte first.
pub(crate) fn binary_bit(binary: Binary<'_>, position: u32) -> bool {
    binary.bytes.get(position as usize / 8).is_some_and(|byte| byte >> (position % 8) & 1 == 1)
}

impl MatchExpr {
    /// A leaf.
    pub fn leaf(path: &str, test: Test) -> MatchExpr {
        MatchExpr::Leaf(Leaf { path: Path::new(path), test, collator: None })
    }

    /// Has the whole tree compare strings by a collator, but for `$jsonSchema`, and `$expr`, which knows it since parsing.
    pub(super) fn collate(&mut self, collator: &SharedCollator) {
        match self {
            MatchExpr::And(children) | MatchExpr::Or(children) | MatchExpr::Nor(children) => {
                children.iter_mut().for_each(|child| child.collate(collator));
            }
            MatchExpr::Not(child) => child.collate(collator),
            MatchExpr::Leaf(leaf) => {
                match &mut leaf.test {
                    Test::ElemMatchObject(inside) | Test::ElemMatchValue(inside) => inside.collate(collator),
                    Test::In(list) => list.sort(Some(collator)),
                    _ => {}
                }
                leaf.collator = Some(collator.clone());
            }
            MatchExpr::AlwaysTrue
            | MatchExpr::AlwaysFalse
            | MatchExpr::Expr(_)
            | MatchExpr::Where(_)
            | MatchExpr::Text(_)
            | MatchExpr::Schema(_) => {}
        }
    }

    /// The negation.
    pub fn negate(self) -> MatchExpr {
        MatchExpr::Not(Box::new(self))
    }

    /// The tree's children.
    pub fn children(&self) -> &[MatchExpr] {
        match self {
            MatchExpr::And(children) | MatchExpr::Or(children) | MatchExpr::Nor(children) => children,
            MatchExpr::Not(child) => std::slice::from_ref(child),
            MatchExpr::Leaf(Leaf {
                test: Test::ElemMatchObject(child) | Test::ElemMatchValue(child),
                ..
            }) => std::slice::from_ref(child),
            _ => &[],
        }
    }

    /// Whether `$expr` (which needs an environment and may fail) is anywhere inside.
    pub fn has_expr(&self) -> bool {
        matches!(self, MatchExpr::Expr(_)) || self.children().iter().any(MatchExpr::has_expr)
    }

    /// How many conditions inside order by distance.
    fn nears(&self) -> usize {
        let own = matches!(self, MatchExpr::Leaf(Leaf { test: Test::Near(_), .. }));
        usize::from(own) + self.children().iter().map(MatchExpr::nears).sum::<usize>()
    }

    /// The condition that orders by distance, with its place among the conjuncts of the filter.
    pub fn near(&self) -> Option<(usize, &Path, &Arc<Near>)> {
        let conjuncts = if let MatchExpr::And(all) = self { &all[..] } else { std::slice::from_ref(self) };
        conjuncts.iter().enumerate().find_map(|(at, conjunct)| match conjunct {
            MatchExpr::Leaf(Leaf { path, test: Test::Near(near), .. }) => Some((at, path, near)),
            _ => None,
        })
    }

    /// Checks that there is one such condition at most, and that it is a conjunct of the whole filter.
    ///
    /// Errors: `BadValue`.
    pub(super) fn check_near(&self) -> Result<()> {
        match self.nears() {
            0 => Ok(()),
            1 if self.near().is_some() => Ok(()),
            1 => bail!(Code::BAD_VALUE, "geo $near must be top-level expr"),
            _ => bail!(Code::BAD_VALUE, "Too many geoNear expressions"),
        }
    }

    /// Whether `$text` (which needs a text index) is anywhere inside.
    pub fn has_text(&self) -> bool {
        matches!(self, MatchExpr::Text(_)) || self.children().iter().any(MatchExpr::has_text)
    }

    /// The condition as BSON, as explain's `parsedQuery` prints it.
    pub fn to_doc(&self) -> DocBuf {
        super::serialize::to_doc(self)
    }
}
