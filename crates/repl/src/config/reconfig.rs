//! What must hold of one configuration after another.

use sheaf_errors::{Code, Error, Result};

use super::ReplSetConfig;

fn incompatible(text: impl Into<String>) -> Error {
    Error::new(Code::NEW_REPLICA_SET_CONFIGURATION_INCOMPATIBLE, text)
}

/// Several arbiters can elect a member that lacks what was acknowledged, so they must be asked for.
pub fn check_arbiters(config: &ReplSetConfig, allow_multiple: bool) -> Result<()> {
    if allow_multiple || config.members.iter().filter(|member| member.arbiter_only).count() <= 1 {
        return Ok(());
    }
    Err(Error::new(
        Code::INVALID_REPLICA_SET_CONFIG,
        "Multiple arbiters are not allowed unless all nodes were started with --setParameter \
         'allowMultipleArbiters=true'",
    ))
}

/// Checks the first configuration of a set, of which this member is `me`. Whatever is wrong with it, the code is
/// `InvalidReplicaSetConfig`.
pub fn validate_for_initiate(config: &ReplSetConfig, set_name: &str, me: u64) -> Result<()> {
    check_first(config, set_name, me)
        .map_err(|error| Error::new(Code::INVALID_REPLICA_SET_CONFIG, error.message()))
}

fn check_first(config: &ReplSetConfig, set_name: &str, me: u64) -> Result<()> {
    if config.set_name != set_name {
        return Err(Error::new(
            Code::INVALID_REPLICA_SET_CONFIG,
            format!(
                "Rejecting initiate with a set name that differs from command line set name, initiate set name: {}, \
                 command line set name: {set_name}",
                config.set_name
            ),
        ));
    }
    config.validate()?;
    check_arbiter_priorities(config)?;
    if let Some(member) = config.members.iter().find(|member| member.newly_added) {
        return Err(Error::new(
            Code::INVALID_REPLICA_SET_CONFIG,
            format!(
                "Member {}, with _id MemberId({}), has a newlyAdded field, which is not valid for initial configuration of a replica \
                 set.",
                member.host, member.id
            ),
        ));
    }
    if config.version != 1 {
        return Err(incompatible(format!(
            "Configuration used to initiate a replica set must  have version 1, but found {}",
            config.version
        )));
    }
    check_electable(config, me)
}

/// Checks `new` as what follows `old` on member `me`. Whatever is wrong with it, the code is
/// `NewReplicaSetConfigurationIncompatible`, except for another set's name and where this member has no place in it.
pub fn validate_for_reconfig(old: &ReplSetConfig, new: &ReplSetConfig, me: u64, force: bool) -> Result<()> {
    if new.set_name != old.set_name {
        return Err(Error::new(
            Code::INVALID_REPLICA_SET_CONFIG,
            format!(
                "Rejecting reconfig where new config set name differs from command line set name, new config set name: \
                 {}, old config set name: {}",
                new.set_name, old.set_name
            ),
        ));
    }
    check_successor(old, new, force).map_err(|error| incompatible(error.message()))?;
    if force { check_present(new, me) } else { check_electable(new, me) }
}

fn check_successor(old: &ReplSetConfig, new: &ReplSetConfig, force: bool) -> Result<()> {
    new.validate()?;
    if !new.config_version().newer_than(old.config_version()) {
        let text = |config: &ReplSetConfig| format!("{{version: {}, term: {}}}", config.version, config.term);
        return Err(incompatible(format!(
            "New replica set configuration version and term must be greater than old, but {} is not greater than {} for \
             replica set {}",
            text(new),
            text(old),
            new.set_name
        )));
    }
    if let (Some(before), Some(after)) = (old.settings.replica_set_id, new.settings.replica_set_id)
        && before != after
    {
        return Err(incompatible(format!(
            "New and old configurations differ in replica set ID; old was {before}, and new is {after}"
        )));
    }
    if old.configsvr && !new.configsvr {
        return Err(incompatible("Cannot remove \"configsvr\" from replica set configuration on reconfig"));
    }
    check_members(old, new)?;
    check_lone_writer(old, new)?;
    if !force {
        check_single_voter(old, new)?;
    }
    check_arbiter_priorities(new)
}

fn check_arbiter_priorities(config: &ReplSetConfig) -> Result<()> {
    match config.members.iter().find(|member| member.arbiter_only && member.priority != 0.0) {
        None => Ok(()),
        Some(member) => Err(Error::new(
            Code::INVALID_REPLICA_SET_CONFIG,
            format!(
                "Member {} is an arbiter but has priority {}. Arbiter priority must be 0.",
                member.host, member.priority
            ),
        )),
    }
}

