//! Document validation: a collection's `validator`.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Error, Result};
use sheaf_expr::ParseCx;
use sheaf_query::matcher::Matcher;
use sheaf_query::validation::validation_error;
use sheaf_storage::Collection;

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
    warn: bool,
}

impl Validator {
    /// The collection's validator, if it has one that is on.
    pub fn of(collection: &Collection) -> Result<Option<Validator>> {
        let options = collection.options.as_raw();
        let Some(Value::Document(filter)) = options.get("validator") else { return Ok(None) };
        let level = options.get("validationLevel").and_then(|v| v.as_str()).unwrap_or("strict");
        if level == "off" || filter.is_empty() {
            return Ok(None);
        }
        let action = options.get("validationAction").and_then(|v| v.as_str()).unwrap_or("error");
        let matcher = Matcher::parse(filter, &mut ParseCx::new())?;
        Ok(Some(Validator { matcher, moderate: level == "moderate", warn: action == "warn" }))
    }

    /// Checks a new document, or the new version of one; `old` is the version before.
    pub fn check(&self, old: Option<RawDoc<'_>>, new: RawDoc<'_>) -> Result<Validation> {
        // A document that fails already may stay as bad as it is when the level is moderate.
        let exempt = self.moderate && matches!(old, Some(old) if !self.matcher.matches_doc(old)?);
        if exempt || self.matcher.matches_doc(new)? {
            return Ok(Validation::Passed);
        }
        let error = validation_error(&self.matcher, new);
        Ok(if self.warn { Validation::Warned(error) } else { Validation::Failed(error) })
    }

    /// Like [`Validator::check`], for callers that only need to know whether to go on.
    pub fn enforce(&self, old: Option<RawDoc<'_>>, new: RawDoc<'_>) -> Result<()> {
        match self.check(old, new)? {
            Validation::Failed(error) => Err(error),
            Validation::Passed | Validation::Warned(_) => Ok(()),
        }
    }
}
