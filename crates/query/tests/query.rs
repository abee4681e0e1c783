//! Scripts of filters, projections and sorts, and what they make of documents.
#![allow(missing_docs)]

#[path = "support/text.rs"]
mod text;

use sheaf_bson::{Bump, DocBuf, RawDoc};
use sheaf_errors::{Error, Result};
use sheaf_expr::{Env, ParseCx};
use sheaf_query::matcher::Matcher;
use sheaf_query::projection::{Mode, Projection};
use sheaf_query::sort::SortPattern;
use sheaf_query::validation::validation_error_details;

fn show_error(error: &Error) -> String {
    format!("Error: {} ({}): {}", error.code().name(), error.code().0, error.message())
}

fn cx() -> ParseCx {
    ParseCx::new().with_now(1_700_000_000_000)
}

/// What a case works with: filter, projection, sort.
enum Subject {
    Match(Matcher),
    Validate(Matcher),
    Project(Projection, Matcher),
    Sort(SortPattern, Vec<DocBuf>),
}

impl Subject {
    fn parse(command: &str, argument: &str, query: &Matcher) -> Result<Option<Subject>> {
        let mut cx = cx();
        let doc = text::parse_doc(argument);
        let spec = doc.as_raw();
        let again = || Matcher::parse(query.filter(), &mut self::cx());
        let subject = match command {
            "match" => Subject::Match(Matcher::parse(spec, &mut cx)?),
            "validate" => Subject::Validate(Matcher::parse(spec, &mut cx)?),
            "find" => Subject::Project(Projection::parse(spec, Mode::Find, &mut cx)?, again()?),
            "project" => Subject::Project(Projection::parse(spec, Mode::Aggregate, &mut cx)?, again()?),
            "addFields" => Subject::Project(Projection::parse_add_fields(spec, &mut cx)?, again()?),
            "sort" => Subject::Sort(SortPattern::parse(spec)?, Vec::new()),
            _ => return Ok(None),
        };
        cx.finish_as("")?;
        Ok(Some(subject))
    }

    fn run(&mut self, doc: &DocBuf) -> Result<String> {
        match self {
            Subject::Match(matcher) => {
                let yes = matcher.matches_doc(doc.as_raw())?;
                Ok(if yes { "yes" } else { "no" }.to_owned())
            }
            Subject::Validate(matcher) if matcher.matches_doc(doc.as_raw())? => Ok("valid".to_owned()),
            Subject::Validate(matcher) => {
                Ok(text::show(validation_error_details(matcher, doc.as_raw()).as_raw()))
            }
            Subject::Project(projection, query) => {
                let arena = Bump::new();
                let env = Env::new(&arena);
                let details = query.matches_with_details(doc.as_raw(), &env)?;
                let projected = projection.apply_in(doc.as_raw(), &env, details)?;
                assert!(sheaf_bson::validate(projected.as_bytes(), sheaf_bson::MAX_DEPTH).is_ok());
                Ok(text::show(projected))
            }
            Subject::Sort(pattern, docs) => {
                pattern.key(doc.as_raw(), RawDoc::EMPTY)?;
                docs.push(doc.clone());
                Ok(String::new())
            }
        }
    }

    fn finish(self) -> String {
        let Subject::Sort(pattern, mut docs) = self else { return String::new() };
        docs.sort_by_cached_key(|doc| {
            let mut key = Vec::new();
            pattern.put_key_bytes(doc.as_raw(), RawDoc::EMPTY, &mut key).expect("a key");
            key
        });
        docs.iter().map(|doc| text::show(doc.as_raw()) + "\n").collect()
    }
}

/// A case: lines `query <filter>` (for `a.$`), then one of `match`, `validate`, `find`, `project`,
/// `addFields`, `sort` with its document, then `doc <document>`.
fn run(case: &str) -> String {
    let mut query = Matcher::everything();
    let mut subject = None;
    let mut output = String::new();
    for line in case.lines() {
        let (command, argument) = line.split_once(' ').unwrap_or((line, ""));
        match command {
            "query" => {
                query = Matcher::parse(text::parse_doc(argument).as_raw(), &mut cx()).expect("a filter")
            }
            "parsed" => {
                let Some(Subject::Match(matcher)) = &subject else { panic!("a filter first") };
                output += &(text::show(matcher.to_doc().as_raw()) + "\n");
            }
            "doc" => {
                let Some(subject) = &mut subject else { continue };
                let line = Subject::run(subject, &text::parse_doc(argument));
                let line = line.unwrap_or_else(|error| show_error(&error));
                if !line.is_empty() {
                    output += &(line + "\n");
                }
            }
            _ => match Subject::parse(command, argument, &query) {
                Ok(found) => subject = Some(found.unwrap_or_else(|| panic!("unknown command {command}"))),
                Err(error) => output += &(show_error(&error) + "\n"),
            },
        }
    }
    output + &subject.map(Subject::finish).unwrap_or_default()
}

#[test]
fn scripts() {
    text::run_scripts("tests/scripts/query", run);
}
