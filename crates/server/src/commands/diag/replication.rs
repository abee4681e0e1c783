//! What `serverStatus` tells of a member of a replica set. What this server cannot tell is left out.

use sheaf_front::status::{Doc, put};
use sheaf_repl::Attempts;

use crate::node::Node;
use crate::replication::Replica;

/// `repl`: what `hello` says of the set.
pub fn set(node: &Node, doc: &mut Doc<'_>) {
    let Some(replica) = node.replica() else { return };
    replica.with(|core| core.hello()).write(doc, node.process_id, false);
    doc.append("rbid", replica.rollback_id());
    // Disabled: there is nothing that could block users' writes.
    doc.append("userWriteBlockMode", 1);
}

/// `opcountersRepl`: operations of others that were applied, one by one. A node that follows nobody has applied nothing.
pub fn opcounters(node: &Node, doc: &mut Doc<'_>) {
    let ops = node.engine().applied().ops;
    let counts = [
        ("insert", ops.insert),
        ("query", 0),
        ("update", ops.update),
        ("delete", ops.delete),
        ("getmore", 0),
        ("command", ops.command),
    ];
    for (name, count) in counts {
        doc.append(name, count as i64);
    }
}

/// `electionMetrics`.
pub fn elections(node: &Node, doc: &mut Doc<'_>) {
    let Some(replica) = node.replica() else { return };
    let counts = replica.with(|core| core.election_counts());
    let none = Attempts::default();
    for (name, attempts) in [
        ("stepUpCmd", counts.step_up),
        ("priorityTakeover", counts.priority_takeover),
        ("catchUpTakeover", none),
        ("electionTimeout", counts.election_timeout),
        ("freezeTimeout", counts.alone),
    ] {
        doc.document(name)
            .append("called", attempts.called as i64)
            .append("successful", attempts.successful as i64);
    }
    // Who wins has every entry that a majority has, so there is never anything to catch up with.
    for (name, count) in [
        ("numStepDownsCausedByHigherTerm", counts.higher_term),
        ("numCatchUps", 0),
        ("numCatchUpsSucceeded", 0),
        ("numCatchUpsAlreadyCaughtUp", counts.caught_up),
        ("numCatchUpsSkipped", counts.alone.successful),
        ("numCatchUpsTimedOut", 0),
        ("numCatchUpsFailedWithError", 0),
        ("numCatchUpsFailedWithNewTerm", 0),
        ("numCatchUpsFailedWithReplSetAbortPrimaryCatchUpCmd", 0),
    ] {
        doc.append(name, count as i64);
    }
    doc.append("averageCatchUpOps", 0.0);
}

/// `flowControl`: how much commits are held back because a majority of the set lags.
pub fn flow_control(node: &Node, doc: &mut Doc<'_>) {
    let Some(replica) = node.replica() else { return };
    let (lag_millis, slowed_micros) = replica.flow_control();
    let lag = replica.figures.lag();
    doc.append("enabled", true);
    doc.append("timeAcquiringMicros", slowed_micros as i64);
    doc.append("isLagged", lag.is_lagged());
    doc.append("isLaggedCount", lag.count as i32);
    doc.append("isLaggedTimeMicros", lag.micros() as i64);
    doc.append("lagMillis", lag_millis as i64);
}

/// `oplogTruncation`.
pub fn oplog_truncation(node: &Node, doc: &mut Doc<'_>) {
    let stats = node.engine().stats();
    let retention = node.engine().oplog_retention();
    if !retention.is_zero() {
        doc.append("oplogMinRetentionHours", retention.as_secs_f64() / 3600.0);
    }
    doc.append("totalTimeTruncatingMicros", stats.log_truncation_micros as i64);
    doc.append("truncateCount", stats.log_truncations as i64);
}

/// `metrics.repl`.
pub fn metrics(node: &Node, replica: &Replica, doc: &mut Doc<'_>) {
    let (metrics, figures) = (&node.metrics, &replica.figures);
    let applied = node.engine().applied();
    {
        let mut apply = doc.document("apply");
        apply.append("batchSize", applied.ops.all() as i64);
        apply
            .document("batches")
            .append("num", applied.batches as i64)
            .append("totalMillis", (applied.micros / 1000) as i64);
        apply.append("ops", applied.ops.all() as i64);
    }
    {
        let waiting = replica.buffered();
        doc.document("buffer")
            .document("apply")
            .append("count", waiting.count as i64)
            .append("sizeBytes", waiting.bytes as i64);
    }
    {
        let mut network = doc.document("network");
        put(&mut network, "bytes", &figures.network_bytes);
        network.append("notPrimaryLegacyUnacknowledgedWrites", 0i64);
        put(&mut network, "notPrimaryUnacknowledgedWrites", &metrics.not_primary_unacknowledged);
        put(&mut network, "ops", &figures.network_ops);
        put(&mut network.document("replSetUpdatePosition"), "num", &figures.progress_sent);
    }
    let rollbacks = replica.rollbacks();
    doc.document("rollback")
        .append("count", rollbacks.count as i64)
        .append("documents", rollbacks.documents as i64);
    let mut transition = doc.document("stateTransition");
    transition.append("lastStateTransition", *metrics.last_transition.lock());
    put(&mut transition, "totalOperationsKilled", &metrics.ops_killed);
    put(&mut transition, "totalOperationsRunning", &metrics.ops_running);
    drop(transition);
    doc.document("waiters").append("replication", replica.waiting_replies() as i64);
}
