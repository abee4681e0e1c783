//! Stages whose documents come from the server itself: `$collStats`, `$indexStats`, `$currentOp`,
//! `$listLocalSessions`, `$listSampledQueries`, `$shardedDataDistribution`.

use std::sync::Arc;

use sheaf_bson::{DocBuf, Element, RawDoc, Type, Value};
use sheaf_errors::{Code, Result, bail};

use sheaf_expr::Deps;
use sheaf_rows::{BoxOperator, Cx, Documents, Operator, Row, Step};

use crate::database::{SharedDatabase, StatsSource};
use crate::idl::Fields;
use crate::namespace::Namespace;
use crate::stage::{Needs, Reads, SharedStage, Split, Stage, StageCx, StageEntry};

/// `$collStats`.
pub(crate) const COLL_STATS: StageEntry =
    StageEntry::new("$collStats", parse_coll_stats, Split::Shards, Needs::Own(&["collStats"]))
        .looked_at(|argument, _| coll_stats_spec(argument).map(drop))
        .first()
        .not_in_transactions();
/// `$currentOp`.
pub(crate) const CURRENT_OP: StageEntry =
    StageEntry::new("$currentOp", parse_current_op, Split::Router, Needs::Cluster(&["inprog"]))
        .looked_at(|argument, _| current_op_spec(argument).map(drop))
        .first()
        .collectionless()
        .unstable()
        .reads_local()
        .not_in_transactions();
/// `$indexStats`.
pub(crate) const INDEX_STATS: StageEntry =
    StageEntry::new("$indexStats", parse_index_stats, Split::Shards, Needs::Own(&["indexStats"]))
        .first()
        .unstable()
        .not_in_transactions();
/// `$listLocalSessions`.
pub(crate) const LIST_LOCAL_SESSIONS: StageEntry = StageEntry::new(
    "$listLocalSessions",
    parse_list_local_sessions,
    Split::Router,
    Needs::Cluster(&["listSessions"]),
)
.looked_at(|argument, _| sessions_spec("$listLocalSessions", argument).map(drop))
.first()
.collectionless()
.unstable()
.reads_local()
.not_in_transactions();

/// `$listSampledQueries`.
pub(crate) const LIST_SAMPLED_QUERIES: StageEntry = StageEntry::new(
    "$listSampledQueries",
    parse_list_sampled_queries,
    Split::Router,
    Needs::Cluster(&["listSampledQueries"]),
)
.first()
.collectionless()
.unstable()
.not_in_transactions();

/// `$shardedDataDistribution`.
pub(crate) const SHARDED_DATA_DISTRIBUTION: StageEntry = StageEntry::new(
    "$shardedDataDistribution",
    parse_sharded_data_distribution,
    Split::Router,
    Needs::Cluster(&["shardedDataDistribution"]),
)
.first()
.collectionless()
.not_in_transactions();

/// What `$currentOp` takes.
const CURRENT_OP_FIELDS: &[&str] = &[
    "allUsers",
    "idleConnections",
    "idleSessions",
    "localOps",
    "truncateOps",
    "idleCursors",
    "backtrace",
    "targetAllNodes",
];

/// A parsed stage of this kind.
#[derive(Debug)]
pub struct StatsStage {
    /// Which.
    pub source: StatsSource,
    /// The namespace that it was asked on.
    pub namespace: Namespace,
    /// Its argument.
    pub spec: DocBuf,
}

/// The stage with these documents.
pub(crate) fn stage(source: StatsSource, spec: RawDoc<'_>, cx: &StageCx<'_>) -> Vec<SharedStage> {
    vec![Arc::new(StatsStage { source, namespace: cx.namespace.clone(), spec: DocBuf::from(spec) })]
}

