//! The `$match` at the head of a `$lookup`'s pipeline, once the variables that it reads have values.

use std::sync::Arc;

use sheaf_bson::{DocBuf, OwnedValue};
use sheaf_errors::Result;
use sheaf_expr::{ParseCx, Slot};
use sheaf_query::matcher::{Features, Matcher};

use crate::pipeline::SharedPipeline;
use crate::stage::Shape;
use crate::stages::filter::Match;

/// A filter with `$expr` that may read variables: an index can serve it only when their values are known, so it is parsed anew for
/// each document that is joined (the manual's page on `$lookup`, "Correlated Subqueries").
#[derive(Debug)]
pub(super) struct BoundMatch {
    filter: DocBuf,
    names: Vec<Box<str>>,
    /// The context in which the pipeline was parsed, its variables declared.
    cx: ParseCx,
}

impl BoundMatch {
    /// `None` if the pipeline does not begin with such a filter. `names` are the variables', in their order.
    pub fn of(pipeline: &SharedPipeline, names: Vec<Box<str>>, cx: ParseCx) -> Option<Self> {
        let Shape::Match(matcher) = pipeline.stages().first()?.shape() else { return None };
        let binds = !names.is_empty() && matcher.has_expr();
        binds.then(|| BoundMatch { filter: matcher.filter().into(), names, cx })
    }

    /// The pipeline with this filter's variables replaced by their values. What is wrong with these only an evaluation says, which
    /// may never come: then the pipeline stays as it was.
    pub fn bind(&self, pipeline: &SharedPipeline, variables: &[(Slot, OwnedValue)]) -> SharedPipeline {
        match self.parse(variables) {
            Ok(matcher) => {
                let mut bound = (**pipeline).clone();
                bound.stages[0] = Arc::new(Match { matcher: Arc::new(matcher) });
                Arc::new(bound)
            }
            Err(_) => pipeline.clone(),
        }
    }

    fn parse(&self, variables: &[(Slot, OwnedValue)]) -> Result<Matcher> {
        let mut cx = self.cx.clone();
        for (name, (_, value)) in self.names.iter().zip(variables) {
            cx.declare_constant(name, value.as_value())?;
        }
        let matcher = Matcher::parse_with(self.filter.as_raw(), Features::Pipeline, &mut cx)?;
        cx.finish()?;
        Ok(matcher)
    }
}
