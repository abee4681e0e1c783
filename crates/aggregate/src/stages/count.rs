//! `$count`.

use std::sync::Arc;

use sheaf_bson::{DocBuf, Value, doc};
use sheaf_errors::{Result, bail};
use sheaf_expr::Deps;
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step};

use crate::database::SharedDatabase;
use crate::stage::{Halves, Needs, Reads, Shape, SharedStage, Split, Stage, StageCx, StageEntry};

/// `$count`.
pub(crate) const COUNT: StageEntry = StageEntry::new("$count", parse, Split::Both, Needs::Nothing);

/// A parsed `$count`.
#[derive(Debug)]
pub struct Count {
    /// The field of the number.
    pub field: String,
}

pub(crate) fn parse(argument: Value<'_>, _cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Value::String(field) = argument else {
        bail!(40156, "the count field must be a non-empty string");
    };
    match field {
        "" => bail!(40157, "the count field must be a non-empty string"),
        "_id" => bail!(9039800, "the count field cannot be '_id'"),
        _ if field.starts_with('$') => bail!(40158, "the count field cannot be a $-prefixed path"),
        _ if field.contains('\0') => bail!(40159, "the count field cannot contain a null byte"),
        _ if field.contains('.') => bail!(40160, "the count field cannot contain '.'"),
        _ => Ok(vec![Arc::new(Count { field: field.to_owned() })]),
    }
}

impl Stage for Count {
    fn name(&self) -> &'static str {
        "$count"
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(CountRun { stage: self, input, count: 0, output: None })
    }

    fn dependencies(&self, _deps: &mut Deps) -> Reads {
        Reads::Only
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Group { distinct: None }
    }

    fn halves(&self) -> Option<Halves> {
        let field = self.field.as_str();
        let sum = DocBuf::new().with("$sum", &format!("${field}"));
        Some(Halves::unordered(
            vec![doc! { "$count": field }],
            vec![doc! { "$group": { "_id": (), (field): &sum } }, doc! { "$unset": "_id" }],
        ))
    }

    fn shown(&self) -> Option<Vec<DocBuf>> {
        let field = self.field.as_str();
        Some(vec![
            doc! { "$group": { "_id": { "$const": () }, (field): { "$sum": { "$const": 1 } } } },
            doc! { "$project": { (field): true, "_id": false } },
        ])
    }
}

/// Runs `$count`.
struct CountRun {
    stage: Arc<Count>,
    input: BoxOperator,
    count: i64,
    output: Option<DocBuf>,
}

impl Operator for CountRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if self.output.is_some() {
            return Ok(Step::Eof);
        }
        match self.input.work(cx)? {
            Step::Row => self.count += 1,
            Step::More => {}
            // There is no group of no documents.
            Step::Eof if self.count == 0 => return Ok(Step::Eof),
            Step::Eof => {
                let count = i32::try_from(self.count).map_or(Value::Int64(self.count), Value::Int32);
                self.output = Some(DocBuf::new().with(&self.stage.field, count));
                return Ok(Step::Row);
            }
        }
        Ok(Step::More)
    }

    fn row(&self) -> Row<'_> {
        self.output.as_ref().map_or(Row::default(), |output| Row::of(output.as_raw()))
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }
}
