//! Parsing filters into trees.

use std::sync::Arc;

use sheaf_bson::{Bump, Element, MAX_STORED_DEPTH, RawDoc, Type, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Expr, ParseCx};
use sheaf_geo::{Kind, Near, Predicate};

use super::ast::{BitsOp, CompareOp, InList, MatchExpr, Test};
use super::regex::Regex;
use super::{operand, operand_types};
use crate::owned::own;
use crate::path::{Path, inner};
use crate::schema::Schema;

/// Deepest nesting of a filter, as mongod has it.
const MAX_TREE_DEPTH: usize = 100;

/// Where in the filter the parser is.
struct Parser<'p> {
    cx: &'p mut ParseCx,
    /// Inside `$elemMatch`: conditions are on a part of the document, so `$expr` has no place.
    embedded: bool,
    features: Features,
    depth: usize,
    /// Conditions on text met so far.
    texts: usize,
    /// Conditions that order by distance met so far.
    nears: usize,
}

/// Which of the operators that look beyond single values may stand in a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Features {
    /// All of them: the filters of commands.
    All,
    /// All but `$expr`, as it says nothing that a new document could be made of: the filters of upserts.
    Upsert,
    /// All but those that order by distance: `$match`, where `$geoNear` does that.
    Pipeline,
    /// `$expr` and `$jsonSchema`, but none that asks for an index or for JavaScript: validators.
    Validator,
    /// Validators that show what they refuse in the log, or refuse not all: their schemas may not say what is encrypted.
    LoggedValidator,
    /// None: conditions on parts of documents (`arrayFilters`, `$pull`, `$elemMatch` in a projection).
    None,
}

/// Parses a whole filter.
pub(super) fn parse_filter(filter: RawDoc<'_>, features: Features, cx: &mut ParseCx) -> Result<MatchExpr> {
    let mut parser = Parser { cx, embedded: false, features, depth: 0, texts: 0, nears: 0 };
    let parsed = parser.filter(filter)?;
    if parser.texts > 0 && parser.nears > 0 {
        bail!(Code::BAD_VALUE, "text and geoNear not allowed in same query");
    }
    if parser.texts > 1 {
        bail!(Code::BAD_VALUE, "Too many text expressions");
    }
    Ok(parsed)
}

/// Parses operators on one path: `{$gt: 1, $lt: 5}`.
pub(super) fn parse_operators(path: &str, operators: RawDoc<'_>, cx: &mut ParseCx) -> Result<MatchExpr> {
    let mut parts = Vec::new();
    Parser { cx, embedded: true, features: Features::None, depth: 0, texts: 0, nears: 0 }
        .operators(path, operators, &mut parts)?;
    Ok(all_of(parts))
}

/// `{path: value}`.
pub(super) fn parse_equality(path: &str, value: Value<'_>) -> Result<MatchExpr> {
    if let Value::Regex(regex) = value {
        let test = Test::Regex(Regex::new(regex.pattern, regex.options)?);
        return leaf(path, test);
    }
    compare(path, CompareOp::Eq, value)
}

/// Whether a document is operators (`{$gt: 5}`) and not a value: its first name starts with `$`, and it is no
/// DBRef (`{$ref: ..., $id: ...}`; with `partial`, any of their names will do).
pub(crate) fn is_operators(doc: RawDoc<'_>, partial: bool) -> bool {
    doc.iter().next().is_some_and(|first| first.key_bytes().first() == Some(&b'$'))
        && !is_db_ref(doc, partial)
}

fn is_db_ref(doc: RawDoc<'_>, partial: bool) -> bool {
    let has = |name| doc.element(name).is_some();
    if partial { has("$ref") || has("$id") || has("$db") } else { has("$ref") && has("$id") }
}

/// Names that stand for themselves at the start of a document, without a path.
const PATHLESS: &[&str] = &[
    "$alwaysFalse",
    "$alwaysTrue",
    "$and",
    "$comment",
    "$db",
    "$expr",
    "$id",
    "$jsonSchema",
    "$nor",
    "$or",
    "$ref",
    "$sampleRate",
    "$text",
    "$where",
];

