//! What comes of a request.

use std::time::Instant;

use sheaf_errors::{Code, Error, Result};

use crate::reply::Reply;
use crate::role::{Cause, Wait};

/// What a role made of a request.
pub struct Ran {
    /// The command's answer, without what every answer has.
    pub result: Result<Reply>,
    /// Instead of an answer: wait, and run the same request again.
    pub parked: Option<Parked>,
    /// What must be so before the reply goes out.
    pub wait: Option<Box<dyn Wait>>,
    /// `operationTime`: what the command wrote or read.
    pub operation_time: Option<u64>,
}

impl Ran {
    /// An answer that waits for nothing.
    pub fn at_once(result: Result<Reply>) -> Self {
        Ran { result, parked: None, wait: None, operation_time: None }
    }
}

/// A request that has nothing to answer yet. The connection waits, without holding a thread, and runs it once more; who
/// waits remembers for how long its client is willing to.
pub struct Parked {
    /// Then it is run again in any case; without it there is no limit.
    pub until: Option<Instant>,
    /// What it waits for.
    pub cause: Box<dyn Cause>,
}

/// What came of a request; the connection completes and sends it.
pub struct RequestOutcome {
    /// The reply, still open: `ok` and what the wait brings are added at the end.
    pub reply: Reply,
    /// Whether the command succeeded.
    pub ok: bool,
    /// The error that is the whole answer.
    pub error: Option<Error>,
    /// What must be so before the reply goes out.
    pub wait: Option<Box<dyn Wait>>,
    /// Code of the `writeConcernError` that a fail point has put into the reply.
    pub write_concern_code: Option<Code>,
    /// Whether a driver may send the command again: a retryable write, or the end of a transaction.
    pub retryable: bool,
    /// `operationTime`: what the command wrote or read.
    pub operation_time: Option<u64>,
    /// Labels to add to a successful reply, from a fail point.
    pub labels: Vec<String>,
    /// Instead of an answer: wait, and run the same request again.
    pub parked: Option<Parked>,
    /// The same request runs again after this reply, which is marked `moreToCome`.
    pub exhaust: bool,
    /// Close the connection instead of answering.
    pub close: bool,
}

impl RequestOutcome {
    /// An error as the whole answer.
    pub fn of_error(error: &Error) -> Self {
        RequestOutcome {
            ok: false,
            error: Some(error.clone()),
            ..RequestOutcome::of_reply(Reply::error(error))
        }
    }

    pub(crate) fn of_reply(reply: Reply) -> Self {
        RequestOutcome {
            reply,
            ok: true,
            error: None,
            wait: None,
            write_concern_code: None,
            retryable: false,
            operation_time: None,
            labels: Vec::new(),
            parked: None,
            exhaust: false,
            close: false,
        }
    }
}
