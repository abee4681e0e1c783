//! Leading one move: the machine of `sheaf_shard::moves` with the directory, connections and a clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, doc};
use sheaf_cluster::CONFIG_SHARD;
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_shard::moves::{
    Conductor as Machine, ConductorEffect, Ending, Misfit, Move, MoveAnswer, MoveStatement,
};
use sheaf_shard::placement::{Chunk, Version};
use sheaf_shard::{Executed, Outcome, Part, Request, ShardId, TransactionId};
use sheaf_storage::{Interrupt, Transaction};

use super::commit::Commit;
use super::ddl::with;
use super::ranges::Chunks;
use super::{Conductor, db_of, uuid_value};
use crate::sharding::moves::named;
use crate::sharding::rows::Change;
use crate::sharding::turns::Turn;

/// The moves under way.
pub(super) const MIGRATIONS: &str = "config.migrations";

/// How long is waited where there is nothing to do.
const PAUSE: Duration = Duration::from_millis(5);

/// A move that is led.
struct Led<'l> {
    conductor: &'l Conductor,
    the_move: Arc<Move>,
    machine: Machine,
    began: Instant,
    /// The version of the chunks by which the statements were made.
    read: Version,
    /// The config servers' part of the transaction, until it is prepared; none where they are the donor or the recipient: then it is among
    /// the transactions that shards keep.
    own: Option<Transaction>,
}

impl Conductor {
    /// Moves the range, or gives that up.
    ///
    /// Errors: as [`Conductor::move_between`].
    pub(super) fn lead(&self, _: &Turn<'_>, the_move: &Arc<Move>, go_on: Interrupt<'_>) -> Result<()> {
        let machine = Machine::new(the_move.clone(), ShardId::new(CONFIG_SHARD), 0);
        Led::new(self, the_move, machine).run(go_on)
    }

