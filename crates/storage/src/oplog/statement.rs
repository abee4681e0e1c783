//! Statements of retryable writes: what the log and the sessions' records say of an operation besides itself.

use sheaf_bson::DocBuf;

/// Names the statement of a retryable write that the next operations belong to.
#[derive(Clone, Debug)]
pub struct Statement {
    /// The session.
    pub lsid: DocBuf,
    /// The number of the retryable write.
    pub txn_number: i64,
    /// Which of its statements.
    pub stmt_id: i32,
    /// What a retry is answered with; `None` records `{n: 1}`.
    pub result: Option<DocBuf>,
}
