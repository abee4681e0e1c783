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
    config.validate()?;
    if config.set_name != set_name {
        return Err(Error::new(
            Code::INVALID_REPLICA_SET_CONFIG,
            format!(
                "Attempting to initiate a replica set with name {}, but command line reports {set_name}; rejecting",
                config.set_name
            ),
        ));
    }
    if config.version != 1 {
        return Err(incompatible(format!(
            "Configuration used to initiate a replica set must have version 1, but found {}",
            config.version
        )));
    }
    check_electable(config, me)
}

/// Checks `new` as what follows `old` on member `me`. Whatever is wrong with it, the code is
/// `NewReplicaSetConfigurationIncompatible`, except for another set's name.
pub fn validate_for_reconfig(old: &ReplSetConfig, new: &ReplSetConfig, me: u64, force: bool) -> Result<()> {
    if new.set_name != old.set_name {
        return Err(Error::new(
            Code::INVALID_REPLICA_SET_CONFIG,
            format!(
                "Attempting to reconfigure a replica set with name {}, but command line reports {}; rejecting",
                new.set_name, old.set_name
            ),
        ));
    }
    check_successor(old, new, me, force).map_err(|error| incompatible(error.message()))
}

fn check_successor(old: &ReplSetConfig, new: &ReplSetConfig, me: u64, force: bool) -> Result<()> {
    new.validate()?;
    if new.configsvr != old.configsvr {
        return Err(incompatible(format!(
            "New and old configurations differ in the setting of the \"configsvr\" field; old was {}, new is {}",
            old.configsvr, new.configsvr
        )));
    }
    if let (Some(before), Some(after)) = (old.settings.replica_set_id, new.settings.replica_set_id)
        && before != after
    {
        return Err(incompatible(format!(
            "New and old configurations differ in replica set ID; old was {before}, and new is {after}"
        )));
    }
    if force {
        return check_present(new, me);
    }
    if new.version <= old.version {
        return Err(incompatible(format!(
            "New replica set configuration version must be greater than old, but {} is not greater than {} for replica \
             set {}",
            new.version, old.version, new.set_name
        )));
    }
    check_members(old, new)?;
    check_single_voter(old, new)?;
    check_present(new, me)?;
    check_electable(new, me)
}

/// What a member may not become while it keeps its `_id` or its host. It may move to another host.
fn check_members(old: &ReplSetConfig, new: &ReplSetConfig) -> Result<()> {
    for member in &new.members {
        for before in &old.members {
            if member.host == before.host && member.id != before.id {
                return Err(incompatible(format!(
                    "New and old configurations both have members with host of {} but in the new configuration the \
                     _id field is {} and in the old configuration it is {} for replica set {}",
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
