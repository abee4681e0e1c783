//! Whether the set is at rest, and what is told of it.

use crate::effect::Effect;
use crate::message::Body;

use super::machine::Machine;
use super::world::World;

impl World {
    /// Why the set is not at rest, if it is not.
    pub(super) fn unrest(&self) -> Option<String> {
        let writable = |node: &&Machine| node.member.as_ref().is_some_and(|member| member.is_writable());
        let primaries: Vec<&Machine> = self.nodes.iter().filter(writable).collect();
        let [primary] = primaries[..] else {
            return Some(format!("{} members take writes", primaries.len()));
        };
        let leader = primary.member.as_ref()?;
        let config = leader.config()?;
        if config.members.iter().any(|member| member.newly_added) || !leader.config_committed() {
            return Some(format!("the configuration is not settled: {config:?}"));
        }
        let highest = config.members.iter().map(|member| member.priority).fold(0.0, f64::max);
        if config.member_at(&primary.host).is_some_and(|member| member.priority < highest) {
            return Some(format!("{} is primary, but another has a higher priority", primary.host));
        }
        let last = primary.disk.image.last();
        for of in &config.members {
            let node = &self.nodes[self.node_at(&of.host)?];
            let Some(member) = &node.member else { return Some(format!("{} is down", of.host)) };
            if member.config().is_none_or(|theirs| theirs.config_version() != config.config_version()) {
                return Some(format!("{} has another configuration", of.host));
            }
            if of.arbiter_only {
                if !node.disk.image.entries.is_empty() {
                    return Some(format!("the arbiter {} holds data", of.host));
                }
                continue;
            }
            let settled = node.disk.image.last() == last
                && member.commit_point() == last
                && node.model.at == last
                && node.to_write.is_empty();
            if !settled {
                let (log, commit) = (node.disk.image.last(), member.commit_point());
                return Some(format!("{} is at {log:?}, commit point {commit:?}, not {last:?}", of.host));
            }
            if node.model.chain != primary.model.chain || node.model != primary.model {
                return Some(format!("{} differs from the primary", of.host));
            }
        }
        None
    }

    pub(super) fn tell_members(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            let Some(member) = &node.member else {
                println!("{number}: down");
                continue;
            };
            let (role, log) = (member.role(), node.disk.image.last());
            println!(
                "{number}: {:?} id {:?} term {} primary {:?} writable {} electable {} log {:?}..{log:?} commit {:?} \
                 config {:?} to write {} to apply {}",
                role.state,
                member.id(),
                member.term(),
                role.primary,
                member.is_writable(),
                member.is_electable(),
                node.disk.image.start,
                member.commit_point(),
                member.config().map(|config| config.config_version()),
                node.to_write.len(),
                node.to_apply.len(),
            );
            for of in member.config().map_or(&[][..], |config| &config.members) {
                println!(
                    "     {} {} votes {} priority {} arbiter {} new {} delay {}",
                    of.id,
                    of.host,
                    of.votes,
                    of.priority,
                    of.arbiter_only,
                    of.newly_added,
                    of.secondary_delay_secs
                );
            }
        }
    }
}

/// An effect in one line.
pub(super) fn short(effect: &Effect) -> String {
    match effect {
        Effect::Send { envelope, host } => {
            let (term, version) = (envelope.config.term, envelope.config.version);
            let what = match &envelope.body {
                Body::Raft(m) => format!(
                    "{:?} t{} index {} log term {} entries {} commit {} reject {} {}",
                    m.msg_type,
                    m.term,
                    m.index,
                    m.log_term,
                    m.entries.len(),
                    m.commit,
                    m.reject,
                    m.reject_hint
                ),
                Body::Progress(report) => format!("progress {}", report.positions.durable.index),
                Body::Ping(heartbeat) => format!("ping as {:?}", heartbeat.state),
                Body::Pong(heartbeat) => format!("pong as {:?}", heartbeat.state),
                Body::Config(config) => format!("config {:?}", config.config_version()),
            };
            format!("{}->{} {host} config {term}/{version}: {what}", envelope.from, envelope.to)
        }
        Effect::Persist(persist) => format!(
            "persist {} {:?} entries {:?} rollback {:?} install {:?} config {:?}",
            persist.seq,
            persist.hard_state,
            persist.entries.iter().map(|entry| (entry.at.term, entry.at.index)).collect::<Vec<_>>(),
            persist.rollback,
            persist.install,
            persist.config.as_ref().map(|(config, me)| (config.config_version(), *me)),
        ),
        other => format!("{other:?}"),
    }
}
