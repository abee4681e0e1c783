//! Statements of a retryable write that go to several shards at once, since an `_id` does not say which of them has the document: whether one of
//! these has executed them before.
//!
//! The record of a statement is where it was executed. The document may be another shard's since: by the statement itself or another client's, or it
//! was deleted, and its `_id` is another document's. That shard has no record, and would execute the statement again. So all shards are asked
//! first, for the whole batch in one message each; they execute it for the attempt that has asked last (`sheaf_server`'s
//! `session::attempts`). What was executed before is answered by who did it.

use std::collections::{BTreeMap, BTreeSet};

use sheaf_bson::DocBuf;
use sheaf_cluster::Sharded;
use sheaf_errors::{Error, Result};
use sheaf_shard::ShardId;

use super::outcome::{Answers, is_stale};
use super::{Attempts, Batch, Kind};
use crate::forward;
use crate::op::Operation;

/// What shards were asked, and what they have said.
#[derive(Default)]
pub struct Asked {
    attempts: Attempts,
    /// The attempt, from the first question on.
    attempt: Option<u128>,
    /// Namespaces and names of the shards that were asked by it.
    shards: BTreeSet<(usize, String)>,
    /// Statements that shards were asked for by some attempt.
    statements: BTreeSet<u32>,
    /// Statements that were executed before.
    before: BTreeSet<u32>,
    /// Whether there is nothing to be asked by the present view of the collections: what is left of a batch only becomes less.
    all: bool,
}

/// A statement, the collection that it writes to, and the shards that it goes to.
pub struct Going<'s> {
    pub at: u32,
    pub sharded: &'s Sharded,
    pub shards: Vec<&'s ShardId>,
}

/// What came of asking.
pub enum Said {
    /// All that is to be known is known.
    All,
    /// A shard's view of a namespace is not the router's.
    Stale(usize, Error),
    /// Another attempt has come between: they are to be asked again.
    Again,
}

impl Asked {
    /// Makes the operation's attempt that of the batch, for what is sent next.
    pub fn begin(&mut self, op: &Operation<'_>) {
        match self.attempt {
            Some(_) => op.attempt.set(self.attempt),
            None => {
                self.attempts.begin(op);
                self.attempt = op.attempt.get();
            }
        }
    }

    /// The batch's attempt.
    pub fn attempt(&self) -> Option<u128> {
        self.attempt
    }

    /// Whether the statement was executed before.
    pub fn was_executed(&self, at: u32) -> bool {
        self.before.contains(&at)
    }

    /// Whether an error says that another attempt has come between. Then all shards are to be asked anew.
    pub fn has_given_way(&mut self, op: &Operation<'_>, error: &Error) -> bool {
        let has = self.attempts.has_given_way(op, error);
        if has {
            self.attempt = None;
            self.shards.clear();
            self.all = false;
        }
        has
    }

    /// Whether nothing more is to be asked.
    pub fn has_all(&self) -> bool {
        self.all
    }

    /// Statements may go to other shards from now on.
    pub fn view_changed(&mut self) {
        self.all = false;
    }

    /// Asks the shards of these statements that were not asked yet.
    ///
    /// Errors: those of asking.
    pub fn ask<A: Answers>(
        &mut self,
        op: &Operation<'_>,
        batch: &Batch<'_>,
        statements: &[Going<'_>],
    ) -> Result<Said> {
        let mut wanted: BTreeMap<(usize, &str), (&Going<'_>, Vec<u32>)> = BTreeMap::new();
        for going in statements {
            let namespace = batch.namespace_of(going.at);
            let is_new = !self.statements.contains(&going.at);
            for shard in &going.shards {
                if is_new || !self.shards.contains(&(namespace, shard.as_str().to_owned())) {
                    let known = wanted.entry((namespace, shard.as_str()));
                    known.or_insert_with(|| (going, Vec::new())).1.push(going.at);
                }
            }
        }
        let done = match wanted.is_empty() {
            true => Ok(Said::All),
            false => {
                self.begin(op);
                self.ask_those::<A>(op, batch, &wanted)
            }
        };
        op.attempt.set(None);
        self.all = matches!(done, Ok(Said::All));
        if self.all {
            self.statements.extend(statements.iter().map(|going| going.at));
        }
        match done {
            Err(error) if self.has_given_way(op, &error) => Ok(Said::Again),
            done => done.map_err(Attempts::for_client),
        }
    }

    fn ask_those<A: Answers>(
        &mut self,
        op: &Operation<'_>,
        batch: &Batch<'_>,
        wanted: &BTreeMap<(usize, &str), (&Going<'_>, Vec<u32>)>,
    ) -> Result<Said> {
        let mut to = Vec::with_capacity(wanted.len());
        for ((_, name), (going, _)) in wanted {
            let shard = going.shards.iter().find(|shard| shard.as_str() == *name);
            let Some(shard) = shard else { unreachable!("the statement goes to {name}") };
            to.push(op.addressed(going.sharded, shard)?);
        }
        let messages = to.iter().zip(wanted.values()).map(|(to, (_, places))| {
            let probes: Vec<DocBuf> = places.iter().map(|at| question(batch, *at)).collect();
            (to, batch.questions(op, to, places, probes.iter().map(DocBuf::as_raw)))
        });
        let answers = forward::exchange_all(op, messages.collect());
        for (((namespace, name), (_, places)), (to, answer)) in wanted.iter().zip(to.iter().zip(answers)) {
            let answer = match answer {
                Err(error) if is_stale(error.code()) => return Ok(Said::Stale(*namespace, error)),
                answer => answer?,
            };
            // Only whether the view is right counts: what is wrong with a statement is told when it is executed.
            if let Some((_, error)) = A::default().take(op, &to.target, places, &answer)?.stale {
                return Ok(Said::Stale(*namespace, error));
            }
            let ids = answer.reply().get("retriedStmtIds").and_then(|ids| ids.as_array());
            let ids: BTreeSet<i64> =
                ids.into_iter().flat_map(|ids| ids.values()).filter_map(|id| id.as_exact_i64()).collect();
            let executed = places.iter().filter(|at| ids.contains(&i64::from(batch.stmt_id(**at))));
            self.before.extend(executed);
            self.shards.insert((*namespace, (*name).to_owned()));
        }
        Ok(Said::All)
    }
}

/// What asks for a statement: one of its kind for no document. It is known by its number.
fn question(batch: &Batch<'_>, at: u32) -> DocBuf {
    const NOTHING: &str = "$alwaysFalse";
    DocBuf::build(|out| {
        if batch.kind == Kind::Bulk
            && let Some(kind) = batch.statements[at as usize].iter().next()
        {
            out.append_element(kind);
        }
        out.document(batch.kind.filter()).append(NOTHING, 1);
        let change = match (batch.deletes(at), batch.kind) {
            (true, Kind::Bulk) => return,
            (true, _) => {
                out.append("limit", 1);
                return;
            }
            (false, Kind::Bulk) => "updateMods",
            (false, _) => "u",
        };
        out.document(change).document("$set").append("nothing", 1);
    })
}
