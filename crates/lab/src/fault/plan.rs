//! What is to be done to the servers, and when.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde_yaml_ng::Value;

use crate::error::{Error, Result};
use crate::experiment::Time;
use crate::generate::Random;
use crate::part::{Named, Part};

/// What can be done to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// kill -9; started again when the fault is over.
    Kill,
    /// SIGTERM; started again when it has ended and the fault is over.
    Restart,
    /// SIGSTOP; SIGCONT when the fault is over.
    Pause,
    /// Nothing comes through between the member and the others.
    Cut,
    /// Nothing comes through between the members of one side and those of the other.
    Split,
    /// `replSetStepDown`, for as long as the fault lasts.
    Stepdown,
}

impl Kind {
    /// The word for it in files.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Kill => "kill",
            Kind::Restart => "restart",
            Kind::Pause => "pause",
            Kind::Cut => "cut",
            Kind::Split => "split",
            Kind::Stepdown => "stepdown",
        }
    }

    /// Whether it needs proxies on the links between members.
    pub fn needs_links(self) -> bool {
        matches!(self, Kind::Cut | Kind::Split)
    }

    /// Whether it can be done to a router, which is in no set.
    pub fn suits_routers(self) -> bool {
        matches!(self, Kind::Kill | Kind::Restart | Kind::Pause)
    }

    /// How long it lasts when nothing is said.
    fn usual_length(self) -> Duration {
        Duration::from_secs(if self == Kind::Restart { 0 } else { 5 })
    }
}

const KINDS: [Kind; 6] = [Kind::Kill, Kind::Restart, Kind::Pause, Kind::Cut, Kind::Split, Kind::Stepdown];

/// Whom a fault meets; found out when it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    /// The primary of that moment.
    Primary,
    /// One of the secondaries of that moment, by this choice.
    Secondary(u64),
    /// One of the members that hold data, by this choice.
    Any(u64),
    /// An arbiter.
    Arbiter,
    /// The members with these numbers: one, or for [`Kind::Split`] all of one side.
    Members(Vec<usize>),
}

impl fmt::Display for Whom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Whom::Primary => f.write_str("the primary"),
            Whom::Secondary(_) => f.write_str("a secondary"),
            Whom::Any(_) => f.write_str("a member"),
            Whom::Arbiter => f.write_str("an arbiter"),
            Whom::Members(members) => {
                let members: Vec<_> = members.iter().map(usize::to_string).collect();
                write!(f, "member {}", members.join(", "))
            }
        }
    }
}

/// Where in a sharded cluster a fault is to be. In a set there is but one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The part, where one is named.
    pub named: Option<Named>,
    /// Chooses among those that are meant.
    pub choice: u64,
}

impl Place {
    /// The part of these that is meant, if it is there.
    pub fn among(self, parts: &[Part]) -> Option<Part> {
        let shards: Vec<Part> = parts.iter().copied().filter(|part| matches!(part, Part::Shard(_))).collect();
        let pick = |from: &[Part]| from.get((self.choice % from.len().max(1) as u64) as usize).copied();
        let there = |part: Part| parts.contains(&part).then_some(part);
        match self.named {
            None => pick(parts),
            Some(Named::Shard(None)) => pick(&shards),
            Some(Named::Shard(Some(number))) => there(Part::Shard(number)),
            Some(Named::Config) => there(Part::Config),
            Some(Named::Router(_)) => there(Part::Router),
        }
    }
}

/// One thing that is to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Counted from the beginning of the measured part.
    pub at: Duration,
    /// What.
    pub kind: Kind,
    /// In which part of a sharded cluster.
    pub place: Place,
    /// To whom.
    pub whom: Whom,
    /// Until it is undone.
    pub length: Duration,
}

/// Everything that is to be done, in the order of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// The faults that are scheduled, or of a random plan those of the first hour.
    pub faults: Vec<Fault>,
    /// Whether they were chosen at random: then it is not said that some of them were never reached.
    pub random: bool,
}

