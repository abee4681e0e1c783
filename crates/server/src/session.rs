//! Sessions as a mongod keeps them: the transactions and retryable writes that they carry, and how they end.

mod attempts;
mod ending;
mod idle;
mod state;

pub use attempts::{Attempts, admit as admit_attempt, admit_in_transaction as admit_attempt_in_transaction};
pub use ending::Leftovers;
pub use sheaf_front::args::subtype_name;
pub use sheaf_front::session::{LogicalSessionId, TxnPart};
pub use state::{SessionState, TxnState};

/// One logical session.
pub type Session = sheaf_front::session::Session<SessionState>;

/// All sessions of the node.
pub type Sessions = sheaf_front::session::Sessions<SessionState>;
