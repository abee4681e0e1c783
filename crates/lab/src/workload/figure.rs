//! The columns that a workload gives the table.

use crate::context::Context;
use crate::measure::Measured;
use crate::measure::stalls::Stalls;
use crate::results::Better;

/// The inserts behind the first seconds: of a short import it says nothing.
pub const AFTER_FIRST: &str = "inserts/s after 3 s";
/// How long it took until the shards were even, where they came to be.
pub const UNTIL_EVEN: &str = "until even";

/// The longest time in which nothing of some kind succeeded.
pub const LONGEST_STALL: &str = "longest stall";

/// The figures that a repetition may lack.
pub const MAY_LACK: [&str; 2] = [AFTER_FIRST, UNTIL_EVEN];

/// One column's value of one repetition.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// "MB/s written".
    pub name: String,
    /// "MB/s", "us", "%", "1/s".
    pub unit: &'static str,
    /// Which direction is good.
    pub better: Option<Better>,
    /// The value.
    pub value: f64,
    /// What it should be, or better.
    pub aim: Option<f64>,
}

impl Figure {
    /// With what it should be.
    #[must_use]
    pub fn aim(self, aim: f64) -> Figure {
        Figure { aim: Some(aim), ..self }
    }

    /// A figure of which more is better.
    pub fn higher(name: impl Into<String>, unit: &'static str, value: f64) -> Figure {
        Figure { name: name.into(), unit, better: Some(Better::Higher), value, aim: None }
    }

    /// A figure of which less is better.
    pub fn lower(name: impl Into<String>, unit: &'static str, value: f64) -> Figure {
        Figure { name: name.into(), unit, better: Some(Better::Lower), value, aim: None }
    }

    /// A figure without a good direction.
    pub fn plain(name: impl Into<String>, unit: &'static str, value: f64) -> Figure {
        Figure { name: name.into(), unit, better: None, value, aim: None }
    }
}

/// Percentiles of the latencies of some operations, each with the label that it has in the table.
pub(super) fn latencies(
    measured: &Measured,
    operations: &[(&str, &str)],
    percentiles: &[f64],
) -> Vec<Figure> {
    let of = |(operation, label): &(&str, &str)| {
        let totals = measured.operation(operation);
        let figure = |percentile: &f64| {
            Figure::lower(format!("{label} p{percentile}"), "us", totals.percentile_us(*percentile))
        };
        percentiles.iter().map(figure).collect::<Vec<_>>()
    };
    operations.iter().flat_map(of).collect()
}

/// What the stalls of some operations come to, which were asked for in so many seconds: the longest, and how many there
/// were.
pub(super) fn stalls(context: &Context, operations: &[&str], seconds: f64) -> [Figure; 3] {
    let stalls = Stalls::of(&context.recorder.traces(), operations, seconds);
    [
        Figure::lower(LONGEST_STALL, "us", stalls.longest_ms as f64 * 1e3),
        Figure::lower("gaps > 100 ms", "", stalls.over_100 as f64),
        Figure::lower("gaps > 250 ms", "", stalls.over_250 as f64),
    ]
}
