//! Leading one move.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use sheaf_bson::DocBuf;

use crate::placement::RoutingTable;
use crate::time::ClusterTime;
use crate::transaction::{Executed, Outcome, Part};
use crate::types::{ShardId, TransactionId};

use super::change::uuid_value;
use super::{Misfit, Move, MoveAnswer, MoveRequest, MoveStatement, Token};

/// How often the recipient is asked.
const ASK_MILLIS: u64 = 500;
/// How soon it is asked again when it has answered.
const SOON_MILLIS: u64 = 20;
/// After how long the end is tried again that did not come about.
const PAUSE_MILLIS: u64 = 200;
/// How often the end is tried.
const TRIES: u32 = 30;
/// After how long without an answer the recipient is given up.
const SILENCE_MILLIS: u64 = 60_000;
/// How long the statements of the transaction may take.
const EXECUTE_MILLIS: u64 = 2000;
/// After how long without an outcome the commit is asked for again.
const COMMIT_MILLIS: u64 = 5000;

/// How a move ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The recipient owns the range, as of this time.
    Committed(ClusterTime),
    /// Nothing has changed. (A conductor that has found the document after another may say so of a move that has happened.)
    GivenUp {
        /// Why.
        why: String,
    },
}

/// What the conductor's driver has to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum ConductorEffect {
    /// Insert the move's document into `config.migrations`, unless another overlaps: [`Conductor::begun`], when it is on a majority.
    Begin,
    /// Send this to the recipient's primary; what it answers is told to [`Conductor::answered`].
    Send(MoveRequest),
    /// Read the collection's chunks: [`Conductor::table`].
    ReadTable,
    /// Execute this statement, the first of this transaction on this shard: [`Conductor::executed`]. Two for the config servers, which may be
    /// the donor or the recipient, are executed as one, and told once.
    Execute {
        /// Where; the config servers, too.
        on: ShardId,
        /// In which transaction.
        id: TransactionId,
        /// What.
        statement: MoveStatement,
    },
    /// Commit it, by a [`crate::Committer`], also if that has been asked before: [`Conductor::ended`].
    Commit {
        /// Which transaction.
        id: TransactionId,
        /// Where it has executed what.
        parts: Vec<Part>,
    },
    /// Send `Abandon` of this transaction, which is not being committed, to this shard.
    Abandon {
        /// Where.
        on: ShardId,
        /// Which transaction.
        id: TransactionId,
    },
    /// Delete the move's document, if it is there: [`Conductor::forgotten`].
    Forget,
    /// There is nothing more to be done.
    Over(Ending),
}

#[derive(Debug)]
enum State {
    Beginning,
    Receiving { finish: bool },
    Reading { closing: Token },
    Executing { id: TransactionId, parts: BTreeMap<ShardId, Option<Executed>>, until: u64 },
    Committing { id: TransactionId, parts: Vec<Part> },
    GivingUp { why: String, until: u64 },
    Forgetting { why: String },
    Over,
}

/// One move, on the config servers' primary.
///
/// Its document is deleted by the transaction that changes the owner. So a document that is there belongs to a move that has not
/// happened, and that will not: whoever prepares the transaction's part on the config servers is the one who has led it.
#[derive(Debug)]
pub struct Conductor {
    the_move: Arc<Move>,
    config: ShardId,
    state: State,
    number: i64,
    tries: u32,
    now: u64,
    ask_at: u64,
    heard_at: u64,
    cancelled: Option<String>,
    out: Vec<ConductorEffect>,
}

impl Conductor {
    /// A new move; `config` is the config servers' name among the shards.
    pub fn new(the_move: Arc<Move>, config: ShardId, now: u64) -> Self {
        let mut conductor = Conductor::in_state(the_move, config, now, State::Beginning);
        conductor.out.push(ConductorEffect::Begin);
        conductor
    }

    /// One that a new primary finds in `config.migrations` when no transaction has that document locked: it is given up.
    pub fn resume(the_move: Arc<Move>, config: ShardId, now: u64) -> Self {
        let why = "the config servers' primary that led it is not the primary any more".to_owned();
        let state = State::GivingUp { why, until: now + SILENCE_MILLIS };
        let mut conductor = Conductor::in_state(the_move, config, now, state);
        conductor.ask();
        conductor
    }

    fn in_state(the_move: Arc<Move>, config: ShardId, now: u64, state: State) -> Self {
        Conductor {
            the_move,
            config,
            state,
            number: 0,
            tries: 0,
            now,
            ask_at: now,
            heard_at: now,
            cancelled: None,
            out: Vec::new(),
        }
    }

