//! `$facet`: several pipelines over the same documents.

use std::sync::Arc;

use sheaf_bson::{DocBuf, Value};
use sheaf_errors::{Result, bail};
use sheaf_expr::{Deps, FieldPath};

use crate::pipeline::{Pipeline, SharedPipeline};
use crate::print;
use crate::source::{BoxSource, RunCx, Source};
use crate::stage::{Place, Reads, Stage, StageCx};

/// A parsed `$facet`.
#[derive(Debug)]
pub struct Facet {
    /// Output fields and their pipelines.
    pub facets: Vec<(String, SharedPipeline)>,
}

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<Stage>> {
    let spec = match argument {
        Value::Document(spec) if !spec.is_empty() => spec,
        _ => bail!(
            40169,
            "the $facet specification must be a non-empty object, but found: $facet: {}",
            print::value(argument)
        ),
    };
    let mut facets = Vec::new();
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
        for stage in stages.values() {
            if stage.as_doc().is_none_or(|stage| stage.is_empty()) {
                bail!(
                    40171,
                    "elements of arrays in $facet spec must be non-empty objects, {name} argument contained an element \
                     of type {}: {}",
                    stage.type_name(),
                    print::value(stage)
                );
            }
        }
        let namespace = cx.namespace.clone();
        let pipeline = Pipeline::parse_at(stages, &mut cx.nested(&namespace, Place::Facet)?)?;
        facets.push((name.to_owned(), Arc::new(pipeline)));
    }
    Ok(vec![Stage::Facet(Arc::new(Facet { facets }))])
}

impl Facet {
    /// Notes what all the pipelines read.
    pub fn dependencies(&self, deps: &mut Deps) -> Reads {
        for (_, pipeline) in &self.facets {
            match pipeline.dependencies_from(0) {
                Some(read) => deps.paths.extend(read.paths),
                None => return Reads::All,
            }
        }
        Reads::Only
    }
}

/// Runs `$facet`.
pub struct FacetRun {
    stage: Arc<Facet>,
    input: Option<BoxSource>,
}

/// The documents that all facets read, kept once.
struct Shared {
    documents: Arc<Vec<DocBuf>>,
    at: usize,
}

impl Source for Shared {
    fn next(&mut self, _cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        let document = self.documents.get(self.at).cloned();
        self.at += 1;
        Ok(document)
    }
}

impl FacetRun {
    pub(crate) fn new(stage: Arc<Facet>, input: BoxSource) -> Self {
        FacetRun { stage, input: Some(input) }
    }
}

impl Source for FacetRun {
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        let Some(mut input) = self.input.take() else { return Ok(None) };
        let mut documents = Vec::new();
        let mut held = 0;
        while let Some(document) = input.next(cx)? {
            held += document.as_bytes().len();
            documents.push(document);
            cx.check_memory(held, |limit| {
                format!("Exceeded memory limit of {limit} bytes for $facet, but didn't allow external sort.")
            })?;
            cx.check_interrupt()?;
        }
        let documents = Arc::new(documents);
        let mut output = DocBuf::new();
        for (name, pipeline) in &self.stage.facets {
            let mut facet = pipeline.open(Box::new(Shared { documents: documents.clone(), at: 0 }));
            let mut found = Vec::new();
            let mut bytes = 0;
            while let Some(document) = facet.next(cx)? {
                bytes += document.as_bytes().len();
                if bytes > crate::MAX_INTERNAL_SIZE {
                    bail!(
                        4031700,
                        "document constructed by $facet is {bytes} bytes, which exceeds the limit of {} bytes",
                        crate::MAX_INTERNAL_SIZE
                    );
                }
                found.push(document);
            }
            output.edit(|out| {
                let mut array = out.array(name);
                found.iter().for_each(|document| _ = array.push_raw_document(document.as_bytes()));
            });
        }
        crate::check_size(&output)?;
        Ok(Some(output))
    }
}
