//! `arrayFilters`: which elements `$[identifier]` stands for.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::ParseCx;

use crate::matcher::{Features, Matcher};

/// The filters of an update, by identifier: there may be tens of thousands of them.
#[derive(Debug, Default)]
pub(super) struct ArrayFilters(BTreeMap<String, ArrayFilter>);

/// One filter: a query whose paths all start with the identifier.
#[derive(Debug)]
struct ArrayFilter {
    matcher: Matcher,
    /// Which of them it is.
    place: usize,
    /// Whether some path of the update has its identifier.
    used: bool,
}

impl ArrayFilters {
    /// Reads all filters of a command.
    pub(super) fn parse(filters: &[RawDoc<'_>], cx: &mut ParseCx) -> Result<ArrayFilters> {
        let mut parsed = ArrayFilters::default();
        for filter in filters {
            sheaf_meter::tick(1)?;
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
            let place = parsed.0.len();
            match parsed.0.entry(identifier) {
                Entry::Vacant(entry) => _ = entry.insert(ArrayFilter { matcher, place, used: false }),
                Entry::Occupied(known) => bail!(
                    Code::FAILED_TO_PARSE,
                    "Found multiple array filters with the same top-level field name {}",
                    known.key()
                ),
            }
        }
        Ok(parsed)
    }

    /// Notes that a path has this identifier; false if no filter has it.
    pub(super) fn note_use(&mut self, identifier: &str) -> bool {
        let found = self.0.get_mut(identifier);
        found.map(|filter| filter.used = true).is_some()
    }

    /// The identifier of the first filter that no path uses.
    pub(super) fn unused(&self) -> Option<&str> {
        let unused = self.0.iter().filter(|(_, filter)| !filter.used);
        unused.min_by_key(|(_, filter)| filter.place).map(|(identifier, _)| identifier.as_str())
    }

    /// Whether an array's element passes the filter of this identifier.
    pub(super) fn matches(&self, identifier: &str, value: Value<'_>) -> Result<bool> {
        sheaf_meter::tick(1)?;
        match self.0.get(identifier) {
            Some(filter) => filter.matcher.matches_doc(DocBuf::new().with(identifier, value).as_raw()),
            None => Ok(false),
        }
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

#[cfg(test)]
mod tests {
    use super::super::{ApplyCx, Update};
    use super::*;
    use sheaf_bson::{Timestamp, doc};

    fn update(paths: &[String], identifiers: &[String]) -> Result<Update> {
        let filters: Vec<DocBuf> = identifiers.iter().map(|name| DocBuf::new().with(name, 1)).collect();
        let filters: Vec<RawDoc<'_>> = filters.iter().map(DocBuf::as_raw).collect();
        let update = DocBuf::build(|out| {
            let mut set = out.document("$set");
            paths.iter().for_each(|path| _ = set.append(path, 2));
        });
        Update::parse(Value::Document(update.as_raw()), &filters, &mut ParseCx::new())
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("f{n}")).collect()
    }

    /// Each was compared with all others, three times.
    #[test]
    fn very_many_filters_are_read_at_once() {
        let mut identifiers = names(100_000);
        let mut paths: Vec<String> = identifiers.iter().map(|name| format!("a.$[{name}].{name}")).collect();
        let cx = ApplyCx { matched_index: None, now_millis: 0, timestamp: Timestamp(0) };
        let parsed = update(&paths, &identifiers).unwrap();
        let old = doc! { "a": [{ "b": 1 }, 7] };
        assert!(parsed.apply(old.as_raw(), &cx).unwrap().is_none());
        paths.pop();
        let unused = update(&paths, &identifiers).unwrap_err();
        assert!(unused.message().starts_with("The array filter for identifier 'f99999' was not used in"));
        identifiers.pop();
        paths.push("a.$[f99999]".into());
        let unknown = update(&paths, &identifiers).unwrap_err();
        assert!(unknown.message().starts_with("No array filter found for identifier 'f99999' in path"));
        identifiers.push("f7".into());
        let twice = update(&paths, &identifiers).unwrap_err();
        assert_eq!(twice.message(), "Found multiple array filters with the same top-level field name f7");
    }

    #[test]
    fn each_identifier_has_its_own_filter() {
        let filters = [doc! { "x": { "$gt": 5 } }, doc! { "y.b": 1 }];
        let filters = filters.each_ref().map(DocBuf::as_raw);
        let update = doc! { "$set": { "a.$[x]": 0, "a.$[y].b": 2 } };
        let update = Update::parse(Value::Document(update.as_raw()), &filters, &mut ParseCx::new()).unwrap();
        let cx = ApplyCx { matched_index: None, now_millis: 0, timestamp: Timestamp(0) };
        let new = update.apply(doc! { "a": [7, 3, { "b": 1 }] }.as_raw(), &cx).unwrap();
        assert_eq!(new, Some(doc! { "a": [0, 3, { "b": 2 }] }));
    }

    /// Such a path has ended the process: it had a call on the stack for each part.
    #[test]
    fn a_path_that_no_document_has_is_refused() {
        let long = vec!["a"; 1_000_000].join(".");
        for operator in ["$set", "$inc", "$unset", "$push", "$pull", "$setOnInsert", "$bit", "$rename"] {
            let argument: Value<'_> = if operator == "$rename" { "b".into() } else { 1.into() };
            let update = DocBuf::build(|out| _ = out.document(operator).append(&long, argument));
            let error =
                Update::parse(Value::Document(update.as_raw()), &[], &mut ParseCx::new()).unwrap_err();
            assert_eq!(error.code(), Code::OVERFLOW, "{operator}");
        }
        let target = doc! { "$rename": { "b": &*long } };
        let error = Update::parse(Value::Document(target.as_raw()), &[], &mut ParseCx::new()).unwrap_err();
        assert_eq!(error.code(), Code::OVERFLOW);
    }
}
