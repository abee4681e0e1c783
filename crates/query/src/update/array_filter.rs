//! `arrayFilters`: which elements `$[identifier]` stands for.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::ParseCx;

use crate::matcher::{Features, Matcher};

/// One filter: a query whose paths all start with the identifier.
#[derive(Debug)]
pub(super) struct ArrayFilter {
    pub(super) identifier: String,
    matcher: Matcher,
}

impl ArrayFilter {
    /// Reads all filters of a command.
    pub(super) fn parse_all(filters: &[RawDoc<'_>], cx: &mut ParseCx) -> Result<Vec<ArrayFilter>> {
        let mut parsed: Vec<ArrayFilter> = Vec::with_capacity(filters.len());
        for filter in filters {
            let matcher = Matcher::parse_with(*filter, Features::None, cx)
                .map_err(|e| e.context("Error parsing array filter"))?;
            let mut identifier = None;
            collect_identifier(*filter, &mut identifier)?;
            let Some(identifier) = identifier else {
                bail!(
                    Code::FAILED_TO_PARSE,
                    "Cannot use an expression without a top-level field name in arrayFilters"
                );
            };
            check_identifier(&identifier)?;
            if parsed.iter().any(|known| known.identifier == identifier) {
                bail!(
                    Code::FAILED_TO_PARSE,
                    "Found multiple array filters with the same top-level field name {identifier}"
                );
            }
            parsed.push(ArrayFilter { identifier, matcher });
        }
        Ok(parsed)
    }

    /// Whether an array's element passes.
    pub(super) fn matches(&self, value: Value<'_>) -> Result<bool> {
        self.matcher.matches_doc(DocBuf::new().with(&self.identifier, value).as_raw())
    }
}

fn check_identifier(identifier: &str) -> Result<()> {
    let bytes = identifier.as_bytes();
    let well_formed =
        bytes.first().is_some_and(u8::is_ascii_lowercase) && bytes.iter().all(u8::is_ascii_alphanumeric);
    if !well_formed {
        bail!(
            Code::BAD_VALUE,
            "Error parsing array filter :: caused by :: The top-level field name must be an alphanumeric string \
             beginning with a lowercase letter, found '{identifier}'"
        );
    }
    Ok(())
}

/// Finds the one top-level name that a filter uses, also inside `$and`, `$or` and `$nor`.
fn collect_identifier(filter: RawDoc<'_>, found: &mut Option<String>) -> Result<()> {
    for element in filter.iter() {
        match (element.key(), element.value()) {
            ("$and" | "$or" | "$nor", Value::Array(clauses)) => {
                for clause in clauses.values() {
                    if let Value::Document(clause) = clause {
                        collect_identifier(clause, found)?;
                    }
                }
            }
            (key, _) if key.starts_with('$') => {}
            (key, _) => {
                let name = key.split('.').next().unwrap_or(key);
                match found {
                    Some(known) if known != name => bail!(
                        Code::FAILED_TO_PARSE,
                        "Error parsing array filter :: caused by :: Expected a single top-level field name, found \
                         '{known}' and '{name}'"
                    ),
                    Some(_) => {}
                    None => *found = Some(name.to_owned()),
                }
            }
        }
    }
    Ok(())
}
