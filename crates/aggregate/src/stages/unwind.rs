//! `$unwind`.

use std::sync::Arc;

use sheaf_bson::{DocBuf, Iter, MAX_DEPTH, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Deps, FieldPath};
use sheaf_query::matcher::Matcher;

use crate::database::SharedDatabase;
use crate::filters::{self, SplitFilter};
use crate::rewrite::{Slot, rewrite};
use crate::stage::{Needs, Reads, Shape, SharedStage, Split, Stage, StageCx, StageEntry};
use sheaf_rows::{BoxOperator, Cx, Fields, Idle, Operator, Row, Step, let_go};

/// `$unwind`.
pub(crate) const UNWIND: StageEntry = StageEntry::new("$unwind", parse, Split::Shards, Needs::Nothing);

/// A parsed `$unwind`.
#[derive(Clone, Debug)]
pub struct Unwind {
    /// The array's path.
    pub path: FieldPath,
    /// Where the element's index goes.
    pub include_array_index: Option<FieldPath>,
    /// Whether documents without elements stay.
    pub preserve_null_and_empty: bool,
    /// The fields that later stages read, if those are not all: no others are copied for each element.
    pub(super) fields: Option<Arc<Fields>>,
}

pub(crate) fn parse(argument: Value<'_>, _cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let (mut path, mut index, mut preserve) = (None, None, false);
    match argument {
        Value::String(text) => path = Some(text),
        Value::Document(spec) => {
            for field in spec.iter() {
                match (field.key(), field.value()) {
                    ("path", Value::String(text)) => path = Some(text),
                    ("path", other) => bail!(
                        28808,
                        "expected a string as the path for $unwind stage, got {}",
                        other.type_name()
                    ),
                    ("preserveNullAndEmptyArrays", Value::Bool(on)) => preserve = on,
                    ("preserveNullAndEmptyArrays", other) => bail!(
                        28809,
                        "expected a boolean for the preserveNullAndEmptyArrays option to $unwind stage, got {}",
                        other.type_name()
                    ),
                    ("includeArrayIndex", Value::String("")) => {
                        bail!(
                            28810,
                            "expected a non-empty string for the includeArrayIndex  option to $unwind stage, got string"
                        )
                    }
                    ("includeArrayIndex", Value::String(text)) => index = Some(text),
                    ("includeArrayIndex", other) => bail!(
                        28810,
                        "expected a non-empty string for the includeArrayIndex  option to $unwind stage, got {}",
                        other.type_name()
                    ),
                    (other, _) => bail!(28811, "unrecognized option to $unwind stage: {other}"),
                }
            }
        }
        other => bail!(
            15981,
            "expected either a string or an object as specification for $unwind stage, got {}",
            other.type_name()
        ),
    }
    let Some(path) = path.filter(|path| !path.is_empty()) else {
        bail!(28812, "no path specified to $unwind stage");
    };
    let Some(path) = path.strip_prefix('$') else {
        bail!(28818, "path option to $unwind stage should be prefixed with a '$': {path}");
    };
    if path.contains('\0') {
        bail!(16419, "field path must not contain embedded null characters");
    }
    if let Some(index) = index.filter(|index| index.starts_with('$')) {
        bail!(28822, "includeArrayIndex option to $unwind stage should not be prefixed with a '$': {index}");
    }
    let path = FieldPath::parse(path)?;
    let include_array_index = index.map(FieldPath::parse).transpose()?;
    if let Some(index) = &include_array_index
        && collide(path.parts(), index.parts())
    {
        bail!(
            Code::FAILED_TO_PARSE,
            "The 'includeArrayIndex' and 'path' options to $unwind conflict: {}",
            index.dotted()
        );
    }
    Ok(vec![Arc::new(Unwind { path, include_array_index, preserve_null_and_empty: preserve, fields: None })])
}

/// Whether the index would be written above the path that is unwound.
fn collide(path: &[Box<str>], index: &[Box<str>]) -> bool {
    index.len() < path.len() && path.starts_with(index)
}

impl Stage for Unwind {
    fn name(&self) -> &'static str {
        "$unwind"
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(UnwindRun::new(self, input))
    }

    fn dependencies(&self, deps: &mut Deps) -> Reads {
        deps.paths.insert(self.path.dotted());
        Reads::AndPassesOn
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Unwind {
            path: &self.path,
            include_array_index: self.include_array_index.as_ref(),
            preserve_null_and_empty: self.preserve_null_and_empty,
        }
    }

    fn let_pass(&self, filter: &Arc<Matcher>) -> Option<SplitFilter> {
        let changed = [self.path.dotted()];
        // The index goes into a document, which an array on its path becomes.
        let index = self.include_array_index.as_ref().map(|index| index.dotted());
        filters::split_by(filter, |path| {
            let meets_index = index.as_ref().is_some_and(|index| filters::same_field(index, path));
            !meets_index && !filters::touches(&changed, path)
        })
    }

    fn can_give_less(&self) -> bool {
        self.fields.is_none()
    }

    fn giving_only(&self, deps: &Deps) -> Option<SharedStage> {
        // The array is read here, whoever reads its elements.
        let read = deps.paths.iter().cloned().chain([self.path.dotted()]);
        Some(Arc::new(Unwind { fields: Some(Arc::new(Fields::of_paths(read))), ..self.clone() }))
    }

    fn spec(&self) -> Option<DocBuf> {
        // As it was given, it stands in the pipeline.
        self.fields.as_ref()?;
        let plain = !self.preserve_null_and_empty && self.include_array_index.is_none();
        Some(if plain {
            doc! { "$unwind": format!("${}", self.path.dotted()).as_str() }
        } else {
            self.to_doc()
        })
    }

    fn shown(&self) -> Option<Vec<DocBuf>> {
        Some(vec![self.to_doc()])
    }
}