    /// Gives up what an earlier primary has begun in a database.
    pub(super) fn end_moves(&self, _: &Turn<'_>, db: &str, go_on: Interrupt<'_>) -> Result<()> {
        let of_db = |left: sheaf_bson::RawDoc<'_>| {
            left.get("ns").and_then(|ns| ns.as_str()).is_some_and(|ns| db_of(ns) == db)
        };
        for left in self.find(MIGRATIONS, of_db)? {
            let the_move = Arc::new(Move::parse(left.as_raw())?);
            let machine = Machine::resume(the_move.clone(), ShardId::new(CONFIG_SHARD), 0);
            match Led::new(self, &the_move, machine).run(go_on) {
                // That it is given up is what was wanted.
                Err(error) if error.code() == Code::CONFLICTING_OPERATION_IN_PROGRESS => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// Gives up the moves that earlier primaries have begun.
    pub(super) fn end_left_moves(&self, go_on: Interrupt<'_>) -> Result<()> {
        for left in self.find(MIGRATIONS, |_| true)? {
            let db = db_of(left.as_raw().get("ns").and_then(|ns| ns.as_str()).unwrap_or_default());
            // Whoever has the turn of the database leads the move.
            let Some(turn) = self.databases.try_take(db) else { continue };
            self.end_moves(&turn, db, go_on)?;
        }
        Ok(())
    }
}

impl<'l> Led<'l> {
    fn new(conductor: &'l Conductor, the_move: &Arc<Move>, machine: Machine) -> Led<'l> {
        let read = Version::none(the_move.uuid);
        Led { conductor, the_move: the_move.clone(), machine, began: Instant::now(), read, own: None }
    }

    fn run(mut self, go_on: Interrupt<'_>) -> Result<()> {
        let conductor = self.conductor;
        let until_end = || conductor.until_end();
        let mut stopped = None;
        loop {
            if stopped.is_none()
                && let Err(error) = go_on()
            {
                self.machine.cancel(error.message().to_owned());
                stopped = Some(error);
            }
            let effects = self.machine.poll();
            let is_idle = effects.is_empty();
            let mut statements = Vec::new();
            for effect in effects {
                conductor.halt(phase(&self.the_move, &effect).as_raw(), &until_end)?;
                match effect {
                    ConductorEffect::Execute { on, id, statement } => statements.push((on, id, statement)),
                    ConductorEffect::Over(Ending::Committed(_)) => return Ok(()),
                    ConductorEffect::Over(Ending::GivenUp { why }) => {
                        return Err(stopped.unwrap_or_else(|| given_up(&self.the_move, &why)));
                    }
                    effect => self.perform(effect, &until_end)?,
                }
            }
            if !statements.is_empty() {
                self.execute(statements, &until_end);
            }
            until_end()?;
            self.machine.tick(self.began.elapsed().as_millis() as u64);
            if is_idle {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn perform(&mut self, effect: ConductorEffect, go_on: Interrupt<'_>) -> Result<()> {
        let conductor = self.conductor;
        match effect {
            ConductorEffect::Begin => {
                let document = self.the_move.document();
                let begun = conductor.change(go_on, |change| change.put(MIGRATIONS, document.as_raw()));
                go_on()?;
                self.machine.begun(begun.map_err(misfit));
            }
            ConductorEffect::Send(request) => {
                let answer = conductor.ask(self.the_move.to.as_str(), &request.command(), go_on);
                match answer.as_ref().map(|answer| MoveAnswer::parse(answer.as_raw())) {
                    Ok(Some(answer)) => self.machine.answered(answer),
                    Ok(None) => tracing::warn!("the recipient of a range has given an answer that is none"),
                    // It is asked again.
                    Err(error) => tracing::debug!(%error, "the recipient of a range has not answered"),
                }
            }
            ConductorEffect::ReadTable => {
                let chunks = conductor.change(go_on, |change| Chunks::read(change, &self.the_move.ns));
                match chunks {
                    Ok(chunks) => {
                        self.read = chunks.table.version();
                        self.machine.table(Some(&chunks.table), conductor.now().into());
                    }
                    Err(error) if error.code() == Code::NAMESPACE_NOT_SHARDED => {
                        self.machine.table(None, conductor.now().into());
                    }
                    Err(error) => tracing::debug!(%error, "the chunks cannot be read"),
                }
            }
            ConductorEffect::Commit { id, parts } => {
                if let Some(outcome) = self.commit(&id, parts, go_on)? {
                    self.machine.ended(&id, outcome);
                }
            }
            ConductorEffect::Abandon { on, id } => {
                self.own = self.own.take().filter(|_| on.as_str() != CONFIG_SHARD);
                let abandoned = conductor.about(&on, Request::Abandon { id }, None, go_on);
                if let Err(error) = abandoned {
                    tracing::debug!(%error, shard = %on, "a move's transaction could not be abandoned");
                }
            }
            ConductorEffect::Forget => {
                let id = self.the_move.id.0;
                let forgotten = conductor.change(go_on, |change| change.remove(MIGRATIONS, uuid_value(&id)));
                match forgotten {
                    Ok(_) => self.machine.forgotten(),
                    Err(error) => tracing::debug!(%error, "a move's document cannot be deleted"),
                }
            }
            ConductorEffect::Execute { .. } | ConductorEffect::Over(_) => {
                unreachable!("these were taken out")
            }
        }
        Ok(())
    }

    /// Executes the statements on all their shards at once. Those for the config servers, which may be the donor or the recipient besides, are
    /// executed here, in one transaction.
    fn execute(
        &mut self,
        statements: Vec<(ShardId, TransactionId, MoveStatement)>,
        go_on: &(dyn Fn() -> Result<()> + Sync),
    ) {
        let conductor = self.conductor;
        let mut done: BTreeMap<ShardId, (TransactionId, Result<Executed>)> = BTreeMap::new();
        std::thread::scope(|scope| {
            let (mut asked, mut own) = (Vec::new(), Vec::new());
            for (on, id, statement) in statements {
                if on.as_str() == CONFIG_SHARD {
                    own.push((on, id, statement));
                    continue;
                }
                let command = statement.command().map(|command| named(command.as_raw(), &id));
                let shard = on.clone();
                let ask = move || {
                    let Some(command) = command else { bail!(Code::INTERNAL_ERROR, "no command") };
                    let reply = conductor.ask(shard.as_str(), &command, go_on)?;
                    let executed = Executed::parse(reply.as_raw());
                    executed.ok_or_else(|| Error::new(Code::PROTOCOL_ERROR, "nothing was executed"))
                };
                asked.push((on, id, scope.spawn(ask)));
            }
            if let Some((on, id, _)) = own.first() {
                let (on, id) = (on.clone(), id.clone());
                let statements: Vec<&MoveStatement> = own.iter().map(|(_, _, statement)| statement).collect();
                let executed = self.execute_here(&id, &statements, go_on);
                done.insert(on, (id, executed));
            }
            for (on, id, asked) in asked {
                let lost = || Error::new(Code::INTERNAL_ERROR, "a statement of a move was lost");
                let executed = asked.join().map_err(|_| lost()).and_then(|executed| executed);
                done.insert(on, (id, executed));
            }
        });
        for (on, (id, executed)) in done {
            if let Err(error) = &executed {
                tracing::debug!(%error, shard = %on, "a statement of a move was not executed");
            }
            self.machine.executed(&on, &id, executed.map_err(misfit));
        }
    }

    /// The config servers' statements: the directory's, and that of a shard, if they are one and take part as such. Then the transaction is
    /// kept where those of shards are.
    fn execute_here(
        &mut self,
        id: &TransactionId,
        statements: &[&MoveStatement],
        go_on: Interrupt<'_>,
    ) -> Result<Executed> {
        let chunks = statements.iter().find_map(|statement| match statement {
            MoveStatement::Directory { chunks, .. } => Some(chunks),
            _ => None,
        });
        let Some(chunks) = chunks else { bail!(Code::INTERNAL_ERROR, "nothing is to be entered") };
        let of_shard =
            statements.iter().find(|statement| !matches!(statement, MoveStatement::Directory { .. }));
        self.own = None;
        let conductor = self.conductor;
        if let Some(statement) = of_shard {
            return conductor.moves.run(statement, id, &mut |change| self.enter(change, chunks), go_on);
        }
        let session = (DocBuf::from(sheaf_bson::RawDoc::new(&id.lsid)), id.number);
        let mut change = Change::begin(&conductor.engine, Some(session))?;
        let executed = conductor.sharding.execute(id, None)?;
        self.enter(&mut change, chunks).inspect_err(|_| conductor.sharding.abandon(id))?;
        self.own = Some(change.into_transaction());
        Ok(executed)
    }

    /// What is entered into the directory: the chunks, and the end of the move's document.
    fn enter(&self, change: &mut Change, chunks: &[Chunk]) -> Result<()> {
        let (conductor, of) = (self.conductor, &self.the_move);
        let now = Chunks::read(change, &of.ns)?;
        if now.table.version() != self.read {
            bail!(Code::CONFLICTING_OPERATION_IN_PROGRESS, "the chunks of {} have changed", of.ns);
        }
        now.write(change, chunks)?;
        if !change.remove(MIGRATIONS, uuid_value(&of.id.0))? {
            bail!(Code::CONFLICTING_OPERATION_IN_PROGRESS, "the move was given up");
        }
        let details = doc! {
            "min": of.min.document(), "max": of.max.document(), "from": of.from.as_str(), "to": of.to.as_str()
        };
        conductor.note(change, "moveChunk.commit", &of.ns, details.as_raw())?;
        // What shells count as a move of the last day.
        let details = with(details.as_raw(), &[("note", "success".into())]);
        conductor.note(change, "moveChunk.from", &of.ns, details.as_raw())
    }

    /// Commits; `None`: the outcome is not known yet.
    fn commit(
        &mut self,
        id: &TransactionId,
        parts: Vec<Part>,
        go_on: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<Option<Outcome>> {
        let own = self.own.take();
        Commit::new(self.conductor, id, parts, own).run(go_on)
    }
}

fn misfit(error: Error) -> Misfit {
    Misfit(error.message().to_owned())
}

fn given_up(the_move: &Move, why: &str) -> Error {
    let Move { ns, min, max, to, .. } = the_move;
    let text = format!("the range of {ns} from {min} to {max} could not be moved to shard {to}: {why}");
    Error::new(Code::CONFLICTING_OPERATION_IN_PROGRESS, text)
}

/// Where tests have it wait.
fn phase(of: &Move, effect: &ConductorEffect) -> DocBuf {
    let phase = match effect {
        ConductorEffect::Begin => "beginning",
        ConductorEffect::Send(request) => request.name(),
        ConductorEffect::ReadTable => "reading",
        ConductorEffect::Execute { .. } => "executing",
        ConductorEffect::Commit { .. } => "committing",
        ConductorEffect::Abandon { .. } => "abandoning",
        ConductorEffect::Forget => "forgetting",
        ConductorEffect::Over(_) => "over",
    };
    doc! { "_id": &*of.ns, "op": "moveRange", "phase": phase }
}

#[cfg(test)]
mod tests {
    use sheaf_shard::moves::MoveId;
    use sheaf_shard::placement::KeyPattern;

    use super::*;

    #[test]
    fn who_is_told_that_a_range_stays_is_told_which() {
        let pattern = KeyPattern::parse(doc! { "a": 1 }.as_raw()).unwrap();
        let min = pattern.key(doc! { "a": 10 }.as_raw()).unwrap();
        let of = Move {
            id: MoveId([1; 16]),
            ns: "garden.plants".into(),
            uuid: [2; 16],
            max: pattern.max(),
            pattern,
            min,
            from: ShardId::new("s0"),
            to: ShardId::new("s1"),
        };
        assert_eq!(
            given_up(&of, "so it is").message(),
            "the range of garden.plants from { a: 10 } to { a: MaxKey } could not be moved to shard s1: so it is"
        );
    }
}
