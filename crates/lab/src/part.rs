//! Which part of a deployment a server is.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which part of a deployment a server is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// A single server, or a member of the one replica set that there is.
    #[default]
    Set,
    /// A router of a sharded cluster.
    Router,
    /// A config server of it.
    Config,
    /// A member of the shard with this number, counted from 0.
    Shard(u32),
}

impl Part {
    /// The name of the replica set of this part of a sharded cluster; a router belongs to none.
    pub fn set_name(self) -> Option<String> {
        match self {
            Part::Set | Part::Router => None,
            Part::Config => Some("config".to_owned()),
            Part::Shard(number) => Some(format!("shard{number}")),
        }
    }

    /// Whether its servers elect a primary among them.
    pub fn is_set(self) -> bool {
        self != Part::Router
    }

    /// Whether documents of users are on its servers.
    pub fn holds_data(self) -> bool {
        matches!(self, Part::Set | Part::Shard(_))
    }

    /// The flag by which a server becomes this part.
    pub fn flag(self) -> Option<&'static str> {
        match self {
            Part::Set | Part::Router => None,
            Part::Config => Some("--configsvr"),
            Part::Shard(_) => Some("--shardsvr"),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Set => f.write_str("the set"),
            Part::Router => f.write_str("router"),
            Part::Config => f.write_str("config"),
            Part::Shard(number) => write!(f, "shard {number}"),
        }
    }
}

/// The parts that there are, each once, in the order of their first server.
pub fn parts_of(servers: impl IntoIterator<Item = Part>) -> Vec<Part> {
    let mut parts = Vec::new();
    for part in servers {
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts
}

/// A part as a person names it: `shard 0`, `shard0`, `shard` (any of them), `config`, `router`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// The shard with this number, or any.
    Shard(Option<u32>),
    /// The config servers.
    Config,
    /// The router with this number, or any.
    Router(Option<u32>),
}

impl Named {
    /// Takes the name of a part from the beginning of a text; what is left behind it is a role, such as `secondary`.
    /// `None` when no part is named there. Between words may be a space or a slash.
    pub fn parse(text: &str) -> Option<(Named, &str)> {
        let mut words = text.split([' ', '/']).filter(|word| !word.is_empty()).peekable();
        let first = words.next()?;
        let letters = first.trim_end_matches(|c: char| c.is_ascii_digit());
        let mut digits = &first[letters.len()..];
        if digits.is_empty() && letters != "config" {
            digits = words.next_if(|word| word.bytes().all(|byte| byte.is_ascii_digit())).unwrap_or("");
        }
        let number = if digits.is_empty() { None } else { Some(digits.parse().ok()?) };
        let named = match letters {
            "shard" => Named::Shard(number),
            "router" => Named::Router(number),
            "config" if number.is_none() => Named::Config,
            _ => return None,
        };
        let role = words.next().unwrap_or("");
        words.next().is_none().then_some((named, role))
    }
}

/// The servers of a sharded cluster in the order of their numbers and ports: routers, config servers, then shard by shard.
/// With each of them, whether it is an arbiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharded {
    /// Shards.
    pub shards: u32,
    /// Members of each shard that hold data.
    pub members: u32,
    /// Members of each shard that only vote.
    pub arbiters: u32,
    /// Routers.
    pub routers: u32,
    /// Config servers.
    pub config_servers: u32,
}

impl Sharded {
    /// Where nothing else is said, there is one router, a shard is one server, and there are as many config servers as a
    /// shard has members, but not more than three.
    pub fn new(
        shards: u32,
        members: Option<u32>,
        arbiters: Option<u32>,
        routers: Option<u32>,
        config_servers: Option<u32>,
    ) -> Sharded {
        let members = members.unwrap_or(1);
        let config_servers = config_servers.unwrap_or(members.clamp(1, 3));
        Sharded {
            shards,
            members,
            arbiters: arbiters.unwrap_or(0),
            routers: routers.unwrap_or(1),
            config_servers,
        }
    }

    /// What makes no sense.
    pub fn problem(&self) -> Option<&'static str> {
        [
            (self.shards == 0, "there must be at least one shard"),
            (self.members == 0, "at least one member of a shard must hold data"),
            (self.routers == 0, "there must be at least one router"),
            (self.config_servers == 0, "there must be at least one config server"),
        ]
        .into_iter()
        .find_map(|(wrong, why)| wrong.then_some(why))
    }

    /// The servers.
    pub fn servers(&self) -> Vec<(Part, bool)> {
        let routers = (0..self.routers).map(|_| (Part::Router, false));
        let config = (0..self.config_servers).map(|_| (Part::Config, false));
        let all = self.members + self.arbiters;
        let shards = (0..self.shards)
            .flat_map(|shard| (0..all).map(move |at| (Part::Shard(shard), at >= self.members)));
        routers.chain(config).chain(shards).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_by_what_people_call_them() {
        for (text, named, rest) in [
            ("shard 0", Named::Shard(Some(0)), ""),
            ("shard12/secondary", Named::Shard(Some(12)), "secondary"),
            ("shard secondary", Named::Shard(None), "secondary"),
            ("shard", Named::Shard(None), ""),
            ("config primary", Named::Config, "primary"),
            ("router 1", Named::Router(Some(1)), ""),
            ("router", Named::Router(None), ""),
        ] {
            assert_eq!(Named::parse(text), Some((named, rest)), "{text}");
        }
        for text in [
            "primary",
            "",
            "7",
            "configuration",
            "shards",
            "shard 99999999999",
            "config0",
            "shard 0 primary now",
        ] {
            assert_eq!(Named::parse(text), None, "{text}");
        }
    }

    #[test]
    fn servers_in_the_order_of_their_numbers() {
        let small = Sharded::new(2, None, None, Some(2), None);
        let parts: Vec<Part> = small.servers().into_iter().map(|(part, _)| part).collect();
        assert_eq!(parts, [Part::Router, Part::Router, Part::Config, Part::Shard(0), Part::Shard(1)]);
        assert_eq!(parts_of(parts), [Part::Router, Part::Config, Part::Shard(0), Part::Shard(1)]);
        let large = Sharded::new(1, Some(2), Some(1), None, None);
        let arbiters: Vec<bool> = large.servers().into_iter().map(|(_, arbiter)| arbiter).collect();
        assert_eq!(arbiters, [false, false, false, false, false, true]);
        assert_eq!(Sharded::new(2, Some(5), None, None, None).config_servers, 3);
        assert!(Sharded::new(2, None, None, Some(0), None).problem().unwrap().contains("router"));
        assert!(large.problem().is_none());
    }
}
