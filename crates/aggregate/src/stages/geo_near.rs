//! `$geoNear`: documents in the order of their distances.
//!
//! The order is the business of whoever reads the collection (see [`GeoNear::filter`]); the stage writes what the metadata of
//! its rows say of distances into the documents. Only measurements of a time series it puts in order itself.

mod measured;

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, Element, MAX_DEPTH, RawDoc, Value, doc};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Deps, Expr, FieldPath, ParseCx, Slot};
use sheaf_query::matcher::{Features, Matcher};
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step};

use measured::Measured;

use crate::database::SharedDatabase;
use crate::rewrite::rewrite;
use crate::stage::{Halves, Needs, Reads, Shape, SharedStage, Split, Stage, StageCx, StageEntry};

/// `$geoNear`.
pub(crate) const GEO_NEAR: StageEntry =
    StageEntry::new("$geoNear", parse, Split::Both, Needs::Nothing).not_in_facet();

/// A parsed `$geoNear`.
#[derive(Debug)]
pub struct GeoNear {
    near: Expr,
    min: Option<Expr>,
    max: Option<Expr>,
    spherical: bool,
    multiplier: f64,
    distance_field: Option<FieldPath>,
    include_locs: Option<FieldPath>,
    key: Option<String>,
    query: DocBuf,
    /// How the query compares strings, and the variables that it may name.
    collator: Option<SharedCollator>,
    variables: Vec<(Box<str>, Slot)>,
    source: DocBuf,
}

/// A number that an option must be.
fn number(name: &str, value: Value<'_>) -> Result<f64> {
    match value.as_f64() {
        None => bail!(
            Code::TYPE_MISMATCH,
            "$geoNear parameter '{name}' must be a number, but got {}",
            value.type_name()
        ),
        Some(number) if number >= 0.0 => Ok(number),
        Some(_) => bail!(Code::BAD_VALUE, "$geoNear parameter '{name}' must be nonnegative"),
    }
}

fn path(code: i32, element: Element<'_>) -> Result<FieldPath> {
    match element.value() {
        Value::String(path) => FieldPath::parse(path),
        _ => bail!(Code(code), "$geoNear parameter '{}' must be a string", element.key()),
    }
}

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let (Value::Document(spec) | Value::Array(spec)) = argument else {
        bail!(10065, "invalid parameter: expected an object ($geoNear)");
    };
    if matches!(argument, Value::Array(_)) || spec.get("near").is_none() {
        bail!(5860400, "$geoNear requires a 'near' argument");
    }
    let mut stage = GeoNear {
        near: Expr::parse(spec.get_or_missing("near"), cx.expr)?,
        min: None,
        max: None,
        spherical: false,
        multiplier: 1.0,
        distance_field: None,
        include_locs: None,
        key: None,
        query: DocBuf::new(),
        collator: cx.expr.collator().cloned(),
        variables: cx.expr.slots().map(|(name, slot)| (name.into(), slot)).collect(),
        source: spec.into(),
    };
    for element in spec.iter() {
        option(&mut stage, element, cx)?;
    }
    Ok(vec![Arc::new(stage)])
}

fn option(stage: &mut GeoNear, element: Element<'_>, cx: &mut StageCx<'_>) -> Result<()> {
    let (name, value) = (element.key(), element.value());
    match name {
        "near" | "uniqueDocs" => {}
        "distanceField" => stage.distance_field = Some(path(16606, element)?),
        "includeLocs" => stage.include_locs = Some(path(16607, element)?),
        "spherical" => stage.spherical = value.truthy(),
        "distanceMultiplier" => stage.multiplier = number(name, value)?,
        "minDistance" => stage.min = Some(limit(name, value, cx)?),
        "maxDistance" => stage.max = Some(limit(name, value, cx)?),
        "query" => {
            let Value::Document(query) = value else {
                bail!(
                    Code::TYPE_MISMATCH,
                    "$geoNear parameter 'query' must be an object, but got {}",
                    value.type_name()
                );
            };
            Matcher::parse_with(query, Features::Pipeline, cx.expr)?;
            stage.query = query.into();
        }
        "key" => match value {
            Value::String("") => {
                bail!(Code::BAD_VALUE, "$geoNear parameter 'key' cannot be the empty string")
            }
            Value::String(key) if key.split('.').count() >= MAX_DEPTH => {
                bail!(5729100, "FieldPath is too long")
            }
            Value::String(key) => stage.key = Some(key.to_owned()),
            _ => bail!(
                Code::TYPE_MISMATCH,
                "$geoNear parameter 'key' must be of type string but found type: {}",
                value.type_name()
            ),
        },
        "limit" => {
            bail!(50858, "$geoNear no longer supports the 'limit' parameter. Use a $limit stage instead.")
        }
        "num" => bail!(50857, "$geoNear no longer supports the 'num' parameter. Use a $limit stage instead."),
        "start" => bail!(50856, "$geoNear no longer supports the 'start' argument."),
        _ => bail!(Code::BAD_VALUE, "Unknown argument to $geoNear: {name}"),
    }
    Ok(())
}

