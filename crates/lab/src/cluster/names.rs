//! Members by what a person calls them.

use super::record::{Member, Record};
use crate::error::{Error, Result};
use crate::part::{Named, Part};
use crate::target::set::{State, primary_of};

impl Record {
    /// The number of a member by what a person calls it: its number or port; primary, secondary, arbiter; in a sharded
    /// cluster `router`, `config` and `shard0` (their primaries), `shard0/secondary`.
    pub fn member(&self, text: &str) -> Result<usize> {
        if self.is_sharded() {
            if let Some((named, role)) = Named::parse(text) {
                return self.of_named_part(text, named, role);
            }
        } else if ["primary", "secondary", "arbiter"].contains(&text) {
            return self.in_role(Part::Set, text);
        }
        let by_port = text.rsplit_once(':').map_or(text, |(_, port)| port);
        let port = self.members.iter().position(|member| member.port.to_string() == by_port);
        let number = text.parse().ok().filter(|number: &usize| *number < self.members.len());
        number.or(port).ok_or_else(|| self.unknown(text))
    }

    /// The numbers of members that are down or paused, by what they were called when that was done to them; or of the only such one of
    /// the part that is named; or of who is called so now.
    pub fn gone(&self, text: &str, is_gone: impl Fn(&Member) -> bool) -> Result<Vec<usize>> {
        let all = (0..self.members.len()).filter(|at| is_gone(&self.members[*at]));
        let was_called =
            |at: &usize| self.members[*at].called.as_deref().is_some_and(|called| is_same_name(called, text));
        let called: Vec<usize> = all.clone().filter(was_called).collect();
        if !called.is_empty() {
            return Ok(called);
        }
        self.member(text).map(|number| vec![number]).or_else(|error| {
            let of_part = self.part_called(text).map_or(Vec::new(), |part| self.of_part(part));
            let mut gone = all.filter(|at| of_part.contains(at));
            match (gone.next(), gone.next()) {
                (Some(only), None) => Ok(vec![only]),
                _ => Err(error),
            }
        })
    }

    /// The part that a name is about, whoever is meant of it.
    fn part_called(&self, text: &str) -> Option<Part> {
        let part = match Named::parse(text) {
            Some((Named::Router(None), "")) => Part::Router,
            Some((Named::Config, "" | "primary" | "secondary" | "arbiter")) => Part::Config,
            Some((Named::Shard(Some(shard)), "" | "primary" | "secondary" | "arbiter")) => Part::Shard(shard),
            None if ["primary", "secondary", "arbiter"].contains(&text) => Part::Set,
            _ => return None,
        };
        self.parts().contains(&part).then_some(part)
    }

    fn unknown(&self, text: &str) -> Error {
        let words = if self.is_sharded() {
            "router, config, shard0, shard0/secondary"
        } else {
            "primary, secondary or arbiter"
        };
        let last = self.members.len() - 1;
        Error::usage(format!("there is no member {text}: say a number from 0 to {last}, a port, {words}"))
    }

    fn of_named_part(&self, text: &str, named: Named, role: &str) -> Result<usize> {
        match (named, role) {
            (Named::Router(number), "") => {
                let routers = self.of_part(Part::Router);
                match number {
                    Some(number) => routers.get(number as usize).copied().ok_or_else(|| self.unknown(text)),
                    None => routers
                        .into_iter()
                        .find(|at| self.members[*at].running().is_some())
                        .ok_or_else(|| Error::failed("no router runs now")),
                }
            }
            (Named::Config, role) => self.in_role(Part::Config, role),
            (Named::Shard(Some(shard)), role) if self.parts().contains(&Part::Shard(shard)) => {
                self.in_role(Part::Shard(shard), role)
            }
            _ => Err(self.unknown(text)),
        }
    }

    /// A member of a set by its role; the primary where no role is named.
    fn in_role(&self, part: Part, role: &str) -> Result<usize> {
        let states = self.states();
        let of_part = self.of_part(part);
        let own: Vec<State> = of_part.iter().map(|at| states[*at].clone()).collect();
        let found = match role {
            "" | "primary" => primary_of(&own),
            "secondary" => own.iter().position(|state| *state == State::Secondary),
            "arbiter" => own.iter().position(|state| *state == State::Arbiter),
            _ => return Err(self.unknown(&format!("{part} {role}"))),
        };
        let role = if role.is_empty() { "primary" } else { role };
        let place = if part == Part::Set { String::new() } else { format!(" in {part}") };
        found.map(|at| of_part[at]).ok_or_else(|| Error::failed(format!("there is no {role}{place} now")))
    }
}