/// The argument of `$collStats`.
///
/// Errors: 5447000, 40413, 40415, 31170, `TypeMismatch`.
fn coll_stats_spec(argument: Value<'_>) -> Result<RawDoc<'_>> {
    let Value::Document(spec) = argument else {
        bail!(
            5447000,
            "$collStats must take a nested object but found: $collStats: {}",
            crate::print::value(argument)
        );
    };
    let mut seen = Vec::new();
    for field in spec.iter() {
        let key = field.key();
        if !field.value().is_nullish() && seen.contains(&key) {
            bail!(40413, "BSON field '$collStats.{key}' is a duplicate field");
        }
        match (key, field.value()) {
            ("queryExecStats" | "count", Value::Document(options)) if !options.is_empty() => {
                bail!(31170, "{key} has no options, found: {}", crate::print::value(field.value()))
            }
            ("latencyStats", Value::Document(options)) => {
                Fields::new("$collStats.latencyStats", options, &["histograms"])?
                    .optional("histograms", &[Type::Bool])?;
            }
            ("storageStats", Value::Document(options)) => {
                let known = ["scale", "verbose", "waitForLock", "numericOnly"];
                Fields::new("$collStats.storageStats", options, &known)?;
            }
            (
                "latencyStats" | "storageStats" | "queryExecStats" | "count" | "operationStats",
                Value::Document(_) | Value::Null | Value::Undefined,
            ) => {}
            ("latencyStats" | "storageStats" | "queryExecStats" | "count" | "operationStats", other) => {
                bail!(
                    Code::TYPE_MISMATCH,
                    "BSON field '$collStats.{key}' is the wrong type '{}', expected type 'object'",
                    other.type_name()
                )
            }
            _ => bail!(40415, "BSON field '$collStats.{key}' is an unknown field."),
        }
        if !field.value().is_nullish() {
            seen.push(key);
        }
    }
    Ok(spec)
}

pub(crate) fn parse_coll_stats(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let spec = coll_stats_spec(argument)?;
    // A null stands for no field at all.
    let spec = DocBuf::build(|out| {
        for field in spec.iter().filter(|field| !field.value().is_nullish()) {
            out.append_element(field);
        }
    });
    let spec = spec.as_raw();
    let stable = |key: &[u8]| key == b"count" || key == b"operationStats";
    if cx.expr.is_api_strict() && spec.iter().any(|field| !stable(field.key_bytes())) {
        bail!(Code::API_STRICT_ERROR, "only the 'count' option to $collStats is supported in API Version 1");
    }
    Ok(stage(StatsSource::CollStats, spec, cx))
}

pub(crate) fn parse_index_stats(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    match argument {
        Value::Document(spec) if spec.is_empty() => Ok(stage(StatsSource::IndexStats, spec, cx)),
        _ => bail!(28803, "The $indexStats stage specification must be an empty object"),
    }
}

/// The argument of `$currentOp`, as far as rights depend on it.
///
/// Errors: `TypeMismatch`.
fn current_op_spec(argument: Value<'_>) -> Result<RawDoc<'_>> {
    let Value::Document(spec) = argument else {
        bail!(
            Code::TYPE_MISMATCH,
            "$currentOp options must be specified in an object, but found: {}",
            argument.type_name()
        );
    };
    let asks = |field: &Element<'_>| matches!(field.key(), "allUsers" | "localOps");
    if let Some(field) = spec.iter().filter(asks).find(|field| !matches!(field.value(), Value::Bool(_))) {
        bail!(
            Code::TYPE_MISMATCH,
            "The '{}' parameter of the $currentOp stage must be a boolean value, but found: {}",
            field.key(),
            field.value().type_name()
        );
    }
    Ok(spec)
}

pub(crate) fn parse_current_op(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let spec = current_op_spec(argument)?;
    if cx.namespace.database != "admin" || !cx.namespace.collection.is_empty() {
        bail!(
            Code::INVALID_NAMESPACE,
            "$currentOp must be run against the 'admin' database with {{aggregate: 1}}"
        );
    }
    let fields = Fields::new("$currentOp", spec, CURRENT_OP_FIELDS)?;
    for name in CURRENT_OP_FIELDS {
        fields.flag(name)?;
    }
    if fields.flag("localOps")? == Some(true) && fields.flag("targetAllNodes")? == Some(true) {
        bail!(
            Code::FAILED_TO_PARSE,
            "The 'localOps' parameter of the $currentOp stage cannot be true when 'targetAllNodes' is also true"
        );
    }
    Ok(stage(StatsSource::CurrentOp, spec, cx))
}

pub(crate) fn parse_list_local_sessions(
    argument: Value<'_>,
    cx: &mut StageCx<'_>,
) -> Result<Vec<SharedStage>> {
    let spec = sessions_spec("$listLocalSessions", argument)?;
    if !cx.namespace.collection.is_empty() {
        bail!(
            Code::INVALID_NAMESPACE,
            "$listLocalSessions must be run against the database with {{aggregate: 1}}, not a collection"
        );
    }
    Ok(stage(StatsSource::ListLocalSessions, spec, cx))
}

/// The argument of `$listLocalSessions` and `$listSessions`: whose sessions.
///
/// Errors: `TypeMismatch`, 40413 to 40415, `UnsupportedFormat`.
pub(crate) fn sessions_spec<'a>(stage: &str, argument: Value<'a>) -> Result<RawDoc<'a>> {
    let Value::Document(spec) = argument else {
        bail!(
            Code::TYPE_MISMATCH,
            "{stage} options must be specified in an object, but found: {}",
            argument.type_name()
        );
    };
    let fields = Fields::new("ListSessionsSpec", spec, &["users", "allUsers", "$_internalPredicate"])?;
    let users = fields.optional("users", &[Type::Array])?.and_then(|users| users.as_array());
    let mut named = false;
    // A null in the list stands for nobody.
    for user in users.unwrap_or(RawDoc::EMPTY).values().filter(|user| !user.is_nullish()) {
        let Value::Document(user) = user else {
            bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'ListSessionsSpec.users' is the wrong type '{}', expected type 'object'",
                user.type_name()
            );
        };
        let user = Fields::new("ListSessionsSpec.users", user, &["user", "db"])?;
        user.required("user", &[Type::String])?;
        user.required("db", &[Type::String])?;
        named = true;
    }
    let all = fields.optional("allUsers", &[Type::Bool])?.is_some_and(|all| all.truthy());
    if all && named {
        bail!(
            Code::UNSUPPORTED_FORMAT,
            "{stage} may not specify {{allUsers:true}} and {{users:[...]}} at the same time"
        );
    }
    Ok(spec)
}

