//! Driving what takes several steps from phase to phase.

use std::time::Duration;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result};
use sheaf_storage::Interrupt;

use super::ddl::{DDL, Phase, name_of, reason, text};
use super::{Conductor, db_of, drop, move_primary, refine, rename, reshard, shard_collection, spans};
use crate::sharding::turns::Turn;

/// How long what failed waits before it is tried again, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

impl Conductor {
    /// Goes on with what an earlier primary, or a command that was given up, has left.
    pub(super) fn resume(&self, go_on: Interrupt<'_>) -> Result<()> {
        for left in self.find(DDL, |_| true)? {
            let namespace = name_of(left.as_raw());
            // Whoever has the turn of the database is at it.
            let Some(turn) = self.databases.try_take(db_of(namespace)) else { continue };
            self.finish_left(&turn, namespace, go_on)?;
        }
        Ok(())
    }

    /// Waits for the turn to change a database, in which nothing is left half done then.
    pub(super) fn turn(&self, db: &str, go_on: Interrupt<'_>) -> Result<Turn<'_>> {
        self.prepare(go_on)?;
        let turn = self.databases.take(db, go_on)?;
        for left in self.find(DDL, |left| db_of(name_of(left)) == db)? {
            self.finish_left(&turn, name_of(left.as_raw()), go_on)?;
        }
        self.end_moves(&turn, db, go_on)?;
        Ok(turn)
    }

    fn finish_left(&self, turn: &Turn<'_>, namespace: &str, go_on: Interrupt<'_>) -> Result<()> {
        let Some(left) = self.get(DDL, Value::String(namespace))? else { return Ok(()) };
        match self.finish(turn, left, go_on) {
            // Whoever has begun it was told, or has gone.
            Err(error) if self.get(DDL, Value::String(namespace))?.is_none() => {
                tracing::info!(%error, namespace, "a change of a collection was refused");
                Ok(())
            }
            done => done.map(|_| ()),
        }
    }

    /// Begins something that takes several steps, and brings it to its end. Gives the fields of the reply.
    ///
    /// Errors: why it cannot be; `go_on`'s, with which it goes on without whoever has begun it.
    pub(super) fn perform(&self, turn: &Turn<'_>, begin: DocBuf, go_on: Interrupt<'_>) -> Result<DocBuf> {
        self.change(go_on, |change| change.put(DDL, begin.as_raw()))?;
        self.finish(turn, begin, go_on)
    }

    fn finish(&self, _: &Turn<'_>, begun: DocBuf, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let (mut at, mut pause) = (begun, PAUSE.0);
        loop {
            self.halt(at.as_raw(), go_on)?;
            match self.phase(at.as_raw(), go_on) {
                Ok(Phase::Reached(now)) => {
                    self.change(go_on, |change| change.put(DDL, now.as_raw()))?;
                    (at, pause) = (now, PAUSE.0);
                }
                Ok(Phase::Over(reply)) => return Ok(reply),
                Ok(Phase::Refused(error)) => return Err(error),
                // Somebody has to start that shard anew; then it goes on, without whoever waits here.
                Err(error) if error.code() == Code::NO_SHARDING_ENABLED => return Err(error),
                // Somebody has to make room for what is taken back; why it is, is known.
                Err(error)
                    if error.code() == Code::OUT_OF_DISK_SPACE && at.as_raw().get("reason").is_some() =>
                {
                    tracing::warn!(%error, namespace = name_of(at.as_raw()), "what was done is not taken back yet");
                    return Err(reason(at.as_raw()));
                }
                Err(error) => {
                    go_on()?;
                    self.term()?;
                    let (what, reached) = (text(at.as_raw(), "op"), text(at.as_raw(), "phase"));
                    let namespace = name_of(at.as_raw());
                    tracing::warn!(%error, namespace, what, reached, "a phase is tried again");
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(PAUSE.1);
                }
            }
        }
    }

    /// One phase. What may pass is an error; what cannot be is [`Phase::Refused`], or a phase that takes back what was done.
    fn phase(&self, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<Phase> {
        match text(at, "op") {
            "collMod" => spans::phase(self, at, go_on),
            "drop" => drop::phase(self, at, go_on),
            "dropDatabase" => drop::database_phase(self, at, go_on),
            "movePrimary" => move_primary::phase(self, at, go_on),
            "refine" => refine::phase(self, at, go_on),
            "reshard" => reshard::phase(self, at, go_on),
            "rename" => rename::phase(self, at, go_on),
            "shardCollection" => shard_collection::phase(self, at, go_on),
            other => Err(Error::new(Code::COMMAND_NOT_FOUND, format!("config.ddl has an unknown '{other}'"))),
        }
    }

    /// Where tests have it wait, and end the process.
    pub(super) fn halt(&self, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
        let applies = |data: RawDoc<'_>| {
            ["op", "phase"].iter().all(|name| data.get(name).is_none() || text(data, name) == text(at, name))
        };
        while self.front.fail_points.enter("hangBeforeDDLPhase", applies).is_some() {
            go_on()?;
            std::thread::sleep(PAUSE.0);
        }
        Ok(())
    }
}