/// A limit of distances: an expression, of which a constant is checked at once.
fn limit(name: &str, value: Value<'_>, cx: &mut StageCx<'_>) -> Result<Expr> {
    if !matches!(value, Value::Document(_) | Value::Array(_) | Value::String(_)) {
        number(name, value)?;
    }
    Expr::parse(value, cx.expr)
}

/// The value of a limit.
fn bound(name: &str, limit: Option<&Expr>, cx: &Cx<'_>) -> Result<Option<f64>> {
    let arena = Bump::new();
    match limit {
        Some(limit) => number(name, limit.eval(RawDoc::EMPTY, &cx.env(&arena))?).map(Some),
        None => Ok(None),
    }
}

/// Refuses an argument that reads documents: there are none yet.
fn check_constant(argument: &Expr, code: i32, name: &str) -> Result<()> {
    let mut deps = Deps::new();
    argument.dependencies(&mut deps);
    if deps.whole_document || !deps.paths.is_empty() {
        bail!(Code(code), "$geoNear requires a constant {name} argument");
    }
    Ok(())
}

impl GeoNear {
    /// The path that is asked for; `None`: that of the collection's only geometric index.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// The filter whose documents, in the order that it asks for, the stage takes: what `query` says, and a condition on the path `key`
    /// that orders by distance.
    ///
    /// Errors: `TypeMismatch`, `BadValue` for limits; 5860401; those of the filter.
    pub fn filter(&self, key: &str, cx: &Cx<'_>) -> Result<Matcher> {
        let arena = Bump::new();
        let env = cx.env(&arena);
        check_constant(&self.near, 5860402, "near")?;
        let near = self.near.eval(RawDoc::EMPTY, &env)?;
        if !matches!(near, Value::Document(_) | Value::Array(_)) {
            bail!(5860401, "$geoNear requires near argument to be of type object or array");
        }
        if let Some(min) = &self.min {
            check_constant(min, 7555701, "minDistance")?;
        }
        if let Some(max) = &self.max {
            check_constant(max, 7555702, "maxDistance")?;
        }
        let min = bound("minDistance", self.min.as_ref(), cx)?;
        let max = bound("maxDistance", self.max.as_ref(), cx)?;
        let condition = DocBuf::build(|out| {
            let mut near_by = out.document(key);
            near_by.append(if self.spherical { "$nearSphere" } else { "$near" }, near);
            if let Some(min) = min {
                near_by.append("$minDistance", min);
            }
            if let Some(max) = max {
                near_by.append("$maxDistance", max);
            }
        });
        let filter = if self.query.as_raw().is_empty() {
            condition
        } else {
            doc! { "$and": [&self.query, &condition] }
        };
        let mut parse_cx = ParseCx::new().with_collator(self.collator.clone());
        for (name, slot) in &self.variables {
            parse_cx.declare_constant(name, env.get(*slot))?;
        }
        Matcher::parse(filter.as_raw(), &mut parse_cx)
    }
}

/// Where a shard puts distances that are not asked for, for merging by them.
const MERGE_FIELD: &str = "__geoNearDistance";

