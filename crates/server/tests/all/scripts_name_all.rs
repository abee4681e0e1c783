//! Each operator, stage, accumulator and command stands in a golden script.
#![allow(clippy::disallowed_methods, reason = "a test reads the scripts of the repository")]

use std::fs;
use std::path::Path;

use sheaf_auth::Action;
use sheaf_server::command::{Description, Privileges};
use sheaf_server::commands::TABLE;

/// Operators of queries and updates: they are read by matches, not from tables.
const QUERY: &[&str] = &[
    "$all",
    "$alwaysFalse",
    "$alwaysTrue",
    "$and",
    "$bitsAllClear",
    "$bitsAllSet",
    "$bitsAnyClear",
    "$bitsAnySet",
    "$comment",
    "$elemMatch",
    "$eq",
    "$exists",
    "$expr",
    "$geoIntersects",
    "$geoWithin",
    "$gt",
    "$gte",
    "$in",
    "$jsonSchema",
    "$lt",
    "$lte",
    "$mod",
    "$ne",
    "$near",
    "$nearSphere",
    "$nin",
    "$nor",
    "$not",
    "$or",
    "$regex",
    "$size",
    "$slice",
    "$text",
    "$type",
    "$where",
    "$addToSet",
    "$bit",
    "$currentDate",
    "$each",
    "$inc",
    "$max",
    "$min",
    "$mul",
    "$pop",
    "$position",
    "$pull",
    "$pullAll",
    "$push",
    "$rename",
    "$set",
    "$setOnInsert",
    "$sort",
    "$unset",
];

/// Whether members of a set and shards ask each other this: such commands have tests of their own kind.
fn is_internal(command: &Description) -> bool {
    let Privileges::Needs(list) = command.spec.privileges else { return false };
    list.iter().any(|privilege| privilege.actions.contains(&Action::Internal))
}

fn texts(folder: &Path, out: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            texts(&path, out);
        } else {
            out.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

/// Whether a name stands in a text, and not as the beginning of a longer one.
fn names(text: &str, name: &str) -> bool {
    text.match_indices(name)
        .any(|(at, _)| !text[at + name.len()..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
}

#[test]
fn each_name_stands_in_a_script() {
    let mut text = String::new();
    for script in ["../aggregate", "../expr", "../query", "."] {
        texts(&Path::new(script).join("tests/scripts"), &mut text);
    }
    let stages = sheaf_aggregate::STAGES.iter().map(|stage| stage.name);
    let accumulators = sheaf_aggregate::ACCUMULATORS.iter().map(|accumulator| accumulator.name);
    let operators =
        sheaf_expr::operator_names().chain(stages).chain(accumulators).chain(QUERY.iter().copied());
    // What stages are made into for themselves is no word of clients.
    let missing: Vec<&str> =
        operators.filter(|name| !name.starts_with("$_internal") && !names(&text, name)).collect();
    assert!(missing.is_empty(), "no golden script has {missing:?}");

    let is_asked = |name: &str| text.contains(&format!(" {{{name}:"));
    let missing: Vec<&str> = TABLE
        .all()
        .filter(|command| !is_internal(command) && !command.spec.test_only && command.name != "shutdown")
        .map(|command| command.name)
        .filter(|name| !is_asked(name))
        .collect();
    assert!(missing.is_empty(), "no golden script asks {missing:?}");
}
