//! Scripts of updates: an update and the documents that it meets, and what becomes of them.
#![allow(missing_docs)]

#[path = "support/text.rs"]
mod text;

use sheaf_bson::{ObjectId, RawDoc, Timestamp, Value};
use sheaf_errors::{Error, Result};
use sheaf_expr::ParseCx;
use sheaf_query::diff::{apply_diff, diff};
use sheaf_query::update::{ApplyCx, Update};

const NOW: i64 = 1_700_000_000_000;

fn show_error(error: &Error) -> String {
    format!("Error: {} ({}): {}", error.code().name(), error.code().0, error.message())
}

/// A case: `update <update>` and then lines `filters <array>`, `at <index>`, `doc <document>`, `upsert <query>`.
fn run(case: &str) -> String {
    let mut update = None;
    let mut filters = None;
    let mut index = None;
    let mut output = String::new();
    for line in case.lines() {
        let (command, argument) = line.split_once(' ').unwrap_or((line, ""));
        match command {
            "update" => update = Some(text::parse(argument)),
            "filters" => filters = Some(text::parse(argument)),
            "at" => index = Some(argument.to_owned()),
            "doc" | "upsert" => {
                let filters: Vec<RawDoc<'_>> = match filters.as_ref().map(|f| f.as_value()) {
                    Some(Value::Array(filters)) => filters.values().filter_map(|f| f.as_doc()).collect(),
                    _ => Vec::new(),
                };
                let update = update.as_ref().expect("an update first").as_value();
                let result = apply(update, &filters, index.as_deref(), command == "upsert", argument);
                output += &result.unwrap_or_else(|error| show_error(&error));
                output.push('\n');
            }
            other => panic!("unknown command {other}"),
        }
    }
    output
}

fn apply(
    update: Value<'_>,
    filters: &[RawDoc<'_>],
    index: Option<&str>,
    upsert: bool,
    text: &str,
) -> Result<String> {
    let mut parse = ParseCx::new().with_now(NOW);
    let update = Update::parse(update, filters, &mut parse)?;
    parse.finish()?;
    let cx = ApplyCx { matched_index: index, now_millis: NOW, timestamp: Timestamp::new(7, 1) };
    let doc = text::parse_doc(text);
    if upsert {
        let new = update.upsert(doc.as_raw(), || ObjectId([9; 12]), &cx)?;
        return Ok(text::show(new.as_raw()));
    }
    let Some(new) = update.apply(doc.as_raw(), &cx)? else { return Ok("no change".into()) };
    assert!(sheaf_bson::validate(new.as_bytes(), sheaf_bson::MAX_DEPTH).is_ok(), "malformed result");
    if let Some(delta) = diff(doc.as_raw(), new.as_raw()) {
        assert_eq!(apply_diff(doc.as_raw(), delta.as_raw()), new);
    }
    Ok(text::show(new.as_raw()))
}

#[test]
fn scripts() {
    text::run_scripts("tests/scripts/update", run);
}
