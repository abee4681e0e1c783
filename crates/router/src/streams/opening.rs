//! What is asked of each shard that takes part in a change stream.

use std::time::Duration;

use sheaf_aggregate::stages::change_stream::{ChangeStream, FullDocument, Start};
use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Timestamp, Value, doc};
use sheaf_cluster::{ELECTION, GoOn, Shard, no_longer_than};
use sheaf_errors::{Code, Result};

use super::input::Input;
use super::members::{self, Change, Earlier};
use crate::addressed::Addressed;
use crate::gather::Link;
use crate::target::Target;

/// What is asked of each shard, also of one that is added later.
pub struct Opening {
    db: String,
    /// `aggregate`, without pipeline and session.
    head: DocBuf,
    /// The argument of `$changeStream`, without where it begins.
    argument: DocBuf,
    /// Where it begins.
    start: DocBuf,
    /// The time of that.
    since: u64,
    /// The stages that shards run behind it.
    stages: Vec<DocBuf>,
}

/// What the config servers tell of the shards when a stream is opened.
pub struct Known {
    /// Their documents.
    shards: Vec<DocBuf>,
    /// What was done to these since the stream's beginning, where that was looked up.
    pub changes: Vec<Change>,
    /// Tells what is done to them from now on.
    pub watch: Input,
}

impl Known {
    fn each(&self) -> impl Iterator<Item = (&str, RawDoc<'_>)> {
        let shards = self.shards.iter().map(DocBuf::as_raw);
        shards.filter_map(|shard| Some((shard.get("_id")?.as_str()?, shard)))
    }

    /// The shards that were added behind the stream's beginning, and when.
    pub fn late(&self, opening: &Opening) -> impl Iterator<Item = (&str, u64)> {
        let since = opening.since;
        let dated = self.each().filter_map(|(name, shard)| Some((name, members::added(shard)?)));
        dated.filter(move |(_, added)| *added >= since)
    }

    /// All others.
    pub fn early(&self, opening: &Opening) -> impl Iterator<Item = &str> {
        let since = opening.since;
        let early =
            self.each().filter(move |(_, shard)| members::added(*shard).is_none_or(|added| added < since));
        early.map(|(name, _)| name)
    }

    /// Whether this one is being drained.
    pub fn is_draining(&self, name: &str) -> bool {
        self.each().any(|(each, shard)| each == name && members::is_draining(shard))
    }
}

/// Whether documents are to be looked up as they are now: they may be on any shard, so that is done here, and so are all stages behind it.
pub fn looks_up(stream: &ChangeStream) -> bool {
    stream.full_document == FullDocument::UpdateLookup
}

impl Opening {
    /// The opening of a stream that a client wants by this command; one that names no beginning begins behind `now`.
    pub fn new(db: &str, body: RawDoc<'_>, stream: &ChangeStream, now: Timestamp) -> Self {
        let stages = body.get("pipeline").and_then(|stages| stages.as_array()).unwrap_or(RawDoc::EMPTY);
        let mut stages = stages.values().filter_map(|stage| stage.as_doc());
        let first = stages.next().and_then(|stage| stage.get("$changeStream")?.as_doc());
        let begins = |name: &str| matches!(name, "resumeAfter" | "startAfter" | "startAtOperationTime");
        let mut start = DocBuf::new();
        let argument = DocBuf::build(|out| {
            for field in first.unwrap_or(RawDoc::EMPTY).iter().filter(|field| field.key() != "$_merged") {
                match field.key() {
                    name if begins(name) => _ = start.edit(|out| _ = out.append_element(field)),
                    "fullDocument" if looks_up(stream) => {}
                    _ => _ = out.append_element(field),
                }
            }
            out.append("$_merged", true);
        });
        let since = match &stream.start {
            Start::Now => now.0 + 1,
            Start::At(time) => *time,
            Start::After(token) => token.time,
        };
        if stream.start == Start::Now {
            start = doc! { "startAtOperationTime": Timestamp(since) };
        }
        let head = DocBuf::build(|out| {
            for field in body.iter() {
                if matches!(field.key(), "aggregate" | "collation" | "let" | "allowDiskUse" | "hint") {
                    out.append_element(field);
                }
            }
        });
        let stages = if looks_up(stream) { Vec::new() } else { stages.map(DocBuf::from).collect() };
        Opening { db: db.to_owned(), head, argument, start, since, stages }
    }

    /// The database that it names.
    pub fn db(&self) -> &str {
        &self.db
    }

    /// The command, for one that begins as the client's.
    pub fn command(&self) -> DocBuf {
        self.beginning(&self.start)
    }

    fn beginning(&self, start: &DocBuf) -> DocBuf {
        let argument = DocBuf::build(|out| {
            out.append_all(self.argument.as_raw()).append_all(start.as_raw());
        });
        let mut stages = vec![doc! { "$changeStream": argument.as_raw() }];
        stages.extend(self.stages.iter().cloned());
        let stages = ArrayBuf::of(&stages);
        DocBuf::build(|out| {
            out.append_all(self.head.as_raw());
            out.append("pipeline", Value::Array(stages.as_raw()));
            drop(out.document("cursor"));
        })
    }

