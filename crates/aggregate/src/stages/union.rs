//! `$unionWith`.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Type, Value, doc};
use sheaf_errors::{Code, Result, bail};

use crate::database::SharedDatabase;
use crate::idl::Fields;
use crate::namespace::Namespace;
use crate::outline::{self, Outline};
use crate::parse;
use crate::pipeline::SharedPipeline;
use crate::stage::{Needs, Place, Reads, Shape, SharedStage, Split, Stage, StageCx, StageEntry};
use sheaf_expr::Deps;
use sheaf_query::projection::Kind;
use sheaf_rows::{BoxOperator, Cx, Figures, Operator, Row, Step};

/// `$unionWith`.
pub(crate) const UNION_WITH: StageEntry =
    StageEntry::new("$unionWith", parse, Split::Merger, Needs::Foreign).looked_at(look);

/// A parsed `$unionWith`.
#[derive(Debug)]
pub struct Union {
    /// The other collection; `None` if the pipeline makes its documents itself.
    pub from: Option<Namespace>,
    /// What runs there.
    pub pipeline: SharedPipeline,
}

/// Where the documents come from, and what runs there.
struct Spec<'a> {
    collection: Option<&'a str>,
    stages: RawDoc<'a>,
}

impl<'a> Spec<'a> {
    /// Errors: `FailedToParse`, `TypeMismatch`, 40415.
    fn read(argument: Value<'a>) -> Result<Spec<'a>> {
        let spec = match argument {
            Value::String(name) => return Ok(Spec { collection: Some(name), stages: RawDoc::EMPTY }),
            Value::Document(spec) => spec,
            other => bail!(
                Code::FAILED_TO_PARSE,
                "the $unionWith stage specification must be an object or string, but found {}",
                other.type_name()
            ),
        };
        let fields = Fields::new("$unionWith", spec, &["coll", "pipeline"])?;
        let collection = fields.optional("coll", &[Type::String])?.and_then(|name| name.as_str());
        let stages = spec.get("pipeline").map(outline::stages).transpose()?.unwrap_or(RawDoc::EMPTY);
        if collection.is_none() && !outline::makes_documents(stages) {
            bail!(
                Code::FAILED_TO_PARSE,
                "$unionWith stage without explicit collection must have a pipeline with $documents as first stage"
            );
        }
        Ok(Spec { collection, stages })
    }
}

fn look(argument: Value<'_>, cx: &Outline<'_>) -> Result<()> {
    cx.nested(Spec::read(argument)?.stages)
}

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Spec { collection, stages } = Spec::read(argument)?;
    let own = Namespace::new(cx.namespace.database.clone(), collection.unwrap_or_default());
    let own = if collection.is_some() { own.readable_by("$unionWith")? } else { own };
    let pipeline = parse::pipeline(stages, &mut cx.nested(&own, Place::Union)?)?;
    let from = collection.is_some().then_some(own);
    Ok(vec![Arc::new(Union { from, pipeline: Arc::new(pipeline) })])
}

impl Stage for Union {
    fn name(&self) -> &'static str {
        "$unionWith"
    }

    fn open(self: Arc<Self>, input: BoxOperator, database: &SharedDatabase) -> BoxOperator {
        Box::new(UnionRun::new(self, input, database.clone()))
    }

    fn dependencies(&self, _deps: &mut Deps) -> Reads {
        Reads::All
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Union { from: self.from.as_ref(), pipeline: &self.pipeline }
    }

    /// What only looks at each document by itself does so on either side.
    fn with_next_inside(&self, next: &SharedStage) -> Option<SharedStage> {
        let spec = match next.shape() {
            Shape::Match(filter) if !filter.has_expr() => doc! { "$match": filter.filter() },
            Shape::Project(projection)
                if !projection.is_computed() && projection.kind() != Kind::Addition =>
            {
                doc! { "$project": &projection.to_doc() }
            }
            _ => return None,
        };
        let mut pipeline = self.pipeline.with_last(next.clone(), spec);
        crate::optimize::optimize(&mut pipeline.stages);
        Some(Arc::new(Union { from: self.from.clone(), pipeline: Arc::new(pipeline) }))
    }

    fn spec(&self) -> Option<DocBuf> {
        Some(DocBuf::build(|out| {
            let mut spec = out.document("$unionWith");
            if let Some(from) = &self.from {
                spec.append("coll", from.collection.as_str());
            }
            spec.append("pipeline", &self.pipeline.spec());
        }))
    }

    fn foreign_namespaces(&self, found: &mut Vec<Namespace>) {
        found.extend(self.from.clone());
        self.pipeline.foreign_namespaces(found);
    }

    fn is_repeatable(&self) -> bool {
        false
    }
}

/// Runs `$unionWith`.
struct UnionRun {
    stage: Arc<Union>,
    database: SharedDatabase,
    input: BoxOperator,
    /// What gives the other documents, once the input's are given.
    other: Option<BoxOperator>,
    figures: Figures,
}

impl UnionRun {
    fn new(stage: Arc<Union>, input: BoxOperator, database: SharedDatabase) -> Self {
        UnionRun { stage, database, input, other: None, figures: Figures::default() }
    }

    fn open_other(&self, cx: &mut Cx<'_>) -> Result<BoxOperator> {
        let pipeline = &self.stage.pipeline;
        match &self.stage.from {
            Some(namespace) if !pipeline.has_own_source() => self.database.run(namespace, pipeline, cx),
            _ => Ok(pipeline.open_own(&self.database)),
        }
    }
}

impl Operator for UnionRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if let Some(other) = &mut self.other {
            return other.work(cx);
        }
        let step = self.input.work(cx)?;
        if step != Step::Eof {
            return Ok(step);
        }
        self.other = Some(self.open_other(cx)?);
        if cx.measures {
            // That it was started is all that explain wants to know: it runs the pipeline by itself.
            self.figures.parts.push(Vec::new());
        }
        Ok(Step::More)
    }

    fn row(&self) -> Row<'_> {
        self.other.as_ref().unwrap_or(&self.input).row()
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.other.as_ref().unwrap_or(&self.input).metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
        if let Some(other) = &mut self.other {
            visit(other);
        }
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}
