//! Golden tables: every line of `scripts/*.txt` is `expression [@ document] -> result`, the result a value,
//! or an error as `parse!`, `fold!` or `eval!` with its code and message. `UPDATE=1` rewrites the results.

mod common;

use std::path::Path;

use sheaf_bson::{Bump, RawDoc};
use sheaf_expr::{Env, Expr, ParseCx};

/// What an expression gives on a document.
fn outcome(expression: &str, document: Option<&str>) -> String {
    let (expression, rest) = common::read(expression);
    assert!(rest.trim().is_empty(), "trailing text {rest:?}");
    let document = document.map(|text| common::read(text).0);
    let mut cx = ParseCx::new().with_now(1_700_000_000_000).with_seed(1);
    let expr = match Expr::parse(expression.as_value(), &mut cx) {
        Ok(expr) => expr,
        Err(error) => return format!("parse! {} {}", error.code().0, error.message()),
    };
    if let Err(error) = cx.finish_as("") {
        return format!("fold! {} {}", error.code().0, error.message());
    }
    let arena = Bump::new();
    let root = document.as_ref().and_then(|doc| doc.as_value().as_doc()).unwrap_or(RawDoc::EMPTY);
    match expr.eval(root, &Env::new(&arena)) {
        Ok(value) => common::show(value),
        Err(error) => format!("eval! {} {}", error.code().0, error.message()),
    }
}

fn run(line: &str) -> String {
    let (input, _) = line.split_once(" -> ").unwrap_or((line.trim_end_matches(" ->"), ""));
    let (expression, document) = match input.split_once(" @ ") {
        Some((expression, document)) => (expression, Some(document)),
        None => (input, None),
    };
    format!("{} -> {}", input.trim(), outcome(expression, document))
}

fn check(path: &Path) {
    let before = std::fs::read_to_string(path).expect("a script");
    let mut after = String::new();
    for line in before.lines() {
        if line.trim().is_empty() || line.starts_with('#') {
            after.push_str(line);
        } else {
            after.push_str(&run(line));
        }
        after.push('\n');
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, after).expect("writing a script");
        return;
    }
    let differing: Vec<_> = before.lines().zip(after.lines()).filter(|(a, b)| a != b).collect();
    for (expected, found) in &differing {
        eprintln!("expected: {expected}\n   found: {found}");
    }
    assert!(differing.is_empty(), "{}: {} lines differ", path.display(), differing.len());
}

#[test]
fn scripts() {
    let folder = Path::new("tests/scripts");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("the scripts' folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no scripts");
    paths.iter().for_each(|path| check(path));
}
