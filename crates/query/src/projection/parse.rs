//! Parsing projections.

use sheaf_bson::{DocBuf, Element, RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_expr::{Expr, FieldPath, ParseCx, is_known_operator};
use sheaf_meter::Held;

use super::Projection;
use super::kind::{Kind, Mode};
use super::tree::{Field, Node, Slice, join};
use crate::matcher::{Features, MatchExpr, Matcher};

/// What has been seen so far.
struct Parser<'p> {
    cx: &'p mut ParseCx,
    mode: Mode,
    kind: Option<Kind>,
    root: Node,
    id: Option<bool>,
    positional: bool,
    elem_match: bool,
}

pub(super) fn parse(spec: RawDoc<'_>, mode: Mode, cx: &mut ParseCx) -> Result<Projection> {
    if mode == Mode::Aggregate && spec.is_empty() {
        bail!(51272, "projection specification must have at least one field");
    }
    let mut parser = Parser {
        cx,
        mode,
        kind: None,
        root: Node::default(),
        id: None,
        positional: false,
        elem_match: false,
    };
    for element in spec.iter() {
        parser.element("", element)?;
    }
    parser.finish()
}

impl Parser<'_> {
    fn finish(mut self) -> Result<Projection> {
        // Only `$slice`, `$meta`, `$elemMatch` and `_id` leave the kind open.
        let kind = self.kind.unwrap_or(match self.id {
            _ if self.elem_match => Kind::Inclusion,
            Some(true) => Kind::Inclusion,
            _ => Kind::Exclusion,
        });
        let at = self.root.find(b"_id");
        match (kind, self.id) {
            (Kind::Inclusion, None | Some(true)) if at.is_none() => {
                self.root.add_first("_id", Field::Keep);
            }
            (Kind::Exclusion, Some(false)) => _ = self.root.add("_id", Field::Drop)?,
            _ => {}
        }
        Ok(Projection { kind, root: self.root, positional: self.positional, held: Held::default() })
    }

    fn element(&mut self, parent: &str, element: Element<'_>) -> Result<()> {
        let (name, value) = (element.key(), element.value());
        let path = join(parent, name);
        // A bad name is told before what the field would break.
        if !is_positional(name) {
            // In a sub-document its own name is read first: an empty one is no end of a path.
            FieldPath::parse(name)?;
            FieldPath::parse(&path)?;
        }
        match value {
            Value::Document(spec) => self.object(parent, &path, name, spec),
            Value::Bool(_) | Value::Int32(_) | Value::Int64(_) | Value::Double(_) | Value::Decimal128(_) => {
                if value.truthy() {
                    self.include(&path)
                } else {
                    self.exclude(&path)
                }
            }
            value => {
                if is_positional(name) {
                    bail!(31308, "positional projection cannot be used with a literal");
                }
                self.compute(&path, value)
            }
        }
    }

    fn include(&mut self, path: &str) -> Result<()> {
        if path == "_id" {
            if self.root.find(b"_id").is_some() || self.id.is_some() {
                bail!(31250, "Path collision at _id");
            }
            self.id = Some(true);
            return Ok(());
        }
        let (path, field) = if is_positional(path) { self.positional(path)? } else { (path, Field::Keep) };
        if self.kind == Some(Kind::Exclusion) {
            bail!(31253, "Cannot do inclusion on field {path} in exclusion projection");
        }
        self.kind = Some(Kind::Inclusion);
        self.insert(path, field)
    }

    fn positional<'p>(&mut self, path: &'p str) -> Result<(&'p str, Field)> {
        if self.mode == Mode::Aggregate {
            bail!(31324, "Cannot use positional projection in aggregation projection");
        }
        let Some(prefix) = path.strip_suffix(".$").filter(|prefix| !prefix.contains(".$.")) else {
            bail!(
                31394,
                "As of 4.4, it's illegal to specify positional operator in the middle of a path.Positional \
                 projection may only be used at the end, for example: a.b.$. If the query previously used a form \
                 like a.b.$.d, remove the parts following the '$' and the results will be equivalent."
            );
        };
        if self.positional {
            bail!(31276, "Cannot specify more than one positional projection per query.");
        }
        if self.elem_match {
            bail!(31256, "Cannot specify positional operator and $elemMatch.");
        }
        self.positional = true;
        Ok((prefix, Field::Positional))
    }

    fn exclude(&mut self, path: &str) -> Result<()> {
        if is_positional(path) {
            bail!(31395, "positional projection cannot be used with exclusion");
        }
        if path == "_id" {
            if self.root.find(b"_id").is_some() || self.id.is_some() {
                bail!(31250, "Path collision at _id");
            }
            self.id = Some(false);
            return Ok(());
        }
        if self.kind == Some(Kind::Inclusion) {
            bail!(31254, "Cannot do exclusion on field {path} in inclusion projection");
        }
        self.kind = Some(Kind::Exclusion);
        self.insert(path, Field::Drop)
    }

    fn object(&mut self, parent: &str, path: &str, name: &str, spec: RawDoc<'_>) -> Result<()> {
        if is_positional(name) {
            bail!(31271, "positional projection cannot be used with an expression or sub object");
        }
        let Some(first) = spec.iter().next() else {
            bail!(51270, "An empty sub-projection is not a valid value. Found empty object at path {path}");
        };
        // With more than one field it is taken for a sub-projection, whose names may not start with `$`.
        if !first.key().starts_with('$') || spec.count() > 1 {
            return spec.iter().try_for_each(|element| self.element(path, element));
        }
        match (self.mode, first.key()) {
            (Mode::Find, "$slice") => self.slice(path, spec, first.value()),
            (Mode::Find, "$elemMatch") => self.elem_match(parent, path, first.value()),
            (mode, operator)
                if !is_known_operator(operator) && (mode, operator) != (Mode::Aggregate, "$elemMatch") =>
            {
                bail!(31325, "Unknown expression {operator}")
            }
            _ => self.compute(path, Value::Document(spec)),
        }
    }

    /// find's `$slice`, unless its argument only fits the expression of that name.
    fn slice(&mut self, path: &str, spec: RawDoc<'_>, argument: Value<'_>) -> Result<()> {
        let problem = match find_slice(argument) {
            Ok(slice) => match self.insert(path, Field::Slice(slice)) {
                Ok(()) => return Ok(()),
                Err(collision) => collision.message().to_owned(),
            },
            Err(problem) => problem.to_owned(),
        };
        self.compute(path, Value::Document(spec)).map_err(|error| {
            Error::location(
                28667,
                format!(
                    "Invalid $slice syntax. The given syntax {} did not match the find() syntax because :: {problem} \
                     :: The given syntax did not match the expression $slice syntax. :: caused by :: {}",
                    sheaf_bson::document_text(spec),
                    error.message()
                ),
            )
        })
    }

    fn elem_match(&mut self, parent: &str, path: &str, argument: Value<'_>) -> Result<()> {
        let Value::Document(condition) = argument else {
            bail!(31274, "elemMatch: Invalid argument, object required, but got {}", argument.type_name());
        };
        if self.positional {
            bail!(31255, "Cannot specify positional operator and $elemMatch.");
        }
        if !parent.is_empty() || path.contains('.') {
            bail!(31275, "Cannot use $elemMatch projection on a nested field.");
        }
        self.elem_match = true;
        let filter = DocBuf::build(|doc| {
            doc.document("x").append("$elemMatch", condition);
        });
        match Matcher::parse_with(filter.as_raw(), Features::None, self.cx)?.into_root() {
            MatchExpr::Leaf(leaf) => self.insert(path, Field::ElemMatch(leaf.test)),
            _ => bail!(Code::BAD_VALUE, "$elemMatch needs an Object"),
        }
    }

    fn compute(&mut self, path: &str, value: Value<'_>) -> Result<()> {
        // `$meta` goes with inclusion and exclusion.
        let meta = matches!(value, Value::Document(doc) if doc.element("$meta").is_some());
        if !meta {
            if self.kind == Some(Kind::Exclusion) {
                match value {
                    Value::Document(_) => {
                        bail!(31252, "Cannot use expression other than $meta in exclusion projection")
                    }
                    value => bail!(
                        31310,
                        "Cannot use an expression {} in an exclusion projection",
                        sheaf_bson::element_text(path, value)
                    ),
                }
            }
            self.kind = Some(Kind::Inclusion);
        }
        let expr = Expr::parse(value, self.cx)?;
        if path == "_id" && self.id.is_some() {
            bail!(31250, "Path collision at _id");
        }
        self.insert(path, Field::Computed(expr))
    }

    fn insert(&mut self, path: &str, field: Field) -> Result<()> {
        FieldPath::parse(path)?;
        if self.id.is_some() && path.starts_with("_id.") {
            bail!(31249, "Path collision at {path} remaining portion {}", &path[4..]);
        }
        self.root.insert(path, path, field)
    }
}

/// A path with `$` as one of its names after the first.
fn is_positional(path: &str) -> bool {
    path.ends_with(".$") || path.contains(".$.")
}

/// `$slice: n` or `$slice: [skip, limit]`.
fn find_slice(argument: Value<'_>) -> Result<Slice, &'static str> {
    match argument {
        Value::Array(array) => {
            let items: Vec<Value<'_>> = array.values().take(3).collect();
            match items[..] {
                [skip, limit] if skip.is_number() && limit.is_number() => match int32(limit) {
                    limit if limit <= 0 => Err("$slice limit must be positive"),
                    limit => Ok(Slice { skip: Some(int32(skip)), limit }),
                },
                _ => Err("$slice array argument should be of form [skip, limit]"),
            }
        }
        value if value.is_number() => Ok(Slice { skip: None, limit: int32(value) }),
        _ => Err("$slice only supports numbers and [skip, limit] arrays"),
    }
}

/// A number as an int32: fraction dropped, the nearest where it does not fit, NaN as 0.
fn int32(value: Value<'_>) -> i32 {
    match value {
        Value::Int32(n) => n,
        Value::Int64(n) => n.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32,
        value => value.as_f64().unwrap_or(0.0) as i32,
    }
}