/// Whether two names mean the same: without a role the primary is meant.
fn is_same_name(one: &str, other: &str) -> bool {
    let parse = |text| {
        let (named, role) = Named::parse(text)?;
        Some((named, if role.is_empty() && !matches!(named, Named::Router(_)) { "primary" } else { role }))
    };
    one == other || parse(one).is_some_and(|one| parse(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::cluster::process::Lasting;
    use crate::target::fake::{self, FakeMember};

    fn record(fakes: &[(Part, FakeMember)]) -> Record {
        let process = Some(Lasting::of(std::process::id()));
        let port = |fake: &FakeMember| fake.address.rsplit_once(':').unwrap().1.parse().unwrap();
        let member = |(part, fake): &(Part, FakeMember)| Member {
            port: port(fake),
            part: *part,
            arbiter: false,
            process,
            paused: false,
            called: None,
        };
        Record::new(PathBuf::from("/nowhere"), "rs0", fakes.iter().map(member).collect())
    }

    #[test]
    fn members_of_a_set() {
        let fakes = [fake::secondary(), fake::primary()].map(|says| (Part::Set, FakeMember::start(says)));
        let mut record = record(&fakes);
        assert_eq!(record.member("primary").unwrap(), 1);
        assert_eq!(record.member("secondary").unwrap(), 0);
        assert_eq!(record.member("1").unwrap(), 1);
        assert_eq!(record.member(&fakes[0].1.address).unwrap(), 0);
        assert_eq!(record.member(&record.members[1].port.to_string()).unwrap(), 1);
        for text in ["2", "-1", "boss", "", "config", "shard0"] {
            assert!(record.member(text).is_err(), "{text}");
        }
        assert!(record.member("arbiter").unwrap_err().to_string().contains("no arbiter now"));
        // Who is paused is not asked.
        record.members[1].paused = true;
        assert!(record.member("primary").is_err());
    }

    #[test]
    fn members_of_a_sharded_cluster() {
        let parts = [
            (Part::Router, fake::primary()),
            (Part::Router, fake::primary()),
            (Part::Config, fake::primary()),
            (Part::Shard(0), fake::secondary()),
            (Part::Shard(0), fake::primary()),
            (Part::Shard(1), fake::secondary()),
        ];
        let fakes = parts.map(|(part, says)| (part, FakeMember::start(says)));
        let mut record = record(&fakes);
        for (text, number) in [
            ("router", 0),
            ("router 1", 1),
            ("config", 2),
            ("shard0", 4),
            ("shard 0/secondary", 3),
            ("shard1/secondary", 5),
            ("5", 5),
        ] {
            assert_eq!(record.member(text).unwrap(), number, "{text}");
        }
        assert!(record.member("shard1").unwrap_err().to_string().contains("no primary in shard 1 now"));
        for text in ["primary", "shard2", "router 2", "router/primary", "shard0/boss", "shard"] {
            assert!(record.member(text).unwrap_err().to_string().contains("there is no member"), "{text}");
        }
        record.members[0].process = None;
        assert_eq!(record.member("router").unwrap(), 1);
        assert_eq!(record.connection_string().unwrap().hosts.len(), 2);
    }

    #[test]
    fn who_is_gone_keeps_the_name() {
        let parts = [
            (Part::Router, fake::primary()),
            (Part::Router, fake::primary()),
            (Part::Config, fake::primary()),
            (Part::Shard(0), fake::primary()),
            (Part::Shard(0), fake::primary()),
            (Part::Shard(0), fake::secondary()),
        ];
        let fakes = parts.map(|(part, says)| (part, FakeMember::start(says)));
        let mut record = record(&fakes);
        let is_down = |member: &Member| member.process.is_none();
        // Who runs is called what it is.
        assert_eq!(record.gone("config", is_down).unwrap(), [2]);
        let kill = |record: &mut Record, number: usize, name: Option<&str>| {
            (record.members[number].process, record.members[number].called) = (None, name.map(str::to_owned));
        };
        kill(&mut record, 0, Some("router"));
        kill(&mut record, 3, Some("shard0"));
        assert_eq!(record.gone("router", is_down).unwrap(), [0]);
        // Another one is primary by now.
        assert_eq!(record.member("shard0").unwrap(), 4);
        for name in ["shard0", "shard 0", "shard0/primary"] {
            assert_eq!(record.gone(name, is_down).unwrap(), [3], "{name}");
        }
        assert_eq!(record.gone("shard0/secondary", is_down).unwrap(), [5]);
        // By its number, so that only the part tells.
        kill(&mut record, 2, None);
        assert_eq!(record.gone("config", is_down).unwrap(), [2]);
        kill(&mut record, 4, None);
        kill(&mut record, 5, None);
        assert!(record.gone("shard0/secondary", is_down).is_err(), "it may be any of three");
        kill(&mut record, 1, Some("router"));
        assert_eq!(record.gone("router", is_down).unwrap(), [0, 1]);
    }
}
