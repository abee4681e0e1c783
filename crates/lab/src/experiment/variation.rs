//! Rows of an experiment's table: which processes, started how, for how long, and how the values of the axes change that.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::settings::Settings;
use super::time::Time;
use crate::error::{Error, Result};
use crate::fault::FaultPlan;
use crate::measure::{Arrival, Load, Span};

/// An axis of the matrix.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// "journal".
    pub axis: String,
    /// What it can be.
    pub values: Vec<AxisValue>,
}

/// One value of an axis, and what it changes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AxisValue {
    /// "journal on". A row's name is made of the names of its values; an empty one is left out.
    pub name: String,
    /// Settings of the workload, by dotted name.
    #[serde(default)]
    pub settings: BTreeMap<String, serde_yaml_ng::Value>,
    /// See [`Experiment::server`](super::Experiment::server).
    #[serde(default)]
    pub server: ServerOptions,
    /// See [`Experiment::phases`](super::Experiment::phases).
    #[serde(default)]
    pub phases: Phases,
    /// See [`Experiment::topology`](super::Experiment::topology).
    #[serde(default)]
    pub topology: Topology,
    /// See [`Experiment::faults`](super::Experiment::faults); replaces them as a whole.
    #[serde(default)]
    pub faults: Option<serde_yaml_ng::Value>,
}

/// Which processes are started. Without `members` and `shards` it is one standalone server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Members of a replica set that hold data, or of each shard.
    pub members: Option<u32>,
    /// Members of the replica set that only vote.
    pub arbiters: Option<u32>,
    /// Shards, each of them such a replica set (of one member unless `members` says more), behind routers.
    pub shards: Option<u32>,
    /// Routers of a sharded cluster. Default: 1.
    pub routers: Option<u32>,
    /// Config servers of a sharded cluster. Default: as many as a shard has members, at most 3.
    pub config_servers: Option<u32>,
    /// Whether the config servers of a sharded cluster hold documents, as one more shard. Default: no.
    pub config_shard: Option<bool>,
    /// A proxy on every link between two members, which can cut and delay it. Only Sheaf's members can be told to use
    /// them. Default: where `distance` or a fault needs them.
    pub links: Option<bool>,
    /// How far the members are from each other.
    pub distance: Option<Distance>,
}

/// Round trips between members. Clients are beside every member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a round trip (0.86ms), or {centres: [0, 0, 1], same: 0.86ms, other: 71ms}")]
pub enum Distance {
    /// The same between all.
    Everywhere(Time),
    /// By data centre.
    Centres(Centres),
}

/// Members in data centres.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Centres {
    /// Of each member, in order: any number that stands for a data centre.
    pub centres: Vec<u32>,
    /// Round trip between members of one.
    #[serde(default)]
    pub same: Time,
    /// Round trip between members of two.
    pub other: Time,
}

impl Distance {
    /// The round trip between two members. One beyond the list is in the last data centre.
    pub fn round_trip(&self, a: usize, b: usize) -> std::time::Duration {
        match self {
            Distance::Everywhere(time) => time.0,
            Distance::Centres(Centres { centres, same, other }) => {
                let centre = |member: usize| centres.get(member).or(centres.last());
                if centre(a) == centre(b) { same.0 } else { other.0 }
            }
        }
    }
}

/// By what servers and clients prove to each other who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecuredBy {
    /// By a key that all have: clients log in, links between members are authenticated.
    Key,
    /// The same, over TLS.
    Tls,
}

/// How the servers are started. What is left out is left to the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerOptions {
    /// false: `--nojournal`.
    pub journal: Option<bool>,
    /// Gigabytes: `--cacheSizeGB`, of mongod `--wiredTigerCacheSizeGB`.
    pub cache_gb: Option<f64>,
    /// Megabytes (2^20) of memory, page cache included, at full scale: each server is put into a control group of its
    /// own with that limit, and its cache is a quarter of it unless `cache_gb` says otherwise. It shrinks with
    /// `--scale`, but not below 256.
    pub memory_mb: Option<u64>,
    /// Megabytes: `--oplogSize`.
    pub oplog_mb: Option<u64>,
    /// `--keyFile`, and TLS: of files that are made for the run.
    pub secured: Option<SecuredBy>,
    /// `--setParameter`.
    #[serde(default)]
    pub parameters: BTreeMap<String, serde_yaml_ng::Value>,
    /// Further flags as they are: `["--journalCommitInterval", "30"]`.
    pub flags: Option<Vec<String>>,
}

/// How long a run is, and how operations arrive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "phases, as in {measure: {seconds: 30}, rate: 1000}")]
pub struct Phases {
    /// What comes first and is not measured. Default: nothing.
    pub warm_up: Option<Length>,
    /// The measured part. Default: until the workload is done.
    pub measure: Option<Length>,
    /// Operations per second of all clients together (open loop). Default: one after another (closed loop).
    pub rate: Option<f64>,
}

/// `{seconds: 30}` or `{operations: 100000}`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "snake_case",
    expecting = "a length, {seconds: 30} or {operations: 100000}"
)]
pub struct Length {
    /// Seconds.
    pub seconds: Option<f64>,
    /// Operations of all clients together.
    pub operations: Option<u64>,
}

