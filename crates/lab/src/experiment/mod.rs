//! Experiments: what is started, what is done to it, and in which variations.
//!
//! An experiment is a YAML file; the ready-made ones in `experiments/` are part of the program. Fields that are left
//! out have the defaults given here; a field that is not known is an error.

mod overrides;
mod ready;
mod settings;
mod time;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use overrides::Overrides;
pub use ready::{Ready, ready, ready_by_name};
pub use settings::Settings;
pub use time::Time;

use crate::error::{Error, Result};
use crate::fault::FaultPlan;
use crate::measure::{Arrival, Load, Span};
use crate::workload;

/// An experiment as its file has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// `insert-latency`; the file's stem unless given.
    #[serde(default)]
    pub name: String,
    /// One sentence for the head of the report.
    pub title: String,
    /// More about it: what it imitates, how to read its table.
    #[serde(default)]
    pub description: String,
    /// Name of the workload.
    pub workload: String,
    /// What it runs on when `--target` does not say: `sheaf`, a folder with `mongod`, a connection string, `postgres`.
    #[serde(default = "default_targets")]
    pub targets: Vec<String>,
    /// Processes that are started.
    #[serde(default)]
    pub topology: Topology,
    /// How they are started.
    #[serde(default)]
    pub server: ServerOptions,
    /// The workload's own settings.
    #[serde(default)]
    pub settings: BTreeMap<String, serde_yaml_ng::Value>,
    /// How long, and at which rate.
    #[serde(default)]
    pub phases: Phases,
    /// How often each row is measured. Default 1.
    #[serde(default = "one")]
    pub repetitions: u32,
    /// Axes of variation. The rows are all combinations, the last axis changing fastest.
    #[serde(default)]
    pub matrix: Vec<Axis>,
    /// The metrics that the table shows, in order; all when empty.
    #[serde(default)]
    pub columns: Vec<String>,
    /// What is done to the servers meanwhile; see [`FaultPlan::parse`].
    #[serde(default)]
    pub faults: Option<serde_yaml_ng::Value>,
}

fn default_targets() -> Vec<String> {
    vec!["sheaf".to_owned()]
}

fn one() -> u32 {
    1
}

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
    /// See [`Experiment::server`].
    #[serde(default)]
    pub server: ServerOptions,
    /// See [`Experiment::phases`].
    #[serde(default)]
    pub phases: Phases,
    /// See [`Experiment::topology`].
    #[serde(default)]
    pub topology: Topology,
    /// See [`Experiment::faults`]; replaces them as a whole.
    #[serde(default)]
    pub faults: Option<serde_yaml_ng::Value>,
}

/// Which processes are started. Without `members` it is one standalone server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Members of a replica set that hold data.
    pub members: Option<u32>,
    /// Members of the replica set that only vote.
    pub arbiters: Option<u32>,
    /// Shards, each of them such a replica set, behind a router.
    pub shards: Option<u32>,
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

/// How the servers are started. What is left out is left to the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerOptions {
    /// false: `--nojournal`.
    pub journal: Option<bool>,
    /// Gigabytes: `--cacheSizeGB`, of mongod `--wiredTigerCacheSizeGB`.
    pub cache_gb: Option<f64>,
    /// Megabytes: `--oplogSize`.
    pub oplog_mb: Option<u64>,
    /// `--setParameter`.
    #[serde(default)]
    pub parameters: BTreeMap<String, serde_yaml_ng::Value>,
    /// Further flags as they are: `["--journalCommitInterval", "30"]`.
    pub flags: Option<Vec<String>>,
}

/// How long a run is, and how operations arrive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields, rename_all = "snake_case")]
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

impl Experiment {
    /// Reads a file, or the ready-made experiment of this name.
    pub fn open(name: &str) -> Result<Experiment> {
        if let Some(ready) = ready_by_name(name) {
            return Experiment::parse(ready.text, &format!("experiments/{name}.yaml"), name);
        }
        let path = Path::new(name);
        if !path.exists() {
            let known: Vec<_> = ready().map(|ready| ready.name).collect();
            return Err(Error::usage(format!(
                "there is no experiment and no file {name}; the experiments are {}",
                known.join(", ")
            )));
        }
        let text = std::fs::read_to_string(path).map_err(|error| Error::from(error).context(name))?;
        let stem = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        Experiment::parse(&text, name, &stem)
    }

