//! Write concerns: what they ask, whether they can ever be met, and how far they are met.

use sheaf_errors::{Code, Error, Result};

use crate::config::ReplSetConfig;
use crate::types::{OpTime, Positions};

/// The `w` of a write concern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum W {
    /// That many members, the primary among them.
    Nodes(u64),
    /// `"majority"`.
    Majority,
    /// A mode of `settings.getLastErrorModes`.
    Mode(String),
    /// Tags given in place: that many different values of each.
    Tags(Vec<(String, i64)>),
}

/// What a write waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteConcern {
    /// Who shall have it.
    pub w: W,
    /// Whether they shall have it on disk.
    pub journal: bool,
}

impl WriteConcern {
    /// `{w: n}`.
    pub fn nodes(n: u64) -> Self {
        WriteConcern { w: W::Nodes(n), journal: false }
    }

    /// `{w: "majority"}`.
    pub fn majority() -> Self {
        WriteConcern { w: W::Majority, journal: false }
    }

    /// The same with `j: true`.
    #[must_use]
    pub fn journaled(mut self) -> Self {
        self.journal = true;
        self
    }
}

/// How a wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The write concern is met.
    Satisfied,
    /// This member is no longer primary; whether the write lasts is not known.
    NotPrimary,
    /// A reconfiguration has made it impossible.
    Unsatisfiable,
}

/// The members of one tag value count once for each of these.
fn constraints<'a>(config: &'a ReplSetConfig, w: &'a W) -> Result<&'a [(String, i64)]> {
    match w {
        W::Mode(name) => match config.settings.get_last_error_modes.iter().find(|(mode, _)| mode == name) {
            Some((_, tags)) => Ok(tags),
            None => Err(Error::new(
                Code::UNKNOWN_REPL_WRITE_CONCERN,
                format!("No write concern mode named '{name}' found in replica set configuration"),
            )),
        },
        W::Tags(tags) => Ok(tags),
        W::Nodes(_) | W::Majority => Ok(&[]),
    }
}

/// Whether `concern` can be met by this configuration with all members up.
pub fn check_satisfiable(config: &ReplSetConfig, concern: &WriteConcern) -> Result<()> {
    let unsatisfiable = |text: String| Err(Error::new(Code::UNSATISFIABLE_WRITE_CONCERN, text));
    match &concern.w {
        W::Majority => Ok(()),
        W::Nodes(n) if *n > config.data_bearing_count() as u64 => {
            unsatisfiable("Not enough data-bearing nodes".into())
        }
        W::Nodes(_) => Ok(()),
        W::Mode(_) | W::Tags(_) => {
            for (tag, count) in constraints(config, &concern.w)? {
                if distinct_values(config, tag).len() < *count as usize {
                    let name = match &concern.w {
                        W::Mode(name) => format!("\"{name}\""),
                        _ => tag_text(&concern.w),
                    };
                    return unsatisfiable(format!("Not enough nodes match write concern mode {name}"));
                }
            }
            // An unknown tag key that asks for nothing is still unknown to the set.
            Ok(())
        }
    }
}

fn tag_text(w: &W) -> String {
    let W::Tags(tags) = w else { return String::new() };
    let parts: Vec<String> = tags.iter().map(|(tag, count)| format!("{tag}: {count}")).collect();
    format!("{{ {} }}", parts.join(", "))
}

fn distinct_values<'a>(config: &'a ReplSetConfig, tag: &str) -> Vec<&'a str> {
    let mut values: Vec<&str> = config
        .members
        .iter()
        .filter(|member| member.bears_data())
        .flat_map(|member| member.tags.iter())
        .filter(|(name, _)| name == tag)
        .map(|(_, value)| value.as_str())
        .collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// How far `concern` is met: the index up to which every entry fulfils it.
///
/// `positions` gives a member's positions in the primary's log; `own` is the primary's; `commit` is the
/// commit point as applied here.
pub fn reached(
    config: &ReplSetConfig,
    concern: &WriteConcern,
    own: &Positions,
    commit: u64,
    positions: &dyn Fn(u64) -> Positions,
) -> u64 {
    let of = |positions: &Positions| -> u64 {
        let at: OpTime = if concern.journal {
            positions.applied.min(positions.durable)
        } else {
            positions.applied
        };
        at.index
    };
    match &concern.w {
        W::Nodes(n) if *n <= 1 => of(own),
        W::Nodes(n) => {
            let all = config.members.iter().filter(|member| member.bears_data());
            nth_highest(all.map(|member| of(&positions(member.id))).collect(), *n as usize)
        }
        W::Majority if !concern.journal || config.write_concern_majority_journal_default => commit,
        W::Majority => {
            let all = config.voters().filter(|member| member.bears_data());
            let indexes = all.map(|member| of(&positions(member.id))).collect();
            nth_highest(indexes, config.write_majority_count()).min(commit)
        }
        W::Mode(_) | W::Tags(_) => {
            let Ok(constraints) = constraints(config, &concern.w) else { return 0 };
            let least = constraints.iter().map(|(tag, count)| {
                let best_of = |value: &&str| {
                    let with_value = config.members.iter().filter(|member| {
                        member.bears_data() && member.tags.iter().any(|(t, v)| t == tag && v == value)
                    });
                    with_value.map(|member| of(&positions(member.id))).max().unwrap_or(0)
                };
                let best = distinct_values(config, tag).iter().map(best_of).collect();
                nth_highest(best, *count as usize)
            });
            least.min().unwrap_or(u64::MAX).min(of(own))
        }
    }
}

/// The n-th highest, counted from 1; 0 when there are fewer.
fn nth_highest(mut indexes: Vec<u64>, n: usize) -> u64 {
    indexes.sort_unstable_by(|a, b| b.cmp(a));
    n.checked_sub(1).and_then(|at| indexes.get(at)).copied().unwrap_or(0)
}
