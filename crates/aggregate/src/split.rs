//! Pipelines over several shards: what each of them runs, and what runs where their rows come together.

use std::collections::BTreeSet;
use std::sync::Arc;

use sheaf_bson::{ArrayBuf, DocBuf, doc};

use crate::language::stage_entry;
use crate::namespace::Namespace;
use crate::optimize::wanted_after;
use crate::pipeline::Pipeline;
use crate::stage::{SharedStage, Split};

/// A pipeline in two parts, each as an `aggregate` command names it.
#[derive(Debug)]
pub struct SplitPipeline {
    /// What each shard runs; `None` if no shard is asked, because the first stage has its documents from the router.
    pub shards: Option<ArrayBuf>,
    /// The pattern by which the rows of all shards are merged, each shard's being in that order; `None` if they may come in
    /// any order. Its fields are in the rows.
    pub order: Option<DocBuf>,
    /// What runs over the merged rows.
    pub merger: ArrayBuf,
}

/// Where the stage runs, as its entry says: on shards only if it writes nowhere and reads nothing else than what each of them has.
fn split_of(stage: &SharedStage, has: &dyn Fn(&Namespace) -> bool) -> Split {
    let split = stage_entry(stage.name()).expect("each stage has the name of an entry").split;
    let mut foreign = Vec::new();
    stage.foreign_namespaces(&mut foreign);
    let stays = stage.target_namespace().is_none() && foreign.iter().all(has);
    if split == Split::Shards && !stays { Split::Merger } else { split }
}

impl Pipeline {
    /// Cuts the pipeline at its first stage that one shard cannot do for its documents alone.
    ///
    /// `None` for a change stream: its events are merged by resume token, and never come to an end.
    pub fn split(&self) -> Option<SplitPipeline> {
        self.split_with(&|_| true)
    }

    /// The same where shards have other collections for which `has` holds, as all of them, and stages that write write where rows come
    /// together.
    pub fn split_with(&self, has: &dyn Fn(&Namespace) -> bool) -> Option<SplitPipeline> {
        let split_of = |stage: &SharedStage| split_of(stage, has);
        if self.change_stream().is_some() {
            return None;
        }
        let at = self.stages.iter().position(|stage| split_of(stage) != Split::Shards);
        let Some(at) = at else {
            return Some(SplitPipeline {
                shards: Some(self.specs(&self.stages)),
                order: None,
                merger: ArrayBuf::new(),
            });
        };
        let (leading, rest) = self.stages.split_at(at);
        if split_of(&rest[0]) == Split::Router {
            assert!(leading.is_empty(), "what the router has comes first: {self:?}");
            return Some(SplitPipeline { shards: None, order: None, merger: self.specs(rest) });
        }
        let mut shards: Vec<DocBuf> = leading.iter().map(|stage| self.spec_of(stage)).collect();
        let halves = if split_of(&rest[0]) == Split::Both { rest[0].halves() } else { None };
        let passes_rows = halves.as_ref().is_none_or(|halves| halves.passes_rows);
        let (order, mut merger, rest) = match halves {
            Some(halves) => {
                shards.extend(halves.shards);
                (halves.order, halves.merger, &rest[1..])
            }
            None => {
                // Whatever is passed over, a shard need not give more than all of them together may.
                shards.extend(wanted_after(rest).map(|wanted| doc! { "$limit": wanted as i64 }));
                (None, Vec::new(), rest)
            }
        };
        if passes_rows {
            shards.extend(self.fields_read_from(at));
        }
        merger.extend(rest.iter().map(|stage| self.spec_of(stage)));
        Some(SplitPipeline { shards: Some(ArrayBuf::of(&shards)), order, merger: ArrayBuf::of(&merger) })
    }

    /// The pipeline as one that no shard is asked for: its first stage has its documents from the router.
    pub fn unsplit(&self) -> SplitPipeline {
        SplitPipeline { shards: None, order: None, merger: self.specs(&self.stages) }
    }

    /// A `$project` of the top-level fields that the stages from this one on read; `None` if they read whole documents.
    fn fields_read_from(&self, first: usize) -> Option<DocBuf> {
        let deps = self.dependencies_from(first).filter(|deps| deps.metadata.is_empty())?;
        let names: BTreeSet<&str> =
            deps.paths.iter().map(|path| path.split('.').next().unwrap_or("")).collect();
        if names.iter().any(|name| name.is_empty() || name.starts_with('$')) {
            return None;
        }
        Some(DocBuf::build(|out| {
            let mut fields = out.document("$project");
            // Where nothing is read, the `_id` stands for the row.
            fields.append("_id", i32::from(names.contains("_id") || names.is_empty()));
            names.iter().filter(|name| **name != "_id").for_each(|name| _ = fields.append(name, 1));
        }))
    }

    /// How many leading stages each shard can run for its documents alone, none of which reads or writes other collections. Where all
    /// documents are on one shard, that is so of stages that wait for all of them, too.
    pub fn leading(&self, one_shard: bool) -> usize {
        let runs = |stage: &SharedStage| match split_of(stage, &|_| false) {
            Split::Shards => true,
            Split::Both | Split::Merger => {
                let mut foreign = Vec::new();
                stage.foreign_namespaces(&mut foreign);
                one_shard && foreign.is_empty() && stage.target_namespace().is_none()
            }
            Split::Router => false,
        };
        self.stages.iter().take_while(|stage| runs(stage)).count()
    }

    /// The first stages, as an `aggregate` command names them.
    pub fn first(&self, stages: usize) -> ArrayBuf {
        self.specs(&self.stages[..stages])
    }

    fn specs(&self, stages: &[SharedStage]) -> ArrayBuf {
        ArrayBuf::of(&stages.iter().map(|stage| self.spec_of(stage)).collect::<Vec<_>>())
    }

    /// The stage as a pipeline names it.
    fn spec_of(&self, stage: &SharedStage) -> DocBuf {
        if let Some(spec) = stage.spec() {
            return spec;
        }
        let given = self.given.iter().find(|given| match &given.stages[..] {
            [only] => Arc::ptr_eq(only, stage),
            _ => false,
        });
        given
            .unwrap_or_else(|| panic!("nobody gave this stage, and it has no name of its own: {stage:?}"))
            .document
            .clone()
    }
}
