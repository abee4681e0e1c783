//! Two runs beside each other: which figures differ, by how much, and whether that is more than chance.

mod environment;
mod html;
mod matching;
mod moved;
mod table;
#[cfg(test)]
mod tests;

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::results::{Better, Metric, Row, RunResult};
use crate::stats::{self, Ratio, Summary, Verdict};

/// Resampling starts from the same place each time, so that the same two files give the same intervals.
const SEED: u64 = 0x5eed_0f5e_af00;

/// Run `b` measured against run `a`.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Experiment and time of each run.
    pub heads: [String; 2],
    /// What makes the two less comparable: other machines, other settings, rows that failed or lack a partner.
    pub warnings: Vec<String>,
    /// The rows that both have.
    pub rows: Vec<ComparedRow>,
}

/// A row that both runs have.
#[derive(Clone, Debug)]
pub struct ComparedRow {
    /// The row's name.
    pub name: String,
    /// What it ran on in each run.
    pub targets: [String; 2],
    /// Why its figures do not count: it failed in one run.
    pub failed: Option<String>,
    /// Every metric that both have; none when the row failed.
    pub metrics: Vec<ComparedMetric>,
}

/// A figure that both rows have.
#[derive(Clone, Debug)]
pub struct ComparedMetric {
    /// The metric's name.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// Its good direction.
    pub better: Option<Better>,
    /// Median and spread in each run.
    pub sides: [Summary; 2],
    /// `b` over `a`; `None` when `a` is 0.
    pub ratio: Option<Ratio>,
    /// Whether the difference is more than chance.
    pub verdict: Verdict,
}

/// What a significant difference means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Run `b` is better.
    Better,
    /// Run `b` is worse.
    Worse,
    /// They differ, and neither direction is good.
    Other,
    /// No difference was shown.
    Unclear,
}

impl ComparedMetric {
    fn new(a: &Metric, b: &Metric, random: &mut StdRng) -> Option<ComparedMetric> {
        Some(ComparedMetric {
            name: a.name.clone(),
            unit: a.unit.clone(),
            better: a.better,
            sides: [stats::summary(&a.values)?, stats::summary(&b.values)?],
            ratio: stats::ratio(&a.values, &b.values, random),
            verdict: stats::compare(&a.values, &b.values),
        })
    }

    /// The ratio, if its interval says anything: of one repetition on a side nothing is known of the spread.
    pub fn interval(&self) -> Option<Ratio> {
        self.ratio.filter(|_| self.sides.iter().all(|side| side.n >= 2))
    }

    /// What the difference means, if there is one.
    pub fn change(&self) -> Change {
        let Verdict::Different { .. } = self.verdict else { return Change::Unclear };
        let grown = self.sides[1].median > self.sides[0].median;
        match (self.better, self.sides[1].median == self.sides[0].median) {
            (None, _) | (_, true) => Change::Other,
            (Some(Better::Higher), _) if grown => Change::Better,
            (Some(Better::Lower), _) if !grown => Change::Better,
            _ => Change::Worse,
        }
    }
}

impl Comparison {
    /// The comparison as aligned text, as wide as the terminal allows.
    pub fn table(&self) -> String {
        table::table(self, crate::report::terminal_width())
    }

    /// The comparison as one HTML page that needs nothing but a browser.
    pub fn html(&self) -> String {
        html::page(self)
    }

    /// Which rows moved, and how many did not.
    pub fn summary(&self) -> String {
        moved::summary(self)
    }

    /// How many differences to expect where nothing changed, so that a reader does not trust each one blindly.
    fn by_chance(&self) -> Option<String> {
        let judged = self.rows.iter().flat_map(|r| &r.metrics);
        let judged = judged
            .filter(|m| matches!(m.verdict, Verdict::Different { .. } | Verdict::Undecided { .. }))
            .count();
        (judged >= 5).then(|| {
            let expected = judged as f64 * stats::SIGNIFICANCE;
            format!(
                "{judged} figures were judged at p < {}: had nothing changed, up to {expected:.1} of them would still \
                 be called different.",
                stats::SIGNIFICANCE
            )
        })
    }
}

/// Compares run `b` with run `a`, row by row and metric by metric.
pub fn compare(a: &RunResult, b: &RunResult) -> Comparison {
    let mut random = StdRng::seed_from_u64(SEED);
    let mut warnings = environment::differences(a, b);
    let matched = matching::pairs(&a.rows, &b.rows);
    warnings.extend(matched.only_a.iter().map(|r| format!("only the first run has the row {r}")));
    warnings.extend(matched.only_b.iter().map(|r| format!("only the second run has the row {r}")));
    let rows: Vec<ComparedRow> =
        matched.pairs.into_iter().map(|(a, b)| compared_row(a, b, &mut random)).collect();
    for row in &rows {
        warnings.extend(row.failed.iter().map(|reason| format!("row {} does not count: {reason}", row.name)));
    }
    Comparison { heads: [head(a), head(b)], warnings, rows }
}

fn head(run: &RunResult) -> String {
    format!("{}, {}", run.experiment, crate::report::date(run.started_ms))
}

fn compared_row(a: &Row, b: &Row, random: &mut StdRng) -> ComparedRow {
    let failed = [("first", a), ("second", b)]
        .into_iter()
        .find(|(_, row)| !row.passed())
        .map(|(which, row)| format!("in the {which} run it failed ({})", failure(row)));
    let of_b = |name: &str| b.metrics.iter().find(|m| m.name == name);
    let mut metrics = Vec::new();
    if failed.is_none() {
        metrics = a.metrics.iter().filter_map(|m| ComparedMetric::new(m, of_b(&m.name)?, random)).collect();
    }
    ComparedRow { name: a.name.clone(), targets: [a.target.clone(), b.target.clone()], failed, metrics }
}

fn failure(row: &Row) -> String {
    let failed_check = || row.repetitions.iter().flat_map(|r| &r.checks).find(|c| !c.passed);
    row.failed
        .clone()
        .or_else(|| failed_check().map(|c| format!("{}: {}", c.name, c.detail)))
        .unwrap_or_default()
}
