//! The shards' parts of a change stream, together.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_aggregate::stages::change_stream::ResumeToken;
use sheaf_bson::{ArrayBuf, DocBuf, Timestamp, Value, doc};
use sheaf_client::Message;
use sheaf_cluster::{Asker, Call, Clock, GoOn, QUICK, no_longer_than};
use sheaf_errors::Result;

use super::input::Input;
use super::opening::Opening;
use crate::gather::Link;

/// How long after it was lost who watches for new shards tries again.
const AGAIN: Duration = Duration::from_secs(10);

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
    /// Tells of new shards, which are to be read from the moment on when they were added.
    watch: Option<Input>,
    watch_lost: Option<Instant>,
}

impl Inputs {
    /// A stream on these shards; `watch` tells of new ones.
    pub fn new(link: Arc<Link>, opening: Opening, shards: Vec<Input>, watch: Option<Input>) -> Self {
        let watch_lost = watch.is_none().then(Instant::now);
        Inputs { link, opening, shards, watch, watch_lost }
    }

    /// The event at hand of one of them.
    pub fn at(&self, at: usize) -> &Input {
        &self.shards[at]
    }

    /// Goes behind the event at hand of one of them.
    pub fn advance(&mut self, at: usize) -> Result<()> {
        self.shards[at].advance()
    }

    /// What comes next. An event is told when all other shards have told what is before it.
    pub fn next(&self) -> Next {
        let first = self.shards.iter().enumerate().filter_map(|(at, input)| Some((input.next()?, at))).min();
        let ended = self.shards.iter().filter(|input| input.has_ended() && input.next().is_none());
        let end = ended.map(Input::mark).min();
        let open = || self.shards.iter().filter(|input| input.next().is_none() && !input.has_ended());
        match (first, end) {
            (Some((token, at)), _) if end.is_none_or(|end| token < end) => {
                if open().all(|input| token <= input.mark()) { Next::Event(at) } else { Next::Unknown }
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

    /// Takes in what has come.
    ///
    /// Errors: those of a shard; that one is lost. Whoever cannot tell of new shards any more is asked again later.
    pub fn receive(&mut self, go_on: GoOn<'_>) -> Result<()> {
        for input in &mut self.shards {
            input.receive(&self.link, go_on)?;
        }
        if let Err(error) = self.follow_shards(go_on) {
            go_on()?;
            tracing::debug!(%error, "a change stream does not hear of new shards");
            (self.watch, self.watch_lost) = (None, Some(Instant::now()));
        }
        Ok(())
    }

    /// Opens cursors on shards that were added.
    fn follow_shards(&mut self, go_on: GoOn<'_>) -> Result<()> {
        if self.watch.is_none() && self.watch_lost.is_some_and(|lost| lost.elapsed() > AGAIN) {
            self.watch_lost = Some(Instant::now());
            // What was added meanwhile is read from as far as the stream has come.
            let since = self.mark().map_or(0, |mark| mark.time);
            // The events of the shards that are known do not wait for it.
            let in_time = no_longer_than(QUICK, go_on);
            self.watch = Some(self.opening.watch(&self.link, since, &in_time)?);
            for name in self.opening.shard_names(&self.link, &in_time)? {
                self.add(&name, since, go_on)?;
            }
        }
        let Some(watch) = &mut self.watch else { return Ok(()) };
        watch.receive(&self.link, go_on)?;
        while let Some((token, watch)) =
            self.watch.as_mut().and_then(|watch| Some((watch.next().cloned()?, watch)))
        {
            let key = watch.document().get("documentKey").and_then(|key| key.as_doc());
            let name = key.and_then(|key| key.get("_id")?.as_str().map(str::to_owned));
            watch.advance()?;
            if let Some(name) = name {
                self.add(&name, token.time, go_on)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, name: &str, since: u64, go_on: GoOn<'_>) -> Result<()> {
        if self.shards.iter().all(|input| input.name() != name) {
            let added = self.opening.on_shard(&self.link, name, since, go_on)?;
            self.shards.push(added);
        }
        Ok(())
    }

    /// Has the shards of which nothing is left look for more, each waiting for so long; those that may have something before what is known
    /// of others say at once what they know.
    ///
    /// Errors: those of the way to them.
    pub fn ask(&mut self, wait_millis: u64, go_on: GoOn<'_>) -> Result<()> {
        let first = self.shards.iter().filter_map(|input| Some(input.next()?.time)).min();
        let newest = self.shards.iter().map(|input| input.mark().time).max().unwrap_or(0);
        // A mark stands before all that happened at its time.
        let up_to = first.unwrap_or(newest.saturating_sub(1));
        for input in &mut self.shards {
            input.ask(&self.link, wait_millis, Some(up_to))?;
        }
        if let Some(watch) = &mut self.watch
            && let Err(error) = watch.ask(&self.link, wait_millis, None)
        {
            tracing::debug!(%error, "a change stream does not hear of new shards");
            (self.watch, self.watch_lost) = (None, Some(Instant::now()));
        }
        match first {
            Some(time) => self.tell(time, go_on),
            None => Ok(()),
        }
    }

    /// Tells shards that wait for events that somebody else has one of this time.
    fn tell(&mut self, time: u64, go_on: GoOn<'_>) -> Result<()> {
        let clock = self.link.clock().clone();
        let mut under_way = Vec::new();
        for input in self.shards.iter_mut().filter_map(|input| input.is_to_be_told(time).then_some(input)) {
            let mut message = advance(&clock, &[input.id()], time, false);
            let sent = Call::send_to(input.target().set(), input.host(), &mut message);
            let host = input.host().to_owned();
            under_way.push((
                input.target().clone(),
                sent.map_err(|error| sheaf_cluster::unreachable(&host, &error))?,
            ));
        }
        let mut elsewhere = Vec::new();
        for (target, call) in under_way {
            let answer = call.finish_there(go_on)?;
            self.link.check(&target, &answer)?;
            if answer.reply().get("isPrimary").is_some_and(|primary| !primary.truthy()) {
                elsewhere.push(target);
            }
        }
        // A secondary cannot promise anything: its primary writes, and it tells when it has that.
        let asker = Asker { preference: Default::default(), again: true, go_on };
        for target in elsewhere {
            let mut message = advance(&clock, &[], time, true);
            let answer = target.set().ask(&mut message, &asker)?;
            self.link.check(&target, &answer)?;
        }
        Ok(())
    }

    /// The sockets on which answers will come.
    ///
    /// Errors: the process has no room for so many.
    pub fn sockets(&self) -> io::Result<Vec<TcpStream>> {
        let all = self.shards.iter().chain(&self.watch);
        all.filter_map(|input| Some(input.call()?.socket())).collect()
    }
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
