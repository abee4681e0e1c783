//! The comparison as text.

use std::fmt::Write as _;

use super::{Change, ComparedMetric, Comparison};
use crate::report::{Align, Grid, figure, range, unit_text};
use crate::stats::{Ratio, Summary};

/// The whole comparison.
pub fn table(comparison: &Comparison, width: usize) -> String {
    let mut text = format!("A  {}\nB  {}\n", comparison.heads[0], comparison.heads[1]);
    let _ = writeln!(text, "{}", comparison.summary());
    for warning in &comparison.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    let (full, short) = (grid(comparison, true), grid(comparison, false));
    let grid = if full.fits(width) || !short.fits(width) { full } else { short };
    if grid.is_empty() {
        text.push_str("\nThe two runs have no figure in common.\n");
    } else {
        let _ = write!(text, "\n{}", grid.print(width));
    }
    if let Some(note) = comparison.by_chance() {
        let _ = write!(text, "\n{note}\n");
    }
    text
}

/// A line per metric; without the spread of each side it is narrower.
fn grid(comparison: &Comparison, spread: bool) -> Grid {
    let columns = ["row, metric", "A", "B", "B / A", "95 % interval", "", "verdict"];
    let aligned = |name: &&str| {
        let align = if matches!(*name, "A" | "B" | "B / A") { Align::Right } else { Align::Left };
        ((*name).to_owned(), align)
    };
    let mut grid = Grid::new(columns.iter().map(aligned).collect());
    for row in &comparison.rows {
        for metric in &row.metrics {
            let unit = unit_text(&metric.name, &metric.unit);
            let unit = if unit.is_empty() { String::new() } else { format!(" ({unit})") };
            grid.row(vec![
                format!("{}: {}{unit}", row.name, metric.name),
                side(&metric.sides[0], &metric.unit, spread),
                side(&metric.sides[1], &metric.unit, spread),
                metric.ratio.map_or("-".to_owned(), |r| ratio(r.ratio)),
                metric.interval().map_or("-".to_owned(), interval),
                change(metric).to_owned(),
                metric.verdict.text(),
            ]);
        }
    }
    grid
}

/// "412 (395-420)".
fn side(summary: &Summary, unit: &str, spread: bool) -> String {
    let middle = figure(summary.median, unit);
    if !spread || summary.n == 1 || summary.min == summary.max {
        return middle;
    }
    format!("{middle} ({})", range(summary.min, summary.max, unit, "-"))
}

/// "1.25", with the digits that a ratio needs.
pub fn ratio(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 0.1 => format!("{v:.2}"),
        v => format!("{v:.2e}"),
    }
}

/// "1.21 - 1.30".
pub fn interval(r: Ratio) -> String {
    format!("{} - {}", ratio(r.low), ratio(r.high))
}

/// One word for a significant change.
pub fn change(metric: &ComparedMetric) -> &'static str {
    match metric.change() {
        Change::Better => "better",
        Change::Worse => "WORSE",
        Change::Other => "differs",
        Change::Unclear => "",
    }
}
