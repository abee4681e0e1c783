//! Statements of transactions, and their end.
//!
//! At the end, those that have only read are ended first; then the one that has written commits, and its commit is the transaction's.
//! Where several have written, [`commit`](crate::commit) begins.

use sheaf_bson::{DocBuf, Value, doc};
use sheaf_client::Message;
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_front::reply::Reply;
use sheaf_front::session::{LogicalSessionId, TxnPart};
use sheaf_shard::{Executed, TransactionId};

use crate::commit::{self, Participating};
use crate::forward::{self, Body};
use crate::op::Operation;
use crate::router::Router;
use crate::session::{Participant, Session, Stage, Transaction};
use crate::target::Target;

/// Runs a statement of a transaction, or its end.
///
/// Errors: `NoSuchTransaction`, `TransactionTooOld`; those of the statement, after which the transaction is over.
pub fn run<'a>(
    op: &Operation<'a>,
    session: &Session,
    number: i64,
    work: impl FnOnce(&Operation<'a>) -> Result<Reply>,
) -> Result<Reply> {
    let mut state = op.session_state(session)?;
    if let Some(newest) = state.newest.filter(|newest| *newest > number) {
        bail!(
            Code::TRANSACTION_TOO_OLD,
            "txnNumber {number} is less than last txnNumber {newest} seen in session {}",
            session.id
        );
    }
    if op.part == TxnPart::Start && state.newest == Some(number) {
        return Err(begun_already(state.transaction.as_ref(), number));
    }
    let known = state.transaction.take().filter(|known| known.number == number);
    let transaction = match op.part {
        TxnPart::Start => begin(op, number),
        TxnPart::Commit | TxnPart::Abort => match known {
            Some(known) => known,
            None => recovered(op, number)?,
        },
        _ => match known {
            Some(known) if known.stage == Stage::Open => known,
            known => {
                state.transaction = known;
                return Err(not_open(state.transaction.as_ref(), number, state.newest));
            }
        },
    };
    state.newest = Some(number);
    op.transaction.replace(Some(transaction));
    let result = work(op);
    let failed =
        result.is_err() || op.transaction.borrow().as_ref().is_some_and(|transaction| transaction.failed);
    if failed && !op.part.ends() {
        abort_after_error(op);
    }
    let mut transaction = op.transaction.take();
    if let Some(transaction) = &mut transaction {
        transaction.open_time = match (transaction.stage, transaction.read_at) {
            (Stage::Open, Some(at)) => {
                transaction.open_time.take().or_else(|| Some(op.router.open_times.open(at)))
            }
            _ => None,
        };
    }
    state.transaction = transaction;
    result
}

/// Why a later statement finds no open transaction.
fn not_open(known: Option<&Transaction>, number: i64, newest: Option<i64>) -> Error {
    match known.map(|known| known.stage) {
        Some(Stage::Committing | Stage::Recovering) => {
            let text = format!("Transaction with {{ txnNumber: {number} }} has been committed.");
            Error::new(Code::TRANSACTION_COMMITTED, text)
        }
        Some(_) => {
            let text = format!("Transaction with {{ txnNumber: {number} }} has been aborted.");
            Error::new(Code::NO_SUCH_TRANSACTION, text)
        }
        None => {
            let text = format!(
                "Given transaction number {number} does not match any in-progress transactions. The active transaction number is {}",
                newest.unwrap_or(-1)
            );
            Error::new(Code::NO_SUCH_TRANSACTION, text)
        }
    }
}

fn begun_already(known: Option<&Transaction>, number: i64) -> Error {
    let state = known.map_or("over", |known| known.stage.name());
    Error::location(
        50911,
        format!(
            "Cannot start a transaction at given transaction number {number} a transaction with the same number is in state {state}"
        ),
    )
}

fn begin(op: &Operation<'_>, number: i64) -> Transaction {
    let read_concern = op.body().get("readConcern").and_then(|concern| concern.as_doc()).map(DocBuf::from);
    Transaction {
        number,
        stage: Stage::Open,
        read_concern,
        read_at: None,
        open_time: None,
        participants: Vec::new(),
        failed: false,
    }
}

/// What a commit's token tells of a transaction that this router has not seen.
///
/// Errors: `TypeMismatch` for what is no token; `ShardNotFound`; those of asking the config servers.
fn recovered(op: &Operation<'_>, number: i64) -> Result<Transaction> {
    let mut participants = Vec::new();
    if let Some(token) = op.body().get("recoveryToken") {
        let shard = token.as_doc().map(|token| token.get_or_missing("recoveryShardId"));
        participants = match shard {
            Some(Value::String(shard)) => {
                let shard = op.blocking(|| op.router.directory.shard(shard, &|| op.check_interrupt()))?;
                vec![Participant { target: Target::Shard(shard), begun: true, writes: true, executed: None }]
            }
            // A transaction that has done nothing has no shard.
            Some(Value::Missing) => Vec::new(),
            _ => {
                bail!(Code::TYPE_MISMATCH, "recoveryToken must be a document with the string recoveryShardId")
            }
        };
    }
    Ok(Transaction {
        number,
        stage: Stage::Recovering,
        read_concern: None,
        read_at: None,
        open_time: None,
        participants,
        failed: false,
    })
}