/// An entry of the list in a file: `{at: 10s, kill: primary, for: 5s}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    at: Time,
    kill: Option<Value>,
    restart: Option<Value>,
    pause: Option<Value>,
    cut: Option<Value>,
    split: Option<Value>,
    stepdown: Option<Value>,
    #[serde(rename = "for")]
    length: Option<Time>,
}

/// `{random: {...}}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Chance {
    random: Dice,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Dice {
    /// The run's own when left out, so that each repetition meets other faults.
    seed: Option<u64>,
    /// Mean time from one fault to the next.
    every: Time,
    /// Longest time until a fault is undone. Default: `every`.
    #[serde(rename = "for")]
    longest: Option<Time>,
    kinds: Vec<Kind>,
}

impl Default for Dice {
    fn default() -> Dice {
        Dice { seed: None, every: Time(Duration::from_secs(10)), longest: None, kinds: KINDS.to_vec() }
    }
}

/// No experiment lasts longer than what a random plan is made for.
const HORIZON: Duration = Duration::from_secs(3600);

impl FaultPlan {
    /// The load ends after so many seconds. What comes by chance comes before that: workloads that look after their work then, such as streams that
    /// are read to their end, would be counted to have been met.
    pub fn end_after(&mut self, seconds: f64) {
        if self.random {
            self.faults.retain(|fault| fault.at.as_secs_f64() < seconds);
        }
    }

    /// Reads a list of faults, or `{random: {seed, every, for, kinds}}`. Scheduled moments shrink with the scale, as the
    /// phases do; lengths do not, because what a fault does depends on them.
    pub fn parse(faults: &Value, scale: f64, seed: u64) -> Result<FaultPlan> {
        let refuse = |what: String| Error::usage(format!("faults: {what}"));
        match faults {
            Value::Null => Ok(FaultPlan::default()),
            Value::Sequence(list) => {
                let mut faults = Vec::new();
                for entry in list {
                    let entry: Entry = serde_yaml_ng::from_value(entry.clone())
                        .map_err(|error| refuse(error.to_string()))?;
                    faults.push(entry.fault(scale, seed).map_err(refuse)?);
                }
                faults.sort_by_key(|fault| fault.at);
                Ok(FaultPlan { faults, random: false })
            }
            other => {
                let chance: Chance =
                    serde_yaml_ng::from_value(other.clone()).map_err(|error| refuse(error.to_string()))?;
                chance.random.plan(seed).map_err(refuse)
            }
        }
    }

    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// Whether some fault needs proxies on the links between members.
    pub fn needs_links(&self) -> bool {
        self.faults.iter().any(|fault| fault.kind.needs_links())
    }
}

impl Entry {
    fn fault(self, scale: f64, seed: u64) -> Result<Fault, String> {
        let Entry { at, kill, restart, pause, cut, split, stepdown, length } = self;
        let said = [kill, restart, pause, cut, split, stepdown];
        let mut said = KINDS.into_iter().zip(said).filter_map(|(kind, whom)| Some((kind, whom?)));
        let words = KINDS.map(Kind::name).join(", ");
        let (Some((kind, whom)), None) = (said.next(), said.next()) else {
            return Err(format!("at {at}: say one of {words}"));
        };
        let choice = crate::generate::mix(seed ^ at.0.as_nanos() as u64);
        let (named, whom) =
            parse_whom(&whom, choice).map_err(|what| format!("at {at}: {}: {what}", kind.name()))?;
        match (&whom, kind) {
            (Whom::Members(members), Kind::Split) if members.is_empty() => {
                return Err(format!("at {at}: split: name the members of one side: [0, 1]"));
            }
            (Whom::Members(members), kind) if kind != Kind::Split && members.len() != 1 => {
                return Err(format!("at {at}: {}: name one member", kind.name()));
            }
            _ => {}
        }
        let length = length.map_or(kind.usual_length(), |time| time.0);
        let place = Place { named, choice };
        if matches!(named, Some(Named::Router(_))) && !kind.suits_routers() {
            return Err(format!("at {at}: {}: a router can be killed, restarted and paused", kind.name()));
        }
        Ok(Fault { at: at.0.mul_f64(scale), kind, place, whom, length })
    }
}

