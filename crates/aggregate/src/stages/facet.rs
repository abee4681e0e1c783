//! `$facet`: several pipelines over the same documents.

use std::sync::Arc;

use sheaf_bson::{ArrayWriter, DocBuf, Element, RawDoc, Value, doc};
use sheaf_errors::{Result, bail};
use sheaf_expr::{Deps, FieldPath};
use sheaf_meter::ALLOCATION;

use crate::parse;
use crate::pipeline::{Pipeline, SharedPipeline};
use crate::print;
use sheaf_rows::{BoxOperator, Cx, Figures, Operator, Row, Seen, Step, Witness, pull};

use crate::database::SharedDatabase;
use crate::namespace::Namespace;
use crate::outline::Outline;
use crate::spool::{Reading, Spool};
use crate::stage::{Needs, Place, Reads, Shape, SharedStage, Split, Stage, StageCx, StageEntry};

/// `$facet`.
pub(crate) const FACET: StageEntry =
    StageEntry::new("$facet", parse, Split::Merger, Needs::Foreign).not_in_facet().looked_at(look);

/// A parsed `$facet`.
#[derive(Debug)]
pub struct Facet {
    /// Output fields and their pipelines.
    pub facets: Vec<(String, SharedPipeline)>,
}

/// What a facet takes besides its pipeline and the letters of its name.
const FACET_BYTES: usize = 2 * size_of::<(String, SharedPipeline)>() + 2 * ALLOCATION;

/// Visits the facets' names and pipelines.
///
/// Errors: 40169 to 40171, 15998, 16412; those of names, and of the visitor.
fn each<'a>(argument: Value<'a>, mut visit: impl FnMut(&'a str, RawDoc<'a>) -> Result<()>) -> Result<()> {
    let spec = match argument {
        Value::Document(spec) if !spec.is_empty() => spec,
        _ => bail!(
            40169,
            "the $facet specification must be a non-empty object, but found: $facet: {}",
            print::value(argument)
        ),
    };
    for field in spec.iter() {
        let name = field.key();
        if name.is_empty() {
            bail!(15998, "FieldPath field names may not be empty strings.");
        }
        FieldPath::parse(name)?;
        if name.contains('.') {
            bail!(16412, "FieldPath field names may not contain '.'. Consider using $getField or $setField.");
        }
        let Value::Array(stages) = field.value() else {
            bail!(
                40170,
                "arguments to $facet must be arrays, {name} is of type {}",
                field.value().type_name()
            );
        };
        if let Some(stage) = stages.values().find(|stage| !matches!(stage, Value::Document(_))) {
            bail!(
                40171,
                "elements of arrays in $facet spec must be non-empty objects, {name} argument contained an element \
                 of type {}: {}",
                stage.type_name(),
                print::value(stage)
            );
        }
        visit(name, stages)?;
    }
    Ok(())
}

fn look(argument: Value<'_>, cx: &Outline<'_>) -> Result<()> {
    each(argument, |_, _| Ok(()))?;
    each(argument, |_, stages| cx.nested(stages))
}

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let mut parsed = Vec::new();
    let namespace = cx.namespace.clone();
    each(argument, |name, stages| {
        sheaf_meter::grow(FACET_BYTES + name.len())?;
        let pipeline = parse::pipeline(stages, &mut cx.nested(&namespace, Place::Facet)?)?;
        parsed.push((name.to_owned(), Arc::new(pipeline)));
        Ok(())
    })?;
    Ok(vec![Arc::new(Facet { facets: parsed })])
}

impl Facet {
    fn reads_metadata(&self) -> bool {
        self.facets.iter().any(|(_, pipeline)| pipeline.asks_metadata)
    }
}

impl Stage for Facet {
    fn name(&self) -> &'static str {
        "$facet"
    }

    fn open(self: Arc<Self>, input: BoxOperator, database: &SharedDatabase) -> BoxOperator {
        Box::new(FacetRun::new(self, input, database.clone()))
    }

    fn dependencies(&self, deps: &mut Deps) -> Reads {
        let mut reads = Reads::Only;
        for (_, pipeline) in &self.facets {
            deps.metadata.extend(pipeline.metadata());
            match pipeline.dependencies_from(0) {
                Some(read) => deps.paths.extend(read.paths),
                None => reads = Reads::All,
            }
        }
        reads
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Facet(&self.facets)
    }

    fn foreign_namespaces(&self, found: &mut Vec<Namespace>) {
        self.facets.iter().for_each(|(_, pipeline)| pipeline.foreign_namespaces(found));
    }

    fn is_repeatable(&self) -> bool {
        false
    }
}

/// Runs `$facet`.
struct FacetRun {
    stage: Arc<Facet>,
    /// The documents; taken by the only facet if there is just one.
    input: Option<BoxOperator>,
    database: SharedDatabase,
    output: Option<DocBuf>,
    figures: Figures,
}