pub(crate) fn parse_list_sampled_queries(
    argument: Value<'_>,
    cx: &mut StageCx<'_>,
) -> Result<Vec<SharedStage>> {
    let Value::Document(spec) = argument else {
        bail!(
            6876001,
            "$listSampledQueries must take a nested object but found: $listSampledQueries: {}",
            crate::print::value(argument)
        );
    };
    if cx.namespace.database != "admin" || !cx.namespace.collection.is_empty() {
        bail!(
            Code::INVALID_NAMESPACE,
            "$listSampledQueries must be run against the 'admin' database with {{aggregate: 1}}"
        );
    }
    for field in spec.iter() {
        match (field.key(), field.value()) {
            ("namespace", Value::String(name))
                if name.split_once('.').is_none_or(|(db, of)| db.is_empty() || of.is_empty()) =>
            {
                bail!(Code::INVALID_NAMESPACE, "Invalid namespace specified '{name}'")
            }
            ("namespace", Value::String(_)) => {}
            ("namespace", other) => bail!(
                Code::TYPE_MISMATCH,
                "BSON field '$listSampledQueries.namespace' is the wrong type '{}', expected type 'string'",
                other.type_name()
            ),
            (other, _) => bail!(40415, "BSON field '$listSampledQueries.{other}' is an unknown field."),
        }
    }
    Ok(stage(StatsSource::ListSampledQueries, spec, cx))
}

pub(crate) fn parse_sharded_data_distribution(
    argument: Value<'_>,
    cx: &mut StageCx<'_>,
) -> Result<Vec<SharedStage>> {
    let spec = match argument {
        Value::Document(spec) if spec.is_empty() => spec,
        _ => bail!(6789100, "The $shardedDataDistribution stage specification must be an empty object"),
    };
    if cx.namespace.database != "admin" || !cx.namespace.collection.is_empty() {
        bail!(6789102, "The $shardedDataDistribution stage must be run on the admin database");
    }
    Ok(stage(StatsSource::ShardedDataDistribution, spec, cx))
}

impl Stage for StatsStage {
    fn name(&self) -> &'static str {
        self.source.stage_name()
    }

    fn open(self: Arc<Self>, _input: BoxOperator, database: &SharedDatabase) -> BoxOperator {
        Box::new(StatsRun::new(self, database.clone()))
    }

    fn dependencies(&self, _deps: &mut Deps) -> Reads {
        Reads::Only
    }
}

/// Runs such a stage.
struct StatsRun {
    stage: Arc<StatsStage>,
    database: SharedDatabase,
    /// The documents, once they were asked for.
    documents: Option<Documents>,
}

impl StatsRun {
    fn new(stage: Arc<StatsStage>, database: SharedDatabase) -> Self {
        StatsRun { stage, database, documents: None }
    }
}

impl Operator for StatsRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let documents = match &mut self.documents {
            Some(documents) => documents,
            None => {
                let StatsStage { source, namespace, spec } = &*self.stage;
                let documents = self.database.stats(*source, namespace, spec.as_raw(), cx)?;
                self.documents.insert(Documents::new(documents))
            }
        };
        documents.work(cx)
    }

    fn row(&self) -> Row<'_> {
        self.documents.as_ref().map_or(Row::default(), Operator::row)
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}
}
