//! Logical sessions and transactions.

use std::time::{Duration, Instant};

use sheaf_bson::{Binary, DocBuf, DocWriter, RawDoc, Timestamp, Value, doc};

use super::{Client, RETRY_PAUSE, Side, WriteConcern};
use crate::error::{Error, Result, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT};

/// How a transaction reads and what its commit waits for.
#[derive(Clone, Debug, Default)]
pub struct TransactionOptions {
    /// "snapshot", "majority", "local".
    pub read_concern: Option<String>,
    /// Of the commit.
    pub write_concern: WriteConcern,
}

/// A logical session, which begins with the first operation that needs one.
pub(super) struct Session {
    id: [u8; 16],
    /// Of the last transaction or retryable write.
    number: i64,
    state: State,
    options: TransactionOptions,
    /// Whether reads come after all that was seen before.
    pub causal: bool,
    /// `$clusterTime` of a reply, the newest one, as it came.
    cluster_time: Option<(Timestamp, DocBuf)>,
    /// `operationTime` of a reply, the newest one.
    operation_time: Option<Timestamp>,
    /// `recoveryToken` of the transaction, by which another router than the one that has begun it can find out what became of
    /// it.
    recovery_token: Option<DocBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    None,
    /// Begun here, not yet told to the server.
    Starting,
    Running,
}

/// Most times that one transaction is tried before its error is given back.
const TRIES: u32 = 1000;
/// And how long, which is what drivers do.
const PATIENCE: Duration = Duration::from_secs(120);
/// Most times that a commit is sent to a server that is alone, and how long to a set, which may have to elect.
const COMMIT_TRIES: u32 = 10;
const COMMIT_PATIENCE: Duration = Duration::from_secs(30);

impl Session {
    pub(super) fn new() -> Session {
        let mut id: [u8; 16] = rand::random();
        // A version 4 UUID, as drivers make them.
        id[6] = id[6] & 0x0F | 0x40;
        id[8] = id[8] & 0x3F | 0x80;
        let options = TransactionOptions::default();
        Session {
            id,
            number: 0,
            state: State::None,
            options,
            causal: false,
            cluster_time: None,
            operation_time: None,
            recovery_token: None,
        }
    }

    pub(super) fn in_transaction(&self) -> bool {
        self.state != State::None
    }

    /// Adds to a command what belongs to the session: the transaction's fields, or what makes it causal.
    pub(super) fn append(&mut self, body: &mut DocWriter<'_, Vec<u8>>) {
        if self.state == State::None {
            if self.causal {
                self.append_id(body);
                self.append_cluster_time(body);
            }
            return;
        }
        self.append_id(body);
        body.append("txnNumber", self.number).append("autocommit", false);
        if self.state == State::Starting {
            body.append("startTransaction", true);
            self.append_any_read_concern(body, self.options.read_concern.as_deref());
            self.state = State::Running;
        }
        self.append_cluster_time(body);
    }

    /// Adds to a write outside of transactions what makes it happen once, however often it is sent.
    pub(super) fn append_retryable(&mut self, body: &mut DocWriter<'_, Vec<u8>>) {
        self.number += 1;
        self.append_id(body);
        body.append("txnNumber", self.number);
        self.append_cluster_time(body);
    }

    /// Adds the read concern to a command outside of transactions.
    pub(super) fn append_read_concern(&self, body: &mut DocWriter<'_, Vec<u8>>, level: Option<&str>) {
        if self.state == State::None {
            self.append_any_read_concern(body, level);
        }
    }

    fn append_any_read_concern(&self, body: &mut DocWriter<'_, Vec<u8>>, level: Option<&str>) {
        // A linearizable read is after everything in any case, and must not name a time.
        let after = self.operation_time.filter(|_| self.causal && level != Some("linearizable"));
        if level.is_none() && after.is_none() {
            return;
        }
        let mut concern = body.document("readConcern");
        if let Some(level) = level {
            concern.append("level", level);
        }
        if let Some(after) = after {
            concern.append("afterClusterTime", Value::Timestamp(after));
        }
    }

    /// Takes the times in that a reply tells, and the token of a transaction.
    pub(super) fn advance(&mut self, reply: RawDoc<'_>) {
        if self.state != State::None
            && let Some(token) = reply.get("recoveryToken").and_then(|token| token.as_doc())
        {
            self.recovery_token = Some(DocBuf::from(token));
        }
        if !self.causal {
            return;
        }
        if let Some(Value::Timestamp(time)) = reply.get("operationTime") {
            self.operation_time = self.operation_time.max(Some(time));
        }
        let Some(told) = reply.get("$clusterTime").and_then(|time| time.as_doc()) else { return };
        if let Some(Value::Timestamp(time)) = told.get("clusterTime")
            && self.cluster_time.as_ref().is_none_or(|(known, _)| *known < time)
        {
            self.cluster_time = Some((time, DocBuf::from(told)));
        }
    }

