//! Arbitrary filters, updates, expressions, pipelines and so on: mostly well formed, and wrong in any place.

use sheaf_bson::{DocBuf, OwnedValue, Value};

use super::generate::{Choices, document};
use super::stages::{CURRENT_DATE, N_ARGUMENTS, PUSH, STAGES, UPDATE_STAGES};
use super::words;

/// What a field of a command, a stage or an operator holds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    /// Anything.
    Any,
    /// A number.
    Number,
    /// A boolean.
    Bool,
    /// 0 or 1.
    Bit,
    /// A string.
    Text,
    /// A path or a field name.
    Path,
    /// `$` and a path.
    FieldPath,
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// A collection's name.
    Collection,
    /// A document to store.
    Stored,
    /// Documents to store.
    StoredList,
    /// A filter.
    Filter,
    /// An update: operators, replacement or pipeline.
    Update,
    /// Filters for `$[name]`.
    ArrayFilters,
    /// An expression.
    Expr,
    /// Names with expressions.
    ExprFields,
    /// `_id` and accumulators.
    Group,
    /// Names with accumulators.
    Accumulators,
    /// A pipeline.
    Pipeline,
    /// A find projection or `$project`.
    Projection,
    /// A sort pattern.
    Sort,
    /// An index's key pattern.
    Keys,
    /// `$jsonSchema`.
    Schema,
    /// A collation.
    Collation,
    /// A document with these fields, each present or not.
    Fields(&'static [(&'static str, Kind)]),
    /// An array of such.
    List(&'static Kind),
    /// One or the other.
    Either(&'static Kind, &'static Kind),
}

