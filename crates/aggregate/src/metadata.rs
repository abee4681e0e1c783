//! What `{$meta: NAME}` may ask for: what the query at a pipeline's head, or a stage before, has given the documents.

use sheaf_errors::{Result, bail};
use sheaf_expr::Deps;

use crate::pipeline::{Pipeline, measured_near};
use crate::stage::{Shape, SharedStage, ends_here};

/// Which of the metadata that cannot be asked for everywhere documents have.
#[derive(Clone, Copy, Default)]
struct Available {
    /// Scores of `$text`.
    text: bool,
    /// Distances and points of `$geoNear`.
    near: bool,
    /// `score`, which is also what `$text` gives.
    score: bool,
    details: bool,
}

impl Available {
    /// What the query at the head gives.
    fn of_head(stages: &[SharedStage]) -> Available {
        let first = stages.first().map(|first| first.shape());
        let text = matches!(first, Some(Shape::Match(matcher)) if matcher.has_text());
        let near = matches!(first, Some(Shape::GeoNear(_))) || measured_near(stages).is_some();
        Available { text, near, score: text, details: false }
    }

    /// Errors: 40218.
    fn check(self, name: &str) -> Result<()> {
        let (has, shown) = match name {
            "textScore" => (self.text, "text score"),
            "geoNearDistance" => (self.near, "$geoNear distance"),
            "geoNearPoint" => (self.near, "$geoNear point"),
            "score" => (self.score, "score"),
            "scoreDetails" => (self.details, "scoreDetails"),
            // Only a search service gives these.
            "searchScore" => (false, "$search score"),
            "vectorSearchScore" => (false, "$vectorSearch score"),
            "searchRootDocumentId" => (false, "$search root document id"),
            _ => return Ok(()),
        };
        if !has {
            bail!(40218, "query requires {shown} metadata, but it is not available");
        }
        Ok(())
    }

    fn check_stages(mut self, stages: &[SharedStage]) -> Result<()> {
        for stage in stages {
            match stage.shape() {
                Shape::Facet(facets) => {
                    facets.iter().try_for_each(|(_, pipeline)| self.check_stages(&pipeline.stages))?;
                }
                _ => read_by(stage).into_iter().try_for_each(|name| self.check(name))?,
            }
            match stage.sets_metadata() {
                Some("score") => self.score = true,
                Some("scoreDetails") => (self.score, self.details) = (true, true),
                _ => {}
            }
            if ends_here(stage) {
                // Others are not looked after behind such a stage, so that they are just absent.
                self = Available { near: true, score: false, details: false, ..self };
            }
        }
        Ok(())
    }
}

/// The names that a stage asks for itself.
fn read_by(stage: &SharedStage) -> std::collections::BTreeSet<&'static str> {
    let mut deps = Deps::new();
    stage.dependencies(&mut deps);
    deps.metadata
}

/// Whether any of the stages asks for metadata.
pub(crate) fn is_asked(stages: &[SharedStage]) -> bool {
    stages.iter().any(|stage| !read_by(stage).is_empty())
}

impl Pipeline {
    /// Checks that the metadata that is asked for can be had, when it is known where the documents come from: a view's own stages
    /// are in the pipeline by then.
    ///
    /// Errors: 40218.
    pub fn check_metadata(&self) -> Result<()> {
        if !self.asks_metadata || self.own_source {
            return Ok(());
        }
        Available::of_head(&self.stages).check_stages(&self.stages)
    }
}