    fn append_id(&self, body: &mut DocWriter<'_, Vec<u8>>) {
        let id = Value::Binary(Binary { subtype: 4, bytes: &self.id });
        body.document("lsid").append("id", id);
    }

    fn append_cluster_time(&self, body: &mut DocWriter<'_, Vec<u8>>) {
        if let Some((_, time)) = &self.cluster_time {
            body.append("$clusterTime", time.as_raw());
        }
    }
}

impl Client {
    /// Starts a transaction: every operation until the commit or abort belongs to it.
    pub fn start_transaction(&mut self, options: &TransactionOptions) {
        self.session.number += 1;
        self.session.state = State::Starting;
        self.session.options = options.clone();
        self.session.recovery_token = None;
    }

    /// Whether a transaction is open.
    pub fn in_transaction(&self) -> bool {
        self.session.in_transaction()
    }

    /// Commits; sent again while the outcome is unknown.
    pub fn commit_transaction(&mut self) -> Result<()> {
        // A transaction that has done nothing was never told to the server.
        if self.session.state == State::Starting {
            self.session.state = State::None;
            return Ok(());
        }
        let (began, mut tries) = (Instant::now(), 0);
        let may_elect = self.to.is_replicated();
        loop {
            tries += 1;
            let patient = if may_elect { began.elapsed() < COMMIT_PATIENCE } else { tries < COMMIT_TRIES };
            match self.end("commitTransaction") {
                Err(error) if patient && commit_is_unknown(&error) => {
                    // By then another node may be the primary: only a majority can vouch for it.
                    self.session.options.write_concern = WriteConcern::majority();
                    std::thread::sleep(RETRY_PAUSE);
                }
                outcome => {
                    self.session.state = State::None;
                    return outcome;
                }
            }
        }
    }

    /// Aborts. That the server has done so already is no error.
    pub fn abort_transaction(&mut self) {
        // With its connection, the transaction is lost as well, or its next one ends it.
        if self.session.state == State::Running && self.primary.is_some() {
            let _ = self.end("abortTransaction");
        }
        self.session.state = State::None;
    }

    /// Runs `body` as one transaction, and again while the server says by a label that it may: what `body` gave, and
    /// how many more tries it took. `body` must use only this client.
    pub fn transaction<T>(
        &mut self,
        options: &TransactionOptions,
        mut body: impl FnMut(&mut Client) -> Result<T>,
    ) -> Result<(T, u32)> {
        let (began, mut retries) = (Instant::now(), 0);
        loop {
            self.start_transaction(options);
            let error = match body(self) {
                Ok(value) => match self.commit_transaction() {
                    Ok(()) => return Ok((value, retries)),
                    // It may have happened, and must then not happen twice.
                    Err(error) if commit_is_unknown(&error) => return Err(error),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            self.abort_transaction();
            let enough = retries + 1 >= TRIES || began.elapsed() > PATIENCE;
            if !error.has_label(TRANSIENT_TRANSACTION_ERROR) || enough {
                return Err(error);
            }
            retries += 1;
            back_off(retries);
        }
    }

    fn end(&mut self, command: &str) -> Result<()> {
        let command = doc! { command: 1 };
        let session = &self.session;
        self.message.begin(0, |body| {
            body.append_all(command.as_raw());
            session.append_id(body);
            body.append("txnNumber", session.number).append("autocommit", false);
            session.options.write_concern.append(body);
            if let Some(token) = &session.recovery_token {
                body.append("recoveryToken", token.as_raw());
            }
            session.append_cluster_time(body);
            body.append("$db", "admin");
        });
        self.exchange(Side::Primary)?;
        self.reply().map(drop)
    }
}

/// Whether the transaction may have been committed although the commit failed. Drivers put the label
/// UnknownTransactionCommitResult on such errors themselves.
pub fn commit_is_unknown(error: &Error) -> bool {
    match error {
        Error::Io(_) => true,
        Error::Server(server) => {
            let label = error.has_label(UNKNOWN_TRANSACTION_COMMIT_RESULT);
            // MaxTimeMSExpired, like a majority that was not reached in time, says nothing about the commit itself.
            let open = error.is_transient() || server.code == 50;
            label || open && !error.has_label(TRANSIENT_TRANSACTION_ERROR)
        }
        _ => false,
    }
}

/// Two transactions that keep meeting each other part by waiting for different times, longer each time.
fn back_off(tries: u32) {
    let most_us = 100u64 << tries.min(8);
    std::thread::sleep(std::time::Duration::from_micros(rand::random_range(0..most_us)));
}
