//! `$setMetadata`: gives each row a value beside the document, which `{$meta: NAME}` reads. Stages that compute scores are short for it.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Deps, Expr};
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step};

use crate::database::SharedDatabase;
use crate::stage::{Needs, Reads, SharedStage, Split, Stage, StageCx, StageEntry};

const NAME: &str = "$setMetadata";

/// `$setMetadata`.
pub(crate) const SET_METADATA: StageEntry =
    StageEntry::new(NAME, parse, Split::Merger, Needs::Nothing).unstable();

/// A parsed `$setMetadata`.
#[derive(Debug)]
pub struct SetMetadata {
    /// The metadata's name.
    name: String,
    value: Expr,
}

fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Value::Document(spec) = argument else {
        bail!(Code::FAILED_TO_PARSE, "{NAME} only supports an object as its specification");
    };
    let mut fields = spec.iter();
    let (Some(field), None) = (fields.next(), fields.next()) else {
        bail!(Code::FAILED_TO_PARSE, "{NAME} must be given exactly one metadata field to set");
    };
    let name @ ("score" | "scoreDetails") = field.key() else {
        bail!(17308, "Unsupported argument to $meta: {}", field.key());
    };
    Ok(vec![Arc::new(SetMetadata { name: name.to_owned(), value: Expr::parse(field.value(), cx.expr)? })])
}

impl Stage for SetMetadata {
    fn name(&self) -> &'static str {
        NAME
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(SetMetadataRun { stage: self, input, metadata: DocBuf::new() })
    }

    fn dependencies(&self, deps: &mut Deps) -> Reads {
        self.value.dependencies(deps);
        Reads::AndPassesOn
    }

    fn sets_metadata(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn keeps_count(&self) -> bool {
        true
    }
}

/// Runs the stage: rows go through, with the value beside them.
struct SetMetadataRun {
    stage: Arc<SetMetadata>,
    input: BoxOperator,
    metadata: DocBuf,
}

impl SetMetadataRun {
    fn set(&mut self, cx: &Cx<'_>) -> Result<()> {
        let arena = Bump::new();
        let value = {
            let env = cx.env_over(&self.input, &arena);
            self.stage.value.eval(self.input.row().document(), &env)?
        };
        let (name, value) = (self.stage.name.as_str(), checked(&self.stage.name, value)?);
        let other = self.input.metadata().unwrap_or(RawDoc::EMPTY);
        let metadata = DocBuf::build(|out| {
            for field in other.iter().filter(|field| field.key() != name) {
                out.append_element(field);
            }
            if !matches!(value, Value::Missing) {
                out.append(name, value);
            }
        });
        self.metadata = metadata;
        Ok(())
    }
}

/// A score is a double.
fn checked<'a>(name: &str, value: Value<'a>) -> Result<Value<'a>> {
    match value {
        Value::Missing | Value::Null if name == "score" => Ok(Value::Missing),
        value if name == "score" => match value.as_f64() {
            Some(number) => Ok(Value::Double(number)),
            None => bail!(
                Code::TYPE_MISMATCH,
                "Metadata score must be numeric, but its type is {}",
                value.type_name()
            ),
        },
        value => Ok(value),
    }
}

impl Operator for SetMetadataRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step == Step::Row {
            self.set(cx)?;
        }
        Ok(step)
    }

    fn row(&self) -> Row<'_> {
        self.input.row()
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        Some(self.metadata.as_raw())
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn release(&mut self) {
        self.input.release();
    }
}
