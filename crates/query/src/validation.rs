//! The error of a document that fails its collection's validator, with the reasons in `errInfo`.
//!
//! The reasons follow the validator as it was written, clause by clause, and not its normalised tree: users
//! look for their own words in it.

use sheaf_bson::{ArrayWriter, Bump, DocBuf, DocWriter, Element, RawDoc, Type, Value};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Error};
use sheaf_expr::{Env, Expr, ParseCx, size_of_value};
use sheaf_geo::Stored;

use crate::matcher::Matcher;
use crate::path::Path;
use crate::room::{LARGEST, Room};
use crate::schema::Schema;

type Writer<'w> = DocWriter<'w, Vec<u8>>;

/// How many considered values are told.
const CONSIDERED_VALUES: usize = 10;

/// How deep `errInfo` may be, so that it has its place in a reply.
const DEEPEST: usize = 190;

/// `DocumentValidationFailure`, with `{failingDocumentId, details}` as its `errInfo`.
pub fn validation_error(validator: &Matcher, doc: RawDoc<'_>) -> Error {
    Error::new(Code::DOCUMENT_VALIDATION_FAILURE, "Document failed validation")
        .with_err_info(failure_info(validator, doc).into_bytes())
}

/// The whole explanation; a brief one if it is too large, or only that it is too large.
fn failure_info(validator: &Matcher, doc: RawDoc<'_>) -> DocBuf {
    let id = doc.get_or_missing("_id");
    for brief in [false, true] {
        let room = Room::new(brief);
        let details = details_within(validator, doc, &room);
        let info = DocBuf::build(|out| {
            out.append("failingDocumentId", id);
            if brief {
                out.append("truncated", true);
            }
            out.append("details", &details);
        });
        if room.lacks() || info.as_bytes().len() > LARGEST {
            continue;
        }
        if sheaf_bson::validate(info.as_bytes(), DEEPEST).is_err() {
            let reason = "generated error was too deeply nested";
            return DocBuf::build(|out| _ = out.append("reason", reason).append("truncated", true));
        }
        return info;
    }
    DocBuf::build(|out| {
        _ = out.append("failingDocumentId", id).append("note", "detailed error was too large")
    })
}

/// Why `doc` does not match `validator`: operators, what they were given, and what they looked at.
pub fn validation_error_details(validator: &Matcher, doc: RawDoc<'_>) -> DocBuf {
    details_within(validator, doc, &Room::new(false))
}

fn details_within(validator: &Matcher, doc: RawDoc<'_>, room: &Room) -> DocBuf {
    let side = Side { doc, collator: validator.collator(), room, inverted: false };
    DocBuf::build(|out| put_filter(validator.filter(), side, out))
}

/// The document, and which outcome is to be explained: that a clause failed, or (inverted, below `$not` and
/// `$nor`) that it did not.
#[derive(Clone, Copy)]
struct Side<'a> {
    doc: RawDoc<'a>,
    collator: Option<&'a SharedCollator>,
    room: &'a Room,
    inverted: bool,
}

impl Side<'_> {
    fn flip(self) -> Self {
        Side { inverted: !self.inverted, ..self }
    }

    /// Whether a clause had the outcome that is to be explained.
    fn concerns(self, clause: &Clause<'_>) -> bool {
        self.concerns_filter(&clause.as_filter())
    }

    /// [`Side::concerns`] for a part of a validator: the whole was parsed before, so its parts parse too. One that
    /// cannot be decided is to be explained either way.
    fn concerns_filter(self, filter: &DocBuf) -> bool {
        Matcher::parse(filter.as_raw(), &mut self.parse_cx())
            .and_then(|matcher| matcher.matches_doc(self.doc))
            .map_or(true, |holds| holds == self.inverted)
    }

    fn parse_cx(self) -> ParseCx {
        ParseCx::new().with_collator(self.collator.cloned())
    }
}

