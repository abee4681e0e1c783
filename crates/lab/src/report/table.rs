//! The table at the end of a run.

use std::fmt::Write as _;

use super::format::{count, date, duration, figure, latency, number, range, unit_text};
use super::text::{Align, Grid};
use super::view;
use crate::results::{Row, RunResult};
use crate::stats;

/// The whole report as text.
pub fn table(run: &RunResult, width: usize) -> String {
    let mut text = heading(run);
    for warning in &run.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    text.push('\n');
    let (full, short) = (metrics(run, true), metrics(run, false));
    let grid = if full.fits(width) || !short.fits(width) { full } else { short };
    text.push_str(&grid.print(width));
    let aims = aims(run);
    if !aims.is_empty() {
        text.push_str("\nAims\n");
        text.push_str(&aims.print(width));
    }
    let latencies = latencies(run);
    if !latencies.is_empty() {
        text.push_str("\nLatency by operation, all repetitions together\n");
        text.push_str(&latencies.print(width));
    }
    let steps = steps(run);
    if !steps.is_empty() {
        text.push_str("\nOperations per second by number of clients: average (best second)\n");
        text.push_str(&steps.print(width));
    }
    let faults = super::faults::grid(run);
    if !faults.is_empty() {
        text.push_str("\nFaults, of the repetition in the middle, and how long nothing succeeded\n");
        text.push_str(&faults.print(width));
    }
    text.push_str(&verdict(run));
    text
}

fn heading(run: &RunResult) -> String {
    let environment = &run.environment;
    let mut text = format!("{}: {}\n", run.experiment, run.title);
    let _ = write!(text, "{}, {}, scale {}", date(run.started_ms), duration(run.duration_s), run.scale);
    for (name, value) in &run.settings {
        let _ = write!(text, ", {name}={value}");
    }
    let _ = writeln!(
        text,
        "\n{}, {} cores, {} memory, {}, write+fdatasync {}",
        environment.cpu,
        environment.cores,
        super::format::bytes(environment.memory_bytes),
        environment.filesystem,
        latency(environment.fsync_us)
    );
    text
}

/// One line per row: the median of each metric and its spread; narrower without the spread.
fn metrics(run: &RunResult, spread: bool) -> Grid {
    let pivoted = view::pivoted(run);
    let checked = pivoted.is_none();
    let run = pivoted.as_ref().unwrap_or(run);
    let columns = view::metric_columns(run);
    let several_targets = run.rows.windows(2).any(|w| w[0].target != w[1].target);
    let mut header = vec![("row".to_owned(), Align::Left)];
    if several_targets {
        header.push(("target".to_owned(), Align::Left));
    }
    for (name, unit) in &columns {
        let unit = unit_text(name, unit);
        let name = if unit.is_empty() { (*name).to_owned() } else { format!("{name} ({unit})") };
        header.push((name, Align::Right));
    }
    header.extend(checked.then(|| ("checks".to_owned(), Align::Left)));
    let mut grid = Grid::new(header);
    for row in &run.rows {
        let mut cells = vec![if row.name.is_empty() { row.target.clone() } else { row.name.clone() }];
        if several_targets {
            cells.push(row.target.clone());
        }
        cells.extend(columns.iter().map(|(name, _)| metric_text(row, name, spread)));
        cells.extend(checked.then(|| view::check_text(row)));
        grid.row(cells);
    }
    grid
}

/// "412", or "412 (395-420)" from several repetitions.
fn metric_text(row: &Row, name: &str, spread: bool) -> String {
    let Some(metric) = row.metrics.iter().find(|m| m.name == name) else { return "-".to_owned() };
    let Some(summary) = stats::summary(&metric.values) else { return "-".to_owned() };
    let middle = figure(summary.median, &metric.unit);
    if summary.n == 1 || !spread {
        return middle;
    }
    if figure(summary.min, &metric.unit) == figure(summary.max, &metric.unit) {
        return middle;
    }
    format!("{middle} ({})", range(summary.min, summary.max, &metric.unit, "-"))
}

/// The figures that have an aim.
fn aims(run: &RunResult) -> Grid {
    let columns = ["row", "figure", "measured", "aim", ""];
    let align = |name: &&str| if matches!(*name, "measured" | "aim") { Align::Right } else { Align::Left };
    let mut grid = Grid::new(columns.iter().map(|name| ((*name).to_owned(), align(name))).collect());
    let names = view::row_names(run);
    for view::Aimed { row, metric, median, aim, met } in view::aims(run) {
        grid.row(vec![
            names[row].clone(),
            metric.name.clone(),
            figure(median, &metric.unit),
            figure(aim, &metric.unit),
            if met { "met" } else { "MISSED" }.to_owned(),
        ]);
    }
    grid
}