/// One row of the table: a combination of the matrix's values.
#[derive(Clone, Debug)]
pub struct Variation {
    /// "safe, journal on, capped".
    pub name: String,
    /// Axis and name of the value.
    pub values: BTreeMap<String, String>,
    /// All settings together.
    pub settings: Settings,
    /// All server options together.
    pub server: ServerOptions,
    /// All phases together.
    pub phases: Phases,
    /// The topology.
    pub topology: Topology,
    /// The faults as the file has them.
    pub faults: Option<serde_yaml_ng::Value>,
}

impl Variation {
    pub(super) fn with(&self, axis: &Axis, value: &AxisValue) -> Result<Variation> {
        let mut row = self.clone();
        row.values.insert(axis.axis.clone(), value.name.clone());
        if !value.name.is_empty() {
            if !row.name.is_empty() {
                row.name.push_str(", ");
            }
            row.name.push_str(&value.name);
        }
        for (name, value) in &value.settings {
            row.settings.set(name, value.clone())?;
        }
        row.server = value.server.over(&row.server);
        row.phases = value.phases.over(&row.phases);
        row.topology = value.topology.over(&row.topology);
        row.faults = value.faults.clone().or(row.faults);
        Ok(row)
    }

    /// What is done to the servers, at this scale; random choices that the file gives no seed for derive from `seed`.
    pub fn fault_plan(&self, scale: f64, seed: u64) -> Result<FaultPlan> {
        match &self.faults {
            Some(faults) => FaultPlan::parse(faults, scale, seed),
            None => Ok(FaultPlan::default()),
        }
    }
}

/// No server is given less memory, in megabytes, unless the experiment itself says so.
const LEAST_MEMORY_MB: u64 = 256;

impl ServerOptions {
    /// The limit of memory in bytes, at this scale.
    pub fn memory_bytes(&self, scale: f64) -> Option<u64> {
        let full = self.memory_mb?;
        let scaled = (full as f64 * scale).round() as u64;
        Some(scaled.max(LEAST_MEMORY_MB.min(full)).saturating_mul(1 << 20))
    }

    /// These options, and where they say nothing those of `base`.
    pub fn over(&self, base: &ServerOptions) -> ServerOptions {
        let mut parameters = base.parameters.clone();
        parameters.extend(self.parameters.clone());
        ServerOptions {
            journal: self.journal.or(base.journal),
            cache_gb: self.cache_gb.or(base.cache_gb),
            memory_mb: self.memory_mb.or(base.memory_mb),
            oplog_mb: self.oplog_mb.or(base.oplog_mb),
            secured: self.secured.or(base.secured),
            parameters,
            flags: self.flags.clone().or_else(|| base.flags.clone()),
        }
    }
}

impl Topology {
    /// This topology, and where it says nothing that of `base`.
    pub fn over(&self, base: &Topology) -> Topology {
        Topology {
            members: self.members.or(base.members),
            arbiters: self.arbiters.or(base.arbiters),
            shards: self.shards.or(base.shards),
            routers: self.routers.or(base.routers),
            config_servers: self.config_servers.or(base.config_servers),
            config_shard: self.config_shard.or(base.config_shard),
            links: self.links.or(base.links),
            distance: self.distance.clone().or_else(|| base.distance.clone()),
        }
    }
}

/// A scaled part of a run is not shorter than this, or nothing would be in it.
const SHORTEST_S: f64 = 1.0;

impl Phases {
    /// These phases, and where they say nothing those of `base`.
    pub fn over(&self, base: &Phases) -> Phases {
        Phases {
            warm_up: self.warm_up.or(base.warm_up),
            measure: self.measure.or(base.measure),
            rate: self.rate.or(base.rate),
        }
    }

    /// As a load, at this scale: seconds and operations shrink with it, a rate does not.
    pub fn load(&self, scale: f64) -> Result<Load> {
        let arrival = match self.rate {
            None => Arrival::Closed,
            Some(per_second) if per_second > 0.0 && per_second.is_finite() => Arrival::Open { per_second },
            Some(rate) => {
                return Err(Error::usage(format!(
                    "phases.rate: {rate} is no rate: say how many operations a second, more than 0"
                )));
            }
        };
        let warm_up = self.warm_up.map(|length| length.span("warm_up", scale, 0.1)).transpose()?;
        let measure = self.measure.map(|length| length.span("measure", scale, SHORTEST_S)).transpose()?;
        Ok(Load { arrival, warm_up, measure: measure.unwrap_or(Span::Unbounded) })
    }
}

impl Length {
    fn span(self, phase: &str, scale: f64, shortest_s: f64) -> Result<Span> {
        match (self.seconds, self.operations) {
            (Some(seconds), None) if seconds >= 0.0 && seconds.is_finite() => {
                Ok(Span::Seconds((seconds * scale).max(shortest_s.min(seconds))))
            }
            (None, Some(operations)) => {
                Ok(Span::Operations(((operations as f64 * scale).round() as u64).max(1)))
            }
            (Some(seconds), None) => {
                Err(Error::usage(format!("phases.{phase}.seconds: {seconds} is no length: say 0 or more")))
            }
            (seconds, _) => Err(Error::usage(format!(
                "phases.{phase}: give either seconds or operations; it has {}",
                if seconds.is_some() { "both" } else { "neither" }
            ))),
        }
    }
}
