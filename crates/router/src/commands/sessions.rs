//! `refreshSessions`, `endSessions`, and `killSessions` with its kin: a router keeps little of a session; the shards keep the rest.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use sheaf_bson::{ArrayBuf, Binary, Value, doc};
use sheaf_cluster::{GoOn, ReplicaSet};
use sheaf_errors::{Code, Error, Result};
use sheaf_front::args::Args;
use sheaf_front::commands::session_list;
use sheaf_front::reply::Reply;
use sheaf_front::session::{LogicalSessionId, NOBODY, SessionRegistry};

use crate::op::Operation;
use crate::router::Router;
use crate::session::{SessionState, Stage};

/// How long all shards together may take where sessions end or go on by themselves: who cannot be reached ends them by their time.
const PATIENCE: Duration = Duration::from_secs(1);

/// `{refreshSessions: [lsid, ...]}`: the shards are told in one message each, as far as they answer.
pub fn refresh<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let ids = session_list(args, "refreshSessions")?;
    let ids: Vec<_> = op.request.own_sessions(ids).collect();
    args.finish()?;
    for id in &ids {
        op.router.sessions.touch(*id, op.router.uptime_millis())?;
    }
    op.blocking(|| op.router.tell_sessions("refreshSessions", &ids));
    Ok(Reply::ok())
}

/// The sessions as commands name them.
fn named(ids: &[LogicalSessionId]) -> ArrayBuf {
    ArrayBuf::build(|list| {
        for id in ids {
            list.push(id.document().as_raw());
        }
    })
}

impl Router {
    /// All sets that may know of a session.
    fn members(&self, go_on: GoOn<'_>) -> Result<Vec<std::sync::Arc<ReplicaSet>>> {
        Ok(self.directory.sets(go_on)?.into_iter().map(|shard| shard.set).collect())
    }

    /// Sends all shards a list of sessions. Who does not answer soon is not waited for.
    fn tell_sessions(&self, command: &str, ids: &[LogicalSessionId]) {
        let began = Instant::now();
        let go_on = || match began.elapsed() < PATIENCE && !self.is_shutting_down() {
            true => Ok(()),
            false => Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time")),
        };
        let message = doc! { command: Value::Array(named(ids).as_raw()) };
        for set in self.members(&go_on).unwrap_or_default() {
            if let Err(error) = sheaf_cluster::run(&set, &self.clock, "admin", &message, false, &go_on) {
                tracing::debug!(%error, set = set.name(), command, "a set was not told of sessions");
            }
        }
    }
}

impl Router {
    /// Whoever was killed makes room at once, except where it is known that a transaction was committed, or may have been: that may be asked
    /// for again.
    fn give_places_back(&self, meant: Option<&[LogicalSessionId]>, spared: Option<LogicalSessionId>) {
        let meant = match meant {
            None => self.sessions.list(),
            Some(ids) => ids.iter().filter_map(|id| self.sessions.get(*id)).collect(),
        };
        for some in meant.chunks(1000) {
            let mut held: Vec<_> = some
                .iter()
                .filter(|session| spared != Some(session.id))
                .filter_map(|session| Some((session, session.state.try_lock()?)))
                .filter(|(_, state)| {
                    let stage = state.transaction.as_ref().map(|transaction| transaction.stage);
                    stage.is_none_or(|stage| matches!(stage, Stage::Open | Stage::Aborted))
                })
                .collect();
            for (_, state) in &mut held {
                **state = SessionState::default();
            }
            let gone: Vec<_> = held.into_iter().map(|(session, _)| session).collect();
            self.sessions.remove_unused(&gone);
        }
    }
}

impl SessionRegistry for Router {
    fn touch(&self, id: LogicalSessionId) -> Result<()> {
        self.sessions.touch(id, self.uptime_millis()).map(|_| ())
    }

    fn those(&self, of: &dyn Fn(Option<&[u8; 32]>) -> bool) -> Vec<LogicalSessionId> {
        let all = self.sessions.list();
        all.iter().filter(|session| of(session.id.uid.as_ref())).map(|session| session.id).collect()
    }

    /// Their operations are stopped, their cursors closed; they are forgotten here and, as far as these answer, on the shards.
    fn end(&self, ids: &[LogicalSessionId]) {
        let ended: HashSet<_> = ids.iter().copied().collect();
        self.stop_operations(|lsid| ended.contains(&lsid));
        self.cursors.kill_where(|cursor| cursor.lsid.is_some_and(|lsid| ended.contains(&lsid)));
        let known: Vec<_> = ids.iter().filter_map(|id| self.sessions.get(*id)).collect();
        self.sessions.remove_unused(&known.iter().collect::<Vec<_>>());
        self.tell_sessions("endSessions", ids);
    }

    fn kill_elsewhere(&self, owners: &[[u8; 32]], check: &dyn Fn() -> Result<()>) -> Result<()> {
        // Nobody's sessions on shards are those of servers.
        let mut owners = owners.iter().filter(|owner| **owner != NOBODY).peekable();
        if owners.peek().is_none() {
            return Ok(());
        }
        let patterns = ArrayBuf::build(|list| {
            for owner in owners {
                list.document().append("uid", Value::Binary(Binary { subtype: 0, bytes: owner }));
            }
        });
        let command = doc! { "killAllSessionsByPattern": Value::Array(patterns.as_raw()) };
        for set in self.members(check)? {
            sheaf_cluster::run(&set, &self.clock, "admin", &command, true, check)?;
        }
        Ok(())
    }

    /// The shards end what these sessions have open there; one that does not is an error.
    fn kill(
        &self,
        meant: Option<&[LogicalSessionId]>,
        spared: Option<LogicalSessionId>,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let mut command = match meant {
            Some([]) => return Ok(()),
            Some(ids) => doc! { "killSessions": Value::Array(named(ids).as_raw()) },
            None => doc! { "killAllSessions": Value::Array(ArrayBuf::new().as_raw()) },
        };
        if let Some(spared) = spared {
            command = command.with("lsid", spared.document().as_raw());
        }
        let ids: Option<HashSet<_>> = meant.map(|ids| ids.iter().copied().collect());
        self.cursors.kill_where(|cursor| {
            cursor.lsid.is_some_and(|lsid| {
                Some(lsid) != spared && ids.as_ref().is_none_or(|ids| ids.contains(&lsid))
            })
        });
        for set in self.members(check)? {
            sheaf_cluster::run(&set, &self.clock, "admin", &command, true, check)?;
        }
        self.give_places_back(meant, spared);
        Ok(())
    }
}
