//! Why bytes are no message.

use sheaf_errors::Error;

/// Why a message could not be read.
#[derive(Debug, Clone, PartialEq)]
pub enum WireError {
    /// The stream can't be trusted any more: close it. The text is for the log.
    Close(String),
    /// The message is whole, but what it holds is wrong: answer with this error.
    Answer(Error),
}

impl WireError {
    pub(crate) fn close(text: impl Into<String>) -> Self {
        WireError::Close(text.into())
    }
}

impl From<Error> for WireError {
    fn from(error: Error) -> Self {
        WireError::Answer(error)
    }
}
