//! Requests about transactions over several shards. What they say and are answered is `sheaf_shard::message`'s; the shard's machine answers.

use std::marker::PhantomData;
use std::sync::OnceLock;
use std::time::Instant;

use parking_lot::MutexGuard;
use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_front::role::{self, Coming};
use sheaf_shard::{Answer, Request, TransactionId};
use sheaf_storage::Transaction as OpenTransaction;

use crate::args::Args;
use crate::check::time_seen;
use crate::command::*;
use crate::in_session;
use crate::op::Operation;
use crate::reactor::LONG_BYTES;
use crate::reply::Reply;
use crate::session::{LogicalSessionId, Session, SessionState, TxnState};
use crate::sharding::requests::Outstanding;

/// One of the requests.
pub trait Asked {
    /// The command's name.
    const NAME: &'static str;
    /// What it is for.
    const HELP: &'static str;
}

/// `{prepareTransaction: {lsid: {...}, txnNumber: 3}, ...}` and its kin.
pub struct OfTransaction<A> {
    request: Request,
    asked: PhantomData<A>,
}

impl<'a, A: Asked> Command<'a, Operation<'a>> for OfTransaction<A> {
    const NAME: &'static str = A::NAME;
    const SPEC: Spec = Spec {
        aliases: &[],
        help: A::HELP,
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: INTERNAL,
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        let request = Request::parse(A::NAME, args.body())?;
        if let Some(id) = request.id() {
            session_of(id)?;
        }
        Ok(OfTransaction { request, asked: PhantomData })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let Some(sharding) = op.node().sharding() else {
            bail!(
                Code::SHARDING_STATE_NOT_INITIALIZED,
                "Cannot accept sharding commands if not started with --shardsvr"
            );
        };
        if let Request::Confirm { read_at: time, .. } | Request::Commit { at: time, .. } = &self.request {
            // What is stamped from now on is later.
            time_seen(op.node(), (*time).into())?;
        }
        let stop = op.interrupter();
        let go_on = || stop.check();
        let asked = match &self.request {
            Request::Prepare { id, .. } | Request::CommitAlone { id, .. } => {
                // Other statements of the session wait until the log has the entry.
                let session = op.node().sessions.get(session_of(id)?);
                let mut state =
                    session.as_deref().map(|session| in_session::state_of(op, session)).transpose()?;
                let transaction = match (&session, &mut state) {
                    (Some(session), Some(state)) => hand_over(op, session, state, id.number),
                    _ => None,
                };
                // A move's has no session here.
                let transaction =
                    transaction.or_else(|| op.node().moves().and_then(|moves| moves.hand_over(id)));
                let long = transaction.as_ref().is_some_and(|transaction| transaction.bytes() > LONG_BYTES);
                let ask = || sharding.request(self.request, transaction, &go_on);
                if long { op.blocking(ask) } else { ask() }
            }
            _ => sharding.request(self.request, None, &go_on),
        }?;
        if let Some(asked) = asked {
            op.answer_later(Box::new(Later { asked, deadline: op.deadline(), answer: OnceLock::new() }));
        }
        Ok(Reply::ok())
    }
}

/// An answer that is known when the log has come so far.
struct Later {
    asked: Outstanding,
    /// When the operation's own time is over.
    deadline: Option<Instant>,
    answer: OnceLock<Answer>,
}

impl role::Wait for Later {
    fn over(&self) -> Coming<'_, Result<()>> {
        Box::pin(async {
            let answer = match self.deadline {
                None => self.asked.come().await,
                Some(deadline) => {
                    let answer = tokio::time::timeout_at(deadline.into(), self.asked.come()).await;
                    answer.unwrap_or_else(|_| {
                        Err(Error::new(Code::MAX_TIME_MS_EXPIRED, "operation exceeded time limit"))
                    })
                }
            }?;
            self.answer.get_or_init(|| answer);
            Ok(())
        })
    }

    fn is_vital(&self) -> bool {
        true
    }

    fn error_info(&self, _: bool) -> DocBuf {
        unreachable!("without its answer the reply is an error")
    }

    fn add_to(&self, reply: &mut Reply) {
        let answer = self.answer.get().expect("it was waited for");
        reply.fill(|out| answer.append(out));
    }
}

/// The session of a transaction.
///
/// Errors: `FailedToParse` and kin, where its `lsid` is none or has more than its `id`.
pub(super) fn session_of(id: &TransactionId) -> Result<LogicalSessionId> {
    let session = LogicalSessionId::parse(RawDoc::new(&id.lsid))?;
    if session.document().as_bytes() != &*id.lsid {
        bail!(Code::FAILED_TO_PARSE, "the lsid of a transaction has its id and nothing else");
    }
    Ok(session)
}

/// Takes the open transaction of this number out of its session, for good.
fn hand_over(
    op: &Operation<'_>,
    session: &Session,
    state: &mut MutexGuard<'_, SessionState>,
    number: i64,
) -> Option<Box<OpenTransaction>> {
    op.node().refresh_session(session, state);
    if state.txn_number != number {
        return None;
    }
    let TxnState::InProgress { transaction, started, .. } = &mut state.txn else { return None };
    let (transaction, lived) = (transaction.take(), started.elapsed());
    state.txn = TxnState::HandedOver;
    op.node().metrics.transaction_ended(lived);
    op.node()
        .cursors
        .kill_where(|cursor| cursor.lsid == Some(session.id) && cursor.txn_number == Some(number));
    transaction
}
