//! Statistics of repeated measurements and of latency histograms.
//!
//! A handful of repetitions is the usual case, so nothing here assumes a normal distribution: figures are medians
//! with their spread, ratios carry a bootstrap interval, and differences are judged by the exact distribution of the
//! Mann-Whitney U statistic. With few repetitions no difference, however large, can be significant; the verdict
//! then says so instead of calling the difference chance.

mod histogram;
mod rank;
#[cfg(test)]
mod tests;

use rand::{Rng, RngExt};

pub use histogram::{
    CurvePoint, HistogramError, decode_histogram, encode_histogram, merge_histograms, percentile_curve,
};
pub use rank::{RankTest, mann_whitney, smallest_p};

/// Differences with a probability below this under "nothing changed" are called significant.
pub const SIGNIFICANCE: f64 = 0.05;

/// The middle of some values and how far they spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// How many values there were.
    pub n: usize,
    /// The middle value, or the mean of the two middle ones.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// Median of the absolute deviations from the median.
    pub mad: f64,
}

/// Sums up the finite ones of `values`; `None` when there is none.
pub fn summary(values: &[f64]) -> Option<Summary> {
    let sorted = sorted_finite(values);
    let median = middle(&sorted)?;
    let deviations: Vec<f64> = sorted.iter().map(|v| (v - median).abs()).collect();
    Some(Summary {
        n: sorted.len(),
        median,
        min: sorted[0],
        max: sorted[sorted.len() - 1],
        mad: middle(&sorted_finite(&deviations))?,
    })
}

/// The median of the finite ones of `values`; `None` when there is none.
pub fn median(values: &[f64]) -> Option<f64> {
    middle(&sorted_finite(values))
}

fn sorted_finite(values: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn middle(sorted: &[f64]) -> Option<f64> {
    let n = sorted.len();
    match n {
        0 => None,
        n if n % 2 == 1 => Some(sorted[n / 2]),
        _ => Some((sorted[n / 2 - 1] + sorted[n / 2]) / 2.0),
    }
}

/// A ratio of two medians with its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Median of `b` over median of `a`.
    pub ratio: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// How often the bootstrap draws anew.
pub const RESAMPLES: usize = 4000;

/// `median(b) / median(a)` with its 95 % percentile-bootstrap interval.
///
/// `None` when a side has no values or the ratio is not defined (a median of 0 in `a`). With one value a side the
/// interval is the ratio itself: nothing is known about the spread, and [`compare`] says so.
pub fn ratio(a: &[f64], b: &[f64], random: &mut impl Rng) -> Option<Ratio> {
    let (a, b) = (sorted_finite(a), sorted_finite(b));
    let (below, above) = (middle(&a)?, middle(&b)?);
    if below == 0.0 {
        return None;
    }
    let mut ratios = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let below = resampled_median(&a, random);
        // A resample whose median is 0 has no ratio; leaving it out only narrows an interval that is wide anyway.
        if below != 0.0 {
            ratios.push(resampled_median(&b, random) / below);
        }
    }
    ratios.sort_by(f64::total_cmp);
    let at = |p: f64| ratios[((ratios.len() - 1) as f64 * p).round() as usize];
    let ratio = above / below;
    if ratios.is_empty() {
        return Some(Ratio { ratio, low: ratio, high: ratio });
    }
    Some(Ratio { ratio, low: at(0.025).min(ratio), high: at(0.975).max(ratio) })
}

fn resampled_median(sorted: &[f64], random: &mut impl Rng) -> f64 {
    let drawn: Vec<f64> = sorted.iter().map(|_| sorted[random.random_range(0..sorted.len())]).collect();
    median(&drawn).unwrap_or(f64::NAN)
}

/// What can be said about two samples of the same figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The two differ by more than chance explains.
    Different {
        /// Two-sided probability of a difference like this by chance.
        p: f64,
    },
    /// A difference like this is not rare by chance.
    Undecided {
        /// Two-sided probability of a difference like this by chance.
        p: f64,
    },
    /// Even samples without any overlap could not have been significant.
    TooFew {
        /// The smallest probability that these numbers of repetitions can reach.
        smallest_p: f64,
    },
    /// A side has no values.
    NoValues,
}

impl Verdict {
    /// One short phrase for a table.
    pub fn text(&self) -> String {
        match self {
            Verdict::Different { p } => format!("different (p = {})", p_text(*p)),
            Verdict::Undecided { p } => format!("not significant (p = {})", p_text(*p)),
            Verdict::TooFew { smallest_p } => {
                format!("too few repetitions (p cannot be below {})", p_text(*smallest_p))
            }
            Verdict::NoValues => "no values".to_owned(),
        }
    }
}

fn p_text(p: f64) -> String {
    if p < 0.001 { format!("{p:.1e}") } else { format!("{p:.3}") }
}

/// Judges whether `a` and `b` differ, by [`mann_whitney`].
pub fn compare(a: &[f64], b: &[f64]) -> Verdict {
    let (a, b) = (sorted_finite(a), sorted_finite(b));
    let Some(test) = mann_whitney(&a, &b) else { return Verdict::NoValues };
    let smallest = smallest_p(a.len(), b.len());
    if smallest >= SIGNIFICANCE {
        Verdict::TooFew { smallest_p: smallest }
    } else if test.p < SIGNIFICANCE {
        Verdict::Different { p: test.p }
    } else {
        Verdict::Undecided { p: test.p }
    }
}
