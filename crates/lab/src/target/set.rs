//! What the members of a running set are at a moment, as they say it themselves.

use std::time::{Duration, Instant};

use sheaf_bson::{Value, doc};

use super::Running;
use crate::client::{Connection, ConnectionString};
use crate::error::{Error, Result};
use crate::part::{Part, parts_of};
use crate::stop::Stop;

/// What a member says that it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It does not answer, or is in none of the other states: it starts, syncs, or belongs to no set yet.
    Away,
    /// It votes and holds no data.
    Arbiter,
    /// It follows.
    Secondary,
    /// It takes writes, since the election with this number (the bytes of `electionId`). A single server does, too.
    Primary(Vec<u8>),
}

/// A member that does not answer in this time is away.
const ANSWER: Duration = Duration::from_millis(500);

/// Asks a server what it is.
pub fn ask(mut to: ConnectionString) -> State {
    (to.connect_timeout, to.socket_timeout) = (ANSWER, ANSWER);
    let Ok(mut connection) = Connection::open(&to.hosts[0], &to) else { return State::Away };
    let Ok(hello) = connection.command("admin", &doc! { "hello": 1 }) else { return State::Away };
    let flag = |key: &str| hello.get(key).and_then(|value| value.as_bool()).unwrap_or(false);
    if flag("isWritablePrimary") {
        let election = match hello.get("electionId") {
            Some(Value::ObjectId(id)) => id.0.to_vec(),
            _ => Vec::new(),
        };
        State::Primary(election)
    } else if flag("secondary") {
        State::Secondary
    } else if flag("arbiterOnly") {
        State::Arbiter
    } else {
        State::Away
    }
}

/// Asks several servers at once: one that does not answer does not hold up the others.
pub fn ask_all(servers: impl IntoIterator<Item = ConnectionString>) -> Vec<State> {
    std::thread::scope(|scope| {
        let asked: Vec<_> = servers.into_iter().map(|to| scope.spawn(move || ask(to))).collect();
        asked.into_iter().map(|thread| thread.join().unwrap_or(State::Away)).collect()
    })
}

/// The primary among these states: of several that claim to be it, the one that was elected last.
pub fn primary_of(states: &[State]) -> Option<usize> {
    let newest = states.iter().enumerate().max_by_key(|(_, state)| *state)?;
    matches!(newest.1, State::Primary(_)).then_some(newest.0)
}

impl Running {
    /// What every member says that it is; members that are down or paused are not asked.
    pub fn states(&self) -> Vec<State> {
        let up = |address: &str| {
            self.processes.iter().find(|process| process.address == address).is_none_or(|p| p.is_up())
        };
        let asked: Vec<&str> =
            self.members.iter().map(|member| member.address.as_str()).filter(|address| up(address)).collect();
        let mut answers = ask_all(asked.iter().map(|address| self.access.direct(address))).into_iter();
        let answer = |address: &str| {
            if asked.contains(&address) { answers.next().unwrap_or(State::Away) } else { State::Away }
        };
        self.members.iter().map(|member| member.address.as_str()).map(answer).collect()
    }

    /// The numbers of the members of a part.
    pub fn of_part(&self, part: Part) -> Vec<usize> {
        (0..self.members.len()).filter(|at| self.members[*at].part == part).collect()
    }

    /// Its parts, each once.
    pub fn parts(&self) -> Vec<Part> {
        parts_of(self.members.iter().map(|member| member.part))
    }

    /// The numbers of those who are primaries, of each set at most one.
    pub fn primaries(&self) -> Vec<usize> {
        let states = self.states();
        let sets = self.parts().into_iter().filter(|part| part.is_set());
        sets.filter_map(|part| primary_among(&states, &self.of_part(part))).collect()
    }

    /// Waits until each set has one primary and every other member of it follows or votes, and every router answers.
    pub fn wait_until_whole(&self, patience: Duration, stop: &Stop) -> Result<()> {
        self.parts().into_iter().try_for_each(|part| self.wait_for_part(part, patience, stop))
    }

    /// The same for one part.
    pub fn wait_for_part(&self, part: Part, patience: Duration, stop: &Stop) -> Result<()> {
        let own = self.of_part(part);
        let states = || {
            let all = self.states();
            let state = |at: &usize| match all[*at].clone() {
                // Each router is one; the first stands for the set's.
                State::Primary(_) if part == Part::Router && Some(at) != own.first() => State::Secondary,
                state => state,
            };
            own.iter().map(state).collect()
        };
        wait_until_whole(patience, stop, states, |at| self.members[own[at]].address.clone())
            .map_err(|error| if part == Part::Set { error } else { error.context(part) })
    }
}

/// The number of the primary among these members.
pub fn primary_among(states: &[State], members: &[usize]) -> Option<usize> {
    let own: Vec<State> = members.iter().map(|at| states[*at].clone()).collect();
    primary_of(&own).map(|at| members[at])
}

/// See [`Running::wait_until_whole`].
pub(crate) fn wait_until_whole(
    patience: Duration,
    stop: &Stop,
    states: impl Fn() -> Vec<State>,
    name: impl Fn(usize) -> String,
) -> Result<()> {
    let began = Instant::now();
    loop {
        let now = states();
        let primaries = now.iter().filter(|state| matches!(state, State::Primary(_))).count();
        let away: Vec<usize> = (0..now.len()).filter(|at| now[*at] == State::Away).collect();
        if primaries == 1 && away.is_empty() || now.is_empty() {
            return Ok(());
        }
        if stop.is_set() {
            return Err(Error::Interrupted);
        }
        if began.elapsed() > patience {
            let away: Vec<String> = away.into_iter().map(name).collect();
            let away = if away.is_empty() { String::new() } else { format!("; away: {}", away.join(", ")) };
            return Err(Error::failed(format!(
                "the set is not whole after {} s: {primaries} primaries{away}",
                patience.as_secs()
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_primaries_the_one_elected_last_counts() {
        let states = [State::Primary(vec![0, 1]), State::Secondary, State::Primary(vec![0, 2]), State::Away];
        assert_eq!(primary_of(&states), Some(2));
        assert_eq!(primary_of(&states[1..2]), None);
        assert_eq!(primary_of(&[]), None);
        // A single server has no elections.
        assert_eq!(primary_of(&[State::Primary(Vec::new())]), Some(0));
    }

    #[test]
    fn a_set_is_whole_with_one_primary_and_nobody_away() {
        let whole = |states: &[State]| {
            let wait = Duration::from_millis(1);
            wait_until_whole(wait, &Stop::default(), || states.to_vec(), |at| format!("m{at}"))
        };
        let primary = State::Primary(vec![1]);
        whole(&[primary.clone(), State::Secondary, State::Arbiter]).unwrap();
        let error = whole(&[primary.clone(), State::Away]).unwrap_err().to_string();
        assert!(error.contains("away: m1"), "{error}");
        assert!(whole(&[primary.clone(), primary]).unwrap_err().to_string().contains("2 primaries"));
        assert!(whole(&[State::Secondary]).unwrap_err().to_string().contains("0 primaries"));
    }

    #[test]
    fn nobody_there_is_away() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        // One that listens and says nothing, and one that does not listen.
        assert_eq!(
            ask_all([address.as_str(), "127.0.0.1:1"].map(ConnectionString::direct)),
            [State::Away, State::Away]
        );
    }
}
