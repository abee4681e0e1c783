//! Finding the member that an operation may go to.
//!
//! Each member is asked what it is, and those that it names are asked too. A primary that calls another one its elder (a
//! lower `electionId`) is one that does not know yet that it was voted out. A member that does not answer, as a paused
//! one, must not hold up the search: the time that each is given is short at first and grows from round to round.
//!
//! Nor must it hold up an operation that it was given: drivers have a thread that watches every member, this client looks around while it
//! waits ([`still_worth_waiting`]).

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use super::{Connection, ConnectionString, ReadPreference};
use crate::error::{Error, Result};

/// How long a client looks for a primary before it gives up: longer than an election takes.
pub(super) const SELECTION: Duration = Duration::from_secs(30);
/// What a member of several has to answer in, in the first round.
const FIRST_PATIENCE: Duration = Duration::from_millis(500);
/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(20);
/// Members whose round trip is at most so much longer than the nearest one's are as near.
const LATENCY_WINDOW: Duration = Duration::from_millis(15);

/// A member that has been silent for so long while an operation waits for it is looked after.
pub(super) const LOOK_AFTER: Duration = Duration::from_secs(1);

/// `electionId`, which grows from election to election.
pub(super) type Election = [u8; 12];

/// Looks for a node that may be used so, until the patience of [`SELECTION`] is over. `newest` is the last election that
/// the client has heard of. Members of the set that `to` did not name are named in it then: the one that it did may be the next to fail.
pub(super) fn find_node(
    to: &mut ConnectionString,
    preference: ReadPreference,
    newest: &mut Option<Election>,
) -> Result<Connection> {
    let deadline = Instant::now() + SELECTION;
    let alone = to.hosts.len() == 1 && !to.is_replicated();
    let mut patience = if alone { to.connect_timeout } else { FIRST_PATIENCE.min(to.connect_timeout) };
    // While a set elects, its members are asked again and again: who dialled them anew each time would spend, with TLS and passwords,
    // the processor time that they need for the election.
    let mut open = HashMap::new();
    loop {
        let (candidates, named) = (Vec::new(), Vec::new());
        let mut round = Round { to, preference, newest, patience, open: &mut open, candidates, named };
        let outcome = round.ask_all();
        let named = round.named;
        if to.replica_set.is_some() {
            to.hosts.extend(named);
            let mut seen = HashSet::new();
            to.hosts.retain(|host| seen.insert(host.clone()));
        }
        let last = match outcome {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        // One node that does not answer will not answer better later: only a set elects.
        if alone {
            return Err(last);
        }
        if Instant::now() > deadline {
            // Of a set, this may pass.
            let text = format!("no {} in {} s: {last}", preference.name(), SELECTION.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text).into());
        }
        patience = (patience * 2).min(to.connect_timeout);
        std::thread::sleep(PAUSE);
    }
}

/// Looks around while an operation waits for a member's answer: whether that one still says what it is, and whether another primary was
/// elected since.
///
/// Errors: what speaks against waiting any longer, as a timeout of the network, after which an operation may be sent again.
pub(super) fn still_worth_waiting(
    to: &ConnectionString,
    address: &str,
    preference: ReadPreference,
    newest: &mut Option<Election>,
) -> Result<()> {
    let lost = |why: &str| Err(io::Error::new(io::ErrorKind::TimedOut, format!("{address} {why}")).into());
    let mut hurried = to.clone();
    (hurried.connect_timeout, hurried.socket_timeout) = (FIRST_PATIENCE, FIRST_PATIENCE);
    let ask = |host: &str| Connection::open(host, &hurried).and_then(|mut connection| connection.hello());
    let Ok(role) = ask(address) else { return lost("does not say what it is") };
    if preference != ReadPreference::Primary {
        return Ok(());
    }
    let mut others = to.hosts.clone();
    others.extend(role.hosts);
    others.sort_unstable();
    others.dedup();
    let elected = others.iter().filter(|host| *host != address).filter_map(|host| ask(host).ok());
    let elected = elected.filter(|role| role.primary).map(|role| role.election).max().flatten();
    if elected <= *newest {
        return Ok(());
    }
    // The search that follows must not come back to this one, which believes that it is the primary still.
    *newest = elected;
    lost("is no longer the primary")
}

