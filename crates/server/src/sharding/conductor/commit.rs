//! Committing what was executed on shards and on the config servers: the machine of `sheaf_shard` that routers use, too.

use std::time::{Duration, Instant};

use sheaf_bson::doc;
use sheaf_cluster::CONFIG_SHARD;
use sheaf_errors::Result;
use sheaf_shard::{
    Answer, ClusterTime, Committer, CommitterEffect, Outcome, Part, Request, ShardId, TransactionId,
};
use sheaf_storage::{Interrupt, Transaction};

use super::Conductor;
use crate::log::ids;

/// How long shards are told the outcome. They find it out by themselves if they do not answer.
const TELL: Duration = Duration::from_secs(2);

/// How long is waited before what nobody has answered is looked at again.
const PAUSE: Duration = Duration::from_millis(5);

/// A commit that is under way.
pub(super) struct Commit<'c> {
    conductor: &'c Conductor,
    committer: Committer,
    /// The config servers' part, until it is prepared.
    own: Option<Box<Transaction>>,
    began: Instant,
    outcome: Option<Outcome>,
}

impl<'c> Commit<'c> {
    /// Of a transaction that has executed this, and no more than this member has executed in `own`.
    pub fn new(
        conductor: &'c Conductor,
        id: &TransactionId,
        parts: Vec<Part>,
        own: Option<Transaction>,
    ) -> Commit<'c> {
        let mut committer = Committer::new();
        committer.commit(id.clone(), parts, ClusterTime::ZERO);
        Commit { conductor, committer, own: own.map(Box::new), began: Instant::now(), outcome: None }
    }

    /// Goes on until the outcome is known and, for a while, until all know it; `None`: it is not known yet.
    ///
    /// Errors: those of `go_on`.
    pub fn run(mut self, go_on: &(dyn Fn() -> Result<()> + Sync)) -> Result<Option<Outcome>> {
        let mut told_at = None;
        while self.committer.running() > 0 {
            go_on()?;
            if !self.step(go_on) {
                std::thread::sleep(PAUSE);
            }
            self.tick(0);
            if self.outcome.is_some() && told_at.get_or_insert_with(Instant::now).elapsed() > TELL {
                break;
            }
        }
        self.step(go_on);
        // What is settled is told in batches.
        self.tick(1000);
        self.step(go_on);
        Ok(self.outcome)
    }

    fn tick(&mut self, more: u64) {
        self.committer.tick(self.began.elapsed().as_millis() as u64 + more);
    }

    /// Sends what the machine wants sent, all at once, and tells it the answers. False: there was nothing.
    fn step(&mut self, go_on: &(dyn Fn() -> Result<()> + Sync)) -> bool {
        let mut requests = Vec::new();
        for effect in self.committer.poll() {
            match effect {
                CommitterEffect::Send { to, request } => requests.push((to, request)),
                CommitterEffect::Ended { outcome, .. } => self.outcome = Some(outcome),
                CommitterEffect::Forgotten { .. } => {}
                CommitterEffect::Contradiction { id, what } => {
                    let about = doc! { "transaction": &format!("{id:?}"), "what": &what };
                    let text = "Shards contradict each other about a transaction";
                    crate::log::seldom::error("TXN", ids::SHARDS_CONTRADICT, "config", text, about);
                }
            }
        }
        let any = !requests.is_empty();
        let conductor = self.conductor;
        let mut answers = Vec::new();
        std::thread::scope(|scope| {
            let mut asked = Vec::new();
            for (to, request) in requests {
                let own = match &request {
                    Request::Prepare { .. } if to.as_str() == CONFIG_SHARD => self.own.take(),
                    _ => None,
                };
                asked.push(scope.spawn(move || {
                    let id = request.id().cloned();
                    let answer = conductor.about(&to, request, own, go_on);
                    (to, id, answer)
                }));
            }
            answers.extend(asked.into_iter().filter_map(|asked| asked.join().ok()));
        });
        for (to, id, answer) in answers {
            match (id, answer) {
                (Some(id), Ok(Some(answer))) => self.committer.answered(&to, &id, answer),
                (_, Ok(_)) => {}
                (_, Err(error)) => tracing::debug!(%error, shard = %to, "a shard has not answered"),
            }
        }
        any
    }
}

impl Conductor {
    /// Asks a shard, or the config servers' machine on this member, about a transaction.
    pub(super) fn about(
        &self,
        to: &ShardId,
        request: Request,
        transaction: Option<Box<Transaction>>,
        go_on: Interrupt<'_>,
    ) -> Result<Option<Answer>> {
        if to.as_str() == CONFIG_SHARD {
            let kept = match &request {
                Request::Prepare { id, .. } if transaction.is_none() => self.moves.hand_over(id),
                _ => None,
            };
            return self.sharding.answer_to(request, transaction.or(kept), go_on);
        }
        let reply = self.ask(to.as_str(), &request.command(), go_on)?;
        Ok(Answer::parse(reply.as_raw()))
    }
}
