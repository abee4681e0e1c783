//! `$sort`.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::Result;
use sheaf_expr::{Deps, ParseCx};
use sheaf_query::matcher::Matcher;
use sheaf_query::sort::SortPattern;

use sheaf_rows::{BoxOperator, Fields};

use crate::database::SharedDatabase;
use crate::filters::SplitFilter;
use crate::stage::{Halves, Needs, Reads, Shape, SharedStage, Split, Stage, StageCx, StageEntry};

/// `$sort`.
pub(crate) const SORT: StageEntry = StageEntry::new("$sort", parse, Split::Both, Needs::Nothing);

/// A parsed `$sort`.
#[derive(Clone, Debug)]
pub struct Sort {
    /// The keys.
    pub pattern: Arc<SortPattern>,
    /// Only this many documents are wanted: a `$limit` that follows.
    pub limit: Option<u64>,
    /// The fields that later stages read, if those are not all.
    fields: Option<Arc<Fields>>,
}

impl Sort {
    /// A sort by this pattern.
    pub fn new(pattern: RawDoc<'_>, cx: &mut ParseCx) -> Result<Self> {
        Ok(Sort {
            pattern: Arc::new(SortPattern::parse(pattern)?.with_collator(cx.collator())),
            limit: None,
            fields: None,
        })
    }
}

impl Stage for Sort {
    fn name(&self) -> &'static str {
        "$sort"
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        let sort = sheaf_rows::Sort::new(input, self.pattern.clone(), self.limit);
        Box::new(sort.giving_only(self.fields.clone()))
    }

    fn dependencies(&self, deps: &mut Deps) -> Reads {
        self.pattern.dependencies(deps);
        Reads::AndPassesOn
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Sort { pattern: &self.pattern, limit: self.limit }
    }

    fn let_pass(&self, filter: &Arc<Matcher>) -> Option<SplitFilter> {
        // A sort that is cut off at a limit sees other documents if some are missing.
        self.limit.is_none().then(|| (filter.clone(), None))
    }

    fn limited_to(&self, wanted: u64) -> Option<SharedStage> {
        let limit = Some(self.limit.map_or(wanted, |known| known.min(wanted)));
        Some(Arc::new(Sort { limit, ..self.clone() }))
    }

    fn can_give_less(&self) -> bool {
        self.fields.is_none()
    }

    fn giving_only(&self, deps: &Deps) -> Option<SharedStage> {
        let fields = Some(Arc::new(Fields::of_paths(&deps.paths)));
        Some(Arc::new(Sort { fields, ..self.clone() }))
    }

    fn spec(&self) -> Option<DocBuf> {
        Some(doc! { "$sort": &self.pattern.to_doc() })
    }

    fn halves(&self) -> Option<Halves> {
        let pattern = self.pattern.to_doc();
        let mut shards = vec![doc! { "$sort": &pattern }];
        shards.extend(self.limit.map(|limit| doc! { "$limit": limit as i64 }));
        Some(Halves { shards, order: Some(pattern), merger: Vec::new(), passes_rows: true })
    }

    fn shown(&self) -> Option<Vec<DocBuf>> {
        Some(vec![DocBuf::build(|out| {
            let mut spec = out.document("$sort");
            spec.append("sortKey", &self.pattern.to_doc());
            if let Some(limit) = self.limit {
                spec.append("limit", limit as i64);
            }
        })])
    }
}

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let sort = Sort {
        pattern: Arc::new(SortPattern::parse_stage(argument)?.with_collator(cx.expr.collator())),
        limit: None,
        fields: None,
    };
    Ok(vec![Arc::new(sort)])
}
