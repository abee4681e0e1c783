//! The shards' parts of a change stream, together.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_aggregate::stages::change_stream::ResumeToken;
use sheaf_bson::{ArrayBuf, DocBuf, Timestamp, Value, doc};
use sheaf_client::Message;
use sheaf_cluster::{Asker, Call, Clock, ELECTION, GoOn, QUICK, no_longer_than};
use sheaf_errors::{Code, Error, Result};

use super::input::Input;
use super::members::{self, Change, Kind};
use super::opening::Opening;
use crate::gather::Link;

/// How long after it was lost who watches the shards tries again.
const AGAIN: Duration = Duration::from_secs(10);

/// Who asks for nothing for so long may not hear of a removal in time.
const AWAY: Duration = Duration::from_millis(100);

/// What comes next of all shards.
pub enum Next {
    /// The event at hand of this input.
    Event(usize),
    /// Some shard may still have something before it.
    Unknown,
    /// The stream is over on some shard, and nothing is before that on others.
    Over,
}

/// The shards' parts of a change stream.
pub struct Inputs {
    link: Arc<Link>,
    opening: Opening,
    shards: Vec<Input>,
    /// Tells of new shards, which are to be read from the moment on when they were added, and of those that are removed.
    watch: Option<Input>,
    watch_lost: Option<Instant>,
    /// What happened up to this time may have been on a shard that was removed before, as nobody had listened to the watch.
    unheard: u64,
    /// When the watch was asked last.
    asked: Instant,
    /// The time of the event that waits for what the watch knows, and since when it does.
    doubted: Option<(u64, Instant)>,
    /// When shards have been removed.
    removed: BTreeMap<String, u64>,
    /// How long one is waited for that was removed again before its addition was heard of.
    patience: Duration,
}

impl Inputs {
    /// A stream on these shards; `watch` tells who comes and goes.
    pub fn new(link: Arc<Link>, opening: Opening, shards: Vec<Input>, watch: Option<Input>) -> Self {
        let watch_lost = watch.is_none().then(Instant::now);
        let (doubted, removed) = Default::default();
        let asked = Instant::now();
        let patience = ELECTION;
        Inputs { link, opening, shards, watch, watch_lost, unheard: 0, asked, doubted, removed, patience }
    }

    /// The event at hand of one of them.
    pub fn at(&self, at: usize) -> &Input {
        &self.shards[at]
    }

    /// Goes behind the event at hand of one of them.
    pub fn advance(&mut self, at: usize) -> Result<()> {
        self.shards[at].advance()?;
        self.shards.retain(|input| !input.is_over());
        Ok(())
    }

    /// The event that is to be told first, and whose it is.
    fn first(&self) -> Option<(&ResumeToken, usize)> {
        self.shards.iter().enumerate().filter_map(|(at, input)| Some((input.next()?, at))).min()
    }

    /// Whether this event's shard may have been removed before without that this is known: while it is being drained, and of what happened
    /// while the client asked for nothing. Where the config servers do not answer that is not waited for.
    fn is_doubtful(&self, token: &ResumeToken, at: usize) -> bool {
        let (input, time) = (&self.shards[at], token.time);
        let is_unknown = self.watch.as_ref().is_some_and(|watch| watch.mark().time <= time);
        is_unknown && !input.has_left() && (input.is_leaving() || time <= self.unheard)
    }

    /// The time of the event that is to be told first, if it is doubtful.
    fn doubtful(&self) -> Option<u64> {
        self.first().filter(|(token, at)| self.is_doubtful(token, *at)).map(|(token, _)| token.time)
    }

    /// When it is to be looked again what can be told, though no shard has answered: at once if somebody is not waited for any more.
    pub fn look_at(&self) -> Option<Instant> {
        match self.next() {
            Next::Unknown => self.doubted.map(|(_, since)| since + QUICK),
            Next::Event(_) | Next::Over => Some(Instant::now()),
        }
    }

    /// What comes next. An event is told when all other shards have told what is before it.
    pub fn next(&self) -> Next {
        let first = self.first();
        let ended = self.shards.iter().filter(|input| input.has_ended() && input.next().is_none());
        let end = ended.map(Input::mark).min();
        let open = || self.shards.iter().filter(|input| input.next().is_none() && !input.has_ended());
        match (first, end) {
            (Some((token, at)), _) if end.is_none_or(|end| token < end) => {
                let is_first = open().all(|input| token <= input.mark());
                if is_first && !self.is_doubtful(token, at) { Next::Event(at) } else { Next::Unknown }
            }
            (_, Some(end)) if open().all(|input| end <= input.mark()) => Next::Over,
            _ => Next::Unknown,
        }
    }

    /// Everything before this position was told.
    pub fn mark(&self) -> Option<ResumeToken> {
        let open = self.shards.iter().filter(|input| !input.has_ended() || input.next().is_some());
        let told = |input: &Input| match input.next() {
            Some(next) => ResumeToken::high_water_mark(next.time),
            None => input.mark().clone(),
        };
        open.map(told).min()
    }

