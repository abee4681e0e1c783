//! `$setWindowFields`: fields that are made of a window of documents around each document.
//!
//! The stage is short for a sort by partition and `sortBy` and `$_internalSetWindowFields` over what is sorted; a partition
//! that is no field is set as one before, and taken away behind.

mod arguments;
mod bounds;
mod function;
mod rank;
mod removable;
mod run;
mod running;
mod start;
mod waiting;

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, RawDoc, Type, Value, doc};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Deps, Expr, FieldPath, Slot, View};
use sheaf_query::projection::Projection;
use sheaf_query::sort::{SortOn, SortPattern};
use sheaf_rows::BoxOperator;

use super::project;
use super::sort::Sort;
use crate::database::SharedDatabase;
use crate::idl::Fields;
use crate::stage::{Needs, Reads, SharedStage, Split, Stage, StageCx, StageEntry};

pub(crate) use bounds::parse_unit;
pub use function::names as window_functions;
use function::{Function, FunctionCx, Kind};
use run::WindowRun;
pub(crate) use waiting::Waiting;

/// `$setWindowFields`.
pub(crate) const SET_WINDOW_FIELDS: StageEntry =
    StageEntry::new("$setWindowFields", parse, Split::Merger, Needs::Nothing);
/// `$_internalSetWindowFields`: the same over documents that are sorted already.
pub(crate) const INTERNAL_SET_WINDOW_FIELDS: StageEntry =
    StageEntry::new(NAME, parse_internal, Split::Merger, Needs::Nothing);

const NAME: &str = "$_internalSetWindowFields";

/// The field that a partition is set as which is none itself.
const PARTITION: &str = "__internal_setWindowFields_partition_key";

/// A parsed `$_internalSetWindowFields`.
#[derive(Debug)]
pub struct SetWindowFields {
    partition_by: Option<Expr>,
    sort_by: Option<SortPattern>,
    collator: Option<SharedCollator>,
    /// The field that is sorted by, if it is one alone.
    sort_path: Option<FieldPath>,
    outputs: Vec<Output>,
    /// Sets the output fields from the functions' variables; `None` if there are none.
    projection: Option<Projection>,
    /// `{partitionBy: .., sortBy: .., output: ..}`.
    spec: DocBuf,
}

/// An output field.
#[derive(Debug)]
struct Output {
    field: String,
    /// The variable that has the function's result.
    slot: Slot,
    function: Function,
}

/// The parts of a stage's argument.
struct Spec<'a> {
    partition_by: Option<Value<'a>>,
    sort_by: Option<RawDoc<'a>>,
    output: RawDoc<'a>,
}

impl<'a> Spec<'a> {
    fn parse(name: &'static str, argument: Value<'a>) -> Result<Spec<'a>> {
        let Value::Document(argument) = argument else {
            bail!(
                Code::FAILED_TO_PARSE,
                "the {name} stage specification must be an object, found {}",
                argument.type_name()
            );
        };
        let fields = Fields::new(name, argument, &["partitionBy", "sortBy", "output"])?;
        let sort_by = fields.document("sortBy")?;
        let output = fields.required("output", &[Type::Document])?.as_doc().unwrap_or(RawDoc::EMPTY);
        Ok(Spec { partition_by: fields.any("partitionBy"), sort_by, output })
    }
}

pub(super) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let spec = Spec::parse("$setWindowFields", argument)?;
    let partition_by = spec.partition_by.map(|value| Expr::parse(value, cx.expr)).transpose()?;
    // A constant makes one partition of all. What is a field is sorted by as it is, for an index to give that order.
    let (path, computed) = match partition_by.as_ref().map(Expr::view) {
        None => (None, None),
        Some(View::Constant(Value::Array(_))) => bail!(
            Code::TYPE_MISMATCH,
            "An expression used to partition cannot evaluate to value of type array"
        ),
        Some(View::Constant(_)) => (None, None),
        Some(View::Path(path)) if !path.parts().is_empty() => (Some(path.dotted()), None),
        Some(_) => (Some(PARTITION.to_owned()), spec.partition_by),
    };
    let internal = DocBuf::build(|out| {
        if let Some(path) = &path {
            out.append("partitionBy", format!("${path}").as_str());
        }
        if let Some(sort_by) = spec.sort_by {
            out.append("sortBy", sort_by);
        }
        out.append("output", spec.output);
    });
    let window: SharedStage = Arc::new(SetWindowFields::parse(internal.as_raw(), cx, true)?);
    let mut stages: Vec<SharedStage> = Vec::new();
    if let Some(computed) = computed {
        stages.push(project::derived("$addFields", &doc! { (PARTITION): computed }, cx)?);
    }
    let order = DocBuf::build(|out| {
        out.append_all(path.as_ref().map_or(DocBuf::new(), |path| DocBuf::new().with(path, 1)).as_raw());
        for part in spec.sort_by.iter().flat_map(|sort_by| sort_by.iter()) {
            if path.as_deref() != Some(part.key()) {
                out.append_element(part);
            }
        }
    });
    if !order.as_raw().is_empty() {
        stages.push(Arc::new(Sort::new(order.as_raw(), cx.expr)?));
    }
    stages.push(window);
    if path.as_deref() == Some(PARTITION) {
        stages.push(project::derived("$project", &doc! { (PARTITION): false }, cx)?);
    }
    Ok(stages)
}