/// One round of questions.
struct Round<'a> {
    to: &'a ConnectionString,
    preference: ReadPreference,
    newest: &'a mut Option<Election>,
    patience: Duration,
    /// Connections to members that answered in an earlier round, and would not do then.
    open: &'a mut HashMap<String, Connection>,
    /// Members that would do: how well (0 is best), and how far away.
    candidates: Vec<(u32, Duration, Connection)>,
    /// Those that the set's members name.
    named: Vec<String>,
}

impl Round<'_> {
    fn ask_all(&mut self) -> Result<Connection> {
        let mut problem = Error::failed("no hosts");
        let mut hosts: VecDeque<String> = self.to.hosts.iter().cloned().collect();
        if self.to.replica_set.is_none() {
            // Routers: clients spread over them, as drivers' clients do.
            let first = rand::random_range(0..hosts.len().max(1));
            hosts.rotate_left(first);
        }
        let mut asked: Vec<String> = Vec::new();
        while let Some(host) = hosts.pop_front() {
            if asked.contains(&host) {
                continue;
            }
            asked.push(host.clone());
            match self.ask(&host, &mut hosts) {
                Ok(Some(connection)) => return Ok(connection),
                Ok(None) => {}
                Err(error) => problem = error.context(&host),
            }
        }
        if self.candidates.is_empty() {
            return Err(problem);
        }
        Ok(self.choose())
    }

    /// Asks one; gives it back when there can be no better one.
    fn ask(&mut self, host: &str, hosts: &mut VecDeque<String>) -> Result<Option<Connection>> {
        let limit = |usual: Duration| if self.to.direct { usual } else { usual.min(self.patience) };
        let mut hurried = self.to.clone();
        hurried.connect_timeout = limit(self.to.connect_timeout);
        hurried.socket_timeout = limit(self.to.socket_timeout);
        let mut connection = match self.open.remove(host) {
            Some(connection) => connection,
            None => Connection::open(host, &hurried)?,
        };
        if self.to.direct {
            return Ok(Some(connection));
        }
        connection.set_timeout(hurried.socket_timeout)?;
        let began = Instant::now();
        let mut role = connection.hello()?;
        let distance = began.elapsed();
        connection.set_patience(self.to.look_after(), self.to.socket_timeout)?;
        if let Some(wanted) = self.to.replica_set.as_deref().filter(|name| role.set.as_deref() != Some(name))
        {
            return Err(Error::failed(format!("it is not a member of the replica set {wanted}")));
        }
        self.named.extend(role.hosts.iter().chain(&role.passives).cloned());
        hosts.extend(role.hosts.drain(..).chain(role.passives.drain(..)));
        if let Some(primary) = role.primary_host.take().filter(|primary| primary != host) {
            hosts.push_front(primary);
        }
        if role.primary && role.election.is_some() {
            if role.election < *self.newest {
                self.open.insert(host.to_owned(), connection);
                return Err(Error::failed("it does not know yet that another primary was elected"));
            }
            *self.newest = role.election;
        }
        let rank = match (self.preference, role.primary, role.secondary) {
            (ReadPreference::Primary | ReadPreference::PrimaryPreferred, true, _) => {
                return Ok(Some(connection));
            }
            (ReadPreference::Secondary | ReadPreference::SecondaryPreferred, false, true)
            | (ReadPreference::Nearest, true, _)
            | (ReadPreference::Nearest, _, true) => 0,
            (ReadPreference::PrimaryPreferred, _, true) | (ReadPreference::SecondaryPreferred, true, _) => 1,
            _ => {
                self.open.insert(host.to_owned(), connection);
                return Err(Error::failed(format!("it is no {}", self.preference.name())));
            }
        };
        self.candidates.push((rank, distance, connection));
        Ok(None)
    }

    /// Any of the best that are near: clients spread over the members.
    fn choose(&mut self) -> Connection {
        let best = self.candidates.iter().map(|(rank, ..)| *rank).min().unwrap_or(0);
        self.candidates.retain(|(rank, ..)| *rank == best);
        let nearest = self.candidates.iter().map(|(_, distance, _)| *distance).min().unwrap_or_default();
        self.candidates.retain(|(_, distance, _)| *distance <= nearest + LATENCY_WINDOW);
        let at = rand::random_range(0..self.candidates.len());
        self.candidates.swap_remove(at).2
    }
}
