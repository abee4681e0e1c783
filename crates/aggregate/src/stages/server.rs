//! More stages whose documents come from the server itself: `$listClusterCatalog`, `$listSessions`, `$planCacheStats`,
//! `$querySettings`, `$queryStats`.

use sheaf_bson::{RawDoc, Type, Value};
use sheaf_errors::{Code, Result, bail};

use super::stats::{sessions_spec, stage};
use crate::database::StatsSource;
use crate::idl::Fields;
use crate::stage::{Needs, SharedStage, Split, StageCx, StageEntry};

/// `$listClusterCatalog`.
pub(crate) const LIST_CLUSTER_CATALOG: StageEntry = StageEntry::new(
    "$listClusterCatalog",
    parse_list_cluster_catalog,
    Split::Router,
    Needs::Cluster(&["listDatabases"]),
)
.first()
.collectionless()
.unstable()
.reads_local()
.not_in_transactions();

/// `$listSessions`.
pub(crate) const LIST_SESSIONS: StageEntry =
    StageEntry::new("$listSessions", parse_list_sessions, Split::Router, Needs::Cluster(&["listSessions"]))
        .looked_at(|argument, _| sessions_spec("$listSessions", argument).map(drop))
        .first()
        .collectionless()
        .unstable()
        .not_in_transactions();

/// `$planCacheStats`.
pub(crate) const PLAN_CACHE_STATS: StageEntry =
    StageEntry::new("$planCacheStats", parse_plan_cache_stats, Split::Shards, Needs::Own(&["planCacheRead"]))
        .looked_at(|argument, _| all_hosts(argument).map(drop))
        .first()
        .unstable()
        .reads_local()
        .not_in_transactions();

/// `$querySettings`.
pub(crate) const QUERY_SETTINGS: StageEntry = StageEntry::new(
    "$querySettings",
    parse_query_settings,
    Split::Router,
    Needs::Cluster(&["querySettings"]),
)
.first()
.collectionless()
.unstable()
.not_in_transactions();

/// `$queryStats`.
pub(crate) const QUERY_STATS: StageEntry =
    StageEntry::new("$queryStats", parse_query_stats, Split::Router, Needs::Cluster(&["queryStatsRead"]))
        .looked_at(|argument, _| query_stats_spec(argument).map(drop))
        .first()
        .collectionless()
        .unstable()
        .not_in_transactions();

fn parse_list_cluster_catalog(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Value::Document(spec) = argument else {
        bail!(
            9621302,
            "The $listClusterCatalog stage specification must be an object. Found: {}",
            argument.type_name()
        );
    };
    if !cx.namespace.collection.is_empty() {
        bail!(9621301, "The $listClusterCatalog stage can only be run on a database: {{aggregate: 1}}");
    }
    let known = ["shards", "balancingConfiguration"];
    let fields = Fields::new("$listClusterCatalog", spec, &known)?;
    known.iter().try_for_each(|name| fields.flag(name).map(drop))?;
    Ok(stage(StatsSource::ListClusterCatalog, spec, cx))
}

fn parse_list_sessions(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let spec = sessions_spec("$listSessions", argument)?;
    if cx.namespace.database != "config" || cx.namespace.collection != "system.sessions" {
        bail!(Code::INVALID_NAMESPACE, "$listSessions may only be run against config.system.sessions");
    }
    Ok(stage(StatsSource::ListSessions, spec, cx))
}

/// The argument of `$planCacheStats`: whether all hosts of a cluster are asked.
///
/// Errors: `FailedToParse`.
fn all_hosts(argument: Value<'_>) -> Result<bool> {
    let Value::Document(spec) = argument else {
        bail!(
            Code::FAILED_TO_PARSE,
            "$planCacheStats value must be an object. Found: {}",
            argument.type_name()
        );
    };
    let mut fields = spec.iter();
    match (fields.next(), fields.next()) {
        (None, _) => Ok(false),
        (Some(field), None) if field.key() == "allHosts" => match field.value() {
            Value::Bool(all) => Ok(all),
            other => bail!(
                Code::FAILED_TO_PARSE,
                "$planCacheStats: allHosts must be a boolean, but found {}",
                other.type_name()
            ),
        },
        _ => bail!(
            Code::FAILED_TO_PARSE,
            "$planCacheStats parameters object may contain only 'allHosts' field. Found: {}",
            crate::print::document(spec)
        ),
    }
}

fn parse_plan_cache_stats(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    if all_hosts(argument)? {
        bail!(4503200, "$planCacheStats stage supports allHosts parameter only for sharded clusters");
    }
    Ok(stage(StatsSource::PlanCacheStats, RawDoc::EMPTY, cx))
}

fn check_admin(name: &str, cx: &StageCx<'_>) -> Result<()> {
    if cx.namespace.database != "admin" || !cx.namespace.collection.is_empty() {
        bail!(
            Code::INVALID_NAMESPACE,
            "{name} must be run against the 'admin' database with {{aggregate: 1}}"
        );
    }
    Ok(())
}

fn parse_query_settings(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Value::Document(spec) = argument else {
        bail!(
            7746800,
            "$querySettings stage expects a document as argument, but found: {}",
            argument.type_name()
        );
    };
    check_admin("$querySettings", cx)?;
    let fields = Fields::new("$querySettings", spec, &["showDebugQueryShape"])?;
    fields.optional("showDebugQueryShape", &[Type::Bool])?;
    Ok(stage(StatsSource::QuerySettings, spec, cx))
}

/// The argument of `$queryStats`.
///
/// Errors: `FailedToParse`, `TypeMismatch`, 40413 to 40415, `BadValue`.
fn query_stats_spec(argument: Value<'_>) -> Result<RawDoc<'_>> {
    let Value::Document(spec) = argument else {
        bail!(Code::FAILED_TO_PARSE, "$queryStats value must be an object. Found: {}", argument.type_name());
    };
    let fields = Fields::new("$queryStats", spec, &["transformIdentifiers"])?;
    if let Some(transform) = fields.document("transformIdentifiers")? {
        let transform =
            Fields::new("$queryStats.transformIdentifiers", transform, &["algorithm", "hmacKey"])?;
        let algorithm = transform.required("algorithm", &[Type::String])?;
        transform.optional("hmacKey", &[Type::Binary])?;
        if algorithm.as_str() != Some("hmac-sha-256") {
            bail!(
                Code::BAD_VALUE,
                "Enumeration value '{}' for field '$queryStats.transformIdentifiers.algorithm' is not a valid value.",
                algorithm.as_str().unwrap_or_default()
            );
        }
    }
    Ok(spec)
}

fn parse_query_stats(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let spec = query_stats_spec(argument)?;
    check_admin("$queryStats", cx)?;
    Ok(stage(StatsSource::QueryStats, spec, cx))
}