/// A statement has failed: the others must not go on holding what the transaction has locked.
pub fn abort_after_error(op: &Operation<'_>) {
    let Some(mut transaction) = op.transaction.take() else { return };
    transaction.stage = Stage::Aborted;
    let lsid = op.lsid().expect("a transaction has a session");
    abort_everywhere(op.router, lsid, &transaction);
    op.transaction.replace(Some(transaction));
}

/// A statement is to begin anew, and with it the transaction, of which it is the first: whoever has taken part until now is told that it
/// is over. The time that was chosen to read at is chosen anew with it: what was refused at that time would be again. `false`: there is none.
pub fn begin_anew(op: &Operation<'_>) -> bool {
    let Some(mut transaction) = op.transaction.take() else { return false };
    let lsid = op.lsid().expect("a transaction has a session");
    abort_everywhere(op.router, lsid, &transaction);
    transaction.participants.clear();
    transaction.read_at = None;
    transaction.failed = false;
    op.transaction.replace(Some(transaction));
    true
}

/// Has all participants abort; who cannot be reached does so when the transaction's time is over.
fn abort_everywhere(router: &Router, lsid: LogicalSessionId, transaction: &Transaction) {
    let command = doc! {
        "abortTransaction": 1, "lsid": lsid.document().as_raw(), "txnNumber": transaction.number, "autocommit": false
    };
    for participant in transaction.participants.iter() {
        let went_on = std::time::Instant::now();
        let go_on = || match went_on.elapsed() < std::time::Duration::from_secs(1) {
            true => Ok(()),
            false => Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time")),
        };
        let _ = sheaf_cluster::run(participant.target.set(), &router.clock, "admin", &command, false, &go_on);
    }
}

/// `commitTransaction`.
pub fn commit(op: &Operation<'_>) -> Result<Reply> {
    let (number, stage) = begin_commit(op)?;
    let lsid = op.lsid().expect("a transaction has a session");
    let id = TransactionId::new(lsid.document().into_bytes(), number);
    let transaction = op.transaction.borrow();
    let transaction = transaction.as_ref().expect("it was just there");
    if let Some(shard) = transaction.to_be_asked(stage, &op.router.directory)? {
        let at = op.blocking(|| commit::recover(op, &id, &shard))?;
        op.note_time(at.into());
        return Ok(with_token(Reply::ok(), transaction));
    }
    // What was read on one shard alone is of one state; of several, each says that what it has shown is sure.
    if transaction.participants.len() > 1 {
        let taking = transaction.participants.iter().map(|participant| Participating {
            shard: participant.shard(&op.router.directory),
            executed: participant.executed.unwrap_or_default(),
            wrote: participant.writes,
        });
        let taking: Vec<Participating> = taking.collect();
        let read_at = transaction.read_at.unwrap_or_else(|| op.router.present());
        let at = op.blocking(|| commit::commit(op, &id, &taking, read_at))?;
        op.note_time(at.into());
        return Ok(with_token(Reply::ok(), transaction));
    }
    let only: Vec<Target> =
        transaction.participants.iter().map(|participant| participant.target.clone()).collect();
    end_each(op, &only)
}

/// Commits a transaction of the router's own: as one, or, if it is to be `alone`, on each shard by itself. Gives errors of write concerns,
/// and the shards that they are of.
///
/// Errors: those of the commit; the transaction is over.
pub fn commit_own(op: &Operation<'_>, alone: Option<&mut Vec<String>>) -> Result<Vec<(String, DocBuf)>> {
    let (id, participants) = {
        let mut transaction = op.transaction.borrow_mut();
        let transaction = transaction.as_mut().expect("it was begun");
        transaction.stage = Stage::Committing;
        let lsid = op.lsid().expect("it has a session");
        let id = TransactionId::new(lsid.document().into_bytes(), transaction.number);
        let taking = transaction
            .participants
            .iter()
            .map(|participant| (participant.target.clone(), participant.executed.unwrap_or_default()));
        (id, taking.collect::<Vec<_>>())
    };
    if participants.len() > 1 && alone.is_none() {
        let taking = participants.iter().filter_map(|(target, executed)| match target {
            Target::Shard(shard) => {
                Some(Participating { shard: shard.clone(), executed: *executed, wrote: true })
            }
            Target::Config(_) => None,
        });
        let taking: Vec<Participating> = taking.collect();
        // All of them have written: nobody is asked whether what was read is final.
        let at = op.blocking(|| commit::commit(op, &id, &taking, op.router.present()))?;
        op.note_time(at.into());
        return Ok(Vec::new());
    }
    let mut command = doc! { "commitTransaction": 1 };
    command.edit(|out| op.own.borrow().as_ref().expect("it is the router's own").append(out));
    if let Some(concern) = op.body().element("writeConcern") {
        command.edit(|out| _ = out.append_element(concern));
    }
    end_alone(op, &participants, &command, alone.unwrap_or(&mut Vec::new()))
}

