//! Which concerns and which cluster times this node can satisfy.

use sheaf_aggregate::{ReadsAt, stage_entry};
use sheaf_bson::{RawDoc, Timestamp};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::request::Request;

use crate::concern::{ReadConcern, ReadLevel};
use crate::node::Node;

/// How far ahead of the wall clock a cluster time may be (`maxAcceptableLogicalClockDriftSecs`): a year.
const DRIFT_SECS_MAX: u64 = 365 * 24 * 60 * 60;

/// How far ahead of what this member knows it may be where that is beyond the drift already: as far as members lag behind.
const LAG_SECS_MAX: u64 = 60 * 60;

/// Takes note of the cluster time that a client has seen: what is written from now on is later. A time about as late as this
/// member knows is no news, however far its clock is behind by now (a primary's clock was wrong for a moment): refused, the set
/// would answer no driver any more. Nobody gets it there by telling times: each has to be within the drift of the clock.
///
/// Errors: `ClusterTimeFailsRateLimiter`.
pub fn cluster_time_seen(node: &Node, request: &Request<'_>) -> Result<()> {
    request.generic.cluster_time.map_or(Ok(()), |time| time_seen(node, time))
}

/// Takes note of a cluster time, as above.
///
/// Errors: `ClusterTimeFailsRateLimiter`.
pub fn time_seen(node: &Node, time: Timestamp) -> Result<()> {
    let Some(replica) = node.replica() else { return Ok(()) };
    let wall_secs = node.clock.now_millis().max(0) as u64 / 1000;
    let secs = time.0 >> 32;
    let too_far = secs > wall_secs + DRIFT_SECS_MAX && {
        let known_secs = replica.cluster_time().0 >> 32;
        known_secs <= wall_secs + DRIFT_SECS_MAX || secs > known_secs + LAG_SECS_MAX
    };
    if too_far {
        bail!(
            Code::CLUSTER_TIME_FAILS_RATE_LIMITER,
            "New cluster time, {secs}, is too far from this node's wall clock time, {wall_secs}."
        );
    }
    replica.observe_time(time);
    Ok(())
}

fn time_text(time: Timestamp) -> String {
    format!("{{ ts: Timestamp({}, {}) }}", time.0 >> 32, time.0 as u32)
}

/// Times of the cluster in a read concern: nobody can have seen one that this member has not been told of.
fn cluster_time(node: &Node, concern: &ReadConcern) -> Result<()> {
    let (name, wanted) = match (concern.after_cluster_time, concern.at_cluster_time) {
        (Some(after), _) => ("afterClusterTime", after),
        (None, Some(at)) => ("atClusterTime", at),
        (None, None) => return Ok(()),
    };
    let Some(replica) = node.replica() else {
        bail!(Code::ILLEGAL_OPERATION, "Cannot specify {name} readConcern without replication enabled")
    };
    if wanted.0 == 0 {
        bail!(Code::INVALID_OPTIONS, "{name} cannot be a null timestamp");
    }
    let known = replica.cluster_time();
    if wanted > known {
        bail!(
            Code::INVALID_OPTIONS,
            "readConcern {name} value must not be greater than the current clusterTime. Requested clusterTime: {}; current clusterTime: {}",
            time_text(wanted),
            time_text(known)
        );
    }
    Ok(())
}

/// Which commands take concerns, and which concerns one node can satisfy.
///
/// Errors: `InvalidOptions`, `BadValue`, `NotAReplicaSet`.
pub fn concerns(node: &Node, request: &Request<'_>) -> Result<()> {
    let Request { command, ref generic, part, .. } = *request;
    if let Some(concern) = generic.write_concern {
        if !command.spec.concerns.write {
            bail!(Code::INVALID_OPTIONS, "Command does not support writeConcern");
        }
        if node.options.set_name.is_none() {
            concern.check_standalone()?;
        }
        if concern.journal == Some(true) && !node.options.journal {
            bail!(Code::BAD_VALUE, "cannot use 'j' option when a host does not have journaling enabled");
        }
    }
    let Some(concern) = generic.read_concern else { return Ok(()) };
    let level = concern.level.unwrap_or(ReadLevel::Local);
    levels(request, level)?;
    let of_one_moment = level == ReadLevel::Snapshot && !part.in_transaction();
    let needs_set = level == ReadLevel::Linearizable || of_one_moment;
    if needs_set && node.options.set_name.is_none() {
        bail!(Code::NOT_A_REPLICA_SET, "node needs to be a replica set member to use read concern");
    }
    cluster_time(node, &concern)
}

/// Whether a command, and the stages of a pipeline, run with a read concern.
///
/// Errors: `InvalidOptions`.
pub fn levels(request: &Request<'_>, level: ReadLevel) -> Result<()> {
    let Request { command, part, .. } = *request;
    if !command.spec.concerns.read && !part.in_transaction() && level != ReadLevel::Local {
        bail!(
            Code::INVALID_OPTIONS,
            "Command {} does not support {{ readConcern: {{ level: \"{}\", provenance: \"clientSupplied\" }} }} :: caused by :: read concern not supported",
            command.name,
            level.name()
        );
    }
    if command.name == "aggregate"
        && let Some(stages) = request.body().get("pipeline").and_then(|stages| stages.as_array())
    {
        stages_at(stages, level)?;
    }
    // A cursor takes a new snapshot for each batch, so only a transaction keeps what `snapshot` promises.
    let of_one_moment = level == ReadLevel::Snapshot && !part.in_transaction();
    if of_one_moment && !matches!(command.name, "find" | "aggregate" | "distinct" | "getMore") {
        bail!(
            Code::INVALID_OPTIONS,
            "Command {} does not support {{ readConcern: {{ level: \"snapshot\", provenance: \"clientSupplied\" }} }} :: caused by :: read concern not supported",
            command.name
        );
    }
    Ok(())
}

/// Whether the stages of a pipeline run with a read concern.
///
/// Errors: `InvalidOptions`.
fn stages_at(stages: RawDoc<'_>, level: ReadLevel) -> Result<()> {
    let names = stages.values().filter_map(|stage| Some(stage.as_doc()?.iter().next()?.key()));
    for entry in names.filter_map(stage_entry) {
        match entry.reads_at {
            ReadsAt::Local if level != ReadLevel::Local => bail!(
                Code::INVALID_OPTIONS,
                "Aggregation stage {} cannot run with a readConcern other than 'local', or in a multi-document transaction. Current readConcern: {}",
                entry.name,
                level.name()
            ),
            ReadsAt::NotLinearizable if level == ReadLevel::Linearizable => bail!(
                Code::INVALID_OPTIONS,
                "{} cannot be used with a 'linearizable' read concern level",
                entry.name
            ),
            _ => {}
        }
    }
    Ok(())
}
