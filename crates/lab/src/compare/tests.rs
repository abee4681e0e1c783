use super::*;
use crate::results::{Check, Repetition};

fn run(rows: Vec<Row>) -> RunResult {
    RunResult { experiment: "bank".into(), scale: 1.0, rows, ..RunResult::default() }
}

fn row(name: &str, target: &str, better: Better, values: &[f64]) -> Row {
    let metric = Metric {
        name: "speed".into(),
        unit: "1/s".into(),
        better: Some(better),
        values: values.to_vec(),
        aim: None,
    };
    Row { name: name.into(), target: target.into(), metrics: vec![metric], ..Row::default() }
}

const SLOW: [f64; 5] = [100.0, 101.0, 99.0, 102.0, 98.0];
const FAST: [f64; 5] = [150.0, 151.0, 149.0, 152.0, 148.0];

#[test]
fn a_clear_difference_is_called_by_its_direction() {
    for (better, a, b, change, word) in [
        (Better::Higher, SLOW, FAST, Change::Better, "better"),
        (Better::Higher, FAST, SLOW, Change::Worse, "WORSE"),
        (Better::Lower, SLOW, FAST, Change::Worse, "WORSE"),
        (Better::Lower, FAST, SLOW, Change::Better, "better"),
    ] {
        let compared =
            compare(&run(vec![row("r", "sheaf 1", better, &a)]), &run(vec![row("r", "sheaf 1", better, &b)]));
        assert_eq!(compared.rows[0].metrics[0].change(), change);
        assert!(table::table(&compared, 200).contains(word));
    }
}

#[test]
fn few_or_equal_repetitions_show_nothing() {
    let one = |values: &[f64]| run(vec![row("r", "sheaf 1", Better::Higher, values)]);
    let few = compare(&one(&SLOW[..3]), &one(&FAST[..3]));
    assert_eq!(few.rows[0].metrics[0].change(), Change::Unclear);
    assert!(table::table(&few, 200).contains("too few repetitions"));
    let same = compare(&one(&SLOW), &one(&SLOW));
    assert_eq!(same.rows[0].metrics[0].change(), Change::Unclear);
    assert_eq!(same.rows[0].metrics[0].ratio.unwrap().ratio, 1.0);
    assert!(table::table(&same, 200).contains("not significant"));
}

#[test]
fn one_repetition_has_a_ratio_and_no_interval() {
    let one = |values: &[f64]| run(vec![row("r", "sheaf 1", Better::Higher, values)]);
    for (a, b) in [(&SLOW[..1], &FAST[..1]), (&SLOW[..1], &FAST[..3]), (&SLOW[..3], &FAST[..1])] {
        let compared = compare(&one(a), &one(b));
        let text = table::table(&compared, 200);
        let line = text.lines().find(|line| line.starts_with("r: speed")).unwrap();
        assert!(line.contains(" 1.5") && line.contains(" -  "), "{line}");
        assert!(!compared.html().contains("class=\"interval\""), "{line}");
    }
    let two = table::table(&compare(&one(&SLOW[..2]), &one(&FAST[..2])), 200);
    assert!(two.contains("1.49 - 1.51"), "{two}");
}

#[test]
fn the_first_line_says_what_moved() {
    let named = |name: &str, better, values: &[f64]| row(name, "sheaf 1", better, values);
    let stalls = |values: &[f64]| {
        let mut row = named("stalled", Better::Lower, values);
        row.metrics[0].name = "gaps > 100 ms".into();
        row.metrics[0].unit = String::new();
        row
    };
    let a = run(vec![
        named("faster", Better::Higher, &SLOW),
        named("same", Better::Higher, &SLOW),
        named("as ever", Better::Higher, &SLOW),
        stalls(&[0.0; 5]),
        named("once", Better::Higher, &SLOW[..1]),
    ]);
    let b = run(vec![
        named("faster", Better::Higher, &FAST),
        named("same", Better::Higher, &SLOW),
        named("as ever", Better::Higher, &SLOW),
        stalls(&[3.0, 2.0, 4.0, 3.0, 5.0]),
        named("once", Better::Higher, &FAST[..1]),
    ]);
    let compared = compare(&a, &b);
    let summary = compared.summary();
    assert!(summary.starts_with("moved: faster (speed x 1.50 ["), "{summary}");
    assert!(
        summary.contains("] better); stalled (gaps > 100 ms 0 to 3 WORSE); did not move: 2 rows; "),
        "{summary}"
    );
    assert!(summary.ends_with("cannot be told of so few repetitions: 1 row"), "{summary}");
    assert_eq!(table::table(&compared, 200).lines().nth(2), Some(summary.as_str()));
    assert!(compared.html().contains("did not move: 2 rows"));
    let same =
        compare(&run(vec![named("x", Better::Higher, &SLOW)]), &run(vec![named("x", Better::Higher, &SLOW)]));
    assert_eq!(same.summary(), "moved: nothing; did not move: 1 row");
}