impl FacetRun {
    fn new(stage: Arc<Facet>, input: BoxOperator, database: SharedDatabase) -> Self {
        FacetRun { stage, input: Some(input), database, output: None, figures: Figures::default() }
    }

    fn run(&mut self, mut input: BoxOperator, cx: &mut Cx<'_>) -> Result<DocBuf> {
        let (stage, mut output) = (self.stage.clone(), DocBuf::new());
        if let [(name, pipeline)] = &*stage.facets {
            // Nobody else needs the documents.
            self.run_one(name, pipeline, input, &mut output, cx)?;
            return Ok(output);
        }
        let mut spool = gather(&stage, &mut input, cx)?;
        for (name, pipeline) in &stage.facets {
            let kept = Kept { spool: spool.read()?, has_metadata: stage.reads_metadata() };
            self.run_one(name, pipeline, Box::new(kept), &mut output, cx)?;
        }
        Ok(output)
    }

    fn run_one(
        &mut self,
        name: &str,
        pipeline: &Pipeline,
        input: BoxOperator,
        output: &mut DocBuf,
        cx: &mut Cx<'_>,
    ) -> Result<()> {
        if !cx.measures {
            return run_facet(pipeline.open(input, &self.database), name, output, cx);
        }
        let input = Witness::measured(input);
        let mut seen = vec![input.seen()];
        let (facet, stages) = pipeline.open_measured(0, Box::new(input), &self.database);
        seen.extend(stages);
        run_facet(facet, name, output, cx)?;
        self.figures.parts.push(seen.iter().map(Seen::own).collect());
        Ok(())
    }
}

/// Keeps what the facets read of the documents, for all of them.
fn gather(stage: &Facet, input: &mut BoxOperator, cx: &mut Cx<'_>) -> Result<Spool> {
    let mut deps = Deps::new();
    let read = stage.dependencies(&mut deps);
    let fields: Option<Vec<String>> = (read == Reads::Only && !deps.whole_document).then(|| {
        let first = |path: &String| path.split('.').next().unwrap_or("").to_owned();
        deps.paths.iter().map(first).collect()
    });
    let has_metadata = stage.reads_metadata();
    let mut spool = Spool::new(cx)?;
    while pull(input, cx)? {
        let document = input.row().document();
        let kept = match &fields {
            None => DocBuf::from(document),
            Some(fields) => DocBuf::build(|out| {
                let wanted = |element: &Element<'_>| {
                    fields.iter().any(|field| field.as_bytes() == element.key_bytes())
                };
                document.iter().filter(wanted).for_each(|element| _ = out.append_element(element));
            }),
        };
        let kept = if has_metadata {
            let metadata = input.metadata().unwrap_or(RawDoc::EMPTY);
            doc! { "document": &kept, "metadata": metadata }
        } else {
            kept
        };
        spool.add(kept, cx)?;
        cx.check_interrupt()?;
    }
    Ok(spool)
}

/// The documents that were kept for all facets, those with metadata as two.
struct Kept {
    spool: Reading,
    has_metadata: bool,
}

impl Kept {
    fn part(&self, name: &str) -> Option<RawDoc<'_>> {
        self.spool.row().doc?.get(name)?.as_doc()
    }
}

impl Operator for Kept {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        self.spool.work(cx)
    }

    fn row(&self) -> Row<'_> {
        match self.has_metadata {
            true => self.part("document").map_or(Row::default(), Row::of),
            false => self.spool.row(),
        }
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.part("metadata").filter(|_| self.has_metadata)
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}
}

/// Pulls a facet to its end and writes what came as the output's field.
fn run_facet(mut facet: BoxOperator, name: &str, output: &mut DocBuf, cx: &mut Cx<'_>) -> Result<()> {
    let mut held = sheaf_meter::reserve(0)?;
    let mut array = Vec::new();
    {
        let mut out = ArrayWriter::new(&mut array);
        while pull(&mut facet, cx)? {
            let document = facet.row().document();
            held.grow(document.len() as u64)?;
            out.push_raw_document(document.as_bytes());
            let bytes = out.size();
            if bytes > crate::MAX_INTERNAL_SIZE {
                bail!(
                    4031700,
                    "document constructed by $facet is {bytes} bytes, which exceeds the limit of {} bytes",
                    crate::MAX_INTERNAL_SIZE
                );
            }
            cx.check_interrupt()?;
        }
    }
    output.append(name, Value::Array(RawDoc::new(&array)));
    crate::check_made(output.as_raw())
}

impl Operator for FacetRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let Some(input) = self.input.take() else { return Ok(Step::Eof) };
        self.output = Some(self.run(input, cx)?);
        Ok(Step::Row)
    }

    fn row(&self) -> Row<'_> {
        self.output.as_ref().map_or(Row::default(), |output| Row::of(output.as_raw()))
    }

    fn release(&mut self) {
        self.output = None;
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        if let Some(input) = &mut self.input {
            visit(input);
        }
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}