/// Runs `$unwind`.
struct UnwindRun {
    stage: Arc<Unwind>,
    input: BoxOperator,
    /// The document whose array is being unwound, and where its next element is.
    document: Vec<u8>,
    unwinding: Option<Place>,
    output: Output,
    /// What was made of the input's document.
    made: Vec<u8>,
    idle: Idle,
}

/// A place in the array of a document.
struct Place {
    /// Where the array stands in the document.
    array: Slot,
    /// Byte offset, within the document, of the next element.
    offset: usize,
    index: i64,
}

/// What the row is.
enum Output {
    /// The input's.
    Input,
    /// Made of it.
    Made,
}

impl UnwindRun {
    fn new(stage: Arc<Unwind>, input: BoxOperator) -> Self {
        UnwindRun {
            stage,
            input,
            document: Vec::new(),
            unwinding: None,
            output: Output::Input,
            made: Vec::new(),
            idle: Idle::default(),
        }
    }

    /// Makes the document with the array's next element, if there is one.
    fn next_element(&mut self) -> Option<()> {
        let place = self.unwinding.as_mut()?;
        // Walking on from a remembered place keeps this linear in the array's length.
        let rest = self.document.get(place.offset..place.array.end() - 1)?;
        let element = Iter::over(rest).next()?;
        place.offset += element.as_bytes().len();
        place.array.fill(&self.document, element, &mut self.made);
        if let Some(path) = &self.stage.include_array_index {
            let index = Value::Int64(place.index);
            self.made = rewrite(RawDoc::new(&self.made), path.parts(), index).into_bytes();
        }
        place.index += 1;
        self.output = Output::Made;
        Some(())
    }

    /// Begins with the input's row.
    fn begin(&mut self) -> Step {
        let stage = &self.stage;
        let document = self.input.row().document();
        match find(document, stage.path.parts()) {
            Value::Array(array) if !array.is_empty() => {
                match &stage.fields {
                    Some(fields) => _ = fields.of(document, &mut self.document),
                    None => {
                        self.document.clear();
                        self.document.extend_from_slice(document.as_bytes());
                    }
                }
                self.input.release();
                let array = Slot::find(&self.document, stage.path.parts());
                self.unwinding = array.map(|array| Place { offset: array.start() + 4, index: 0, array });
                return Step::More;
            }
            Value::Array(_) if stage.preserve_null_and_empty => {
                // An empty array leaves the field out.
                let without = rewrite(document, stage.path.parts(), Value::Missing);
                self.made = stage.with_index(without, Value::Null).into_bytes();
                self.output = Output::Made;
            }
            Value::Array(_) => return Step::More,
            value if value.is_nullish() && !stage.preserve_null_and_empty => return Step::More,
            // What is no array is treated as an array of one.
            _ => {
                self.output = match &stage.include_array_index {
                    None => Output::Input,
                    Some(path) => {
                        self.made = rewrite(document, path.parts(), Value::Null).into_bytes();
                        Output::Made
                    }
                }
            }
        }
        Step::Row
    }
}

impl Operator for UnwindRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        self.idle.resume()?;
        if self.unwinding.is_some() {
            if self.next_element().is_some() {
                return Ok(Step::Row);
            }
            self.unwinding = None;
        }
        let step = self.input.work(cx)?;
        if step == Step::Row {
            // A path may have one part more than can be looked up in a document.
            if self.stage.path.parts().len() >= MAX_DEPTH {
                bail!(5984700, "Field path exceeds path length limit");
            }
            return Ok(self.begin());
        }
        Ok(step)
    }

    fn row(&self) -> Row<'_> {
        match &self.output {
            Output::Input => self.input.row(),
            Output::Made => Row::of(RawDoc::new(&self.made)),
        }
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.input.metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn suspend(&mut self) {
        self.release();
        self.input.suspend();
        if self.unwinding.is_none() {
            let_go(&mut self.document);
        }
        self.idle.suspend(self.document.capacity());
    }

    fn release(&mut self) {
        match &mut self.output {
            Output::Input => self.input.release(),
            Output::Made => let_go(&mut self.made),
        }
    }
}

impl Unwind {
    /// The stage with all that it was given.
    fn to_doc(&self) -> DocBuf {
        DocBuf::build(|out| {
            let mut spec = out.document("$unwind");
            spec.append("path", &format!("${}", self.path.dotted()));
            if self.preserve_null_and_empty {
                spec.append("preserveNullAndEmptyArrays", true);
            }
            if let Some(index) = &self.include_array_index {
                spec.append("includeArrayIndex", &index.dotted());
            }
        })
    }

    /// The document with the index of its element, if that is asked for.
    pub(super) fn with_index(&self, document: DocBuf, index: Value<'_>) -> DocBuf {
        match &self.include_array_index {
            Some(path) => rewrite(document.as_raw(), path.parts(), index),
            None => document,
        }
    }
}

/// The value at a path that leads through documents only.
fn find<'a>(document: RawDoc<'a>, parts: &[Box<str>]) -> Value<'a> {
    let Some((last, above)) = parts.split_last() else { return Value::Missing };
    let mut at = document;
    for part in above {
        match at.get(part) {
            Some(Value::Document(inner)) => at = inner,
            _ => return Value::Missing,
        }
    }
    at.get_or_missing(last)
}