#[test]
fn rows_find_their_partners() {
    let a = run(vec![
        row("x", "sheaf 0.1", Better::Higher, &SLOW),
        row("x", "mongod 8.2.1", Better::Higher, &SLOW),
        row("y", "sheaf 0.1", Better::Higher, &SLOW),
        row("gone", "sheaf 0.1", Better::Higher, &SLOW),
    ]);
    let b = run(vec![
        row("x", "mongod 8.2.1", Better::Higher, &SLOW),
        row("x", "sheaf 0.2", Better::Higher, &FAST),
        row("y", "mongod 8.2.1", Better::Higher, &FAST),
        row("new", "sheaf 0.2", Better::Higher, &SLOW),
    ]);
    let compared = compare(&a, &b);
    let targets: Vec<[&str; 2]> =
        compared.rows.iter().map(|r| [r.targets[0].as_str(), r.targets[1].as_str()]).collect();
    assert_eq!(
        targets,
        [["sheaf 0.1", "sheaf 0.2"], ["mongod 8.2.1", "mongod 8.2.1"], ["sheaf 0.1", "mongod 8.2.1"]]
    );
    assert!(compared.warnings.iter().any(|w| w == "only the first run has the row \"gone\" on sheaf 0.1"));
    assert!(compared.warnings.iter().any(|w| w == "only the second run has the row \"new\" on sheaf 0.2"));
}

#[test]
fn failed_rows_do_not_count() {
    let a = run(vec![row("r", "sheaf 1", Better::Higher, &SLOW)]);
    let mut b = run(vec![row("r", "sheaf 1", Better::Higher, &FAST)]);
    let check = Check { name: "total balance".into(), passed: false, detail: "900 of 1000".into() };
    b.rows[0].repetitions.push(Repetition { checks: vec![check], ..Repetition::default() });
    let compared = compare(&a, &b);
    assert!(compared.rows[0].metrics.is_empty());
    let text = table::table(&compared, 200);
    assert!(
        text.contains("row r does not count: in the second run it failed (total balance: 900 of 1000)"),
        "{text}"
    );
    assert!(compared.html().contains("Does not count"));
}

#[test]
fn other_machines_and_settings_are_named() {
    let mut a = run(Vec::new());
    let mut b = run(Vec::new());
    a.environment.cores = 8;
    b.environment.cores = 16;
    (a.environment.fsync_us, b.environment.fsync_us) = (100.0, 140.0);
    b.settings.insert("threads".into(), "12".into());
    b.scale = 0.1;
    b.environment.load = 12.0;
    assert_eq!(
        compare(&a, &b).warnings,
        [
            "the scale differs: 1 and 0.1",
            "--set threads differs: as in the file and 12",
            "the number of processors differs: 8 and 16",
            "the machine was busy when the second run began: load 12 on 16 processors",
        ]
    );
    b.environment.fsync_us = 200.0;
    assert!(compare(&a, &b).warnings.contains(&"write+fdatasync differs: 100 µs and 200 µs".to_owned()));
}

#[test]
fn the_page_escapes_and_draws() {
    let evil = "<b>\"x";
    let one = |values: &[f64]| run(vec![row(evil, evil, Better::Higher, values)]);
    let html = compare(&one(&SLOW), &one(&FAST)).html();
    assert!(!html.contains("<b>\"x") && html.contains("&lt;b&gt;"));
    assert_eq!(html.matches("class=\"interval\"").count(), 1);
    assert!(!html.contains("NaN"));
}