    /// Opens it on a shard, behind the time at which that became one, or from the stream's beginning on.
    ///
    /// Errors: those of the shard, and of the way there.
    pub fn on_shard(&self, link: &Link, name: &str, behind: Option<u64>, go_on: GoOn<'_>) -> Result<Input> {
        self.open(link, link.directory().shard(name, go_on)?, behind, go_on)
    }

    /// The same on one that may have been removed by the time that its addition is heard of; `host` is where `config.shards` said that it is, if it has.
    /// `None`: it is none any more, and does not answer within `patience`.
    ///
    /// Errors: as those of [`Opening::on_shard`].
    pub fn on_shard_at(
        &self,
        link: &Link,
        name: &str,
        host: Option<&str>,
        behind: Option<u64>,
        patience: Duration,
        go_on: GoOn<'_>,
    ) -> Result<Option<Input>> {
        let Some(host) = host else { return self.on_shard(link, name, behind, go_on).map(Some) };
        let directory = link.directory();
        let there = directory.shard_at(name, host, go_on);
        match there.and_then(|shard| self.open(link, shard, behind, go_on)) {
            Err(error) if error.code() == Code::SHARD_NOT_FOUND => {}
            opened => return opened.map(Some),
        }
        let removed = directory.removed_shard(name, host)?;
        match self.open(link, removed, behind, &no_longer_than(patience, go_on)) {
            Err(error) => {
                go_on()?;
                tracing::warn!(%error, shard = name, "a shard that was removed does not answer: a change stream lacks what happened there");
                Ok(None)
            }
            opened => opened.map(Some),
        }
    }

    fn open(&self, link: &Link, shard: Shard, behind: Option<u64>, go_on: GoOn<'_>) -> Result<Input> {
        let command = match behind.filter(|behind| *behind >= self.since) {
            Some(behind) => self.beginning(&doc! { "startAtOperationTime": Timestamp(behind + 1) }),
            None => self.command(),
        };
        ask(link, Target::Shard(shard), &self.db, &command, go_on)
    }

    /// Opens it on a shard that was added behind the stream's beginning, and for each time before for which it was one.
    ///
    /// Errors: those of the shard, and of the way there.
    pub fn on_late_shard(
        &self,
        link: &Link,
        name: &str,
        added: u64,
        changes: &[Change],
        go_on: GoOn<'_>,
    ) -> Result<Vec<Input>> {
        let mut parts = Vec::new();
        for Earlier { host, behind, until } in members::earlier(changes, name, added) {
            let part = self.on_shard_at(link, name, host, behind, ELECTION, go_on)?;
            parts.extend(part.map(|mut part| {
                part.leave(until);
                part
            }));
        }
        parts.push(self.on_shard(link, name, Some(added), go_on)?);
        Ok(parts)
    }

    /// Asks the config servers for the shards. Where one was added behind the stream's beginning, it is looked up whether it was one before,
    /// as far back as their log reaches.
    ///
    /// Errors: those of the config servers, and of the way there.
    pub fn known(&self, link: &Link, now: Timestamp, go_on: GoOn<'_>) -> Result<Known> {
        let shards = self.shards(link, go_on)?;
        if shards.iter().any(|shard| members::added(shard.as_raw()).is_some_and(|added| added >= self.since))
        {
            let read = self.watch(link, self.since, go_on).and_then(|mut watch| {
                let changes = watch.changes_up_to(now.0, link, go_on)?;
                Ok((changes, watch))
            });
            match read {
                Ok((changes, watch)) => return Ok(Known { shards, changes, watch }),
                Err(error) => {
                    go_on()?;
                    tracing::debug!(%error, "a change stream does not know who was a shard before");
                }
            }
        }
        let watch = self.watch(link, now.0, go_on)?;
        Ok(Known { shards, changes: Vec::new(), watch })
    }

    /// Opens the stream of what is done to `config.shards`, from a time on.
    ///
    /// Errors: those of the config servers, and of the way there.
    pub fn watch(&self, link: &Link, since: u64, go_on: GoOn<'_>) -> Result<Input> {
        let stream = doc! { "$_merged": true, "startAtOperationTime": Timestamp(since) };
        let stages = ArrayBuf::of(&[
            doc! { "$changeStream": stream.as_raw() },
            doc! { "$match": { "operationType": { "$in": ["insert", "update", "replace", "delete"] } } },
        ]);
        let command = doc! { "aggregate": "shards", "pipeline": Value::Array(stages.as_raw()), "cursor": {} };
        ask(link, Target::Config(link.directory().config().clone()), "config", &command, go_on)
    }

    /// The documents of all shards, as the config servers have them now.
    ///
    /// Errors: those of asking them.
    pub fn shards(&self, link: &Link, go_on: GoOn<'_>) -> Result<Vec<DocBuf>> {
        link.directory().find("shards", &doc! {}, go_on)
    }
}

fn ask(link: &Link, target: Target, db: &str, command: &DocBuf, go_on: GoOn<'_>) -> Result<Input> {
    let to = Addressed::from(target);
    let answer = link.ask_each(std::slice::from_ref(&to), db, command, false, go_on)?.swap_remove(0)?;
    Input::of(link.abandoned(), &to.target, &answer)
}
