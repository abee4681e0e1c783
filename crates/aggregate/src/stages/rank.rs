//! `$_internalRank`: numbers rows by the order that a `$sort` or a `$geoNear` before it has given them; those that it does not tell
//! apart have one rank, and the next is higher by their number.

use std::sync::Arc;

use sheaf_bson::{DocBuf, OwnedValue, RawDoc, Value, compare};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::Deps;
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step};

use crate::database::SharedDatabase;
use crate::stage::{Needs, Reads, SharedStage, Split, Stage, StageCx, StageEntry};

const NAME: &str = "$_internalRank";

/// `$_internalRank`.
pub(crate) const INTERNAL_RANK: StageEntry =
    StageEntry::new(NAME, parse, Split::Merger, Needs::Nothing).unstable();

/// A parsed `$_internalRank`.
#[derive(Debug)]
pub struct Rank {
    /// The top-level field that gets the rank.
    field: String,
    /// The metadata that tells rows apart.
    by: &'static str,
}

fn parse(argument: Value<'_>, _cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let spec = argument.as_doc().unwrap_or(RawDoc::EMPTY);
    let by = match spec.get("by") {
        Some(Value::String("sortKey")) => "sortKey",
        Some(Value::String("geoNearDistance")) => "geoNearDistance",
        _ => bail!(Code::FAILED_TO_PARSE, "{NAME} ranks by sortKey or geoNearDistance"),
    };
    let Some(Value::String(field)) = spec.get("field") else {
        bail!(Code::FAILED_TO_PARSE, "{NAME} takes the name of a field");
    };
    Ok(vec![Arc::new(Rank { field: field.to_owned(), by })])
}

impl Stage for Rank {
    fn name(&self) -> &'static str {
        NAME
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        let last = OwnedValue::from(Value::Missing);
        Box::new(RankRun { stage: self, input, rows: 0, rank: 0, last, doc: DocBuf::new() })
    }

    fn dependencies(&self, deps: &mut Deps) -> Reads {
        deps.metadata.insert(self.by);
        Reads::AndPassesOn
    }

    fn keeps_count(&self) -> bool {
        true
    }
}

/// Runs the stage.
struct RankRun {
    stage: Arc<Rank>,
    input: BoxOperator,
    /// Rows so far.
    rows: i64,
    /// The last row's rank, and what it was given for.
    rank: i64,
    last: OwnedValue,
    doc: DocBuf,
}

impl RankRun {
    fn number(&mut self) {
        let metadata = self.input.metadata().unwrap_or(RawDoc::EMPTY);
        let key = metadata.get_or_missing(self.stage.by);
        self.rows += 1;
        if self.rows == 1 || compare(key, self.last.as_value()).is_ne() {
            self.rank = self.rows;
            self.last = OwnedValue::from(key);
        }
        let (field, rank) = (self.stage.field.as_str(), self.rank);
        let document = self.input.row().document();
        self.doc = DocBuf::build(|out| {
            document.iter().filter(|part| part.key() != field).for_each(|part| _ = out.append_element(part));
            out.append(field, rank);
        });
    }
}

impl Operator for RankRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step == Step::Row {
            self.number();
        }
        Ok(step)
    }

    fn row(&self) -> Row<'_> {
        Row::of(self.doc.as_raw())
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.input.metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn release(&mut self) {
        self.doc = DocBuf::new();
        self.input.release();
    }
}
