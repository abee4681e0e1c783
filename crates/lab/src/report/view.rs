//! What reports need to know of a run, read from its tree.

use std::collections::BTreeSet;

use crate::results::{Better, Metric, Operation, Repetition, Row, RunResult};
use crate::stats::median;

/// A name for each row: the target is added when there is more than one.
pub fn row_names(run: &RunResult) -> Vec<String> {
    let targets: BTreeSet<&str> = run.rows.iter().map(|r| r.target.as_str()).collect();
    run.rows
        .iter()
        .map(|row| match (row.name.is_empty(), targets.len() > 1) {
            (true, _) => row.target.clone(),
            (false, true) => format!("{} · {}", row.name, row.target),
            (false, false) => row.name.clone(),
        })
        .collect()
}

/// Names and units of all metrics, in order of appearance.
pub fn metric_columns(run: &RunResult) -> Vec<(&str, &str)> {
    let mut columns: Vec<(&str, &str)> = Vec::new();
    for metric in run.rows.iter().flat_map(|r| &r.metrics) {
        if !columns.iter().any(|(name, _)| *name == metric.name) {
            columns.push((&metric.name, &metric.unit));
        }
    }
    columns
}

/// Rows with at most so many metrics are left as they are, where there are several.
const FEW_METRICS: usize = 12;

/// Each row of a run as several, when its metrics are named "group: figure" ("w:1: p99"): a row per group.
///
/// Such a run measures several things one after the other on the same server; side by side they can be read.
pub fn pivoted(run: &RunResult) -> Option<RunResult> {
    let several = run.rows.len() > 1;
    if several && run.rows.iter().any(|row| row.failed.is_some() || row.metrics.len() <= FEW_METRICS) {
        return None;
    }
    let mut rows: Vec<Row> = Vec::new();
    for row in &run.rows {
        let first = rows.len();
        for metric in &row.metrics {
            let (group, figure) = metric.name.rsplit_once(": ")?;
            let name = if several { format!("{}, {group}", row.name) } else { group.to_owned() };
            let index = rows[first..].iter().position(|r| r.name == name).unwrap_or_else(|| {
                rows.push(Row { name, target: row.target.clone(), ..Row::default() });
                rows.len() - 1 - first
            });
            rows[first + index].metrics.push(Metric { name: figure.to_owned(), ..metric.clone() });
        }
    }
    (rows.len() > 1).then(|| RunResult { rows, ..run.clone() })
}

/// A figure with an aim: its row, its name, its median, the aim, and whether it is met.
pub struct Aimed<'a> {
    /// Index of the row.
    pub row: usize,
    /// The figure.
    pub metric: &'a Metric,
    /// Its median.
    pub median: f64,
    /// What it should be, or better.
    pub aim: f64,
    /// Whether it is.
    pub met: bool,
}

/// Every figure that has an aim.
pub fn aims(run: &RunResult) -> Vec<Aimed<'_>> {
    let all = run.rows.iter().enumerate().flat_map(|(row, r)| r.metrics.iter().map(move |m| (row, m)));
    all.filter_map(|(row, metric)| {
        let (aim, median) = (metric.aim?, median(&metric.values)?);
        let met = if metric.better == Some(Better::Higher) { median >= aim } else { median <= aim };
        Some(Aimed { row, metric, median, aim, met })
    })
    .collect()
}

/// Names of all kinds of operations, in order of appearance; of an only row, in the order of its metrics.
pub fn operation_names(run: &RunResult) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    if let [row] = run.rows.as_slice() {
        let known = |name: &str| row.repetitions.iter().any(|r| operation(r, name).is_some());
        for group in row.metrics.iter().filter_map(|m| Some(m.name.rsplit_once(": ")?.0)) {
            if known(group) && !names.contains(&group) {
                names.push(group);
            }
        }
    }
    for operation in run.rows.iter().flat_map(|r| &r.repetitions).flat_map(|r| &r.operations) {
        if !names.contains(&operation.name.as_str()) {
            names.push(&operation.name);
        }
    }
    names
}

/// That kind of operation in a repetition.
pub fn operation<'a>(repetition: &'a Repetition, name: &str) -> Option<&'a Operation> {
    repetition.operations.iter().find(|o| o.name == name)
}

/// The repetition to draw in front: the one whose count of operations per second is the middle one.
pub fn typical(row: &Row) -> usize {
    let rates: Vec<f64> = row
        .repetitions
        .iter()
        .map(|r| r.operations.iter().map(|o| o.count).sum::<u64>() as f64 / r.seconds.max(1e-9))
        .collect();
    let Some(middle) = median(&rates) else { return 0 };
    let distance = |i: &usize| (rates[*i] - middle).abs();
    (0..rates.len()).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
}

/// Sums over a row's repetitions for one kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that succeeded.
    pub done: u64,
    /// Operations that failed for good.
    pub errors: u64,
    /// Tries that were repeated.
    pub retries: u64,
}