fn parse_whom(value: &Value, choice: u64) -> Result<(Option<Named>, Whom), String> {
    const WORDS: &str = "say primary, secondary, any, arbiter or a member's number; in a sharded cluster shard 0, \
                         shard 0 secondary, shard, config, router";
    let number = |value: &Value| value.as_u64().map(|n| n as usize).ok_or_else(|| WORDS.to_owned());
    let role = |word: &str| match word {
        "primary" => Ok(Whom::Primary),
        "secondary" => Ok(Whom::Secondary(choice)),
        "any" => Ok(Whom::Any(choice)),
        "arbiter" => Ok(Whom::Arbiter),
        _ => Err(WORDS.to_owned()),
    };
    match value {
        Value::String(words) => match Named::parse(words) {
            Some((Named::Router(Some(number)), "")) => {
                Ok((Some(Named::Router(None)), Whom::Any(number.into())))
            }
            Some((Named::Router(None), "")) => Ok((Some(Named::Router(None)), Whom::Any(choice))),
            Some((Named::Router(_), _)) => Err(WORDS.to_owned()),
            Some((named, "")) => Ok((Some(named), Whom::Primary)),
            Some((named, word)) => Ok((Some(named), role(word)?)),
            None => Ok((None, role(words)?)),
        },
        Value::Sequence(list) => {
            Ok((None, Whom::Members(list.iter().map(number).collect::<Result<_, _>>()?)))
        }
        other => Ok((None, Whom::Members(vec![number(other)?]))),
    }
}

