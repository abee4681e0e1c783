//! What can go wrong on the way to a server, and what a caller does about it. The laboratory's own errors are these, too.

use std::fmt;
use std::io;

/// The result of whoever speaks to a server.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong, by what a caller does about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server answered with an error. Labels and code decide about another try.
    #[error("{0}")]
    Server(Box<ServerError>),
    /// The network or a disk failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What was asked for makes no sense; the text is for the person who asked.
    #[error("{0}")]
    Usage(String),
    /// Anything else: a server that does not start, an answer that is none.
    #[error("{0}")]
    Failed(String),
    /// The run is being stopped.
    #[error("interrupted")]
    Interrupted,
}

/// An error that a server answered with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerError {
    /// 112.
    pub code: i32,
    /// "WriteConflict".
    pub code_name: String,
    /// The server's own words.
    pub message: String,
    /// "TransientTransactionError", "RetryableWriteError", ...
    pub labels: Vec<String>,
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.code_name, self.code, self.message)
    }
}

impl Error {
    /// An error for the person who asked.
    pub fn usage(text: impl Into<String>) -> Error {
        Error::Usage(text.into())
    }

    /// An error of the run.
    pub fn failed(text: impl Into<String>) -> Error {
        Error::Failed(text.into())
    }

    /// Puts words in front of the text. A server's error keeps its code and labels.
    #[must_use]
    pub fn context(self, words: impl fmt::Display) -> Error {
        match self {
            Error::Server(mut error) => {
                error.message = format!("{words}: {}", error.message);
                Error::Server(error)
            }
            Error::Io(error) => Error::Io(io::Error::new(error.kind(), format!("{words}: {error}"))),
            Error::Usage(text) => Error::Usage(format!("{words}: {text}")),
            Error::Failed(text) => Error::Failed(format!("{words}: {text}")),
            Error::Interrupted => Error::Interrupted,
        }
    }

    /// The server's error code, if it was the server that answered.
    pub fn code(&self) -> Option<i32> {
        match self {
            Error::Server(error) => Some(error.code),
            _ => None,
        }
    }

    /// Whether the error comes and goes with the servers: a connection broke, there is no primary, the primary steps
    /// down or shuts down, or a write concern was not met in time. The operation may have happened.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Io(_) => true,
            Error::Server(error) => {
                TRANSIENT_CODES.contains(&error.code)
                    || self.has_label(RETRYABLE_WRITE_ERROR)
                    || self.has_label(TRANSIENT_TRANSACTION_ERROR)
                    || self.has_label(UNKNOWN_TRANSACTION_COMMIT_RESULT)
            }
            _ => false,
        }
    }

    /// Whether the error has this label. A connection that broke is transient to a transaction.
    pub fn has_label(&self, label: &str) -> bool {
        match self {
            Error::Server(error) => error.labels.iter().any(|l| l == label),
            Error::Io(_) => label == TRANSIENT_TRANSACTION_ERROR,
            _ => false,
        }
    }
}

/// HostUnreachable, HostNotFound, WriteConcernFailed (its timeout), NetworkTimeout, ShutdownInProgress,
/// FailedToSatisfyReadPreference, ReadConcernMajorityNotAvailableYet, PrimarySteppedDown, ExceededTimeLimit,
/// SocketException, NotWritablePrimary, InterruptedAtShutdown, InterruptedDueToReplStateChange,
/// NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary.
const TRANSIENT_CODES: [i32; 15] =
    [6, 7, 64, 89, 91, 133, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436];

/// The write may be sent again with its transaction number.
pub const RETRYABLE_WRITE_ERROR: &str = "RetryableWriteError";
/// The whole transaction may be tried again.
pub const TRANSIENT_TRANSACTION_ERROR: &str = "TransientTransactionError";
/// The commit may have happened; it may be sent again.
pub const UNKNOWN_TRANSACTION_COMMIT_RESULT: &str = "UnknownTransactionCommitResult";
