//! What is asked of each shard that takes part in a change stream.

use sheaf_aggregate::stages::change_stream::{ChangeStream, FullDocument, Start};
use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Timestamp, Value, doc};
use sheaf_cluster::GoOn;
use sheaf_errors::Result;

use super::input::Input;
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
    /// The stages that shards run behind it.
    stages: Vec<DocBuf>,
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
        if stream.start == Start::Now {
            start = doc! { "startAtOperationTime": Timestamp(now.0 + 1) };
        }
        let head = DocBuf::build(|out| {
            for field in body.iter() {
                if matches!(field.key(), "aggregate" | "collation" | "let" | "allowDiskUse" | "hint") {
                    out.append_element(field);
                }
            }
        });
        let stages = if looks_up(stream) { Vec::new() } else { stages.map(DocBuf::from).collect() };
        Opening { db: db.to_owned(), head, argument, start, stages }
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

    /// Opens it on a shard, from a time on.
    ///
    /// Errors: those of the shard, and of the way there.
    pub fn on_shard(&self, link: &Link, name: &str, since: u64, go_on: GoOn<'_>) -> Result<Input> {
        let shard = link.directory().shard(name, go_on)?;
        let command = self.beginning(&doc! { "startAtOperationTime": Timestamp(since) });
        ask(link, Target::Shard(shard), &self.db, &command, go_on)
    }

    /// Opens the stream of new shards, from a time on.
    ///
    /// Errors: those of the config servers, and of the way there.
    pub fn watch(&self, link: &Link, since: u64, go_on: GoOn<'_>) -> Result<Input> {
        let stream = doc! { "$_merged": true, "startAtOperationTime": Timestamp(since) };
        let stages = ArrayBuf::of(&[
            doc! { "$changeStream": stream.as_raw() },
            doc! { "$match": { "operationType": "insert" } },
        ]);
        let command = doc! { "aggregate": "shards", "pipeline": Value::Array(stages.as_raw()), "cursor": {} };
        ask(link, Target::Config(link.directory().config().clone()), "config", &command, go_on)
    }

    /// The names of all shards, as the config servers know them now.
    ///
    /// Errors: those of asking them.
    pub fn shard_names(&self, link: &Link, go_on: GoOn<'_>) -> Result<Vec<String>> {
        let shards = link.directory().find("shards", &doc! {}, go_on)?;
        let names = shards.iter().filter_map(|shard| shard.as_raw().get("_id")?.as_str().map(str::to_owned));
        Ok(names.collect())
    }
}

fn ask(link: &Link, target: Target, db: &str, command: &DocBuf, go_on: GoOn<'_>) -> Result<Input> {
    let to = Addressed::from(target);
    let answer = link.ask_each(std::slice::from_ref(&to), db, command, false, go_on)?.swap_remove(0)?;
    Input::of(link.abandoned(), &to.target, &answer)
}