impl Dice {
    /// One fault at a time: the next begins when the last is over, so that a set always has the chance to recover, and
    /// what is seen after a fault is this fault's doing.
    fn plan(self, seed: u64) -> Result<FaultPlan, String> {
        let every = self.every.0;
        if every.is_zero() {
            return Err("random: every must be more than 0".to_owned());
        }
        if self.kinds.is_empty() {
            return Err("random: name at least one kind".to_owned());
        }
        let longest = self.longest.map_or(every, |time| time.0);
        let mut random = Random::new(self.seed.unwrap_or(seed) ^ 0x6661_756C_7473);
        let part = |random: &mut Random, low: f64, high: f64| low + (high - low) * random.unit();
        let mut faults = Vec::new();
        let mut at = every.mul_f64(part(&mut random, 0.5, 1.0));
        while at < HORIZON {
            let kind = self.kinds[random.below(self.kinds.len() as u64) as usize];
            let length = match kind {
                Kind::Restart => Duration::ZERO,
                _ => longest.mul_f64(part(&mut random, 0.1, 1.0)),
            };
            let choice = random.bits();
            // Half of them meet the primary: there is where something can be lost.
            let whom = match random.below(2) {
                0 => Whom::Primary,
                _ if kind == Kind::Stepdown => Whom::Primary,
                _ => Whom::Any(choice),
            };
            let place = Place { named: None, choice: crate::generate::mix(choice) };
            faults.push(Fault { at, kind, place, whom, length });
            at += length + every.mul_f64(part(&mut random, 0.5, 1.5));
        }
        Ok(FaultPlan { faults, random: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<FaultPlan> {
        FaultPlan::parse(&serde_yaml_ng::from_str(text).unwrap(), 1.0, 1)
    }

    #[test]
    fn a_schedule_is_sorted_and_scaled() {
        let text = "[{at: 20s, split: [0, 1], for: 3s}, {at: 500ms, kill: primary}, {at: 1m, restart: 2}]";
        let plan = parse(text).unwrap();
        let seconds = |s: f64| Duration::from_secs_f64(s);
        let fault = |at: f64, kind, whom, length: f64| {
            let unscaled = seconds(at).as_nanos() as u64;
            let place = Place { named: None, choice: crate::generate::mix(1 ^ unscaled) };
            Fault { at: seconds(at), kind, place, whom, length: seconds(length) }
        };
        let expected = [
            fault(0.5, Kind::Kill, Whom::Primary, 5.0),
            fault(20.0, Kind::Split, Whom::Members(vec![0, 1]), 3.0),
            fault(60.0, Kind::Restart, Whom::Members(vec![2]), 0.0),
        ];
        assert_eq!(plan.faults, expected);
        assert!(plan.needs_links() && !plan.random);
        let half = FaultPlan::parse(&serde_yaml_ng::from_str(text).unwrap(), 0.5, 1).unwrap();
        assert_eq!((half.faults[1].at, half.faults[1].length), (seconds(10.0), seconds(3.0)));
    }

    #[test]
    fn parts_of_a_sharded_cluster_are_named() {
        let parts = [Part::Config, Part::Shard(0), Part::Shard(1), Part::Router];
        for (text, part, whom) in [
            ("shard 1", Some(Part::Shard(1)), Whom::Primary),
            ("config", Some(Part::Config), Whom::Primary),
            ("shard 0 arbiter", Some(Part::Shard(0)), Whom::Arbiter),
            ("router 1", Some(Part::Router), Whom::Any(1)),
            ("shard 2", None, Whom::Primary),
        ] {
            let plan = parse(&format!("[{{at: 1s, kill: {text}}}]")).unwrap();
            let Fault { place, whom: is, .. } = &plan.faults[0];
            assert_eq!((place.among(&parts), is), (part, &whom), "{text}");
        }
        let met = |named, choice| Place { named, choice }.among(&parts);
        assert!((0..20).all(|n| matches!(met(Some(Named::Shard(None)), n), Some(Part::Shard(_)))));
        assert!(parts.iter().all(|part| (0..20).any(|n| met(None, n) == Some(*part))));
        assert_eq!(Place { named: None, choice: 7 }.among(&[Part::Set]), Some(Part::Set));
        assert_eq!(Place { named: Some(Named::Config), choice: 7 }.among(&[Part::Set]), None);
    }

    #[test]
    fn random_plans_follow_from_their_seed() {
        let plan = |seed: u64| parse(&format!("{{random: {{seed: {seed}, every: 5s, for: 2s}}}}")).unwrap();
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
        let faults = plan(7).faults;
        assert!(faults.len() > 400 && faults.len() < 1000, "{}", faults.len());
        assert!(KINDS.iter().all(|kind| faults.iter().any(|fault| fault.kind == *kind)));
        // One at a time.
        assert!(faults.windows(2).all(|pair| pair[0].at + pair[0].length < pair[1].at));
        let mut ended = plan(7);
        ended.end_after(60.0);
        assert!(!ended.is_empty() && ended.faults.iter().all(|fault| fault.at < Duration::from_secs(60)));
        let mut listed = parse("[{at: 90s, kill: primary}]").unwrap();
        listed.end_after(60.0);
        assert_eq!(listed.faults.len(), 1, "what was asked for by name is told to have been missed");
        let only = parse("{random: {kinds: [pause]}}").unwrap();
        assert!(only.faults.iter().all(|fault| fault.kind == Kind::Pause) && !only.needs_links());
    }

    #[test]
    fn slips_of_the_pen_are_refused() {
        for (text, why) in [
            ("[{at: 1s}]", "say one of kill"),
            ("[{at: 1s, kill: primary, pause: primary}]", "say one of kill"),
            ("[{at: 1s, kill: everybody}]", "say primary"),
            ("[{at: 1s, kill: [0, 1]}]", "name one member"),
            ("[{at: 1s, kill: shard 0 boss}]", "say primary"),
            ("[{at: 1s, kill: router 0 primary}]", "say primary"),
            ("[{at: 1s, cut: router}]", "killed, restarted and paused"),
            ("[{at: 1s, split: []}]", "one side"),
            ("[{at: soon, kill: primary}]", "no length of time"),
            ("[{at: 1s, kill: primary, during: 1s}]", "unknown field"),
            ("[{kill: primary}]", "missing field `at`"),
            ("{random: {every: 0s}}", "more than 0"),
            ("{random: {kinds: []}}", "at least one"),
            ("{random: {kinds: [earthquake]}}", "earthquake"),
            ("{often: true}", "unknown field"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(parse("null").unwrap().is_empty());
    }
}
