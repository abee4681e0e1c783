//! Several workloads at once on one deployment, each with its own collections and its own invariants: what a set must
//! live through under faults without a single anomaly.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::{Figure, Workload, by_name, endure};
use crate::context::{Context, Group};
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::results::Check;

/// Settings of the workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    /// Settings of each workload that takes part, by its name.
    parts: BTreeMap<String, Option<BTreeMap<String, serde_yaml_ng::Value>>>,
}

/// See the module.
#[derive(Default)]
pub struct Torment {
    parts: Vec<(String, Box<dyn Workload>)>,
    /// Those that the parts write to.
    databases: BTreeSet<String>,
}

/// Those that can be combined.
const POSSIBLE: [&str; 6] = ["bank", "list-append", "register", "change-stream", "ladder", "moves"];

impl Workload for Torment {
    fn configure(&mut self, settings: &Settings) -> Result<()> {
        let own: Own = settings.parse()?;
        for (name, settings) in own.parts {
            // Without settings it does not take part: that is how one of them is left out.
            let Some(settings) = settings else { continue };
            let known = POSSIBLE.contains(&name.as_str());
            let mut part = by_name(&name)
                .filter(|_| known)
                .ok_or_else(|| Error::usage(format!("parts: {name} is none of {}", POSSIBLE.join(", "))))?;
            let settings = Settings::new(settings);
            part.configure(&settings).map_err(|error| error.context(format_args!("parts.{name}")))?;
            self.parts.push((name, part));
        }
        if self.parts.is_empty() {
            return Err(Error::usage(format!("torment needs parts: {}", POSSIBLE.join(", "))));
        }
        Ok(())
    }

    fn setup(&mut self, context: &Context) -> Result<()> {
        // A stream is opened there, and what the others load would only push it out of the log's window.
        self.parts.sort_by_key(|(name, _)| *name == "change-stream");
        for (name, part) in &mut self.parts {
            part.setup(context).map_err(|error| error.context(name))?;
            self.databases.extend(part.databases());
        }
        Ok(())
    }

    fn groups<'a>(&'a self, context: &Context) -> Result<Vec<Group<'a>>> {
        let mut groups = Vec::new();
        for (_, part) in &self.parts {
            groups.extend(part.groups(context)?);
        }
        Ok(groups)
    }

    fn check(&mut self, context: &Context) -> Result<Vec<Check>> {
        let mut checks: Vec<Check> = Vec::new();
        for (name, part) in &mut self.parts {
            match part.check_own(context) {
                Ok(found) => checks.extend(found),
                // The others are to be heard, too.
                Err(error) => checks.push(Check {
                    name: format!("{name}: check"),
                    passed: false,
                    detail: format!("it could not be made: {error}"),
                }),
            }
        }
        for db in &self.databases {
            checks.extend(endure::members_hold_the_same(context, db)?);
        }
        Ok(checks)
    }

    fn metrics(&self, context: &Context) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (name, part) in &self.parts {
            for mut figure in part.metrics(context) {
                figure.name = format!("{name}: {}", figure.name);
                figures.push(figure);
            }
        }
        figures
    }
}
