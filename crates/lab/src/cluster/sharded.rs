//! What `sheaf cluster up` makes: which servers, and how routers and shards come together.

use std::fmt;

use sheaf_bson::doc;

use super::cli::UpArgs;
use super::record::Record;
use super::up;
use crate::client::Connection;
use crate::error::{Error, Result};
use crate::journal::Journal;
use crate::part::{Part, Sharded};
use crate::stop::Stop;

/// The most members that a replica set may have.
const MOST_MEMBERS: u32 = 50;

/// The most members that may vote.
const MOST_VOTERS: u32 = 7;

/// How many servers of each kind a cluster has; without shards it is a set or a single server.
#[derive(Debug, PartialEq, Eq)]
pub struct Shape {
    /// Those of each shard that hold data, or those of the set.
    pub members: u32,
    /// Those of each shard that only vote, or those of the set.
    pub arbiters: u32,
    pub shards: u32,
    pub routers: u32,
    pub config_servers: u32,
    /// Whether the config servers are a shard, too.
    pub config_shard: bool,
}

impl Shape {
    /// Of a cluster that is there.
    pub fn of(record: &Record) -> Shape {
        let count = |part: Part| record.of_part(part).len() as u32;
        let first = if record.is_sharded() { Part::Shard(0) } else { Part::Set };
        let arbiters =
            record.of_part(first).into_iter().filter(|at| record.members[*at].arbiter).count() as u32;
        Shape {
            members: count(first) - arbiters,
            arbiters,
            shards: record.parts().into_iter().filter(|part| matches!(part, Part::Shard(_))).count() as u32,
            routers: count(Part::Router),
            config_servers: count(Part::Config),
            config_shard: record.config_shard,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = |n: u32, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        if self.shards > 0 {
            write!(f, "{} of ", many(self.shards, "shard"))?;
        }
        f.write_str(&many(self.members, "member"))?;
        if self.arbiters > 0 || self.shards == 0 {
            write!(f, ", {}", many(self.arbiters, "arbiter"))?;
        }
        if self.shards > 0 {
            let (routers, config) =
                (many(self.routers, "router"), many(self.config_servers, "config server"));
            write!(f, ", {routers}, {config}")?;
            if self.config_shard {
                f.write_str(", a shard too")?;
            }
        }
        Ok(())
    }
}

/// The servers that are asked for, in the order of their numbers, and which of them are arbiters.
pub fn servers(arguments: &UpArgs) -> Result<Vec<(Part, bool)>> {
    let UpArgs { members, arbiters, shards, routers, config_servers, standalone, .. } = *arguments;
    let servers = match shards {
        Some(shards) => {
            let sharded = Sharded::new(shards, members, arbiters, routers, config_servers);
            if let Some(problem) = sharded.problem() {
                return Err(Error::usage(format!("--shards {shards}: {problem}")));
            }
            sharded.servers()
        }
        None => {
            let holding = members.unwrap_or(if standalone { 1 } else { 3 });
            if holding == 0 {
                return Err(Error::usage("--members: at least one must hold data"));
            }
            let all = holding + arbiters.unwrap_or(0);
            if standalone && all > 1 {
                return Err(Error::usage("--standalone is for a single server"));
            }
            (0..all).map(|at| (Part::Set, at >= holding)).collect()
        }
    };
    let of_sets = || servers.iter().filter(|(part, _)| part.is_set());
    let largest = of_sets().map(|(part, _)| of_sets().filter(|(other, _)| other == part).count()).max();
    if largest.unwrap_or(0) > MOST_MEMBERS as usize {
        return Err(Error::usage(format!("a replica set has at most {MOST_MEMBERS} members")));
    }
    if largest.unwrap_or(0) > MOST_VOTERS as usize {
        return Err(Error::usage(format!(
            "at most {MOST_VOTERS} members of a replica set vote, and all of these would (--members, --arbiters, --config-servers)"
        )));
    }
    Ok(servers)
}

/// `shard0/host:port,host:port`: how a part is named to routers.
pub fn set_address(record: &Record, part: Part) -> String {
    format!("{}/{}", part.set_name().unwrap_or_default(), record.addresses(part).join(","))
}

/// Starts the routers and, the first time, tells them of the shards.
pub fn add_routers(record: &mut Record, journal: &Journal, stop: &Stop) -> Result<()> {
    let routers = record.of_part(Part::Router);
    let down: Vec<usize> =
        routers.iter().copied().filter(|at| record.members[*at].running().is_none()).collect();
    up::start(record, &down, journal, stop)?;
    if record.shards_added {
        return Ok(());
    }
    let address = record.members[routers[0]].address();
    let mut router = Connection::open(&address, &record.direct(&address)?)?;
    for shard in record.parts().into_iter().filter(|part| matches!(part, Part::Shard(_))) {
        let shard = set_address(record, shard);
        let port = record.members[routers[0]].port;
        journal.note("shell", record.shell(port, &format!("sh.addShard(\"{shard}\")")));
        router
            .command("admin", &doc! { "addShard": shard.as_str() })
            .map_err(|error| error.context("addShard"))?;
    }
    if record.config_shard {
        let port = record.members[routers[0]].port;
        let text = "db.adminCommand({transitionFromDedicatedConfigServer: 1})";
        journal.note("shell", record.shell(port, text));
        router
            .command("admin", &doc! { "transitionFromDedicatedConfigServer": 1 })
            .map_err(|error| error.context("transitionFromDedicatedConfigServer"))?;
    }
    record.shards_added = true;
    record.save()
}
