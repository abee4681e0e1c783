//! Write concerns: what they ask, whether they can ever be met, and how far they are met.

use sheaf_errors::{Code, Error, Result};

use crate::config::ReplSetConfig;
use crate::types::{LogPosition, Positions};

/// The `w` of a write concern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum W {
    /// So many members, the primary among them.
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
    /// Whether these members shall have the write on disk.
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
pub enum WaitOutcome {
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
        let at: LogPosition =
            if concern.journal { positions.applied.min(positions.durable) } else { positions.applied };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MemberConfig;

    /// Five members: two centres, one arbiter, one that does not vote.
    fn config() -> ReplSetConfig {
        let mut members: Vec<MemberConfig> = (0..5).map(|id| MemberConfig::new(id, "h:1")).collect();
        for (member, dc) in members.iter_mut().zip(["east", "east", "west", "", "west"]) {
            member.tags = vec![("dc".into(), dc.into()), ("disk".into(), "ssd".into())];
        }
        members[3].arbiter_only = true;
        members[3].tags.clear();
        members[4].votes = 0;
        let mut config = ReplSetConfig::new("rs", members);
        config.settings.get_last_error_modes =
            vec![("centres".into(), vec![("dc".into(), 2)]), ("three".into(), vec![("dc".into(), 3)])];
        config
    }

    /// Members 0 to 4 have applied up to 50, 40, 30, 20, 10 and made durable up to half of that.
    fn of(id: u64) -> Positions {
        let index = 50 - 10 * id;
        let (applied, durable) = (LogPosition::new(1, index), LogPosition::new(1, index / 2));
        Positions { written: applied, applied, durable, times: [0; 3] }
    }

    fn reached_by(w: W, journal: bool) -> u64 {
        reached(&config(), &WriteConcern { w, journal }, &of(0), 15, &of)
    }

    #[test]
    fn counts_go_by_members_with_data() {
        let expected = [(1, 50), (2, 40), (3, 30), (4, 10), (5, 0)];
        for (n, index) in expected {
            assert_eq!(reached_by(W::Nodes(n), false), index, "w: {n}");
            assert_eq!(reached_by(W::Nodes(n), true), index / 2, "w: {n}, j");
        }
        assert_eq!(reached_by(W::Majority, false), 15);
        assert_eq!(reached_by(W::Majority, true), 15);
    }

    #[test]
    fn a_majority_without_journal_can_ask_for_it() {
        let mut config = config();
        config.write_concern_majority_journal_default = false;
        // Four vote, so three members with data are needed; the third has made 15 durable.
        let concern = WriteConcern::majority().journaled();
        assert_eq!(reached(&config, &concern, &of(0), 30, &of), 15);
        assert_eq!(reached(&config, &WriteConcern::majority(), &of(0), 30, &of), 30);
    }

    #[test]
    fn tags_count_different_values() {
        // The second centre's furthest member is at 30.
        assert_eq!(reached_by(W::Mode("centres".into()), false), 30);
        assert_eq!(reached_by(W::Mode("centres".into()), true), 15);
        assert_eq!(reached_by(W::Tags(vec![("dc".into(), 1)]), false), 50);
        assert_eq!(reached_by(W::Tags(vec![("dc".into(), 1), ("disk".into(), 1)]), false), 50);
    }

    #[test]
    fn what_can_never_be_is_said_at_once() {
        let check = |w: W| {
            let concern = WriteConcern { w, journal: false };
            check_satisfiable(&config(), &concern)
                .map_err(|error| (error.code().0, error.message().to_owned()))
        };
        assert_eq!(check(W::Nodes(4)), Ok(()));
        assert_eq!(check(W::Nodes(5)), Err((100, "Not enough data-bearing nodes".into())));
        assert_eq!(check(W::Majority), Ok(()));
        assert_eq!(check(W::Mode("centres".into())), Ok(()));
        assert_eq!(
            check(W::Mode("three".into())),
            Err((100, "Not enough nodes match write concern mode \"three\"".into()))
        );
        assert_eq!(
            check(W::Mode("none".into())),
            Err((79, "No write concern mode named 'none' found in replica set configuration".into()))
        );
        assert_eq!(check(W::Tags(vec![("dc".into(), 3)])).unwrap_err().0, 100);
    }
}
