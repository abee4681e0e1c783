//! Document validation: a collection's `validator`.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Error, Result};
use sheaf_expr::ParseCx;
use sheaf_query::matcher::Matcher;
use sheaf_query::validation::validation_error;
use sheaf_storage::Collection;

use super::ends_command;

/// What the validator says of a document.
#[derive(Debug)]
pub enum Validation {
    /// It may be stored.
    Passed,
    /// It may be stored, but should be logged (`validationAction: "warn"`).
    Warned(Error),
    /// It may not be stored.
    Failed(Error),
}

/// A collection's validator.
#[derive(Debug)]
pub struct Validator {
    matcher: Matcher,
    moderate: bool,
    action: Action,
    namespace: String,
}

/// `validationAction`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Error,
    Warn,
    ErrorAndLog,
}

/// Told of a document that fails a validator which wants that to be logged: its collection's name, itself, and the
/// error with its reasons.
pub type Report = fn(&str, RawDoc<'_>, &Error);

impl Validator {
    /// The collection's validator, if it has one that is on.
    pub fn of(collection: &Collection) -> Result<Option<Validator>> {
        let options = collection.options.as_raw();
        let Some(Value::Document(filter)) = options.get("validator") else { return Ok(None) };
        let level = options.get("validationLevel").and_then(|v| v.as_str()).unwrap_or("strict");
        if level == "off" || filter.is_empty() {
            return Ok(None);
        }
        let action = match options.get("validationAction").and_then(|v| v.as_str()) {
            Some("warn") => Action::Warn,
            Some("errorAndLog") => Action::ErrorAndLog,
            _ => Action::Error,
        };
        let mut cx = ParseCx::new().with_collator(collection.collator.clone());
        let matcher = Matcher::parse(filter, &mut cx)?;
        let namespace = collection.namespace.clone();
        Ok(Some(Validator { matcher, moderate: level == "moderate", action, namespace }))
    }

    /// Checks a new document, or the new version of one; `old` is the version before.
    pub fn check(&self, old: Option<RawDoc<'_>>, new: RawDoc<'_>) -> Result<Validation> {
        // A document that fails already may stay as bad as it is when the level is moderate.
        let exempt = self.moderate && matches!(old, Some(old) if !self.passes(old)?);
        if exempt || self.passes(new)? {
            return Ok(Validation::Passed);
        }
        let error = validation_error(&self.matcher, new);
        Ok(if self.action == Action::Warn { Validation::Warned(error) } else { Validation::Failed(error) })
    }

    /// Whether a document passes. One of which an expression cannot be evaluated does not, and the error tells of that
    /// as of any other clause.
    fn passes(&self, doc: RawDoc<'_>) -> Result<bool> {
        match self.matcher.matches_doc(doc) {
            Err(error) if !ends_command(&error) && error.code() != Code::EXCEEDED_MEMORY_LIMIT => Ok(false),
            passes => passes,
        }
    }

    /// Like [`Validator::check`], for callers that only need to know whether to go on; `report` is told of what is to be
    /// logged.
    pub fn enforce(&self, old: Option<RawDoc<'_>>, new: RawDoc<'_>, report: Report) -> Result<()> {
        let (error, passes) = match self.check(old, new)? {
            Validation::Passed => return Ok(()),
            Validation::Warned(error) => (error, true),
            Validation::Failed(error) => (error, false),
        };
        if self.action != Action::Error {
            report(&self.namespace, new, &error);
        }
        if passes { Ok(()) } else { Err(error) }
    }
}
