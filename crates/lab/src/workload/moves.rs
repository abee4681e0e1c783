//! Moves of ranges at random, beside other workloads: nothing that they check may be changed by where documents are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Deserialize;
use sheaf_bson::{DocBuf, RawDoc, Value, doc};

use super::endure::{self, pause};
use super::placing;
use super::{Figure, Workload};
use crate::client::Client;
use crate::context::{Context, Group, Worker};
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::measure::{Load, Span};
use crate::results::Check;

/// Settings of the workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    /// Milliseconds from one move to the next.
    pause_ms: u64,
    /// Part of the turns in which a range is cut at a random place instead.
    split_part: f64,
    /// Part of the turns in which a whole collection is laid out anew over all shards, by the key that it has.
    #[serde(default)]
    reshard_part: f64,
}

/// See the module.
#[derive(Default)]
pub struct Moves {
    own: Option<Own>,
    shards: Vec<String>,
    made: AtomicU64,
    cut: AtomicU64,
    resharded: AtomicU64,
    refused: AtomicU64,
}

/// In the figures.
const MOVE: &str = "move";
const SPLIT: &str = "split";
const RESHARD: &str = "reshard";
/// Pause after a look that found nothing to move.
const NOTHING: Duration = Duration::from_millis(200);

/// What is done in a turn.
#[derive(Clone, Copy, PartialEq)]
enum Turn {
    Move,
    Split,
    Reshard,
}

/// A range of a collection.
struct Chunk {
    namespace: String,
    key: DocBuf,
    min: DocBuf,
    max: DocBuf,
    shard: String,
}

impl Moves {
    fn own(&self) -> Result<&Own> {
        self.own.as_ref().ok_or_else(|| Error::failed("the workload has no settings"))
    }

    fn serve(&self, worker: &mut Worker<'_>, own: &Own) -> Result<()> {
        let mut client = endure::connect(worker.context())?;
        while let Some(ticket) = worker.next() {
            let choice = worker.random.bits();
            let part = worker.random.unit();
            let turn = match part {
                part if part < own.split_part => Turn::Split,
                part if part < own.split_part + own.reshard_part => Turn::Reshard,
                _ => Turn::Move,
            };
            let outcome = self.turn(&mut client, turn, choice, worker.random.bits());
            match outcome {
                Ok(Some(operation)) => worker.done(operation, ticket),
                // There is nothing that could be moved.
                Ok(None) => std::thread::sleep(NOTHING),
                Err(error) if placing::cannot(&error) => {
                    worker.context().warn(format!("nothing was moved: {error}"));
                    return Ok(());
                }
                // Refused: another one goes on with it, a range is gone, or the shards were busy. Nothing else depends on it.
                Err(Error::Server(_)) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    worker.failed(MOVE, ticket);
                }
                Err(error) => worker.endured(MOVE, ticket, error)?,
            }
            pause(worker, own.pause_ms);
        }
        Ok(())
    }

    fn turn(&self, client: &mut Client, turn: Turn, choice: u64, value: u64) -> Result<Option<&'static str>> {
        let chunks = chunks(client)?;
        if chunks.is_empty() {
            return Ok(None);
        }
        let chunk = &chunks[(choice % chunks.len() as u64) as usize];
        if turn == Turn::Reshard {
            let command = doc! {
                "reshardCollection": chunk.namespace.as_str(), "key": chunk.key.as_raw(), "forceRedistribution": true,
                "numInitialChunks": 4
            };
            client.command("admin", &command)?;
            self.resharded.fetch_add(1, Ordering::Relaxed);
            return Ok(Some(RESHARD));
        }
        if turn == Turn::Split {
            let Some(middle) = between(chunk, value) else { return Ok(None) };
            client
                .command("admin", &doc! { "split": chunk.namespace.as_str(), "middle": middle.as_raw() })?;
            self.cut.fetch_add(1, Ordering::Relaxed);
            return Ok(Some(SPLIT));
        }
        let others: Vec<&String> = self.shards.iter().filter(|shard| **shard != chunk.shard).collect();
        if others.is_empty() {
            return Ok(None);
        }
        let to = others[(value % others.len() as u64) as usize];
        let bounds = sheaf_bson::ArrayBuf::of([chunk.min.as_raw(), chunk.max.as_raw()]);
        let command = doc! {
            "moveChunk": chunk.namespace.as_str(),
            "bounds": (Value::Array(bounds.as_raw())),
            "to": to.as_str(),
            // Else a range could not come back for a quarter of an hour.
            "_waitForDelete": true
        };
        client.command("admin", &command)?;
        self.made.fetch_add(1, Ordering::Relaxed);
        Ok(Some(MOVE))
    }
}