/// Whether a name is an operator on the value at a path: `{path: {name: ...}}`. `$not` is none, as it takes
/// operators itself.
pub(crate) fn is_path_operator(name: &str) -> bool {
    matches!(
        name,
        "$all"
            | "$bitsAllClear"
            | "$bitsAllSet"
            | "$bitsAnyClear"
            | "$bitsAnySet"
            | "$elemMatch"
            | "$eq"
            | "$exists"
            | "$geoIntersects"
            | "$geoNear"
            | "$geoWithin"
            | "$gt"
            | "$gte"
            | "$in"
            | "$lt"
            | "$lte"
            | "$mod"
            | "$ne"
            | "$near"
            | "$nearSphere"
            | "$nin"
            | "$options"
            | "$regex"
            | "$size"
            | "$type"
            | "$within"
    )
}

/// What a condition takes in its parent's list. A leaf counts twice: normalising sorts such lists, or makes new ones.
const NODE_BYTES: usize = size_of::<MatchExpr>();

/// A condition on a path.
///
/// Errors: `ExceededMemoryLimit`.
fn leaf(path: &str, test: Test) -> Result<MatchExpr> {
    sheaf_meter::grow(NODE_BYTES + Path::heap_bytes(path))?;
    Ok(MatchExpr::leaf(path, test))
}

/// All of these conditions. A list for one would be as large as one for four.
fn all_of(mut parts: Vec<MatchExpr>) -> MatchExpr {
    match parts.pop() {
        Some(only) if parts.is_empty() => only,
        last => {
            parts.extend(last);
            MatchExpr::And(parts)
        }
    }
}

fn compare(path: &str, op: CompareOp, value: Value<'_>) -> Result<MatchExpr> {
    if op != CompareOp::Eq && matches!(value, Value::Regex(_)) {
        bail!(Code::BAD_VALUE, "Can't have RegEx as arg to predicate over field '{path}'.");
    }
    if matches!(value, Value::Undefined) {
        bail!(Code::BAD_VALUE, "cannot compare to undefined");
    }
    leaf(path, Test::Compare { op, operand: own(value)? })
}

/// The code of a `$where`.
///
/// Errors: `BadValue` for another type, and where there is no JavaScript; `JSInterpreterFailure`.
fn script(value: Value<'_>, cx: &ParseCx) -> Result<sheaf_js::Script> {
    let code = match value {
        Value::String(code) | Value::JavaScript(code) => code,
        Value::CodeWithScope(_) => {
            bail!(4649201, "$where no longer supports deprecated BSON type CodeWScope")
        }
        _ => bail!(Code::BAD_VALUE, "$where got bad type"),
    };
    if !sheaf_js::is_enabled() {
        bail!(Code::BAD_VALUE, "no globalScriptEngine in $where parsing");
    }
    sheaf_js::Script::with_globals(code, cx.stored_functions()?.as_raw())
}

