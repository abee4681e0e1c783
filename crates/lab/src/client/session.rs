//! Logical sessions and transactions.

use sheaf_bson::{Binary, DocWriter, Value, doc};

use super::{Client, Side, WriteConcern};
use crate::error::{Error, Result, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT};

/// How a transaction reads and what its commit waits for.
#[derive(Clone, Debug, Default)]
pub struct TransactionOptions {
    /// "snapshot", "majority", "local".
    pub read_concern: Option<String>,
    /// Of the commit.
    pub write_concern: WriteConcern,
}

/// A logical session, which begins with its first transaction.
pub(super) struct Session {
    id: [u8; 16],
    number: i64,
    state: State,
    options: TransactionOptions,
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

impl Session {
    pub(super) fn new() -> Session {
        let mut id: [u8; 16] = rand::random();
        // A version 4 UUID, as drivers make them.
        id[6] = id[6] & 0x0F | 0x40;
        id[8] = id[8] & 0x3F | 0x80;
        Session { id, number: 0, state: State::None, options: TransactionOptions::default() }
    }

    pub(super) fn in_transaction(&self) -> bool {
        self.state != State::None
    }

    /// Adds the transaction's fields to a command.
    pub(super) fn append(&mut self, body: &mut DocWriter<'_, Vec<u8>>) {
        if self.state == State::None {
            return;
        }
        self.append_id(body);
        if self.state == State::Starting {
            body.append("startTransaction", true);
            if let Some(level) = &self.options.read_concern {
                body.document("readConcern").append("level", level.as_str());
            }
            self.state = State::Running;
        }
    }

    fn append_id(&self, body: &mut DocWriter<'_, Vec<u8>>) {
        let id = Value::Binary(Binary { subtype: 4, bytes: &self.id });
        body.document("lsid").append("id", id);
        body.append("txnNumber", self.number).append("autocommit", false);
    }
}

impl Client {
    /// Starts a transaction: every operation until the commit or abort belongs to it.
    pub fn start_transaction(&mut self, options: &TransactionOptions) {
        self.session.number += 1;
        self.session.state = State::Starting;
        self.session.options = options.clone();
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
        let mut tries = 0;
        loop {
            tries += 1;
            match self.end("commitTransaction") {
                Err(error) if tries < 10 && commit_is_unknown(&error) => {
                    // By then another node may be the primary: only a majority can vouch for it.
                    self.session.options.write_concern = WriteConcern::majority();
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
        if self.session.state == State::Running {
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
        let mut retries = 0;
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
            if !error.has_label(TRANSIENT_TRANSACTION_ERROR) || retries + 1 >= TRIES {
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
            session.options.write_concern.append(body);
            body.append("$db", "admin");
        });
        self.exchange(Side::Primary)?;
        self.reply().map(drop)
    }
}

fn commit_is_unknown(error: &Error) -> bool {
    matches!(error, Error::Io(_)) || error.has_label(UNKNOWN_TRANSACTION_COMMIT_RESULT)
}

/// Two transactions that keep meeting each other part by waiting for different times, longer each time.
fn back_off(tries: u32) {
    let most_us = 100u64 << tries.min(8);
    std::thread::sleep(std::time::Duration::from_micros(rand::random_range(0..most_us)));
}
