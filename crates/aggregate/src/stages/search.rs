//! `$search`, `$searchMeta`, `$vectorSearch`, `$listSearchIndexes`: they need a search service beside the server, and
//! answer as MongoDB does where there is none. The definition of a view may have them: who makes it reads nothing.

use std::sync::Arc;

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_expr::Deps;
use sheaf_query::matcher::Matcher;
use sheaf_rows::{BoxOperator, Cx, Operator, Row, Step};

use crate::database::SharedDatabase;
use crate::stage::{Needs, Place, Reads, SharedStage, Split, Stage, StageCx, StageEntry};

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
    StageEntry::new("$search", parse_search, Split::Both, Needs::Own(&["find"])).first().unstable();
/// `$searchMeta`.
pub(crate) const SEARCH_META: StageEntry =
    StageEntry::new("$searchMeta", parse_search_meta, Split::Both, Needs::Own(&["find"])).first().unstable();
/// `$vectorSearch`.
pub(crate) const VECTOR_SEARCH: StageEntry =
    StageEntry::new("$vectorSearch", parse_vector_search, Split::Both, Needs::Own(&["find"]))
        .first()
        .unstable();

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

/// The answer to a stage that searches.
fn no_search_service() -> Error {
    Error::new(
        Code::SEARCH_NOT_ENABLED,
        format!(
            "Using $search and $vectorSearch aggregation stages requires additional configuration. {ADVICE}"
        ),
    )
}

pub(crate) fn parse_search(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    in_definition("$search", argument, cx).map(|_| unserved("$search"))
}

pub(crate) fn parse_search_meta(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    in_definition("$searchMeta", argument, cx).map(|_| unserved("$searchMeta"))
}

pub(crate) fn parse_vector_search(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let spec = in_definition("$vectorSearch", argument, cx)?;
    if let Some(limit) = spec.get("limit") {
        if !limit.is_number() {
            bail!(8575100, "Expected limit field to be a number in $vectorSearch");
        }
        // The fraction is cut off.
        if sheaf_bson::compare(limit, Value::Int32(1)).is_lt() {
            bail!(7912700, "Expected limit to be positive");
        }
    }
    match spec.get("filter") {
        None => {}
        Some(Value::Document(filter)) => _ = Matcher::parse(filter, cx.expr)?,
        Some(_) => bail!(10065, "invalid parameter: expected an object (filter)"),
    }
    Ok(unserved("$vectorSearch"))
}

pub(crate) fn parse_list_indexes(_: Value<'_>, _: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    Err(no_index_service())
}

/// What a stage is given, if it stands in the definition of a view: there nobody looks for a service.
///
/// Errors: `SearchNotEnabled` elsewhere; `FailedToParse`.
fn in_definition<'v>(name: &str, argument: Value<'v>, cx: &StageCx<'_>) -> Result<RawDoc<'v>> {
    if cx.place != Place::View {
        return Err(no_search_service());
    }
    match argument {
        Value::Document(spec) => Ok(spec),
        other => {
            bail!(Code::FAILED_TO_PARSE, "{name} value must be an object. Found: {}", other.type_name())
        }
    }
}

fn unserved(name: &'static str) -> Vec<SharedStage> {
    vec![Arc::new(Unserved { name })]
}

/// A stage of a view's definition that can be read, but not run.
#[derive(Debug)]
struct Unserved {
    name: &'static str,
}

impl Stage for Unserved {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(self: Arc<Self>, _input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(Refused)
    }

    fn dependencies(&self, _deps: &mut Deps) -> Reads {
        Reads::All
    }
}

/// Says that there is no service, when it is asked for the first document.
struct Refused;

impl Operator for Refused {
    fn work(&mut self, _cx: &mut Cx<'_>) -> Result<Step> {
        Err(no_search_service())
    }

    fn row(&self) -> Row<'_> {
        Row::default()
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}
}
