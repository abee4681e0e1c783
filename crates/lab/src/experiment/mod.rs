//! Experiments: what is started, what is done to it, and in which variations.
//!
//! An experiment is a YAML file; the ready-made ones in `experiments/` are part of the program. Fields that are left
//! out have the defaults given here; a field that is not known is an error.

mod overrides;
mod ready;
mod settings;
mod time;
mod variation;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

pub use overrides::Overrides;
pub use ready::{Ready, ready, ready_by_name};
pub use settings::Settings;
pub use time::Time;
pub use variation::{
    Axis, AxisValue, Centres, Distance, Length, Phases, SecuredBy, ServerOptions, Topology, Variation,
};

use crate::error::{Error, Result};
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
    /// What is done to the servers meanwhile; see [`FaultPlan::parse`](crate::fault::FaultPlan::parse).
    #[serde(default)]
    pub faults: Option<serde_yaml_ng::Value>,
}

fn default_targets() -> Vec<String> {
    vec!["sheaf".to_owned()]
}

fn one() -> u32 {
    1
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
    /// Looks whether the workload takes its settings and the phases make sense.
    pub fn check(&self, workload: &str) -> Result<()> {
        let mut workload = workload::by_name(workload)
            .ok_or_else(|| Error::usage(format!("there is no workload {workload}")))?;
        workload.configure(&self.settings)?;
        self.fault_plan(1.0, 1)?;
        self.phases.load(1.0).map(drop)
    }
}

/// The line on which a field of the top level stands, counted from 1.
fn line_of(text: &str, field: &str) -> Option<usize> {
    let starts = |line: &str| line.strip_prefix(field).is_some_and(|rest| rest.trim_start().starts_with(':'));
    text.lines().position(starts).map(|at| at + 1)
}

#[cfg(test)]
mod tests;