/// One condition of a filter.
enum Clause<'a> {
    /// `$and`, `$or`, `$nor`, `$expr`, `$jsonSchema`, ...
    TopLevel(Element<'a>),
    /// `path: value`
    Equality(Element<'a>),
    /// `path: {operator: operand}`; `$options` goes with its `$regex`.
    Operator { path: &'a str, operand: Element<'a>, options: Option<Element<'a>> },
}

fn clauses(filter: RawDoc<'_>) -> Vec<Clause<'_>> {
    let mut clauses = Vec::new();
    for element in filter.iter() {
        match element.value() {
            _ if element.key() == "$comment" => {}
            _ if element.key().starts_with('$') => clauses.push(Clause::TopLevel(element)),
            Value::Document(doc) if crate::matcher::is_operators(doc, false) => {
                clauses.extend(operators(element.key(), doc));
            }
            _ => clauses.push(Clause::Equality(element)),
        }
    }
    clauses
}

fn operators<'a>(path: &'a str, operators: RawDoc<'a>) -> impl Iterator<Item = Clause<'a>> {
    operators.iter().filter(|operand| operand.key() != "$options").map(move |operand| {
        let options = operators.element("$options").filter(|_| operand.key() == "$regex");
        Clause::Operator { path, operand, options }
    })
}

impl Clause<'_> {
    /// The clause as a filter of its own: `specifiedAs`.
    fn as_filter(&self) -> DocBuf {
        DocBuf::build(|doc| match self {
            Clause::TopLevel(element) | Clause::Equality(element) => _ = doc.append_element(*element),
            Clause::Operator { path, operand, options } => {
                let mut inside = doc.document(path);
                inside.append_element(*operand);
                options.iter().for_each(|options| _ = inside.append_element(*options));
            }
        })
    }

    fn operator(&self) -> &str {
        match self {
            Clause::TopLevel(element) => element.key(),
            Clause::Equality(element) if element.kind() == Type::Regex => "$regex",
            Clause::Equality(_) => "$eq",
            Clause::Operator { operand, .. } => operand.key(),
        }
    }

    /// `$all: []`, which nothing satisfies, whatever is there.
    fn is_empty_all(&self) -> bool {
        matches!(self, Clause::Operator { operand, .. } if matches!(operand.value(), Value::Array(all) if all.is_empty()))
    }

    fn path(&self) -> &str {
        match self {
            Clause::TopLevel(_) => "",
            Clause::Equality(element) => element.key(),
            Clause::Operator { path, .. } => path,
        }
    }
}

/// A filter: its clause if it has just one, otherwise an `$and` of them.
fn put_filter(filter: RawDoc<'_>, side: Side<'_>, out: &mut Writer<'_>) {
    match &clauses(filter)[..] {
        [clause] => put_clause(clause, side, out),
        clauses => {
            out.append("operatorName", "$and");
            put_clauses(clauses, side, out);
        }
    }
}

fn put_clauses(clauses: &[Clause<'_>], side: Side<'_>, out: &mut Writer<'_>) {
    let mut list = out.array(list_name(side));
    for (index, clause) in (0i32..).zip(clauses).filter(|(_, clause)| side.concerns(clause)) {
        let mut entry = list.document();
        entry.append("index", index);
        put_clause(clause, side, &mut entry.document("details"));
    }
}

fn list_name(side: Side<'_>) -> &'static str {
    if side.inverted { "clausesSatisfied" } else { "clausesNotSatisfied" }
}

fn put_clause(clause: &Clause<'_>, side: Side<'_>, out: &mut Writer<'_>) {
    match clause {
        Clause::TopLevel(element) => put_top_level(*element, side, out),
        Clause::Operator { path, operand, .. } if operand.key() == "$not" => {
            out.append("operatorName", "$not");
            put_not(path, *operand, side.flip(), &mut out.document("details"));
        }
        clause => put_test(clause, side, out),
    }
}

fn put_not(path: &str, operand: Element<'_>, side: Side<'_>, out: &mut Writer<'_>) {
    let inside = DocBuf::build(|doc| _ = doc.append_renamed(path, operand));
    put_filter(inside.as_raw(), side, out);
}

fn put_top_level(element: Element<'_>, side: Side<'_>, out: &mut Writer<'_>) {
    let (name, value) = (element.key(), element.value());
    match (name, value) {
        ("$and" | "$or" | "$nor", Value::Array(branches)) => {
            out.append("operatorName", name);
            let side = if name == "$nor" { side.flip() } else { side };
            put_branches(branches, side, &mut out.array(list_name(side)));
        }
        ("$jsonSchema", Value::Document(schema)) => match Schema::parse(schema) {
            Ok(schema) if !side.inverted => _ = out.append_all(schema.failure(side.doc, side.room).as_raw()),
            _ => _ = out.append("operatorName", name).append("reason", "schema matched"),
        },
        ("$expr", value) => {
            put_head(side, name, &DocBuf::build(|doc| _ = doc.append_element(element)), out);
            put_expr(value, side, out);
        }
        (name, _) => {
            put_head(side, name, &DocBuf::build(|doc| _ = doc.append_element(element)), out);
            out.append("reason", if side.inverted { ALWAYS_TRUE } else { ALWAYS_FALSE });
        }
    }
}

/// What an `$expr` gives, or why it gives nothing.
fn put_expr(value: Value<'_>, side: Side<'_>, out: &mut Writer<'_>) {
    let expr = Expr::parse(value, &mut side.parse_cx());
    let arena = Bump::new();
    let env = Env::new(&arena);
    match expr.as_ref().map_err(Error::clone).and_then(|expr| expr.eval(side.doc, &env)) {
        Ok(result) => {
            let reason = if side.inverted { "expression did match" } else { "expression did not match" };
            out.append("reason", reason);
            if side.room.has_value(result) {
                out.append("expressionResult", result);
            }
        }
        Err(error) => {
            out.append("reason", "failed to evaluate aggregation expression");
            let mut details = out.document("details");
            details.append("code", error.code().0).append("codeName", &*error.code().name());
            details.append("errmsg", error.message());
        }
    }
}

fn put_branches(branches: RawDoc<'_>, side: Side<'_>, list: &mut ArrayWriter<'_, Vec<u8>>) {
    for (index, branch) in (0i32..).zip(branches.values()) {
        let Value::Document(filter) = branch else { continue };
        if side.concerns_filter(&filter.into()) {
            let mut entry = list.document();
            entry.append("index", index);
            put_filter(filter, side, &mut entry.document("details"));
        }
    }
}

fn put_head(side: Side<'_>, operator: &str, specified: &DocBuf, out: &mut Writer<'_>) {
    out.append("operatorName", operator);
    if side.room.wants(specified.as_bytes().len()) {
        out.append("specifiedAs", specified);
    }
}

/// A test on what a path leads to.
fn put_test(clause: &Clause<'_>, side: Side<'_>, out: &mut Writer<'_>) {
    let operator = clause.operator();
    put_head(side, operator, &clause.as_filter(), out);
    // `$ne` and `$nin` are negations themselves.
    let inverted = side.inverted != matches!(operator, "$ne" | "$nin");
    let (failed, passed) = reasons(operator);
    let reason = if inverted { passed } else { failed };
    let considered = Considered::of(clause.path(), operator, side.doc);
    match operator {
        "$exists" => _ = out.append("reason", if considered.exists { passed } else { failed }),
        "$all" if clause.is_empty_all() => {
            out.append("reason", if inverted { ALWAYS_TRUE } else { ALWAYS_FALSE });
        }
        // Also where the test passed without a value, as `{$ne: null}` does not want it.
        _ if !considered.exists => _ = out.append("reason", "field was missing"),
        "$type" => {
            out.append("reason", reason);
            considered.put_values(side.room, out);
            considered.put_types(out);
        }
        _ => {
            if GEO.contains(&operator) && !considered.has_geometry(clause.path(), side.doc) {
                out.append("reason", "could not find a valid geometry at the given path");
            } else if considered.have_one_of(expected_types(operator)) {
                out.append("reason", reason);
            } else {
                out.append("reason", "type did not match");
                considered.put_types(out);
                put_expected(expected_types(operator), out);
            }
            considered.put_values(side.room, out);
        }
    }
}

const ALWAYS_TRUE: &str = "expression always evaluates to true";
const ALWAYS_FALSE: &str = "expression always evaluates to false";
const GEO: [&str; 3] = ["$geoWithin", "$within", "$geoIntersects"];

fn put_expected(types: &[Type], out: &mut Writer<'_>) {
    match types {
        [one] => _ = out.append("expectedType", one.name()),
        many => {
            let mut list = out.array("expectedTypes");
            many.iter().for_each(|kind| _ = list.push(kind.name()));
        }
    }
}

/// What an operator says when it fails, and when it passes where it should not.
fn reasons(operator: &str) -> (&'static str, &'static str) {
    match operator {
        "$exists" => ("path does not exist", "path does exist"),
        "$type" => ("type did not match", "type did match"),
        "$in" | "$nin" => ("no matching value found in array", "matching value found in array"),
        "$all" => ("array did not contain all specified values", "array did contain all specified values"),
        "$size" => ("array length was not equal to given size", "array length was equal to given size"),
        "$mod" => ("$mod did not evaluate to expected remainder", "$mod did evaluate to expected remainder"),
        "$regex" => ("regular expression did not match", "regular expression did match"),
        "$elemMatch" => {
            ("array did not satisfy the child predicate", "array did satisfy the child predicate")
        }
        "$bitsAllSet" | "$bitsAllClear" | "$bitsAnySet" | "$bitsAnyClear" => {
            ("bitwise operator failed to match", "bitwise operator matched successfully")
        }
        // The words and their apostrophes are mongod's.
        "$geoWithin" | "$within" => (
            "none of the considered geometries were contained within the expression\u{2019}s geometry",
            "at least one of considered geometries was contained within the expression\u{2019}s geometry",
        ),
        "$geoIntersects" => (
            "none of the considered geometries intersected the expression\u{2019}s geometry",
            "at least one of considered geometries intersected the expression\u{2019}s geometry",
        ),
        _ => ("comparison failed", "comparison succeeded"),
    }
}

/// The types that an operator can do anything with; none if all.
fn expected_types(operator: &str) -> &'static [Type] {
    match operator {
        "$mod" => &[Type::Decimal128, Type::Double, Type::Int32, Type::Int64],
        "$regex" => &[Type::Regex, Type::String, Type::Symbol],
        "$size" | "$elemMatch" => &[Type::Array],
        "$bitsAllSet" | "$bitsAllClear" | "$bitsAnySet" | "$bitsAnyClear" => {
            &[Type::Binary, Type::Decimal128, Type::Double, Type::Int32, Type::Int64]
        }
        _ => &[],
    }
}

/// The values that an operator looked at.
#[derive(Default)]
struct Considered<'a> {
    values: Vec<Value<'a>>,
    /// Whether there were more than are told.
    more: bool,
    /// Whether the path leads to anything; to an empty array, if there is no value.
    exists: bool,
}

impl<'a> Considered<'a> {
    fn of(path: &str, operator: &str, doc: RawDoc<'a>) -> Self {
        // Operators on whole arrays. The others look at the elements, and the array does not count as a value.
        let whole = matches!(operator, "$size" | "$elemMatch" | "$all" | "$exists");
        let mut considered = Considered::default();
        // Where the operation has to end meanwhile, the explanation of its failure is short.
        let _ = Path::new(path).any(doc, false, &mut |element: Option<Element<'a>>, _| {
            // mongod looks no further than a missing field.
            let Some(element) = element else { return Ok(true) };
            considered.exists = true;
            match element.value() {
                Value::Array(array) if !whole => {
                    for value in array.values() {
                        sheaf_meter::tick(1)?;
                        if considered.add(value) {
                            break;
                        }
                    }
                }
                value => _ = considered.add(value),
            }
            Ok(considered.more)
        });
        considered
    }

    /// True if there are enough.
    fn add(&mut self, value: Value<'a>) -> bool {
        self.more = self.values.len() == CONSIDERED_VALUES;
        if !self.more {
            self.values.push(value);
        }
        self.more
    }

    fn have_one_of(&self, types: &[Type]) -> bool {
        types.is_empty() || self.values.iter().any(|value| types.contains(&value.kind()))
    }

    /// Whether there is a geometry for a geo predicate: a value, or the whole field, which a legacy pair is.
    fn has_geometry(&self, path: &str, doc: RawDoc<'_>) -> bool {
        let is_geometry = |value| matches!(Stored::find(value), Ok(Some(_)));
        self.values.iter().any(|value| is_geometry(*value)) || doc.get(path).is_some_and(is_geometry)
    }

    fn put_values(&self, room: &Room, out: &mut Writer<'_>) {
        if !room.wants(self.values.iter().map(|value| size_of_value(*value)).sum()) {
            return;
        }
        match &self.values[..] {
            [value] => _ = out.append("consideredValue", *value),
            values => {
                let mut list = out.array("consideredValues");
                values.iter().for_each(|value| _ = list.push(*value));
            }
        }
        if self.more {
            out.append("consideredValuesTruncated", true);
        }
    }

    fn put_types(&self, out: &mut Writer<'_>) {
        let mut types: Vec<&str> = self.values.iter().map(|value| value.type_name()).collect();
        types.sort_unstable();
        types.dedup();
        match types[..] {
            [] => {}
            [one] => _ = out.append("consideredType", one),
            ref many => {
                let mut list = out.array("consideredTypes");
                many.iter().for_each(|name| _ = list.push(*name));
            }
        }
    }
}

#[cfg(test)]
mod tests;