    /// What is moved.
    pub fn the_move(&self) -> &Arc<Move> {
        &self.the_move
    }

    /// What the driver has to do.
    pub fn poll(&mut self) -> Vec<ConductorEffect> {
        mem::take(&mut self.out)
    }

    /// The document is on a majority, or could not be inserted.
    pub fn begun(&mut self, result: Result<(), Misfit>) {
        if !matches!(self.state, State::Beginning) {
            return;
        }
        match result {
            Ok(()) => self.receive(false),
            Err(Misfit(why)) => {
                // It may be there all the same.
                self.state = State::Forgetting { why };
                self.out.push(ConductorEffect::Forget);
            }
        }
    }

    /// Give it up, if it is not too late.
    pub fn cancel(&mut self, why: String) {
        self.cancelled.get_or_insert(why);
        self.obey();
    }

    /// Gives up what is called off, unless it is being committed.
    fn obey(&mut self) {
        let Some(why) = self.cancelled.clone() else { return };
        match self.state {
            State::Receiving { .. } | State::Reading { .. } => self.give_up(why),
            State::Executing { .. } => self.fail(why),
            State::Beginning
            | State::Committing { .. }
            | State::GivingUp { .. }
            | State::Forgetting { .. }
            | State::Over => {}
        }
    }

    fn receive(&mut self, finish: bool) {
        self.state = State::Receiving { finish };
        self.heard_at = self.now;
        self.ask();
        self.obey();
    }

    /// Asks the recipient what the state is about.
    fn ask(&mut self) {
        self.ask_at = self.now + ASK_MILLIS;
        let id = self.the_move.id;
        let request = match self.state {
            State::Receiving { finish: false } => MoveRequest::Receive { the_move: self.the_move.clone() },
            State::Receiving { finish: true } => MoveRequest::Finish { id },
            State::GivingUp { .. } => MoveRequest::GiveUp { id },
            _ => return,
        };
        self.out.push(ConductorEffect::Send(request));
    }

    /// The recipient has answered.
    pub fn answered(&mut self, answer: MoveAnswer) {
        self.heard_at = self.now;
        match (&self.state, answer) {
            (State::Receiving { finish: false }, MoveAnswer::Receiving(progress)) => {
                if progress.caught_up {
                    self.receive(true);
                } else {
                    self.ask_at = self.ask_at.min(self.now + SOON_MILLIS);
                }
            }
            (State::Receiving { finish: true }, MoveAnswer::Ready { closing }) => {
                self.state = State::Reading { closing };
                self.ask_at = self.now + EXECUTE_MILLIS;
                self.out.push(ConductorEffect::ReadTable);
            }
            (State::Receiving { finish: true }, MoveAnswer::Receiving(_)) => {
                self.state = State::Receiving { finish: false };
                self.ask_at = self.ask_at.min(self.now + SOON_MILLIS);
            }
            (State::Receiving { .. }, MoveAnswer::Busy) => {
                self.again("others were writing in the range".to_owned())
            }
            (State::Receiving { .. }, MoveAnswer::GivenUp { why }) => self.give_up(why),
            (State::GivingUp { why, .. }, MoveAnswer::GivenUp { .. }) => {
                let why = why.clone();
                self.state = State::Forgetting { why };
                self.out.push(ConductorEffect::Forget);
            }
            _ => {}
        }
    }

    /// The end did not come about: after a pause, once more.
    fn again(&mut self, why: String) {
        self.tries += 1;
        if self.tries >= TRIES {
            return self.give_up(why);
        }
        self.state = State::Receiving { finish: false };
        self.heard_at = self.now;
        self.ask_at = self.now + PAUSE_MILLIS * u64::from(self.tries.min(10));
        self.obey();
    }

    fn give_up(&mut self, why: String) {
        self.state = State::GivingUp { why, until: self.now + SILENCE_MILLIS };
        self.ask();
    }

