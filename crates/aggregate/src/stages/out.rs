//! `$out`.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};

use sheaf_expr::Deps;
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step};
use sheaf_timeseries::TimeseriesOptions;

use crate::database::{Database, OutWriter, SharedDatabase};
use crate::namespace::Namespace;
use crate::outline::Outline;
use crate::stage::{Needs, Reads, SharedStage, Split, Stage, StageCx, StageEntry};

/// `$out`.
pub(crate) const OUT: StageEntry =
    StageEntry::new("$out", parse, Split::Merger, Needs::Target(&["insert", "remove"]))
        .last()
        .looked_at(look);

/// A parsed `$out`.
#[derive(Debug)]
pub struct Out {
    /// The collection that is replaced.
    pub target: Namespace,
    /// What the collection is to be, if a time-series collection.
    pub timeseries: Option<TimeseriesOptions>,
}

/// What is written, and what it is to be.
///
/// Errors: 16990, `TypeMismatch`, 40413 to 40415, `InvalidNamespace`; those of the options of time series.
fn read(argument: Value<'_>, database: &str) -> Result<Out> {
    let mut timeseries = None;
    let target = match argument {
        Value::String(collection) => Namespace::new(database, collection),
        Value::Document(spec) => {
            let mut seen = Vec::new();
            for field in spec.iter() {
                if seen.contains(&field.key()) {
                    bail!(40413, "BSON field '$out.{}' is a duplicate field", field.key());
                }
                seen.push(field.key());
                match (field.key(), field.value()) {
                    ("db" | "coll", Value::String(_)) | ("timeseries", Value::Document(_)) => {}
                    // Null stands for no field at all.
                    ("db" | "coll" | "timeseries", Value::Null) => {}
                    (key @ ("db" | "coll"), other) => bail!(
                        Code::TYPE_MISMATCH,
                        "BSON field '$out.{key}' is the wrong type '{}', expected type 'string'",
                        other.type_name()
                    ),
                    ("timeseries", other) => bail!(
                        Code::TYPE_MISMATCH,
                        "BSON field '$out.timeseries' is the wrong type '{}', expected type 'object'",
                        other.type_name()
                    ),
                    (other, _) => bail!(40415, "BSON field '$out.{other}' is an unknown field."),
                }
            }
            let text = |key| match spec.get(key) {
                Some(Value::String(text)) => Ok(text),
                _ => bail!(40414, "BSON field '$out.{key}' is missing but a required field"),
            };
            if let Some(Value::Document(spec)) = spec.get("timeseries") {
                timeseries = Some(TimeseriesOptions::parse(spec, "$out.timeseries")?.resolve()?);
            }
            Namespace::new(text("db")?, text("coll")?)
        }
        other => {
            bail!(16990, "$out only supports a string or object argument, but found {}", other.type_name())
        }
    };
    if !target.is_valid() {
        bail!(Code::INVALID_NAMESPACE, "Invalid $out target namespace, {target}");
    }
    Ok(Out { target, timeseries })
}

fn look(argument: Value<'_>, cx: &Outline<'_>) -> Result<()> {
    read(argument, cx.database).map(drop)
}

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let out = read(argument, &cx.namespace.database)?;
    let target = &out.target;
    if target.collection.contains('$') {
        bail!(Code::ILLEGAL_OPERATION, "Cannot write to a collection with '$' in its name: {target}");
    }
    if target.to_string().len() > 255 {
        bail!(Code::ILLEGAL_OPERATION, "Fully qualified namespace is too long: {target}, max 255");
    }
    if target.collection.starts_with("system.") {
        bail!(17385, "Can't $out to special collection: {}", target.collection);
    }
    if matches!(target.database.as_str(), "admin" | "config" | "local") {
        bail!(31321, "Can't $out to internal database: {}", target.database);
    }
    Ok(vec![Arc::new(out)])
}

impl Stage for Out {
    fn name(&self) -> &'static str {
        "$out"
    }

    fn open(self: Arc<Self>, input: BoxOperator, database: &SharedDatabase) -> BoxOperator {
        Box::new(OutRun::new(self, input, database.clone()))
    }

    fn dependencies(&self, _deps: &mut Deps) -> Reads {
        Reads::All
    }

    fn target_namespace(&self) -> Option<&Namespace> {
        Some(&self.target)
    }

    fn shown(&self) -> Option<Vec<DocBuf>> {
        Some(vec![doc! { "$out": { "coll": &self.target.collection, "db": &self.target.database } }])
    }
}

/// Runs `$out`: takes in everything, gives nothing.
struct OutRun {
    stage: Arc<Out>,
    input: BoxOperator,
    database: SharedDatabase,
    /// Writes the new collection, from the first piece of work on; gone when that stands.
    writer: Option<Box<dyn OutWriter>>,
    done: bool,
}

impl OutRun {
    fn new(stage: Arc<Out>, input: BoxOperator, database: SharedDatabase) -> Self {
        OutRun { stage, input, database, writer: None, done: false }
    }
}

impl Operator for OutRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if self.done {
            return Ok(Step::Eof);
        }
        let Some(writer) = &mut self.writer else {
            let timeseries = self.stage.timeseries.as_ref();
            self.writer = Some(self.database.begin_out(&self.stage.target, timeseries, cx)?);
            return Ok(Step::More);
        };
        match self.input.work(cx)? {
            Step::Row => {
                let document = self.input.row().document();
                crate::check_valid(document)?;
                writer.write(with_id(document, &*self.database), cx)?;
            }
            Step::More => {}
            Step::Eof => {
                writer.finish(cx)?;
                self.writer = None;
                self.done = true;
                return Ok(Step::Eof);
            }
        }
        Ok(Step::More)
    }

    fn row(&self) -> Row<'_> {
        Row::default()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }
}

/// The document with `_id` first, a new one if it has none.
pub(crate) fn with_id(document: RawDoc<'_>, database: &dyn Database) -> DocBuf {
    if document.iter().next().is_some_and(|first| first.key() == "_id") {
        return DocBuf::from(document);
    }
    let id = document.get("_id").unwrap_or_else(|| Value::ObjectId(database.new_object_id()));
    DocBuf::build(|out| {
        out.append("_id", id);
        document
            .iter()
            .filter(|element| element.key() != "_id")
            .for_each(|element| _ = out.append_element(element));
    })
}