    /// Takes in what has come. `listened`: whether that was waited for since it was asked for.
    ///
    /// Errors: those of a shard; that one is lost. Whoever cannot tell of the shards any more is asked again later.
    pub fn receive(&mut self, listened: bool, go_on: GoOn<'_>) -> Result<()> {
        if let Err(error) = self.follow_shards(go_on) {
            go_on()?;
            self.lose_watch(&error);
        }
        let (link, mut failed) = (&self.link, None);
        self.shards.retain_mut(|input| match input.receive(link, go_on) {
            // Its process may have ended.
            Err(error) if input.has_left() => {
                tracing::debug!(%error, shard = input.name(), "a shard that was removed tells no more");
                false
            }
            Err(error) => {
                failed = Some(error);
                true
            }
            Ok(()) => !input.is_over(),
        });
        // One that still waits has nothing to tell.
        let was_told = self.watch.as_ref().is_some_and(|watch| watch.call().is_none());
        if was_told && !listened && self.asked.elapsed() >= AWAY {
            self.unheard = self.link.clock().now().map_or(0, |now| now.0);
        }
        failed.map_or(Ok(()), Err)
    }

    fn lose_watch(&mut self, error: &Error) {
        tracing::debug!(%error, "a change stream does not hear who comes to be a shard");
        (self.watch, self.watch_lost, self.doubted) = (None, Some(Instant::now()), None);
    }

    /// Opens cursors on shards that were added, and ends the part of those that were removed.
    fn follow_shards(&mut self, go_on: GoOn<'_>) -> Result<()> {
        self.patience = ELECTION;
        if self.watch.is_none() && self.watch_lost.is_some_and(|lost| lost.elapsed() > AGAIN) {
            self.watch_lost = Some(Instant::now());
            // The events of the shards that are known do not wait for it.
            self.watch_again(&no_longer_than(QUICK, go_on), go_on)?;
        }
        let Some(watch) = &mut self.watch else { return Ok(()) };
        watch.receive(&self.link, go_on)?;
        let changes = watch.changes()?;
        self.follow(changes, go_on)
    }

    /// Watches the shards, after nobody has for some time.
    fn watch_again(&mut self, in_time: GoOn<'_>, go_on: GoOn<'_>) -> Result<()> {
        // What was added meanwhile is read from as far as the stream has come.
        let since = self.mark().map_or(0, |mark| mark.time);
        let before = since.saturating_sub(1);
        let mut watch = self.opening.watch(&self.link, since, in_time)?;
        let shards = self.opening.shards(&self.link, in_time)?;
        let now = self.link.clock().now().map_or(since, |now| now.0);
        let changes = watch.changes_up_to(now, &self.link, in_time)?;
        self.watch = Some(watch);
        self.follow(changes, go_on)?;
        let name = |shard: &DocBuf| shard.as_raw().get("_id").and_then(|id| id.as_str()).map(str::to_owned);
        let names: Vec<String> = shards.iter().filter_map(name).collect();
        for (name, shard) in names.iter().zip(&shards) {
            let added = members::added(shard.as_raw()).unwrap_or(before);
            let host = shard.as_raw().get("host").and_then(|host| host.as_str());
            self.add(name, host, added.max(before), go_on)?;
        }
        // Of those that were removed before it is not known when.
        for input in self.shards.iter_mut().filter(|input| !names.iter().any(|name| name == input.name())) {
            input.leave(before);
        }
        Ok(())
    }

    fn follow(&mut self, changes: Vec<Change>, go_on: GoOn<'_>) -> Result<()> {
        for Change { shard, host, time, kind } in changes {
            match kind {
                Kind::Added(behind) => self.add(&shard, host.as_deref(), behind, go_on)?,
                Kind::Removed => {
                    self.of(&shard).for_each(|input| input.leave(time));
                    self.removed.insert(shard, time);
                }
                Kind::Changed => self.of(&shard).for_each(Input::may_leave),
            }
        }
        Ok(())
    }

    fn of(&mut self, shard: &str) -> impl Iterator<Item = &mut Input> {
        self.shards.iter_mut().filter(move |input| input.name() == shard)
    }

    fn add(&mut self, name: &str, host: Option<&str>, behind: u64, go_on: GoOn<'_>) -> Result<()> {
        if self.shards.iter().all(|input| input.name() != name || input.has_left()) {
            // A removal that was taken back leaves the shard's document as it was.
            let behind = self.removed.get(name).map_or(behind, |removed| behind.max(*removed));
            let patience = self.patience;
            match self.opening.on_shard_at(&self.link, name, host, Some(behind), patience, go_on)? {
                Some(added) => self.shards.push(added),
                // The client does not wait for each of several that are gone.
                None => self.patience = QUICK,
            }
        }
        Ok(())
    }