/// Where one member alone could acknowledge a majority's writes, a second one beside an arbiter is not electable at once:
/// with the arbiter's vote it could win without them. (Here it could not, as it gets its vote with the data; but
/// programs made for MongoDB expect the two steps of `rs.reconfigForPSASet`.)
fn check_lone_writer(old: &ReplSetConfig, new: &ReplSetConfig) -> Result<()> {
    let voters = old.members.iter().filter(|member| member.votes > 0).count();
    let arbiters = old.members.iter().filter(|member| member.arbiter_only).count();
    let overlap = voters / 2 < voters.saturating_sub(arbiters);
    let (data, votes) =
        (new.data_bearing_count(), new.members.iter().filter(|member| member.votes > 0).count());
    let psa = new.members.len() == 3 && data == 2 && votes == 3;
    let electable = new.members.iter().filter(|member| member.priority > 0.0).count();
    if overlap || !psa || electable <= 1 {
        return Ok(());
    }
    Err(incompatible(
        "Rejecting reconfig where the new config has a PSA topology and the secondary is electable, but the old config \
         contains only one writable node. Refer to \
         https://docs.mongodb.com/manual/reference/method/rs.reconfigForPSASet/ for next steps on reconfiguring a PSA \
         set.",
    ))
}

/// What a member may not become while it keeps its `_id` or its host. It may move to another host.
fn check_members(old: &ReplSetConfig, new: &ReplSetConfig) -> Result<()> {
    for member in &new.members {
        for before in &old.members {
            if member.host == before.host && member.id != before.id {
                return Err(incompatible(format!(
                    "New and old configurations both have members with host of {} but in the new configuration the \
                     _id field is MemberId({}) and in the old configuration it is MemberId({}) for replica set {}",
                    member.host, member.id, before.id, new.set_name
                )));
            }
            if member.id != before.id {
                continue;
            }
            if member.build_indexes != before.build_indexes {
                return Err(incompatible(format!(
                    "New and old configurations differ in the setting of the buildIndexes field for member {}; to make \
                     this change, remove then re-add the member",
                    member.host
                )));
            }
            if member.arbiter_only != before.arbiter_only {
                return Err(incompatible(format!(
                    "New and old configurations differ in the setting of the arbiterOnly field for member {}; to make \
                     this change, remove then re-add the member",
                    member.host
                )));
            }
        }
    }
    Ok(())
}

/// At most one voter may come or go.
fn check_single_voter(old: &ReplSetConfig, new: &ReplSetConfig) -> Result<()> {
    let votes = |config: &ReplSetConfig, id: u64| config.member(id).is_some_and(|member| member.votes > 0);
    let mut ids: Vec<u64> = old.members.iter().chain(&new.members).map(|member| member.id).collect();
    ids.sort_unstable();
    ids.dedup();
    let changed = ids.iter().filter(|id| votes(old, **id) != votes(new, **id)).count();
    if changed > 1 {
        return Err(Error::new(
            Code::INVALID_REPLICA_SET_CONFIG,
            "Non force replica set reconfig can only add or remove at most 1 voting member.",
        ));
    }
    Ok(())
}

fn check_present(config: &ReplSetConfig, me: u64) -> Result<()> {
    if config.member(me).is_some() {
        return Ok(());
    }
    Err(Error::new(
        Code::NODE_NOT_FOUND,
        format!(
            "No host described in new configuration with {{version: {}, term: {}}} for replica set {} maps to this node",
            config.version, config.term, config.set_name
        ),
    ))
}

fn check_electable(config: &ReplSetConfig, me: u64) -> Result<()> {
    check_present(config, me)?;
    match config.member(me) {
        Some(member) if !member.is_electable() => Err(Error::new(
            Code::NODE_NOT_ELECTABLE,
            format!(
                "This node, {}, with _id MemberId({me}) is not electable under the new configuration with {{version: \
                 {}, term: {}}} for replica set {}",
                member.host, config.version, config.term, config.set_name
            ),
        )),
        _ => Ok(()),
    }
}

/// Voters of `new` that `old` does not know vote only once they have the data.
pub fn mark_newly_added(old: &ReplSetConfig, new: &mut ReplSetConfig) {
    for member in &mut new.members {
        match old.member(member.id) {
            Some(before) => member.newly_added = before.newly_added && member.votes > 0,
            None => member.newly_added = member.votes > 0,
        }
    }
}