fn parse_internal(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Value::Document(spec) = argument else {
        bail!(
            Code::FAILED_TO_PARSE,
            "the {NAME} stage specification must be an object, found {}",
            argument.type_name()
        );
    };
    Ok(vec![Arc::new(SetWindowFields::parse(spec, cx, false)?)])
}

impl SetWindowFields {
    /// Reads the stage over sorted documents. With `checks`, output fields may not touch each other.
    fn parse(given: RawDoc<'_>, cx: &mut StageCx<'_>, checks: bool) -> Result<SetWindowFields> {
        let spec = Spec::parse(NAME, Value::Document(given))?;
        sheaf_meter::grow(given.len())?;
        let partition_by = spec.partition_by.map(|value| Expr::parse(value, cx.expr)).transpose()?;
        let collator = cx.expr.collator().cloned();
        let sort_by = spec.sort_by.map(SortPattern::parse).transpose()?;
        let sort_by = sort_by.map(|sort_by| sort_by.with_collator(collator.as_ref()));
        let sort_path = match sort_by.as_ref().map(|sort_by| sort_by.parts()) {
            Some([part]) => match &part.on {
                SortOn::Path(path) => Some(FieldPath::parse(path.dotted())?),
                SortOn::Meta(_) => None,
            },
            _ => None,
        };
        let mut functions: Vec<(&str, Function)> = Vec::new();
        for element in spec.output.iter() {
            let field = element.key();
            let touches =
                |(known, _): &(&str, Function)| crate::filters::touches(&[(*known).to_owned()], field);
            if checks && functions.iter().any(touches) {
                bail!(6307900, "$setWindowFields 'output' specification contains two conflicting paths");
            }
            let Value::Document(function) = element.value() else {
                bail!(Code::FAILED_TO_PARSE, "The field '{field}' must be an object");
            };
            let mut function_cx = FunctionCx { sort_by: sort_by.as_ref(), expr: cx.expr };
            let mut function = Function::parse(function, &mut function_cx)?;
            function.collator = collator.clone();
            FieldPath::parse(field)?;
            functions.push((field, function));
        }
        // Only the projection sees the variables.
        let scope = cx.expr.enter();
        let mut outputs = Vec::new();
        let mut projection = DocBuf::new();
        for (at, (field, function)) in functions.into_iter().enumerate() {
            let name = format!("window{at}");
            let slot = cx.expr.declare(&name)?;
            projection.append(field, format!("$${name}").as_str());
            outputs.push(Output { field: field.to_owned(), slot, function });
        }
        let projection = match outputs.is_empty() {
            true => None,
            false => Some(Projection::parse_add_fields(projection.as_raw(), cx.expr)?),
        };
        cx.expr.leave(scope);
        let spec = DocBuf::from(given);
        Ok(SetWindowFields { partition_by, sort_by, sort_path, outputs, projection, collator, spec })
    }

    /// The document's value of the field that is sorted by; missing if that is not one field.
    fn sort_value<'a>(&self, document: RawDoc<'a>, arena: &'a Bump) -> Value<'a> {
        self.sort_path.as_ref().map_or(Value::Missing, |path| path.get(document, arena))
    }

    /// The key by which the document is sorted, which documents of one rank share.
    fn rank_key<'a>(
        &self,
        document: RawDoc<'a>,
        metadata: Option<RawDoc<'a>>,
        arena: &'a Bump,
    ) -> Result<Value<'a>> {
        let pattern = self.sort_by.as_ref().expect("ranks are of what is sorted");
        let key = pattern.key(document, metadata.unwrap_or(RawDoc::EMPTY))?;
        let key = key.first().copied().unwrap_or(Value::Null);
        Ok(pattern.collator().map_or(key, |collator| collator.key(key, arena)))
    }
}

impl Stage for SetWindowFields {
    fn name(&self) -> &'static str {
        NAME
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(WindowRun::new(self, input))
    }

    fn dependencies(&self, deps: &mut Deps) -> Reads {
        if let Some(partition_by) = &self.partition_by {
            partition_by.dependencies(deps);
        }
        if let Some(sort_by) = &self.sort_by {
            sort_by.dependencies(deps);
        }
        for output in &self.outputs {
            output.function.input.dependencies(deps);
            if let Kind::Accumulator { init: Some(init), .. } = &output.function.kind {
                init.dependencies(deps);
            }
            // A field below another is set in what is there.
            if let Some((above, _)) = output.field.split_once('.') {
                deps.paths.insert(above.to_owned());
            }
        }
        Reads::AndPassesOn
    }

    fn spec(&self) -> Option<DocBuf> {
        Some(doc! { (NAME): &self.spec })
    }

    fn shown(&self) -> Option<Vec<DocBuf>> {
        Some(vec![DocBuf::build(|out| {
            let mut spec = out.document(NAME);
            if let Some(partition_by) = self.spec.as_raw().get("partitionBy") {
                spec.append("partitionBy", partition_by);
            }
            if let Some(sort_by) = &self.sort_by {
                spec.append("sortBy", &sort_by.to_doc());
            }
            let mut fields = spec.document("output");
            for output in &self.outputs {
                fields.append(&output.field, &output.function.shown());
            }
        })])
    }
}
