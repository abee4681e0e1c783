//! Attempts at one retryable statement that more than one shard may execute. Each asks the shards what they have executed before it looks for
//! the statement's document; they execute it only for the attempt that has asked last (`sheaf_server`'s `session::attempts`).

use std::time::Duration;

use sheaf_errors::{Code, Error};
use sheaf_front::generic::{Attempt, attempt_number};

use crate::op::Operation;

/// So many attempts of an operation give way to others.
const MOST: u32 = 10;

/// The longest pause before the second attempt; it doubles with each.
const PAUSE: Duration = Duration::from_millis(4);

/// An operation's attempts.
#[derive(Default)]
pub struct Attempts {
    /// How many have given way.
    given_up: u32,
    /// The latest that a shard has told of.
    newest: u128,
}

impl Attempts {
    /// Begins an attempt, if the operation is a retryable write.
    pub fn begin(&self, op: &Operation<'_>) {
        if op.is_retryable_write() {
            let time = u128::from(op.present().0) << 64;
            let number = (time | u128::from(random())).max(self.newest + 1);
            op.attempt.set(Some(number));
        }
    }

    /// Whether an error says that another attempt has come between. Then this one is over, and the statement may be begun again, after a
    /// pause that this makes.
    pub fn has_given_way(&mut self, op: &Operation<'_>, error: &Error) -> bool {
        let Some(newest) = overtaken_by(error) else { return false };
        op.attempt.set(None);
        self.newest = self.newest.max(newest);
        self.given_up += 1;
        if self.given_up >= MOST {
            return false;
        }
        let most = PAUSE * (1 << self.given_up);
        op.blocking(|| std::thread::sleep(most.mul_f64(random() as f64 / u64::MAX as f64)));
        true
    }

    /// The error as a client gets it: one of these is an invitation to try again.
    pub fn for_client(error: Error) -> Error {
        match overtaken_by(&error) {
            None => error,
            Some(_) => Error::new(
                Code::CONFLICTING_OPERATION_IN_PROGRESS,
                "the same statement has come through other routers again and again",
            )
            .with_label("RetryableWriteError"),
        }
    }
}

/// The attempt that another one has given way to, if this is what the error says.
fn overtaken_by(error: &Error) -> Option<u128> {
    let told = error.extra().filter(|_| error.code() == Code::CONFLICTING_OPERATION_IN_PROGRESS)?;
    attempt_number(sheaf_bson::RawDoc::new(told).get_or_missing("retryAttempt")).ok()
}

fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1
}

/// What a message of the operation's attempt says, which `asks` or executes.
pub fn said(op: &Operation<'_>, asks: bool) -> Option<Attempt> {
    op.attempt.get().filter(|_| op.is_retryable_write()).map(|number| Attempt { number, asks })
}
