//! Parameters of the cluster, which the config servers keep: every shard gets them from the router by which they were set, and from others
//! that notice; settings for queries are obeyed here, too.

use std::time::Duration;

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Timestamp, Value, doc};
use sheaf_cluster::{GoOn, Shard, first_batch, for_client, run_on_each};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::Args;
use sheaf_front::audit::Audit;
use sheaf_front::audit::noted::{note, room_of};
use sheaf_front::reply::Reply;
use sheaf_server::commands::admin::parameters::AUDIT_CONFIG;
use sheaf_server::commands::sharding::SET_PARAMETERS;
use sheaf_server::query_settings::{FIELD, PARAMETER};

use crate::forward;
use crate::op::Operation;
use crate::router::Router;
use crate::told::Told;

/// `setClusterParameter`, `setQuerySettings`, `removeQuerySettings`: done by the config servers, then told to the shards.
pub fn change<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let audit = op.front.audit.as_ref().filter(|audit| audit.runtime);
    if let Some(audit) = audit {
        know_config(op, audit)?;
    }
    let before = audit.map(|audit| audit.config());
    if let Some(before) = &before {
        // Twice: what the command says replaces it, and is shown beside it.
        room_of(op, before.shown().as_raw())?;
        room_of(op, op.body())?;
    }
    let reply = forward::to_config(op)?;
    // What was written just now is read, though perhaps not yet by a majority.
    let after = op.router.clock.now();
    op.blocking(|| op.router.take_over_parameters(after, &|| op.check_interrupt())).map_err(for_client)?;
    let own = op.body().iter().next().and_then(|own| own.value().as_doc());
    if let (Some(audit), Some(before), true) =
        (audit, before, own.is_some_and(|own| own.get(AUDIT_CONFIG).is_some()))
    {
        note(op, "auditConfigure", Code::OK, || {
            doc! { "previous": before.shown().as_raw(), "config": audit.config().shown().as_raw() }
        });
    }
    Ok(reply)
}

/// `setAuditConfig`: the same, where this router's own audit log may be configured, too, and obeys at once.
///
/// Errors: `RuntimeAuditConfigurationNotEnabled`, those of the config servers.
pub fn configure_audit<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    // Without an audit log there is no such command.
    let Some(audit) = op.front.audit.as_ref().filter(|audit| audit.runtime) else {
        bail!(
            Code::RUNTIME_AUDIT_CONFIGURATION_NOT_ENABLED,
            "Runtime audit configuration has not been enabled"
        );
    };
    know_config(op, audit)?;
    let before = audit.config().shown();
    let reply = change(args, op)?;
    note(op, "auditConfigure", Code::OK, || {
        doc! { "previous": before.as_raw(), "config": audit.config().shown().as_raw() }
    });
    Ok(reply)
}

/// Right after its start a router may not know yet what is set: the event would show something else as what is replaced, and have room for that
/// only.
fn know_config(op: &Operation<'_>, audit: &Audit) -> Result<()> {
    if !audit.awaits_config() {
        return Ok(());
    }
    let asked = op.blocking(|| op.router.take_over_parameters(None, &|| op.check_interrupt()));
    // A shard that is out of reach keeps nobody from what the config servers have told.
    if audit.awaits_config() { asked.map_err(for_client) } else { Ok(()) }
}

/// Has the operation obey what was set for queries of the command's shape. Once anything was set, shards are told of each query what holds
/// for it, be it nothing: what they are asked has another shape.
///
/// Errors: `QueryRejectedBySettings`; 40415, if the client says what only routers may.
pub fn obey_settings(op: &Operation<'_>, command: RawDoc<'_>) -> Result<()> {
    if op.body().get(FIELD).is_some() {
        bail!(40415, "BSON field '{}.{FIELD}' is an unknown field.", op.command.name);
    }
    let known = &op.router.query_settings;
    if known.any() {
        let explains = op.command.name == "explain";
        let settings = known.obeyed(op.router.front(), op.db(), command, explains)?;
        op.settings
            .replace(Some(settings.map_or_else(DocBuf::new, |settings| DocBuf::from(settings.shown()))));
    }
    Ok(())
}

/// How long who waits for another's turn does so before it looks whether it may go on.
const TURN: Duration = Duration::from_millis(50);

impl Router {
    /// Reads the parameters that the config servers keep, as of this time or a later one, and obeys them. Then the shards are told, each that
    /// has not heard of them yet from this router: one that is out of reach keeps neither a router nor other shards from it.
    ///
    /// Errors: those of asking the config servers and the shards; what was not done then is done the next time.
    pub(crate) fn take_over_parameters(&self, after: Option<Timestamp>, go_on: GoOn<'_>) -> Result<()> {
        // One at a time: what was read before must not come after.
        let mut told = loop {
            match self.parameters_told.try_lock_for(TURN) {
                Some(told) => break told,
                None => go_on()?,
            }
        };
        let mut concern = doc! { "level": "majority" };
        if let Some(after) = after {
            concern.append("afterClusterTime", after);
        }
        let find = doc! { "find": "clusterParameters", "readConcern": concern.as_raw() };
        let kept = first_batch(self.directory.run("config", &find, true, go_on)?.as_raw());
        let of = |name: &str| {
            let is_it = |kept: &&DocBuf| kept.as_raw().get("_id").and_then(|id| id.as_str()) == Some(name);
            kept.iter().find(is_it).cloned()
        };
        // That nothing was set is known by now, too.
        if let Some(audit) = self.front().audit.as_ref().filter(|audit| audit.runtime) {
            audit.take_over(|| Ok(of(AUDIT_CONFIG)));
        }
        if told.kept != kept {
            self.query_settings.refresh(|| Ok(of(PARAMETER).unwrap_or_default()))?;
            *told = Told::of(kept);
        }
        let shards = self.directory.shards(go_on)?;
        let missing = told.missing(shards);
        let answers = tell(self, &missing, &told.kept, go_on);
        let mut outcome = Ok(());
        for (shard, answer) in missing.into_iter().zip(answers) {
            match answer {
                Ok(()) => _ = told.shards.insert(shard.name),
                // It has left the cluster meanwhile.
                Err(error) if error.code() == Code::SHARD_NOT_FOUND => {}
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    /// Tells a set that becomes a shard.
    ///
    /// Errors: those of asking the config servers and the set.
    pub(crate) fn tell_parameters(&self, set: &Shard, go_on: GoOn<'_>) -> Result<()> {
        let kept = self.directory.find("clusterParameters", &doc! {}, go_on)?;
        tell(self, std::slice::from_ref(set), &kept, go_on).into_iter().collect()
    }
}

/// Tells these shards, all at once, and gives what became of it at each.
fn tell(router: &Router, shards: &[Shard], kept: &[DocBuf], go_on: GoOn<'_>) -> Vec<Result<()>> {
    if kept.is_empty() {
        return shards.iter().map(|_| Ok(())).collect();
    }
    let command = doc! {
        (SET_PARAMETERS): 1, "parameters": Value::Array(ArrayBuf::of(kept).as_raw()),
        "writeConcern": { "w": "majority" }
    };
    let sets: Vec<_> = shards.iter().map(|shard| &shard.set).collect();
    let answers = run_on_each(&sets, &router.clock, ("admin", &command), true, go_on);
    answers.into_iter().map(|answer| answer.map(|_| ())).collect()
}