impl Parser<'_> {
    fn filter(&mut self, filter: RawDoc<'_>) -> Result<MatchExpr> {
        if self.depth > MAX_TREE_DEPTH {
            bail!(
                Code::BAD_VALUE,
                "exceeded maximum query tree depth of {MAX_TREE_DEPTH} at {}",
                sheaf_bson::document_text(filter)
            );
        }
        self.depth += 1;
        let mut parts = Vec::new();
        for element in filter.iter() {
            sheaf_meter::tick(4)?;
            sheaf_meter::grow(NODE_BYTES)?;
            let name = element.key();
            if name.starts_with('$') {
                parts.extend(self.pathless(name, element)?);
                continue;
            }
            if name.bytes().filter(|byte| *byte == b'.').count() >= MAX_STORED_DEPTH {
                bail!(5729100, "FieldPath is too long");
            }
            match element.value() {
                Value::Document(doc) if is_operators(doc, false) => self.operators(name, doc, &mut parts)?,
                value => parts.push(parse_equality(name, value)?),
            }
        }
        self.depth -= 1;
        Ok(all_of(parts))
    }

    /// A top-level operator; `None` for what has no effect.
    fn pathless(&mut self, name: &str, element: Element<'_>) -> Result<Option<MatchExpr>> {
        let value = element.value();
        Ok(Some(match name {
            "$and" => MatchExpr::And(self.branches(name, value)?),
            "$or" => MatchExpr::Or(self.branches(name, value)?),
            "$nor" => {
                let before = self.texts;
                let branches = self.branches(name, value)?;
                if self.texts > before {
                    bail!(Code::BAD_VALUE, "text expression not allowed in nor");
                }
                MatchExpr::Nor(branches)
            }
            "$comment" => return Ok(None),
            "$expr" => {
                self.check_top(name)?;
                self.check_expr(name)?;
                self.cx
                    .set_validator(matches!(self.features, Features::Validator | Features::LoggedValidator));
                let expr = Expr::parse(value, self.cx);
                self.cx.set_validator(false);
                MatchExpr::Expr(Box::new(expr?))
            }
            "$sampleRate" => {
                self.check_top(name)?;
                self.check_expr(name)?;
                self.sample_rate(value)?
            }
            "$jsonSchema" => {
                self.check_allowed(name, Code::QUERY_FEATURE_NOT_ALLOWED, Features::Validator)?;
                let Value::Document(schema) = value else {
                    bail!(Code::TYPE_MISMATCH, "$jsonSchema must be an object");
                };
                let parse = match self.features {
                    Features::LoggedValidator => Schema::parse_without_encryption,
                    _ => Schema::parse,
                };
                MatchExpr::Schema(Box::new(parse(schema)?))
            }
            "$alwaysTrue" | "$alwaysFalse" => {
                if operand_types::integer(element)? != 1 {
                    bail!(Code::FAILED_TO_PARSE, "{name} must be an integer value of 1");
                }
                if name == "$alwaysTrue" { MatchExpr::AlwaysTrue } else { MatchExpr::AlwaysFalse }
            }
            "$ref" | "$id" | "$db" => parse_equality(name, value)?,
            "$text" => {
                self.check_top(name)?;
                self.check_allowed(name, Code::BAD_VALUE, Features::All)?;
                self.texts += 1;
                MatchExpr::Text(Box::new(operand::text_params(value)?))
            }
            "$where" => {
                self.check_top(name)?;
                self.check_allowed(name, Code::BAD_VALUE, Features::All)?;
                if self.features == Features::Pipeline {
                    bail!(Code::BAD_VALUE, "$where is not allowed in this context");
                }
                MatchExpr::Where(Box::new(script(value, self.cx)?))
            }
            "$not" => bail!(
                Code::BAD_VALUE,
                "unknown top level operator: $not. If you are trying to negate an entire expression, use $nor."
            ),
            _ => bail!(
                Code::BAD_VALUE,
                "unknown top level operator: {name}. If you have a field name that starts with a '$' symbol, \
                 consider using $getField or $setField."
            ),
        }))
    }

    /// Checks that an operator on whole documents is not inside an `$elemMatch`.
    fn check_top(&self, name: &str) -> Result<()> {
        if self.embedded {
            bail!(Code::BAD_VALUE, "{name} can only be applied to the top-level document");
        }
        Ok(())
    }

    /// Checks that the filter may have an operator; `least` is the least permission that allows it.
    fn check_allowed(&self, name: &str, code: Code, least: Features) -> Result<()> {
        let allowed = match self.features {
            Features::All | Features::Upsert | Features::Pipeline => true,
            Features::Validator | Features::LoggedValidator => least == Features::Validator,
            Features::None => false,
        };
        if !allowed {
            bail!(code, "{name} is not allowed in this context");
        }
        Ok(())
    }

    /// Checks that the filter may have an expression.
    fn check_expr(&self, name: &str) -> Result<()> {
        if self.features == Features::Upsert {
            bail!(
                Code::QUERY_FEATURE_NOT_ALLOWED,
                "$expr is not allowed in the query predicate for an upsert"
            );
        }
        self.check_allowed(name, Code::QUERY_FEATURE_NOT_ALLOWED, Features::Validator)
    }

    fn branches(&mut self, name: &str, value: Value<'_>) -> Result<Vec<MatchExpr>> {
        let Value::Array(array) = value else { bail!(Code::BAD_VALUE, "{name} must be an array") };
        if array.is_empty() {
            bail!(Code::BAD_VALUE, "$and/$or/$nor must be a nonempty array");
        }
        let mut branches = Vec::new();
        for item in array.values() {
            let Value::Document(filter) = item else {
                bail!(Code::BAD_VALUE, "$or/$and/$nor entries need to be full objects");
            };
            sheaf_meter::grow(NODE_BYTES)?;
            branches.push(self.filter(filter)?);
        }
        Ok(branches)
    }

    /// `$sampleRate: p` is `$expr: {$lt: [{$rand: {}}, p]}`.
    fn sample_rate(&mut self, value: Value<'_>) -> Result<MatchExpr> {
        let Some(rate) = value.as_f64() else {
            bail!(Code::BAD_VALUE, "argument to $sampleRate must be a numeric type");
        };
        if !(0.0..=1.0).contains(&rate) {
            bail!(Code::BAD_VALUE, "numeric argument to $sampleRate must be in [0, 1]");
        }
        if rate == 1.0 {
            return Ok(MatchExpr::AlwaysTrue);
        }
        if rate == 0.0 {
            return Ok(MatchExpr::AlwaysFalse);
        }
        let arena = Bump::new();
        let test = sheaf_bson::document_in(&arena, |doc| {
            let mut args = doc.array("$lt");
            args.document().document("$rand");
            args.push(rate);
        });
        Ok(MatchExpr::Expr(Box::new(Expr::parse(Value::Document(test), self.cx)?)))
    }

    /// All operators on one path, added to `parts`.
    fn operators(&mut self, path: &str, operators: RawDoc<'_>, parts: &mut Vec<MatchExpr>) -> Result<()> {
        if self.depth > MAX_TREE_DEPTH {
            bail!(
                Code::BAD_VALUE,
                "exceeded maximum query tree depth of {MAX_TREE_DEPTH} at {}",
                sheaf_bson::document_text(operators)
            );
        }
        if let Some(near) = self.near(operators)? {
            parts.push(leaf(path, Test::Near(Arc::new(near)))?);
            return Ok(());
        }
        self.depth += 1;
        for element in operators.iter() {
            sheaf_meter::tick(4)?;
            sheaf_meter::grow(NODE_BYTES)?;
            parts.extend(self.operator(path, operators, element)?);
        }
        self.depth -= 1;
        Ok(())
    }

    /// The operators on a path as a condition that orders by distance, if the first of them is one.
    fn near(&mut self, operators: RawDoc<'_>) -> Result<Option<Near>> {
        let first = operators.iter().next();
        let is_near = first.is_some_and(|first| {
            matches!(first.key(), "$near" | "$nearSphere" | "$geoNear")
                && matches!(first.kind(), Type::Document | Type::Array)
        });
        if !is_near {
            return Ok(None);
        }
        if !matches!(self.features, Features::All | Features::Upsert) {
            bail!(5626500, "$geoNear, $near, and $nearSphere are not allowed in this context");
        }
        self.nears += 1;
        Near::parse(operators).map(Some)
    }

    /// One operator on a path; `None` for `$options`, which belongs to its `$regex`.
    fn operator(
        &mut self,
        path: &str,
        operators: RawDoc<'_>,
        element: Element<'_>,
    ) -> Result<Option<MatchExpr>> {
        let (name, value) = (element.key(), element.value());
        let test = match name {
            "$eq" => return compare(path, CompareOp::Eq, value).map(Some),
            "$gt" => return compare(path, CompareOp::Gt, value).map(Some),
            "$gte" => return compare(path, CompareOp::Gte, value).map(Some),
            "$lt" => return compare(path, CompareOp::Lt, value).map(Some),
            "$lte" => return compare(path, CompareOp::Lte, value).map(Some),
            "$ne" => {
                if matches!(value, Value::Regex(_)) {
                    bail!(Code::BAD_VALUE, "Can't have regex as arg to $ne.");
                }
                return Ok(Some(compare(path, CompareOp::Eq, value)?.negate()));
            }
            "$in" => Test::In(in_operand(name, value)?),
            "$nin" => return Ok(Some(leaf(path, Test::In(in_operand(name, value)?))?.negate())),
            "$not" => return self.not(path, value).map(Some),
            "$all" => return self.all(path, value).map(Some),
            "$elemMatch" => return self.elem_match(path, value).map(Some),
            "$exists" if value.truthy() => Test::Exists,
            "$exists" => return Ok(Some(leaf(path, Test::Exists)?.negate())),
            "$type" => Test::Type(operand_types::parse_type_set(value, true)?),
            "$size" => operand::size(element)?,
            "$mod" => operand::modulo(element)?,
            "$regex" => operand::regex(operators)?,
            "$options" => {
                if operators.element("$regex").is_none() {
                    bail!(Code::BAD_VALUE, "$options needs a $regex");
                }
                return Ok(None);
            }
            "$bitsAllSet" => operand::bits(BitsOp::AllSet, path, element)?,
            "$bitsAllClear" => operand::bits(BitsOp::AllClear, path, element)?,
            "$bitsAnySet" => operand::bits(BitsOp::AnySet, path, element)?,
            "$bitsAnyClear" => operand::bits(BitsOp::AnyClear, path, element)?,
            "$geoWithin" | "$within" => Test::Geo(Arc::new(Predicate::parse(Kind::Within, element)?)),
            "$geoIntersects" => Test::Geo(Arc::new(Predicate::parse(Kind::Intersects, element)?)),
            // It takes all operators on its path, so that it is read with the first of them.
            "$near" | "$nearSphere" | "$geoNear" => {
                bail!(Code::BAD_VALUE, "near must be first in: {}", sheaf_bson::document_text(operators))
            }
            "$where" => bail!(Code::BAD_VALUE, "$where cannot be applied to a field"),
            _ => bail!(Code::BAD_VALUE, "unknown operator: {name}"),
        };
        leaf(path, test).map(Some)
    }

    fn not(&mut self, path: &str, value: Value<'_>) -> Result<MatchExpr> {
        match value {
            Value::Regex(_) => Ok(parse_equality(path, value)?.negate()),
            Value::Document(doc) if doc.is_empty() => bail!(Code::BAD_VALUE, "$not cannot be empty"),
            Value::Document(doc) => {
                let mut parts = Vec::new();
                self.operators(path, doc, &mut parts)?;
                Ok(all_of(parts).negate())
            }
            _ => bail!(Code::BAD_VALUE, "$not needs a regex or a document"),
        }
    }

    fn all(&mut self, path: &str, value: Value<'_>) -> Result<MatchExpr> {
        let Value::Array(array) = value else { bail!(Code::BAD_VALUE, "$all needs an array") };
        let Some(first) = array.iter().next() else { return Ok(MatchExpr::AlwaysFalse) };
        let mut parts = Vec::new();
        if elem_match_of(first).is_some() {
            for item in array.iter() {
                let Some(inside) = elem_match_of(item) else {
                    bail!(Code::BAD_VALUE, "$all/$elemMatch has to be consistent");
                };
                parts.push(self.elem_match(path, inside)?);
            }
        } else {
            for value in array.values() {
                match value {
                    Value::Document(doc)
                        if doc.iter().next().is_some_and(|first| is_path_operator(first.key())) =>
                    {
                        bail!(Code::BAD_VALUE, "no $ expressions in $all")
                    }
                    value => parts.push(parse_equality(path, value)?),
                }
            }
        }
        Ok(all_of(parts))
    }

    fn elem_match(&mut self, path: &str, value: Value<'_>) -> Result<MatchExpr> {
        let Value::Document(doc) = value else { bail!(Code::BAD_VALUE, "$elemMatch needs an Object") };
        let on_values = is_operators(doc, true)
            && doc.iter().next().is_some_and(|first| !PATHLESS.contains(&first.key()));
        let outer = std::mem::replace(&mut self.embedded, true);
        let test = if on_values {
            let mut parts = Vec::new();
            self.operators("", doc, &mut parts)?;
            Test::ElemMatchValue(Box::new(all_of(parts)))
        } else {
            Test::ElemMatchObject(Box::new(self.filter(doc)?))
        };
        self.embedded = outer;
        leaf(path, test)
    }
}

fn in_operand(name: &str, value: Value<'_>) -> Result<InList> {
    match value {
        Value::Array(array) => operand::in_list(array),
        _ => bail!(Code::BAD_VALUE, "{name} needs an array"),
    }
}

/// The inside of `{$elemMatch: ...}`.
fn elem_match_of(element: Element<'_>) -> Option<Value<'_>> {
    if element.kind() != Type::Document {
        return None;
    }
    inner(element).iter().next().filter(|first| first.key() == "$elemMatch").map(|first| first.value())
}