/// Has each of these commit by itself. After an error `committed` are those that have.
fn end_alone(
    op: &Operation<'_>,
    participants: &[(Target, Executed)],
    command: &DocBuf,
    committed: &mut Vec<String>,
) -> Result<Vec<(String, DocBuf)>> {
    let go_on = || op.check_interrupt();
    let asker = sheaf_cluster::Asker { preference: Default::default(), again: true, go_on: &go_on };
    let mut concerns = Vec::new();
    op.blocking(|| {
        let send = |(target, _): &(Target, Executed)| {
            let mut message = Message::new();
            message.begin(0, |out| {
                out.append_all(command.as_raw());
                op.router.clock.append(out, op.generic.cluster_time);
                out.append("$db", "admin");
            });
            (target.clone(), sheaf_cluster::Call::send(target.set(), &mut message, &asker), message)
        };
        let under_way: Vec<_> = participants.iter().map(send).collect();
        let mut failed = None;
        for (target, call, mut message) in under_way {
            match call.and_then(|call| call.finish(&mut message, &asker)) {
                Ok(answer) => {
                    op.heard(answer.reply());
                    match sheaf_cluster::error_in(answer.reply()) {
                        Some(error) => _ = failed.get_or_insert(sheaf_cluster::for_client(error)),
                        None => committed.push(target.name().to_owned()),
                    }
                    let error = answer.reply().get("writeConcernError").and_then(|error| error.as_doc());
                    concerns.extend(error.map(|error| (target.name().to_owned(), error.into())));
                }
                Err(error) => _ = failed.get_or_insert(sheaf_cluster::for_client(error)),
            }
        }
        failed.map_or(Ok(concerns), Err)
    })
}

/// Notes that the commit has begun; gives the transaction's number and how far it was.
///
/// Errors: `NoSuchTransaction`.
fn begin_commit(op: &Operation<'_>) -> Result<(i64, Stage)> {
    let mut transaction = op.transaction.borrow_mut();
    let Some(transaction) = &mut *transaction else {
        bail!(Code::NO_SUCH_TRANSACTION, "commitTransaction must be run within a transaction");
    };
    if transaction.stage == Stage::Aborted {
        bail!(Code::NO_SUCH_TRANSACTION, "Transaction {} has been aborted", transaction.number);
    }
    let stage = transaction.stage;
    if stage == Stage::Open {
        transaction.stage = Stage::Committing;
    }
    Ok((transaction.number, stage))
}

/// Ends the transaction on each of these, one after the other; the reply is the last one's.
fn end_each(op: &Operation<'_>, targets: &[Target]) -> Result<Reply> {
    let body = Body { db: "admin", body: op.body() };
    let mut last = Reply::ok();
    for target in targets {
        let mut message: Message = forward::message(op, &target.clone().into(), &body);
        let go_on = || op.check_interrupt();
        let asker = sheaf_cluster::Asker { preference: Default::default(), again: true, go_on: &go_on };
        let answer =
            op.blocking(|| target.set().ask(&mut message, &asker)).map_err(sheaf_cluster::for_client)?;
        op.heard(answer.reply());
        if let Some(error) = sheaf_cluster::error_in(answer.reply()) {
            return Err(error);
        }
        last = forward::reply(op, target, &answer)?;
    }
    Ok(last)
}

fn with_token(mut reply: Reply, transaction: &Transaction) -> Reply {
    transaction.append_token(&mut reply);
    reply
}

/// `abortTransaction`.
pub fn abort(op: &Operation<'_>) -> Result<Reply> {
    let Some(mut transaction) = op.transaction.take() else {
        bail!(Code::NO_SUCH_TRANSACTION, "abortTransaction must be run within a transaction");
    };
    let was = std::mem::replace(&mut transaction.stage, Stage::Aborted);
    let number = transaction.number;
    if was == Stage::Open || !transaction.participants.is_empty() {
        let lsid = op.lsid().expect("a transaction has a session");
        op.blocking(|| abort_everywhere(op.router, lsid, &transaction));
    }
    op.transaction.replace(Some(transaction));
    if was != Stage::Open {
        bail!(Code::NO_SUCH_TRANSACTION, "Transaction {number} has been aborted or committed");
    }
    Ok(Reply::ok())
}
