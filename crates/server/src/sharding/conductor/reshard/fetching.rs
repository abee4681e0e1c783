//! The recipients take what is to be theirs, all at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_shard::ShardId;
use sheaf_storage::Interrupt;

use super::At;
use crate::sharding::conductor::Conductor;
use crate::sharding::conductor::ddl::text;
use crate::sharding::conductor::wishes::Wish;
use crate::sharding::hidden::keys_document;
use crate::sharding::participants::name;

/// How often it is looked whether to go on.
const LOOK: Duration = Duration::from_millis(5);

/// Changes that writers may wait for.
const NEAR: i64 = 2000;

/// How long a round may take after which the collection is closed.
const QUICK: Duration = Duration::from_millis(1500);

/// Rounds, until what is left will not take long.
pub(super) fn until_near(conductor: &Conductor, at: At<'_>, go_on: Interrupt<'_>) -> Result<()> {
    loop {
        let began = Instant::now();
        let left = all(conductor, at, false, go_on)?;
        let is_near = left <= NEAR && began.elapsed() < QUICK;
        if is_near || conductor.wishes.of(at.namespace()) == Some(Wish::Commit) {
            return Ok(());
        }
    }
}

/// One round of all recipients. Gives how much is left, at most on one of them.
///
/// Errors: `ReshardCollectionAborted`, if that is wanted; those of the recipients.
pub(super) fn all(conductor: &Conductor, at: At<'_>, last: bool, go_on: Interrupt<'_>) -> Result<i64> {
    let commands = commands(conductor, at, last)?;
    let is_stopped = AtomicBool::new(false);
    let until = || match is_stopped.load(Ordering::Acquire) {
        true => Err(Error::new(Code::INTERRUPTED, "the operation was given up")),
        false => conductor.until_end(),
    };
    let mut stopped = Ok(());
    let done: Vec<Result<DocBuf>> = std::thread::scope(|scope| {
        let ask = |shard: &ShardId, command: &DocBuf| conductor.tell(shard.as_str(), command, &until);
        let asked: Vec<_> =
            commands.iter().map(|(shard, command)| scope.spawn(move || ask(shard, command))).collect();
        while asked.iter().any(|asked| !asked.is_finished()) {
            if stopped.is_ok() {
                stopped = go_on().and_then(|()| unless_aborted(conductor, at));
                is_stopped.store(stopped.is_err(), Ordering::Release);
            }
            std::thread::sleep(LOOK);
        }
        let lost = || Error::new(Code::INTERNAL_ERROR, "a recipient's answer was lost");
        asked.into_iter().map(|asked| asked.join().map_err(|_| lost()).and_then(|done| done)).collect()
    });
    stopped?;
    let mut left = 0;
    for done in done {
        let told = done?;
        left = left.max(told.as_raw().get("left").and_then(|left| left.as_exact_i64()).unwrap_or(0));
    }
    unless_aborted(conductor, at)?;
    Ok(left)
}

fn unless_aborted(conductor: &Conductor, at: At<'_>) -> Result<()> {
    if conductor.wishes.of(at.namespace()) == Some(Wish::Abort) {
        bail!(Code::RESHARD_COLLECTION_ABORTED, "aborted");
    }
    Ok(())
}

fn commands(conductor: &Conductor, at: At<'_>, last: bool) -> Result<Vec<(ShardId, DocBuf)>> {
    let (table, (hidden, _)) = (at.table()?, at.hidden());
    let mut commands = Vec::new();
    for shard in table.shards() {
        let chunks = table.chunks().iter().filter(|chunk| chunk.shard() == shard);
        let ranges: Vec<(RawDoc<'_>, RawDoc<'_>)> =
            chunks.map(|chunk| (chunk.min.document(), chunk.max.document())).collect();
        let wanted = keys_document(table.pattern().document(), &ranges);
        let step = conductor.step()?;
        let command = doc! {
            (name::FETCH): &hidden, "step": step, "id": at.0.get_or_missing("id"),
            "uuid": at.0.get_or_missing("uuid"), "source": at.0.get_or_missing("source"),
            "donors": at.0.get("donors").unwrap_or(Value::Missing), "wanted": wanted.as_raw(), "last": last,
            "of": at.namespace(), "command": text(at.0, "command")
        };
        commands.push((shard.clone(), command));
    }
    Ok(commands)
}