impl Stage for GeoNear {
    fn name(&self) -> &'static str {
        "$geoNear"
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(GeoNearRun {
            stage: self,
            input,
            doc: DocBuf::new(),
            metadata: DocBuf::new(),
            measured: None,
        })
    }

    fn dependencies(&self, _deps: &mut Deps) -> Reads {
        Reads::All
    }

    fn shape(&self) -> Shape<'_> {
        Shape::GeoNear(self)
    }

    fn halves(&self) -> Option<Halves> {
        let spec = self.source.as_raw();
        Some(match &self.distance_field {
            Some(field) => Halves {
                shards: vec![doc! { "$geoNear": spec }],
                order: Some(DocBuf::new().with(&field.dotted(), 1)),
                merger: Vec::new(),
                passes_rows: false,
            },
            None => Halves {
                shards: vec![doc! { "$geoNear": &self.source.clone().with("distanceField", MERGE_FIELD) }],
                order: Some(DocBuf::new().with(MERGE_FIELD, 1)),
                merger: vec![doc! { "$project": &DocBuf::new().with(MERGE_FIELD, 0) }],
                passes_rows: false,
            },
        })
    }
}

impl GeoNear {
    /// Checks what it may ask of measurements; `meta` is whether the path is in their meta value.
    ///
    /// Errors: 5892921, 5860207, 5860208.
    pub(crate) fn check_measured(&self, meta: Option<&str>) -> Result<()> {
        let Some(key) = &self.key else {
            bail!(5892921, "Must specify 'key' option for $geoNear on a time-series collection");
        };
        if sheaf_timeseries::meta_path(key, meta).is_some() {
            return Ok(());
        }
        if self.source.as_raw().element("query").is_some() {
            bail!(
                5860207,
                "Must not specify 'query' for $geoNear on a time-series collection; use $match instead"
            );
        }
        if self.include_locs.is_some() {
            bail!(5860208, "$geoNear 'includeLocs' is not supported on time-series metrics");
        }
        Ok(())
    }
}

/// Runs `$geoNear`.
struct GeoNearRun {
    stage: Arc<GeoNear>,
    input: BoxOperator,
    doc: DocBuf,
    /// Of a document that was measured here.
    metadata: DocBuf,
    /// Of rows that come without distances.
    measured: Option<Measured>,
}

impl GeoNearRun {
    /// A document with its distance, and with the geometry that is so far away.
    fn make(&self, document: RawDoc<'_>, distance: f64, geometry: Value<'_>) -> DocBuf {
        let distance = Value::Double(distance * self.stage.multiplier);
        let mut made = match &self.stage.distance_field {
            Some(path) => rewrite(document, path.parts(), distance),
            None => document.into(),
        };
        if let Some(path) = &self.stage.include_locs {
            made = rewrite(made.as_raw(), path.parts(), geometry);
        }
        made
    }

    /// Makes the next document of those that were measured.
    fn next_measured(&mut self) -> Result<Step> {
        let Some(measured) = &mut self.measured else { return Ok(Step::Eof) };
        if !measured.advance()? {
            return Ok(Step::Eof);
        }
        if let Some((document, distance, geometry)) =
            self.measured.as_ref().and_then(|measured| measured.found())
        {
            self.doc = self.make(document, distance, geometry);
            self.metadata = doc! { "geoNearDistance": distance, "geoNearPoint": geometry };
        }
        Ok(Step::Row)
    }
}

impl Operator for GeoNearRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if self.measured.is_some() {
            return self.next_measured();
        }
        let step = self.input.work(cx)?;
        if step != Step::Row {
            return Ok(step);
        }
        let metadata = self.input.metadata().unwrap_or(RawDoc::EMPTY);
        match metadata.get("geoNearDistance").and_then(|distance| distance.as_f64()) {
            Some(distance) => {
                let geometry = metadata.get_or_missing("geoNearPoint");
                self.doc = self.make(self.input.row().document(), distance, geometry);
                Ok(Step::Row)
            }
            None => {
                let stage = self.stage.clone();
                let Some(key) = &stage.key else {
                    bail!(40603, "$geoNear was not the first stage in the pipeline.");
                };
                self.measured = Some(Measured::begin(&stage.filter(key, cx)?, &mut self.input, cx)?);
                self.next_measured()
            }
        }
    }

    fn row(&self) -> Row<'_> {
        Row::of(self.doc.as_raw())
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        match self.measured {
            Some(_) => Some(self.metadata.as_raw()),
            None => self.input.metadata(),
        }
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn release(&mut self) {
        self.doc = DocBuf::new();
        self.metadata = DocBuf::new();
        match &mut self.measured {
            Some(measured) => measured.let_go(),
            None => self.input.release(),
        }
    }
}