    /// Has the shards of which nothing is left look for more, each waiting for so long; those that may have something before what is known
    /// of others say at once what they know.
    ///
    /// Errors: those of the way to them.
    pub fn ask(&mut self, wait_millis: u64, go_on: GoOn<'_>) -> Result<()> {
        let first = self.first().map(|(token, _)| token.time);
        let newest = self.shards.iter().map(|input| input.mark().time).max().unwrap_or(0);
        // A mark stands before all that happened at its time.
        let up_to = first.unwrap_or(newest.saturating_sub(1));
        let (link, mut failed) = (&self.link, None);
        self.shards.retain_mut(|input| {
            let asked = input.ask(link, wait_millis, Some(up_to.max(input.until().unwrap_or(0))));
            let is_lost = asked.is_err() && input.has_left();
            failed = asked.err().filter(|_| !is_lost).or_else(|| failed.take());
            !is_lost
        });
        failed.map_or(Ok(()), Err)?;
        if let Err(error) = self.ask_watch(wait_millis, go_on) {
            go_on()?;
            self.lose_watch(&error);
        }
        let Some(time) = first else { return Ok(()) };
        let (left, there): (Vec<_>, Vec<_>) = self.shards.iter_mut().partition(|input| input.has_left());
        tell(&self.link, there, time, go_on)?;
        // One that has left is not waited for any longer than it may take to say how far it had come.
        if let Err(error) = tell(&self.link, left, time, &no_longer_than(QUICK, go_on)) {
            go_on()?;
            tracing::debug!(%error, "a shard that was removed tells no more");
            self.shards.retain(|input| !input.has_left());
        }
        Ok(())
    }

    /// Has the watch look for more, at once if an event waits for what it knows.
    fn ask_watch(&mut self, wait_millis: u64, go_on: GoOn<'_>) -> Result<()> {
        let doubtful = self.doubtful();
        self.asked = Instant::now();
        let Some(watch) = &mut self.watch else { return Ok(()) };
        let is_waiting = watch.call().is_some();
        watch.ask(&self.link, wait_millis, doubtful.map(|time| time.max(self.unheard)))?;
        let since = match (self.doubted, doubtful) {
            (Some((doubted, since)), Some(time)) if doubted == time => since,
            _ => Instant::now(),
        };
        self.doubted = doubtful.map(|time| (time, since));
        match doubtful {
            Some(_) if since.elapsed() >= QUICK => {
                Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time"))
            }
            Some(time) if is_waiting => {
                let in_time = no_longer_than(QUICK, go_on);
                tell(&self.link, vec![watch], time.max(self.unheard), &in_time)
            }
            _ => Ok(()),
        }
    }

    /// The sockets on which answers will come.
    ///
    /// Errors: the process has no room for so many.
    pub fn sockets(&self) -> io::Result<Vec<TcpStream>> {
        let all = self.shards.iter().chain(&self.watch);
        all.filter_map(|input| Some(input.call()?.socket())).collect()
    }
}

/// Tells those of these that wait for events that somebody else has one of this time.
fn tell(link: &Link, inputs: Vec<&mut Input>, time: u64, go_on: GoOn<'_>) -> Result<()> {
    let clock = link.clock().clone();
    let mut under_way = Vec::new();
    for input in inputs.into_iter().filter_map(|input| input.is_to_be_told(time).then_some(input)) {
        let mut message = advance(&clock, &[input.id()], time, false);
        let sent = Call::send_to(input.target().set(), input.host(), &mut message);
        let host = input.host().to_owned();
        under_way
            .push((input.target().clone(), sent.map_err(|error| sheaf_cluster::unreachable(&host, &error))?));
    }
    let mut elsewhere = Vec::new();
    for (target, call) in under_way {
        let answer = call.finish_there(go_on)?;
        link.check(&target, &answer)?;
        if answer.reply().get("isPrimary").is_some_and(|primary| !primary.truthy()) {
            elsewhere.push(target);
        }
    }
    // A secondary cannot promise anything: its primary writes, and it tells when it has that.
    let asker = Asker { preference: Default::default(), again: true, go_on };
    for target in elsewhere {
        let mut message = advance(&clock, &[], time, true);
        let answer = target.set().ask(&mut message, &asker)?;
        link.check(&target, &answer)?;
    }
    Ok(())
}

/// `advanceStreams`.
fn advance(clock: &Clock, cursors: &[i64], up_to: u64, write: bool) -> Message {
    let ids = ArrayBuf::of(cursors.iter().copied());
    let command: DocBuf =
        doc! { "advanceStreams": Value::Array(ids.as_raw()), "upTo": Timestamp(up_to), "write": write };
    let mut message = Message::new();
    message.begin(0, |out| {
        out.append_all(command.as_raw());
        clock.append(out, None);
        out.append("$db", "admin");
    });
    message
}
