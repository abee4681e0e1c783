//! MongoDB's error codes and names, and the one error type that a client sees.
//!
//! `bson`, `expr`, `query` and `aggregate` speak these codes directly, because the codes are part
//! of the language that those crates implement. Other crates have error enums of their own, and
//! `sheaf-server` alone turns those into an [`Error`].

#![forbid(unsafe_code)]

mod codes;

use std::borrow::Cow;
use std::fmt;

/// A MongoDB error code. Named codes are constants (`Code::BAD_VALUE`); the numbered ones of the
/// aggregation language are written `Code(40323)` and are called `Location40323` on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Code(pub i32);

impl Code {
    /// The `codeName` of replies: the table's name, or `Location<n>` for a numbered code.
    pub fn name(self) -> Cow<'static, str> {
        match codes::NAMED.binary_search_by_key(&self.0, |(code, _)| *code) {
            Ok(at) => Cow::Borrowed(codes::NAMED[at].1),
            Err(_) => Cow::Owned(format!("Location{}", self.0)),
        }
    }

    /// The code with this name, as `configureFailPoint` and `errorCodes` options spell it.
    pub fn from_name(name: &str) -> Option<Code> {
        codes::NAMED.iter().find(|(_, n)| *n == name).map(|(code, _)| Code(*code))
    }
}

/// The error that a client sees: code, message, and what some errors carry besides.
///
/// It is one pointer wide, so that `Result<Value>` stays small on hot paths.
#[derive(Clone, PartialEq)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq)]
struct Inner {
    code: Code,
    message: String,
    err_info: Option<Vec<u8>>,
    extra: Option<Vec<u8>>,
    labels: Vec<&'static str>,
    of_several: bool,
}

/// The result of everything that can fail with a MongoDB error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with this code and message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            code,
            message: message.into(),
            err_info: None,
            extra: None,
            labels: Vec::new(),
            of_several: false,
        }))
    }

    /// `BadValue` (2).
    pub fn bad_value(message: impl Into<String>) -> Self {
        Self::new(Code::BAD_VALUE, message)
    }

    /// `FailedToParse` (9).
    pub fn failed_to_parse(message: impl Into<String>) -> Self {
        Self::new(Code::FAILED_TO_PARSE, message)
    }

    /// `TypeMismatch` (14).
    pub fn type_mismatch(message: impl Into<String>) -> Self {
        Self::new(Code::TYPE_MISMATCH, message)
    }

    /// A numbered (`Location<n>`) error.
    pub fn location(number: i32, message: impl Into<String>) -> Self {
        Self::new(Code(number), message)
    }

    /// Adds the `errInfo` document (raw BSON), as `DocumentValidationFailure` has it.
    #[must_use]
    pub fn with_err_info(mut self, document: Vec<u8>) -> Self {
        self.0.err_info = Some(document);
        self
    }

    /// Adds a document (raw BSON) whose fields stand beside `code` in the reply, as `keyPattern`
    /// and `keyValue` do for `DuplicateKey`.
    #[must_use]
    pub fn with_extra(mut self, document: Vec<u8>) -> Self {
        self.0.extra = Some(document);
        self
    }

    /// Adds an error label, such as `TransientTransactionError`.
    #[must_use]
    pub fn with_label(mut self, label: &'static str) -> Self {
        if !self.0.labels.contains(&label) {
            self.0.labels.push(label);
        }
        self
    }

    /// The same error of more than the statement that met it: statements that were done before are lost with it.
    #[must_use]
    pub fn of_several(mut self) -> Self {
        self.0.of_several = true;
        self
    }

    /// Whether statements are lost with it that were done before the one that met it.
    pub fn is_of_several(&self) -> bool {
        self.0.of_several
    }

    /// Puts `context` and ` :: caused by :: ` in front of the message, as MongoDB does.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.0.message = format!("{context} :: caused by :: {}", self.0.message);
        self
    }

    /// The error's code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The text for `errmsg`.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The `errInfo` document (raw BSON), if any.
    pub fn err_info(&self) -> Option<&[u8]> {
        self.0.err_info.as_deref()
    }

    /// Further top-level fields (a raw BSON document), if any.
    pub fn extra(&self) -> Option<&[u8]> {
        self.0.extra.as_deref()
    }

    /// The error's labels.
    pub fn labels(&self) -> &[&'static str] {
        &self.0.labels
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.code.name(), self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.0.code.name(), self.0.code.0, self.0.message)
    }
}

impl std::error::Error for Error {}

/// Returns early with an [`Error`]: `bail!(Code::BAD_VALUE, "text {}", x)`, or with a bare number
/// for a `Location` code: `bail!(16610, "can't $mod by zero")`.
#[macro_export]
macro_rules! bail {
    ($code:literal, $($text:tt)*) => {
        return Err($crate::Error::new($crate::Code($code), format!($($text)*)))
    };
    ($code:expr, $($text:tt)*) => {
        return Err($crate::Error::new($code, format!($($text)*)))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_codes() {
        assert_eq!(Code::BAD_VALUE.name(), "BadValue");
        assert_eq!(Code::DUPLICATE_KEY, Code(11000));
        assert_eq!(Code(16610).name(), "Location16610");
        assert_eq!(Code::from_name("NotWritablePrimary"), Some(Code(10107)));
        assert!(codes::NAMED.is_sorted_by_key(|(code, _)| *code));
    }
}