    /// Parses a file's text. Errors name the file, the line and the field.
    pub fn parse(text: &str, file: &str, name: &str) -> Result<Experiment> {
        let refuse = |what: String| Error::usage(format!("{file}: {what}"));
        let mut parsed: Experiment =
            serde_yaml_ng::from_str(text).map_err(|error| refuse(error.to_string()))?;
        if parsed.name.is_empty() {
            parsed.name = name.to_owned();
        }
        let at = |field: &str| {
            line_of(text, field).map_or_else(|| field.to_owned(), |line| format!("line {line}: {field}"))
        };
        if workload::by_name(&parsed.workload).is_none() {
            let known: Vec<_> = workload::names().collect();
            let (place, known) = (at("workload"), known.join(", "));
            return Err(refuse(format!(
                "{place}: there is no workload {}; there are {known}",
                parsed.workload
            )));
        }
        if parsed.repetitions == 0 {
            return Err(refuse(format!("{}: must be at least 1", at("repetitions"))));
        }
        if parsed.targets.is_empty() {
            return Err(refuse(format!("{}: must name at least one", at("targets"))));
        }
        if let Some(axis) = parsed.matrix.iter().find(|axis| axis.values.is_empty()) {
            return Err(refuse(format!("{}: axis {} has no values", at("matrix"), axis.axis)));
        }
        for variation in parsed.variations(&Overrides::default())? {
            variation
                .check(&parsed.workload)
                .map_err(|error| error.context(format_args!("{file}: row \"{}\"", variation.name)))?;
        }
        Ok(parsed)
    }

    /// The rows: every combination of the matrix, with the overrides on top.
    pub fn variations(&self, overrides: &Overrides) -> Result<Vec<Variation>> {
        let mut rows = vec![Variation {
            name: String::new(),
            values: BTreeMap::new(),
            settings: Settings::new(self.settings.clone()),
            server: self.server.clone(),
            phases: self.phases.clone(),
            topology: self.topology.clone(),
            faults: self.faults.clone(),
        }];
        for axis in &self.matrix {
            let mut next = Vec::new();
            for row in &rows {
                for value in &axis.values {
                    next.push(row.with(axis, value)?);
                }
            }
            rows = next;
        }
        for row in &mut rows {
            overrides.apply(row)?;
            if row.name.is_empty() {
                row.name.clone_from(&self.name);
            }
        }
        Ok(rows)
    }
}

impl Variation {
    fn with(&self, axis: &Axis, value: &AxisValue) -> Result<Variation> {
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

    /// Looks whether the workload takes its settings and the phases make sense.
    pub fn check(&self, workload: &str) -> Result<()> {
        let mut workload = workload::by_name(workload)
            .ok_or_else(|| Error::usage(format!("there is no workload {workload}")))?;
        workload.configure(&self.settings)?;
        self.fault_plan(1.0, 1)?;
        self.phases.load(1.0).map(drop)
    }

    /// What is done to the servers, at this scale; random choices that the file gives no seed for derive from `seed`.
    pub fn fault_plan(&self, scale: f64, seed: u64) -> Result<FaultPlan> {
        match &self.faults {
            Some(faults) => FaultPlan::parse(faults, scale, seed),
            None => Ok(FaultPlan::default()),
        }
    }
}

impl ServerOptions {
    /// These options, and where they say nothing those of `base`.
    pub fn over(&self, base: &ServerOptions) -> ServerOptions {
        let mut parameters = base.parameters.clone();
        parameters.extend(self.parameters.clone());
        ServerOptions {
            journal: self.journal.or(base.journal),
            cache_gb: self.cache_gb.or(base.cache_gb),
            oplog_mb: self.oplog_mb.or(base.oplog_mb),
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
            Some(rate) => return Err(Error::usage(format!("phases.rate: {rate} is no rate"))),
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
            _ => Err(Error::usage(format!("phases.{phase}: give either seconds or operations"))),
        }
    }
}

/// The line on which a field of the top level stands, counted from 1.
fn line_of(text: &str, field: &str) -> Option<usize> {
    let starts = |line: &str| line.strip_prefix(field).is_some_and(|rest| rest.trim_start().starts_with(':'));
    text.lines().position(starts).map(|at| at + 1)
}

#[cfg(test)]
mod tests;
