//! The comparison in a line: which rows moved, by which of their figures, and how many did not.

use super::table::{change, interval, ratio};
use super::{Change, ComparedMetric, ComparedRow, Comparison};
use crate::report::figure;
use crate::stats::Verdict;

/// Figures of one row that are named; a row of which all moved says enough with these.
const NAMED: usize = 4;

/// "moved: C (operations/s 1.25, 1.20 - 1.31, better); did not move: 5 rows".
pub fn summary(comparison: &Comparison) -> String {
    let counted: Vec<&ComparedRow> = comparison.rows.iter().filter(|row| row.failed.is_none()).collect();
    let moved: Vec<String> = counted.iter().filter_map(|row| moved(row)).collect();
    let untold = counted.iter().filter(|row| is_untold(row)).count();
    let still = counted.len() - moved.len() - untold;
    let mut parts =
        vec![format!("moved: {}", if moved.is_empty() { "nothing".to_owned() } else { moved.join("; ") })];
    parts.push(format!("did not move: {}", rows(still)));
    if untold > 0 {
        parts.push(format!("cannot be told of so few repetitions: {}", rows(untold)));
    }
    let failed = comparison.rows.len() - counted.len();
    if failed > 0 {
        parts.push(format!("do not count: {}", rows(failed)));
    }
    parts.join("; ")
}

fn rows(count: usize) -> String {
    if count == 1 { "1 row".to_owned() } else { format!("{count} rows") }
}

/// A row with the figures that moved; `None` when none did.
fn moved(row: &ComparedRow) -> Option<String> {
    let all: Vec<&ComparedMetric> =
        row.metrics.iter().filter(|metric| metric.change() != Change::Unclear).collect();
    let mut named: Vec<String> = all.iter().take(NAMED).map(|metric| text(metric)).collect();
    if all.len() > NAMED {
        named.push(format!("{} more", all.len() - NAMED));
    }
    (!named.is_empty()).then(|| format!("{} ({})", row.name, named.join(", ")))
}

/// By how much; from nothing, as a first stall is, there is no ratio.
fn text(metric: &ComparedMetric) -> String {
    let side = |at: usize| figure(metric.sides[at].median, &metric.unit);
    let by = match (metric.ratio, metric.interval()) {
        (_, Some(r)) => format!("x {} [{}]", ratio(r.ratio), interval(r)),
        (Some(r), None) => format!("x {}", ratio(r.ratio)),
        (None, None) => format!("{} to {}", side(0), side(1)),
    };
    format!("{} {by} {}", metric.name, change(metric))
}

/// Whether nothing of it could be judged.
fn is_untold(row: &ComparedRow) -> bool {
    row.metrics.iter().all(|metric| matches!(metric.verdict, Verdict::TooFew { .. } | Verdict::NoValues))
}
