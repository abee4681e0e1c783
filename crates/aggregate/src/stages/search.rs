//! `$search`, `$searchMeta`, `$vectorSearch`, `$listSearchIndexes`: they need a search service beside the server, and
//! answer as MongoDB does where there is none.

use sheaf_bson::Value;
use sheaf_errors::{Code, Error, Result};

use crate::stage::{Needs, SharedStage, Split, StageCx, StageEntry};

/// `$listSearchIndexes`.
pub(crate) const LIST_SEARCH_INDEXES: StageEntry = StageEntry::new(
    "$listSearchIndexes",
    parse_list_indexes,
    Split::Merger,
    Needs::Own(&["listSearchIndexes"]),
)
.first()
.unstable();
/// `$search`.
pub(crate) const SEARCH: StageEntry =
    StageEntry::new("$search", parse, Split::Both, Needs::Own(&["find"])).first().unstable();
/// `$searchMeta`.
pub(crate) const SEARCH_META: StageEntry =
    StageEntry::new("$searchMeta", parse, Split::Both, Needs::Own(&["find"])).first().unstable();
/// `$vectorSearch`.
pub(crate) const VECTOR_SEARCH: StageEntry =
    StageEntry::new("$vectorSearch", parse, Split::Both, Needs::Own(&["find"])).first().unstable();

/// How to come by a search service.
const ADVICE: &str = "Please connect to Atlas or an AtlasCLI local deployment to enable. For more information on how to \
connect, see https://dochub.mongodb.org/core/atlas-cli-deploy-local-reqs.";

/// The answer to the commands of search indexes and to `$listSearchIndexes`.
pub fn no_index_service() -> Error {
    Error::new(
        Code::SEARCH_NOT_ENABLED,
        format!(
            "Using Atlas Search Database Commands and the $listSearchIndexes aggregation stage requires additional configuration. {ADVICE}"
        ),
    )
}

pub(crate) fn parse(_: Value<'_>, _: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    Err(Error::new(
        Code::SEARCH_NOT_ENABLED,
        format!(
            "Using $search and $vectorSearch aggregation stages requires additional configuration. {ADVICE}"
        ),
    ))
}

pub(crate) fn parse_list_indexes(_: Value<'_>, _: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    Err(no_index_service())
}
