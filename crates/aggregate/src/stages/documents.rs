//! `$documents`: literal documents as the input.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Deps, Expr};
use sheaf_meter::{ALLOCATION, Held};

use crate::database::SharedDatabase;
use crate::print;
use crate::stage::{Needs, Place, Reads, SharedStage, Split, Stage, StageCx, StageEntry};
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step};

/// `$documents`.
pub(crate) const DOCUMENTS: StageEntry =
    StageEntry::new("$documents", parse, Split::Router, Needs::Own(&[])).first().collectionless();

/// A parsed `$documents`.
#[derive(Debug)]
pub struct Documents {
    /// Gives the array of documents.
    pub array: Expr,
}

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    if matches!(cx.place, Place::Top | Place::View) && !cx.namespace.collection.is_empty() {
        bail!(Code::INVALID_NAMESPACE, "'$documents' can only be run with {{aggregate: 1}}");
    }
    let array = Expr::parse(argument, cx.expr)?;
    Ok(vec![Arc::new(Documents { array })])
}

/// What a document takes besides its bytes.
const DOCUMENT_BYTES: u64 = (size_of::<DocBuf>() + ALLOCATION) as u64;

impl Stage for Documents {
    fn name(&self) -> &'static str {
        "$documents"
    }

    fn open(self: Arc<Self>, _input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(DocumentsRun::new(self))
    }

    fn dependencies(&self, _deps: &mut Deps) -> Reads {
        Reads::Only
    }
}

/// Runs `$documents`.
struct DocumentsRun {
    stage: Arc<Documents>,
    /// The documents, once the expression was evaluated.
    documents: Option<sheaf_rows::Documents>,
    held: Held,
}

impl DocumentsRun {
    fn new(stage: Arc<Documents>) -> Self {
        DocumentsRun { stage, documents: None, held: Held::default() }
    }

    fn evaluate(&mut self, cx: &Cx<'_>) -> Result<sheaf_rows::Documents> {
        let arena = Bump::new();
        let Value::Array(array) = self.stage.array.eval(RawDoc::EMPTY, &cx.env(&arena))? else {
            bail!(5858203, "an array is expected");
        };
        self.held = sheaf_meter::reserve(DOCUMENT_BYTES * array.count() as u64 + array.len() as u64)?;
        let mut documents = Vec::new();
        for value in array.values() {
            match value {
                Value::Document(document) => documents.push(DocBuf::from(document)),
                other => bail!(
                    40228,
                    "'newRoot' expression  must evaluate to an object, but resulting value was: {}. Type of \
                     resulting value: '{}'. Input document: {}",
                    print::value(other),
                    other.type_name(),
                    print::document(RawDoc::EMPTY)
                ),
            }
        }
        Ok(sheaf_rows::Documents::new(documents))
    }
}

impl Operator for DocumentsRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if self.documents.is_none() {
            self.documents = Some(self.evaluate(cx)?);
        }
        self.documents.as_mut().map_or(Ok(Step::Eof), |documents| documents.work(cx))
    }

    fn row(&self) -> Row<'_> {
        self.documents.as_ref().map_or(Row::default(), Operator::row)
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}
}
