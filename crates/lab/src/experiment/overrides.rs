//! What the command line changes of an experiment.

use serde::de::DeserializeOwned;
use serde_yaml_ng::Value;

use super::{Phases, ServerOptions, Settings, Topology, Variation};
use crate::error::{Error, Result};

/// `--set key=value`, in order. A key that begins with `server.`, `phases.` or `topology.` changes that part of the
/// experiment, and `faults` or one that begins with `faults.` changes the faults; any other is a setting of the workload, with or without `settings.` in front. What is set here wins
/// over every axis of the matrix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    sets: Vec<(String, Value)>,
}

impl Overrides {
    /// Adds one, as typed: "server.cache_gb=0.25". The value is YAML, so `3` is a number and `[a, b]` a list.
    pub fn add(&mut self, text: &str) -> Result<()> {
        let refuse = || Error::usage(format!("--set {text}: say key=value"));
        let (key, value) = text.split_once('=').ok_or_else(refuse)?;
        if key.is_empty() || key.split('.').any(str::is_empty) {
            return Err(refuse());
        }
        let value =
            serde_yaml_ng::from_str(value).map_err(|error| Error::usage(format!("--set {text}: {error}")))?;
        self.sets.push((key.to_owned(), value));
        Ok(())
    }

    /// For the report: key and value as text.
    pub fn iter(&self) -> impl Iterator<Item = (String, String)> {
        self.sets.iter().map(|(key, value)| {
            let nested = matches!(value, Value::Mapping(_) | Value::Sequence(_));
            // On one line, which is YAML as well.
            let line = nested.then(|| serde_json::to_string(value).ok()).flatten();
            let text = line.unwrap_or_else(|| serde_yaml_ng::to_string(value).unwrap_or_default());
            (key.clone(), text.trim_end().to_owned())
        })
    }

    pub(super) fn apply(&self, row: &mut Variation) -> Result<()> {
        for (key, value) in &self.sets {
            if key == "faults" {
                row.faults = Some(value.clone());
                continue;
            }
            match key.split_once('.') {
                Some(("server", rest)) => {
                    row.server = part::<ServerOptions>(key, rest, value)?.over(&row.server);
                }
                Some(("phases", rest)) => row.phases = part::<Phases>(key, rest, value)?.over(&row.phases),
                Some(("topology", rest)) => {
                    row.topology = part::<Topology>(key, rest, value)?.over(&row.topology);
                }
                Some(("faults", rest)) => {
                    let mut all = Settings::default();
                    if let Some(faults) = row.faults.take() {
                        all.set("faults", faults)?;
                    }
                    all.set(&format!("faults.{rest}"), value.clone())?;
                    row.faults = all.get("faults").cloned();
                }
                Some(("settings", rest)) => row.settings.set(rest, value.clone())?,
                _ => row.settings.set(key, value.clone())?,
            }
        }
        Ok(())
    }
}

/// The part of an experiment in which only this field is given.
fn part<T: DeserializeOwned>(key: &str, field: &str, value: &Value) -> Result<T> {
    let mut settings = Settings::default();
    settings.set(field, value.clone())?;
    settings.parse_part().map_err(|error| Error::usage(format!("--set {key}: {error}")))
}