    /// The chunks of the collection, and a time that everything is after which has been committed.
    pub fn table(&mut self, table: Option<&RoutingTable>, now: ClusterTime) {
        let State::Reading { closing } = self.state else { return };
        let of = &self.the_move;
        let Some(table) = table else {
            return self.give_up("the collection is not sharded any more".to_owned());
        };
        if table.version().uuid != of.uuid || *table.owner(&of.min) != of.from {
            return self.give_up("the donor does not own the range".to_owned());
        }
        let chunks = match table.move_range(&of.min, &of.max, &of.to, now) {
            Ok(chunks) => chunks,
            Err(error) => return self.give_up(error.message().to_owned()),
        };
        let after = match table.changed(chunks.clone()) {
            Ok(after) => after,
            Err(error) => return self.give_up(error.message().to_owned()),
        };
        self.number += 1;
        let lsid = DocBuf::build(|out| {
            out.append("id", uuid_value(&of.id.0));
        });
        let id = TransactionId::new(lsid.into_bytes(), self.number);
        let the_move = || of.clone();
        let leave = after.version_of(&of.from).lastmod;
        let own = after.version_of(&of.to).lastmod;
        let statements = [
            (of.from.clone(), MoveStatement::Leave { the_move: the_move(), closing, lastmod: leave }),
            (of.to.clone(), MoveStatement::Own { the_move: the_move(), closing, lastmod: own }),
            (self.config.clone(), MoveStatement::Directory { the_move: the_move(), chunks }),
        ];
        let parts = statements.iter().map(|(on, _)| (on.clone(), None)).collect();
        for (on, statement) in statements {
            self.out.push(ConductorEffect::Execute { on, id: id.clone(), statement });
        }
        self.state = State::Executing { id, parts, until: self.now + EXECUTE_MILLIS };
    }

    /// A shard has executed its statement, or has not.
    pub fn executed(&mut self, on: &ShardId, of: &TransactionId, result: Result<Executed, Misfit>) {
        let State::Executing { id, parts, .. } = &mut self.state else { return };
        if id != of {
            return;
        }
        match result {
            Err(Misfit(why)) => self.fail(why),
            Ok(executed) => {
                if let Some(part) = parts.get_mut(on) {
                    *part = Some(executed);
                }
                let part = |(shard, executed): (&ShardId, &Option<Executed>)| {
                    let executed = (*executed)?;
                    Some(Part { shard: shard.clone(), executed, wrote: true, confirmed: false })
                };
                let Some(parts) = parts.iter().map(part).collect::<Option<Vec<Part>>>() else { return };
                self.state = State::Committing { id: id.clone(), parts };
                self.commit();
            }
        }
    }

    /// The statements cannot all be executed: nothing is prepared yet.
    fn fail(&mut self, why: String) {
        let State::Executing { id, parts, .. } = &self.state else { return };
        for on in parts.keys() {
            self.out.push(ConductorEffect::Abandon { on: on.clone(), id: id.clone() });
        }
        self.again(why);
    }

    fn commit(&mut self) {
        let State::Committing { id, parts } = &self.state else { return };
        self.ask_at = self.now + COMMIT_MILLIS;
        self.out.push(ConductorEffect::Commit { id: id.clone(), parts: parts.clone() });
    }

    /// The transaction's outcome is known.
    pub fn ended(&mut self, of: &TransactionId, outcome: Outcome) {
        match (&self.state, outcome) {
            (State::Committing { id, .. }, Outcome::Committed(at)) if id == of => {
                self.over(Ending::Committed(at));
            }
            (State::Committing { id, .. }, Outcome::Aborted) if id == of => {
                self.again("its transaction was aborted".to_owned());
            }
            _ => {}
        }
    }

    /// The document is not there any more, on a majority.
    pub fn forgotten(&mut self) {
        if let State::Forgetting { why } = &self.state {
            let why = why.clone();
            self.over(Ending::GivenUp { why });
        }
    }

    fn over(&mut self, ending: Ending) {
        self.state = State::Over;
        self.out.push(ConductorEffect::Over(ending));
    }

    /// Time has passed: milliseconds of a clock that does not go back.
    pub fn tick(&mut self, now: u64) {
        self.now = self.now.max(now);
        let now = self.now;
        match &self.state {
            State::Receiving { .. } if self.heard_at + SILENCE_MILLIS <= now => {
                self.give_up("nothing was heard of the recipient".to_owned());
            }
            State::Receiving { .. } if self.ask_at <= now => self.ask(),
            State::Reading { .. } if self.ask_at <= now => {
                self.again("the chunks could not be read".to_owned())
            }
            State::Executing { until, .. } if *until <= now => {
                self.fail("a shard has not executed its part in time".to_owned());
            }
            State::Committing { .. } if self.ask_at <= now => self.commit(),
            // The recipient takes back by itself what it has received when it hears nothing.
            State::GivingUp { why, until } if *until <= now => {
                let why = why.clone();
                self.state = State::Forgetting { why };
                self.out.push(ConductorEffect::Forget);
            }
            State::GivingUp { .. } if self.ask_at <= now => self.ask(),
            State::Forgetting { .. } if self.ask_at <= now => {
                self.ask_at = now + ASK_MILLIS;
                self.out.push(ConductorEffect::Forget);
            }
            _ => {}
        }
    }
}