/// A line per operation, below its row's name; columns of zeros are left out.
fn latencies(run: &RunResult) -> Grid {
    let all = || run.rows.iter().flat_map(|r| &r.repetitions).flat_map(|r| &r.operations);
    let (errors, retries) = (all().any(|o| o.errors > 0), all().any(|o| o.retries > 0));
    let mut names = vec!["count"];
    names.extend(errors.then_some("errors"));
    names.extend(retries.then_some("retries"));
    names.extend(["mean", "p50", "p95", "p99", "p99.9", "max"]);
    let mut header = vec![("operation".to_owned(), Align::Left)];
    header.extend(names.iter().map(|n| ((*n).to_owned(), Align::Right)));
    let mut grid = Grid::new(header);
    for (row, row_name) in run.rows.iter().zip(view::row_names(run)) {
        let mut lines = Vec::new();
        for name in view::operation_names(run) {
            let Ok(histogram) = stats::merge_histograms(view::histograms(row, name)) else { continue };
            let counts = view::counts(row, name);
            if counts.done + counts.errors == 0 {
                continue;
            }
            let at = |quantile: f64| latency(histogram.value_at_quantile(quantile) as f64 / 1e3);
            let mut cells = vec![format!("  {name}"), count(counts.done)];
            cells.extend(errors.then(|| count(counts.errors)));
            cells.extend(retries.then(|| count(counts.retries)));
            if histogram.is_empty() {
                cells.extend(std::iter::repeat_n("-".to_owned(), 6));
            } else {
                cells.push(latency(histogram.mean() / 1e3));
                cells.extend([0.5, 0.95, 0.99, 0.999].map(at));
                cells.push(latency(histogram.max() as f64 / 1e3));
            }
            lines.push(cells);
        }
        if !lines.is_empty() {
            grid.row(vec![row_name]);
            lines.into_iter().for_each(|cells| grid.row(cells));
        }
    }
    grid
}

/// The steps of the typical repetition of each row.
fn steps(run: &RunResult) -> Grid {
    let steps_of =
        |row: &Row| row.repetitions.get(view::typical(row)).map(|r| r.steps.clone()).unwrap_or_default();
    let mut kinds: Vec<String> = Vec::new();
    for kind in run.rows.iter().flat_map(&steps_of).flat_map(|s| s.rates.into_keys()) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let mut header = vec![("row".to_owned(), Align::Left), ("clients".to_owned(), Align::Right)];
    header.extend(kinds.iter().map(|k| (k.clone(), Align::Right)));
    let mut grid = Grid::new(header);
    for (row, name) in run.rows.iter().zip(view::row_names(run)) {
        for step in steps_of(row) {
            let mut cells = vec![name.clone(), step.clients.to_string()];
            cells.extend(kinds.iter().map(|kind| {
                step.rates
                    .get(kind)
                    .map_or("-".to_owned(), |r| format!("{} ({})", number(r.average), number(r.peak)))
            }));
            grid.row(cells);
        }
    }
    grid
}

fn verdict(run: &RunResult) -> String {
    let failures = view::failures(run);
    let all: usize = run.rows.iter().map(|r| view::check_counts(r).1).sum();
    if failures.is_empty() {
        return match all {
            0 => "\nNothing was checked.\n".to_owned(),
            _ => format!("\nAll {all} checks passed.\n"),
        };
    }
    let names = view::row_names(run);
    let mut text = "\nFAILED: the figures above do not count, because\n".to_owned();
    for failure in failures {
        let _ = writeln!(text, "  {}: {}: {}", names[failure.row], failure.check, failure.detail);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn the_classic_table() {
        let run = sample::run();
        let text = table(&run, 180);
        let header = text.lines().find(|l| l.starts_with("row ")).unwrap();
        assert!(header.contains("MB/s written") && header.contains("consistent reads (%)"), "{header}");
        let first = text.lines().find(|l| l.starts_with(&run.rows[0].name)).unwrap();
        assert!(first.contains(" (") && first.ends_with("ok"), "{first}");
        assert!(text.contains("warning: "));
        assert!(text.contains("p99.9"));
        assert!(text.contains("All 40 checks passed."), "{text}");
        assert!(text.lines().all(|l| l.chars().count() <= 180));
    }

    #[test]
    fn failures_are_loud() {
        let run = sample::failed_run();
        let text = table(&run, 180);
        assert!(text.contains("FAILED: the figures above do not count"), "{text}");
        assert!(text.contains("total balance: 999,900 instead of 1,000,000 (repetition 2)"), "{text}");
        assert!(text.contains("NOT FINISHED"), "{text}");
        assert!(text.contains("server ended with signal 9"), "{text}");
    }

    #[test]
    fn narrow_terminals_get_by() {
        let text = table(&sample::run(), 60);
        assert!(text.lines().filter(|l| l.starts_with("safe, journal on")).count() >= 4, "{text}");
        assert!(table(&sample::run(), 30).contains("\n  MB/s written"));
        // In between, the spread is left out.
        let text = table(&sample::run(), 100);
        let line = text.lines().find(|l| l.starts_with("safe, journal on")).unwrap();
        assert!(!line.contains('(') && line.ends_with("10 ok"), "{line}");
    }
}