/// Every range of every sharded collection.
fn chunks(client: &mut Client) -> Result<Vec<Chunk>> {
    let mut named: Vec<(String, [u8; 16], DocBuf)> = Vec::new();
    client.for_each("config", &doc! { "find": "collections" }, |collection| {
        if let (Some(name), Some(Value::Binary(uuid))) =
            (collection.get("_id").and_then(|name| name.as_str()), collection.get("uuid"))
            && let Ok(uuid) = uuid.bytes.try_into()
            && !name.starts_with("config.")
        {
            let key = collection.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY);
            named.push((name.to_owned(), uuid, key.into()));
        }
        Ok(())
    })?;
    let mut chunks = Vec::new();
    client.for_each("config", &doc! { "find": "chunks" }, |chunk| {
        let bound = |name: &str| chunk.get(name).and_then(|bound| bound.as_doc()).map(DocBuf::from);
        let Some(Value::Binary(uuid)) = chunk.get("uuid") else { return Ok(()) };
        let collection = named.iter().find(|(_, known, _)| known.as_slice() == uuid.bytes);
        let collection = collection.map(|(name, _, key)| (name.clone(), key.clone()));
        let shard = chunk.get("shard").and_then(|shard| shard.as_str()).map(str::to_owned);
        if let (Some((namespace, key)), Some(min), Some(max), Some(shard)) =
            (collection, bound("min"), bound("max"), shard)
        {
            chunks.push(Chunk { namespace, key, min, max, shard });
        }
        Ok(())
    })?;
    Ok(chunks)
}

/// A key within a range of one whole number; `None` where there is none, or the range is of something else.
fn between(chunk: &Chunk, choice: u64) -> Option<DocBuf> {
    let number = |bound: &DocBuf, open: i64| {
        let first = bound.as_raw().iter().next()?;
        match first.value() {
            Value::MinKey | Value::MaxKey => Some(open),
            value => value.as_exact_i64(),
        }
    };
    let field = chunk.min.as_raw().iter().next()?.key().to_owned();
    let (low, high) = (number(&chunk.min, i64::MIN)?, number(&chunk.max, i64::MAX)?);
    let room = (i128::from(high) - i128::from(low) - 1).max(0);
    let middle = i128::from(low) + 1 + (i128::from(choice) % room.max(1));
    let mut key = DocBuf::new();
    key.append(&field, middle as i64);
    (room > 0).then_some(key)
}

impl Workload for Moves {
    fn configure(&mut self, settings: &Settings) -> Result<()> {
        let own: Own = settings.parse()?;
        let parts = [own.split_part, own.reshard_part, own.split_part + own.reshard_part];
        if parts.iter().any(|part| !(0.0..=1.0).contains(part)) {
            return Err(Error::usage("split_part and reshard_part are parts: from 0 to 1 together"));
        }
        self.own = Some(own);
        Ok(())
    }

    fn setup(&mut self, context: &Context) -> Result<()> {
        if !context.mongodb()?.routed {
            return Err(Error::usage("moves are for sharded clusters"));
        }
        self.shards = placing::shard_names(&mut context.connect()?)?;
        Ok(())
    }

    fn groups<'a>(&'a self, context: &Context) -> Result<Vec<Group<'a>>> {
        let own = self.own()?;
        let load = Load { measure: Span::Unbounded, ..context.load };
        let load = if matches!(context.load.measure, Span::Seconds(_)) { context.load } else { load };
        Ok(vec![Group::new("mover", 1, move |worker| self.serve(worker, own)).load(load).without_client()])
    }

    fn check_own(&mut self, _: &Context) -> Result<Vec<Check>> {
        // What they must not do is for the others to see.
        Ok(Vec::new())
    }

    fn metrics(&self, _: &Context) -> Vec<Figure> {
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
        vec![
            Figure::plain("made", "", count(&self.made)),
            Figure::plain("cut", "", count(&self.cut)),
            Figure::plain("resharded", "", count(&self.resharded)),
            Figure::plain("refused", "", count(&self.refused)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_inside() {
        let chunk = |min: Value<'_>, max: Value<'_>| {
            let mut bounds = [DocBuf::new(), DocBuf::new()];
            bounds[0].append("_id", min);
            bounds[1].append("_id", max);
            let [min, max] = bounds;
            Chunk { namespace: "lab.lists".into(), key: doc! { "_id": 1 }, min, max, shard: "shard0".into() }
        };
        let cut = |min, max, choice| {
            between(&chunk(min, max), choice)
                .map(|key| key.as_raw().get("_id").unwrap().as_exact_i64().unwrap())
        };
        for choice in [0, 1, 7, u64::MAX] {
            let middle = cut(Value::Int64(5), Value::Int64(9), choice).unwrap();
            assert!((6..9).contains(&middle), "{middle}");
            assert!(cut(Value::MinKey, Value::MaxKey, choice).is_some());
        }
        assert_eq!(cut(Value::Int64(5), Value::Int64(6), 3), None);
        assert_eq!(cut(Value::String("a"), Value::MaxKey, 3), None);
    }
}