/// See [`Counts`].
pub fn counts(row: &Row, name: &str) -> Counts {
    let mut sum = Counts::default();
    for operation in row.repetitions.iter().filter_map(|r| operation(r, name)) {
        sum.done += operation.count;
        sum.errors += operation.errors;
        sum.retries += operation.retries;
    }
    sum
}

/// The texts of one kind of operation's histograms, one per repetition.
pub fn histograms<'a>(row: &'a Row, name: &'a str) -> impl Iterator<Item = &'a str> {
    row.repetitions.iter().filter_map(move |r| operation(r, name)).map(|o| o.histogram.as_str())
}

/// A check that failed, or why a row could not be finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Index of the row.
    pub row: usize,
    /// The check's name, or "row".
    pub check: String,
    /// What was seen.
    pub detail: String,
}

/// Everything that makes the run a failed one.
pub fn failures(run: &RunResult) -> Vec<Failure> {
    let mut failures = Vec::new();
    for (index, row) in run.rows.iter().enumerate() {
        if let Some(reason) = &row.failed {
            failures.push(Failure { row: index, check: "not finished".to_owned(), detail: reason.clone() });
        }
        for (number, repetition) in row.repetitions.iter().enumerate() {
            for check in repetition.checks.iter().filter(|c| !c.passed) {
                let which = if row.repetitions.len() > 1 {
                    format!(" (repetition {})", number + 1)
                } else {
                    String::new()
                };
                let detail = format!("{}{which}", check.detail);
                failures.push(Failure { row: index, check: check.name.clone(), detail });
            }
        }
    }
    failures
}

/// Passed checks and all checks of a row.
pub fn check_counts(row: &Row) -> (usize, usize) {
    let checks = || row.repetitions.iter().flat_map(|r| &r.checks);
    (checks().filter(|c| c.passed).count(), checks().count())
}

/// "12 of 12", "FAILED 1 of 12", "FAILED", or "none" when nothing was checked.
pub fn check_text(row: &Row) -> String {
    match (row.failed.is_some(), check_counts(row)) {
        (true, _) => "NOT FINISHED".to_owned(),
        (false, (_, 0)) => "none".to_owned(),
        (false, (passed, all)) if passed == all => format!("{all} ok"),
        (false, (passed, all)) => format!("FAILED {} of {all}", all - passed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(metrics: &[&str], operations: &[&str]) -> Row {
        let metric =
            |name: &&str| Metric { name: (*name).to_owned(), values: vec![1.0], ..Metric::default() };
        let operation = |name: &&str| Operation { name: (*name).to_owned(), ..Operation::default() };
        let repetition =
            Repetition { operations: operations.iter().map(operation).collect(), ..Repetition::default() };
        Row { metrics: metrics.iter().map(metric).collect(), repetitions: vec![repetition], ..Row::default() }
    }

    #[test]
    fn aims_are_met_or_not_by_their_direction() {
        let with = |better, aim, value| Metric { better, aim, values: vec![value], ..Metric::default() };
        let metrics = vec![
            with(Some(Better::Lower), Some(250.0), 250.0),
            with(Some(Better::Lower), Some(250.0), 251.0),
            with(Some(Better::Higher), Some(0.9), 1.0),
            with(Some(Better::Higher), None, 1.0),
        ];
        let run = RunResult { rows: vec![Row { metrics, ..Row::default() }], ..RunResult::default() };
        assert_eq!(aims(&run).iter().map(|aim| aim.met).collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn groups_of_an_only_row_become_rows() {
        let only = row(&["w:0: p50", "w:0: max", "j:true: p50", "j:true: max"], &["j:true", "w:0", "other"]);
        let run = RunResult { rows: vec![only.clone()], ..RunResult::default() };
        let pivoted = pivoted(&run).unwrap();
        let names: Vec<&str> = pivoted.rows.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, ["w:0", "j:true"]);
        assert_eq!(metric_columns(&pivoted).iter().map(|(n, _)| *n).collect::<Vec<_>>(), ["p50", "max"]);
        assert_eq!(operation_names(&run), ["w:0", "j:true", "other"]);
        let twice = RunResult { rows: vec![only.clone(), only], ..RunResult::default() };
        assert!(super::pivoted(&twice).is_none());
        // Many figures of several rows stand below each other, too.
        let many: Vec<String> = (0..7).flat_map(|n| ["A", "B"].map(|part| format!("{part}: {n}"))).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let row_of = |name: &str| Row { name: name.into(), ..row(&many, &[]) };
        let two = RunResult { rows: vec![row_of("1 KB"), row_of("16 KB")], ..RunResult::default() };
        let names: Vec<String> = super::pivoted(&two).unwrap().rows.into_iter().map(|r| r.name).collect();
        assert_eq!(names, ["1 KB, A", "1 KB, B", "16 KB, A", "16 KB, B"]);
        let plain = RunResult { rows: vec![row(&["p50", "w:0: max"], &[])], ..RunResult::default() };
        assert!(super::pivoted(&plain).is_none());
    }
}