impl Choices<'_> {
    /// A value of this kind; now and then of any other.
    pub fn of(&mut self, kind: Kind, depth: u32) -> OwnedValue {
        if !self.spend() || self.chance(8) {
            return self.any(depth);
        }
        if depth == 0 {
            return self.scalar();
        }
        match kind {
            Kind::Any => self.any(depth),
            Kind::Number => self.number(),
            Kind::Bool => Value::Bool(self.chance(160)).into(),
            Kind::Bit => Value::Int32(i32::from(self.chance(128))).into(),
            Kind::Text => self.text(),
            Kind::Path => Value::String(self.path()).into(),
            Kind::FieldPath => Value::String(&format!("${}", self.path())).into(),
            Kind::OneOf(texts) => Value::String(self.pick(texts)).into(),
            Kind::Collection => Value::String(self.collection()).into(),
            Kind::Stored => self.stored(depth),
            Kind::StoredList => self.list(|c| c.stored(depth)),
            Kind::Filter => document(&self.filter(depth)),
            Kind::Update => self.update(depth),
            Kind::ArrayFilters => self.list(|c| document(&c.array_filter(depth - 1))),
            Kind::Expr => self.expression(depth),
            Kind::ExprFields => document(&self.computed(depth)),
            Kind::Group => document(&self.group(depth)),
            Kind::Accumulators => document(&self.accumulators(depth)),
            Kind::Pipeline => self.pipeline(depth),
            Kind::Projection => document(&self.projection(depth)),
            Kind::Sort => document(&self.sort()),
            Kind::Keys => document(&self.keys()),
            Kind::Schema => document(&self.schema(depth)),
            Kind::Collation => document(&self.collation()),
            Kind::Fields(fields) => document(&self.fields_of(fields, depth)),
            Kind::List(item) => self.list(|c| c.of(*item, depth - 1)),
            Kind::Either(one, other) => {
                let kind = if self.chance(128) { *other } else { *one };
                self.of(kind, depth)
            }
        }
    }

    /// A collection's name.
    pub fn collection(&mut self) -> &'static str {
        if self.chance(10) {
            self.pick(words::COLLECTIONS)
        } else if self.chance(40) {
            self.pick(&words::COLLECTIONS[..4])
        } else {
            "c"
        }
    }

    /// Some of these fields, and now and then one that does not belong there.
    pub fn fields_of(&mut self, fields: &[(&str, Kind)], depth: u32) -> DocBuf {
        let mut doc = DocBuf::new();
        for (name, kind) in fields {
            // What nothing works without is nearly always there.
            let present = if words::NEEDED.contains(name) {
                !self.chance(8)
            } else {
                self.chance(seldom(fields.len()))
            };
            if present {
                doc.append(name, self.of(*kind, depth.saturating_sub(1)).as_value());
            }
        }
        if self.chance(6) {
            doc.append(self.pick(words::STRAY_FIELDS), self.any(1).as_value());
        }
        doc
    }

    /// A filter.
    pub fn filter(&mut self, depth: u32) -> DocBuf {
        let mut doc = DocBuf::new();
        for _ in 0..self.few() {
            if self.chance(60) {
                let usual = !self.chance(30);
                let name = self.pick(if usual { &words::QUERY_TOPS[..6] } else { words::QUERY_TOPS });
                let value = match name {
                    "$and" | "$or" | "$nor" => self.of(Kind::List(&Kind::Filter), depth.saturating_sub(1)),
                    "$expr" => self.of(Kind::Expr, depth.saturating_sub(1)),
                    "$jsonSchema" => self.of(Kind::Schema, depth.saturating_sub(1)),
                    "$text" => document(&DocBuf::new().with("$search", "a")),
                    _ => self.scalar(),
                };
                doc.append(name, value.as_value());
            } else {
                let name = self.path();
                let value = if self.chance(150) && depth > 0 {
                    document(&self.conditions(depth - 1))
                } else {
                    self.any(depth.min(2))
                };
                doc.append(name, value.as_value());
            }
        }
        doc
    }

    /// `{$gt: 5, $lt: 8}`.
    fn conditions(&mut self, depth: u32) -> DocBuf {
        let mut doc = DocBuf::new();
        for _ in 0..1 + self.few() / 2 {
            let usual = !self.chance(20);
            let name = self.pick(if usual { &words::QUERY_OPERATORS[..20] } else { words::QUERY_OPERATORS });
            let value = match name {
                "$in" | "$nin" | "$mod" => self.list(|c| c.any(1)),
                "$all" => self.list(|c| {
                    if c.chance(40) {
                        document(&DocBuf::new().with("$elemMatch", document(&c.filter(1)).as_value()))
                    } else {
                        c.scalar()
                    }
                }),
                "$exists" => self.scalar(),
                "$type" => self.of(Kind::Either(&Kind::Text, &Kind::Number), 1),
                "$regex" => self.text(),
                "$options" => Value::String(self.pick(&["i", "imsx", "u", "q", ""])).into(),
                "$size" | "$maxDistance" | "$minDistance" => self.number(),
                "$elemMatch" if depth > 0 => {
                    let operators = self.chance(128);
                    document(&if operators { self.conditions(depth - 1) } else { self.filter(depth - 1) })
                }
                "$not" if depth > 0 => document(&self.conditions(depth - 1)),
                name if name.starts_with("$bits") => {
                    if self.chance(100) {
                        self.list(|c| c.number())
                    } else {
                        self.scalar()
                    }
                }
                _ => self.any(depth.min(2)),
            };
            doc.append(name, value.as_value());
        }
        doc
    }

    /// An update of any of the three sorts.
    pub fn update(&mut self, depth: u32) -> OwnedValue {
        match self.below(8) {
            0 => self.stored(depth),
            1 => self.list(|c| {
                let (name, kind) = c.pick(UPDATE_STAGES);
                let argument = c.of(kind, depth.saturating_sub(1));
                document(&DocBuf::new().with(name, argument.as_value()))
            }),
            _ => {
                let mut doc = DocBuf::new();
                for _ in 0..1 + self.few() / 2 {
                    let name = self.pick(words::UPDATE_OPERATORS);
                    let argument =
                        if self.chance(6) { self.any(1) } else { document(&self.changes(name, depth)) };
                    doc.append(name, argument.as_value());
                }
                document(&doc)
            }
        }
    }

    /// The argument of an update operator.
    fn changes(&mut self, operator: &str, depth: u32) -> DocBuf {
        let mut doc = DocBuf::new();
        for _ in 0..1 + self.few() / 2 {
            let path = self.path();
            let value = match operator {
                "$inc" | "$mul" => self.number(),
                "$pop" => Value::Int32(if self.chance(128) { 1 } else { -1 }).into(),
                "$rename" => Value::String(self.path()).into(),
                "$push" if self.chance(160) => self.of(Kind::Fields(PUSH), depth),
                "$addToSet" if self.chance(128) => {
                    self.of(Kind::Fields(&[("$each", Kind::List(&Kind::Any))]), depth)
                }
                "$pull" if self.chance(160) => {
                    let operators = self.chance(128);
                    document(&if operators { self.conditions(1) } else { self.filter(2) })
                }
                "$pullAll" => self.list(|c| c.scalar()),
                "$currentDate" => self.of(Kind::Either(&Kind::Bool, &Kind::Fields(CURRENT_DATE)), 2),
                "$bit" => {
                    let name = self.pick(&["and", "or", "xor", "not"]);
                    document(&DocBuf::new().with(name, self.number().as_value()))
                }
                _ => self.any(depth.min(3)),
            };
            doc.append(path, value.as_value());
        }
        doc
    }

    /// A condition on `e`, which the paths `a.$[e]` name.
    fn array_filter(&mut self, depth: u32) -> DocBuf {
        let name = self.pick(&["e", "e.b", "f", "E", "$or"]);
        let value = match name {
            "$or" => self.list(|c| document(&c.array_filter(depth.saturating_sub(1)))),
            _ if self.chance(128) => document(&self.conditions(depth.min(2))),
            _ => self.scalar(),
        };
        DocBuf::new().with(name, value.as_value())
    }

    /// An expression.
    pub fn expression(&mut self, depth: u32) -> OwnedValue {
        if depth == 0 || !self.spend() {
            return self.operand();
        }
        match self.below(16) {
            0..=4 => self.operand(),
            5..=9 => {
                let operators = operators();
                let name = operators[self.below(operators.len())];
                let one = self.chance(64);
                let argument =
                    if one { self.expression(depth - 1) } else { self.list(|c| c.expression(depth - 1)) };
                document(&DocBuf::new().with(name, argument.as_value()))
            }
            10..=13 => {
                let (name, parameters) = self.pick(words::NAMED_OPERATORS);
                let mut argument = DocBuf::new();
                for parameter in parameters {
                    if self.chance(220) {
                        argument.append(parameter, self.parameter(parameter, depth - 1).as_value());
                    }
                }
                document(&DocBuf::new().with(name, &argument))
            }
            14 => self.list(|c| c.expression(depth - 1)),
            _ => document(&self.computed(depth - 1)),
        }
    }

    /// A path, a variable or a constant.
    fn operand(&mut self) -> OwnedValue {
        match self.below(4) {
            0 => self.scalar(),
            1 => Value::String(&format!("${}", self.path())).into(),
            2 => self.text(),
            _ => self.number(),
        }
    }

    /// A named parameter of an operator.
    fn parameter(&mut self, name: &str, depth: u32) -> OwnedValue {
        match name {
            "as" => Value::String(self.pick(&["x", "this", "", "X", "a b", "CURRENT"])).into(),
            "vars" => {
                let variable = self.pick(&["x", "y", "CURRENT", "", "ROOT"]);
                document(&DocBuf::new().with(variable, self.expression(depth).as_value()))
            }
            "branches" => self.list(|c| {
                let mut branch = DocBuf::new().with("case", c.expression(depth).as_value());
                branch.append("then", c.expression(depth).as_value());
                document(&branch)
            }),
            "inputs" | "defaults" | "p" => self.list(|c| c.expression(depth)),
            "unit" | "startOfWeek" => {
                let unit = self.pick(&[
                    "day",
                    "month",
                    "year",
                    "week",
                    "hour",
                    "millisecond",
                    "quarter",
                    "Sunday",
                    "fri",
                ]);
                Value::String(unit).into()
            }
            "sortBy" => {
                if self.chance(128) {
                    document(&self.sort())
                } else {
                    self.number()
                }
            }
            "n" | "limit" | "amount" | "binSize" | "year" | "month" | "day" | "hour" if self.chance(200) => {
                self.number()
            }
            "date" | "startDate" | "endDate" if self.chance(180) => {
                Value::DateTime(self.pick(words::INTEGERS)).into()
            }
            "regex" | "options" | "format" | "timezone" | "dateString" | "to" | "chars"
                if self.chance(200) =>
            {
                self.text()
            }
            "method" => Value::String("approximate").into(),
            "useLongestLength" | "iso8601" => Value::Bool(self.chance(128)).into(),
            _ => self.expression(depth),
        }
    }

    /// Names with expressions.
    fn computed(&mut self, depth: u32) -> DocBuf {
        let mut doc = DocBuf::new();
        for _ in 0..1 + self.few() / 2 {
            let name = self.path();
            doc.append(name, self.expression(depth).as_value());
        }
        doc
    }

    /// The argument of `$group`.
    fn group(&mut self, depth: u32) -> DocBuf {
        let mut doc = DocBuf::new().with("_id", self.expression(depth.saturating_sub(1)).as_value());
        doc.edit(|out| _ = out.append_all(self.accumulators(depth).as_raw()));
        doc
    }

    fn accumulators(&mut self, depth: u32) -> DocBuf {
        let mut doc = DocBuf::new();
        for _ in 0..self.few() {
            let name = self.pick(&["x", "y", "a", "a.b", "$x", ""]);
            let accumulators = sheaf_aggregate::ACCUMULATORS;
            let operator = accumulators[self.below(accumulators.len())].name;
            let argument =
                if operator.ends_with('N') || operator.starts_with("$top") || operator.starts_with("$bot") {
                    self.of(Kind::Fields(N_ARGUMENTS), depth)
                } else {
                    self.expression(depth.saturating_sub(1))
                };
            doc.append(name, &DocBuf::new().with(operator, argument.as_value()));
        }
        doc
    }

    /// A pipeline.
    pub fn pipeline(&mut self, depth: u32) -> OwnedValue {
        self.list(|c| document(&c.stage(depth.saturating_sub(1))))
    }

    /// One stage.
    pub fn stage(&mut self, depth: u32) -> DocBuf {
        let stages = sheaf_aggregate::STAGES;
        let name = stages[self.below(stages.len())].name;
        if self.chance(4) {
            return DocBuf::new().with("$nonsense", 1);
        }
        let kind = STAGES.iter().find(|(stage, _)| *stage == name).map_or(Kind::Any, |(_, kind)| *kind);
        DocBuf::new().with(name, self.of(kind, depth).as_value())
    }

    /// A find projection, `$project` or `$addFields`.
    pub fn projection(&mut self, depth: u32) -> DocBuf {
        let include = self.chance(160);
        let mut doc = DocBuf::new();
        for _ in 0..self.few() {
            let path = self.path();
            let value = match self.below(12) {
                0..=6 => Value::Int32(i32::from(include)).into(),
                7 => Value::Bool(self.chance(128)).into(),
                8 => {
                    let pair = self.chance(128);
                    let slice = if pair { self.list(|c| c.number()) } else { self.number() };
                    document(&DocBuf::new().with("$slice", slice.as_value()))
                }
                9 => document(&DocBuf::new().with("$elemMatch", &self.filter(2))),
                10 if depth > 0 => document(&self.projection(depth - 1)),
                _ => self.expression(depth.min(3)),
            };
            doc.append(path, value.as_value());
        }
        doc
    }

    /// A sort pattern.
    pub fn sort(&mut self) -> DocBuf {
        let mut doc = DocBuf::new();
        for _ in 0..self.few() {
            let path = self.pick(&["a", "b", "_id", "a.b", "$natural", "c", "", "a.0"]);
            let meta = self.chance(12);
            let value = match meta {
                true => document(&DocBuf::new().with("$meta", self.pick(&["textScore", "randVal", "x"]))),
                false if self.chance(20) => self.scalar(),
                false => Value::Int32(if self.chance(128) { 1 } else { -1 }).into(),
            };
            doc.append(path, value.as_value());
        }
        doc
    }

    /// An index's key pattern.
    pub fn keys(&mut self) -> DocBuf {
        let mut doc = DocBuf::new();
        for _ in 0..1 + self.few() / 2 {
            let path = self.pick(&["a", "b", "c", "a.b", "_id", "$**", "a.$**", "", "a..b", "$a"]);
            let value = match self.below(10) {
                0..=6 => Value::Int32(if self.chance(128) { -1 } else { 1 }).into(),
                7 => Value::String(self.pick(&["hashed", "text", "2d", "2dsphere", "x"])).into(),
                _ => self.number(),
            };
            doc.append(path, value.as_value());
        }
        doc
    }

    /// A JSON schema.
    pub fn schema(&mut self, depth: u32) -> DocBuf {
        let mut doc = DocBuf::new();
        for _ in 0..1 + self.few() {
            let name = self.pick(words::SCHEMA_KEYWORDS);
            let value = match name {
                "properties" | "patternProperties" | "dependencies" if depth > 0 => {
                    let path = self.path();
                    document(&DocBuf::new().with(path, &self.schema(depth - 1)))
                }
                "not" | "items" | "additionalProperties" | "additionalItems"
                    if depth > 0 && self.chance(180) =>
                {
                    document(&self.schema(depth - 1))
                }
                "allOf" | "anyOf" | "oneOf" if depth > 0 => self.list(|c| document(&c.schema(depth - 1))),
                "required" => self.list(|c| Value::String(c.path()).into()),
                "enum" => self.list(|c| c.any(1)),
                "type" | "bsonType" => {
                    let name = self.pick(&[
                        "object", "array", "string", "number", "int", "long", "double", "bool", "null",
                    ]);
                    if self.chance(60) { self.list(|c| c.text()) } else { Value::String(name).into() }
                }
                "pattern" => self.text(),
                "uniqueItems" | "exclusiveMinimum" | "exclusiveMaximum" => Value::Bool(true).into(),
                _ if self.chance(200) => self.number(),
                _ => self.any(1),
            };
            doc.append(name, value.as_value());
        }
        doc
    }

    fn collation(&mut self) -> DocBuf {
        let mut doc = DocBuf::new();
        if self.chance(220) {
            doc.append("locale", self.pick(&["simple", "en", "xx", ""]));
        }
        if self.chance(60) {
            doc.append("strength", self.number().as_value());
        }
        if self.chance(30) {
            doc.append("caseLevel", self.scalar().as_value());
        }
        doc
    }
}

/// The chance of an optional field where there are this many: one or two of them in all.
pub fn seldom(fields: usize) -> u8 {
    (400 / fields.max(4)) as u8
}

/// All operators of expressions.
fn operators() -> &'static [&'static str] {
    static NAMES: std::sync::OnceLock<Vec<&'static str>> = std::sync::OnceLock::new();
    NAMES.get_or_init(|| sheaf_expr::operator_names().collect())
}
