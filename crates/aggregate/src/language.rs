//! The language: all stages, by name, and reading whole pipelines with them.

use std::sync::Arc;

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::Result;
use sheaf_expr::ParseCx;

use crate::namespace::Namespace;
use crate::outline::Outline;
use crate::pipeline::Pipeline;
use crate::stage::{Place, StageCx, StageEntry};
use crate::stages::*;

/// All stages, by name.
pub static STAGES: &[&StageEntry] = &[
    &densify::INTERNAL_DENSIFY,
    &rank::INTERNAL_RANK,
    &window::INTERNAL_SET_WINDOW_FIELDS,
    &sort_key::INTERNAL_SORT_KEY,
    &unpack_bucket::INTERNAL_UNPACK_BUCKET,
    &project::ADD_FIELDS,
    &bucket::BUCKET,
    &bucket_auto::BUCKET_AUTO,
    &change_stream::CHANGE_STREAM,
    &change_stream::SPLIT_LARGE_EVENT,
    &stats::COLL_STATS,
    &count::COUNT,
    &stats::CURRENT_OP,
    &densify::DENSIFY,
    &documents::DOCUMENTS,
    &facet::FACET,
    &fill::FILL,
    &geo_near::GEO_NEAR,
    &graph_lookup::GRAPH_LOOKUP,
    &group::GROUP,
    &stats::INDEX_STATS,
    &limit::LIMIT,
    &server::LIST_CLUSTER_CATALOG,
    &stats::LIST_LOCAL_SESSIONS,
    &stats::LIST_SAMPLED_QUERIES,
    &search::LIST_SEARCH_INDEXES,
    &server::LIST_SESSIONS,
    &lookup::LOOKUP,
    &filter::MATCH,
    &merge::MERGE,
    &out::OUT,
    &server::PLAN_CACHE_STATS,
    &project::PROJECT,
    &server::QUERY_SETTINGS,
    &server::QUERY_STATS,
    &fusion::rank_fusion::RANK_FUSION,
    &redact::REDACT,
    &replace_root::REPLACE_ROOT,
    &replace_root::REPLACE_WITH,
    &sample::SAMPLE,
    &fusion::score::SCORE,
    &fusion::score_fusion::SCORE_FUSION,
    &search::SEARCH,
    &search::SEARCH_META,
    &project::SET,
    &set_metadata::SET_METADATA,
    &window::SET_WINDOW_FIELDS,
    &stats::SHARDED_DATA_DISTRIBUTION,
    &skip::SKIP,
    &sort::SORT,
    &group::SORT_BY_COUNT,
    &union::UNION_WITH,
    &project::UNSET,
    &unwind::UNWIND,
    &search::VECTOR_SEARCH,
];

/// The entry of a stage name.
pub fn stage_entry(name: &str) -> Option<&'static StageEntry> {
    STAGES.iter().find(|entry| entry.name == name).copied()
}

fn look_at(name: &str, argument: Value<'_>, cx: &Outline<'_>) -> Option<Result<()>> {
    stage_entry(name).map(|entry| entry.outline(argument, cx))
}

impl Pipeline {
    /// Reads a command's pipeline: an array of stages. The command ends its parsing with
    /// [`ParseCx::finish`].
    pub fn parse(stages: RawDoc<'_>, namespace: &Namespace, cx: &mut ParseCx) -> Result<Pipeline> {
        Self::parse_whole(stages, namespace, Place::Top, cx)
    }

    /// Reads a view's pipeline, which may not write.
    pub fn parse_view(stages: RawDoc<'_>, namespace: &Namespace, cx: &mut ParseCx) -> Result<Pipeline> {
        Self::parse_whole(stages, namespace, Place::View, cx)
    }

    fn parse_whole(
        stages: RawDoc<'_>,
        namespace: &Namespace,
        place: Place,
        cx: &mut ParseCx,
    ) -> Result<Pipeline> {
        Outline::new(&namespace.database, look_at).pipeline(stages)?;
        let mut cx = StageCx { expr: cx, namespace, place, table: STAGES, in_facet: false, depth: 0 };
        let (mut pipeline, held) = sheaf_meter::growing(|| crate::parse::pipeline(stages, &mut cx))?;
        if held.bytes() > 0 {
            pipeline.held.push(Arc::new(held));
        }
        Ok(pipeline)
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{ArrayBuf, doc};

    use super::*;
    use crate::stage::{Needs, StagePosition};

    #[test]
    fn names_are_sorted_and_stand_once() {
        let names: Vec<_> = STAGES.iter().map(|entry| entry.name).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    }

    #[test]
    fn what_writes_stands_last_and_in_no_transaction() {
        for entry in STAGES {
            let writes = matches!(entry.needs, Needs::Target(_));
            assert_eq!(writes, entry.position == StagePosition::Last, "{}", entry.name);
            assert!(!writes || !entry.in_transactions, "{}", entry.name);
            let source = matches!(entry.needs, Needs::Own(_) | Needs::Cluster(_));
            assert_eq!(source, entry.position == StagePosition::First, "{}", entry.name);
        }
    }

    #[test]
    fn what_rights_are_asked_of_names_each_field_once() {
        let twice = doc! { "into": "a", "into": { "db": "b", "coll": "c" } };
        let parse = |name: &str, collection: &str| {
            let stages = ArrayBuf::of(&[doc! { (name): twice.as_raw() }]);
            Pipeline::parse(stages.as_raw(), &Namespace::new("t", collection), &mut ParseCx::new())
        };
        let asked = |entry: &&&StageEntry| match entry.needs {
            Needs::Nothing => false,
            Needs::Own(_) => entry.name == "$changeStream",
            Needs::Foreign | Needs::Cluster(_) | Needs::Target(_) => entry.name != "$facet",
        };
        for entry in STAGES.iter().filter(asked) {
            let codes =
                ["c", ""].map(|collection| parse(entry.name, collection).err().map(|error| error.code().0));
            assert!(codes.contains(&Some(40413)) && !codes.contains(&None), "{}: {codes:?}", entry.name);
        }
        // Rights to the figures of a collection are of the stage, whatever it asks for.
        let counts = ArrayBuf::of(&[doc! { "$collStats": { "count": Value::Null, "count": {} } }]);
        Pipeline::parse(counts.as_raw(), &Namespace::new("t", "c"), &mut ParseCx::new()).unwrap();
        let error = parse("$merge", "c").unwrap_err();
        assert_eq!(error.message(), "BSON field '$merge.into' is a duplicate field");
    }
}
